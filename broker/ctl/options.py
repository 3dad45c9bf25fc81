"""The options of every command of `canopy ctl`: which broker, which user, and the form of the output."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from broker.command.commands import foreseen
from broker.ctl.asking import Api, CtlError


@dataclass(slots=True, frozen=True)
class Options:
    """The options of `canopy ctl` itself."""

    url: str
    token_file: Path | None
    user: str
    ca: Path | None
    as_json: bool

    def api(self) -> Api:
        """The broker. Asks for a password where a user was named. Raises CtlError."""
        token = "" if self.token_file is None else _token(self.token_file)
        password = ""
        if self.user and not token:
            # From a pipe, as scripts have it, or from a terminal that does not show it.
            password = (
                typer.prompt("Password", hide_input=True, err=True)
                if sys.stdin.isatty()
                else sys.stdin.readline().removeprefix("\ufeff").rstrip("\r\n")
            )
        return Api(self.url, token, self.user, password, self.ca)


def _token(file: Path) -> str:
    """The first token of a file. Raises CtlError."""
    try:
        with file.open(encoding="utf-8-sig") as opened:
            if os.name == "posix" and _open_to_others(os.fstat(opened.fileno())):
                raise CtlError(f"{file}: others than its owner may read it; chmod 600 it")
            for line in opened:
                # As the broker reads the file: a token may have a `#` in it.
                token = line.strip()
                if token and not token.startswith("#"):
                    return token
    except (OSError, UnicodeDecodeError) as error:
        raise CtlError(f"{file}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    raise CtlError(f"{file}: has no token")


def _open_to_others(status: os.stat_result) -> bool:
    """Whether others may read a file, or its group may of a file of one's own: nobody gave it that on purpose.

    What belongs to root and a group is how Kubernetes mounts a secret, and how an administrator hands one over.
    """
    own = status.st_uid == os.geteuid()
    return bool(status.st_mode & (stat.S_IRWXO | (stat.S_IRWXG if own else 0)))


def options(context: typer.Context) -> Options:
    """Those that the command was called with."""
    found = context.find_object(Options)
    assert found is not None
    return found


def asking(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose failures end it in one line and exit code 1."""
    return foreseen(command, CtlError)
