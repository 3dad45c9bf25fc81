"""The options of every command of `canopy ctl`: broker, user, and output format."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

from canopy_mqtt.ctl.api_client import ApiClient, CtlError
from canopy_mqtt.files import read_file
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.loader import load_settings
from canopy_mqtt.settings.secret_files import open_secret
from canopy_mqtt.terminal import foreseen

DEFAULT_URL: Final = "http://127.0.0.1:8080"


@dataclass(slots=True, frozen=True)
class Options:
    url: str
    token_file: Path | None
    user: str
    ca: Path | None
    as_json: bool

    def api(self) -> ApiClient:
        """Make the client of the API. Asks for a password if a user is given. Raises CtlError."""
        token = "" if self.token_file is None else _token(self.token_file)
        password = ""
        if self.user and not token:
            # From a pipe, as scripts have it, or from a terminal that does not show it.
            password = (
                typer.prompt("Password", hide_input=True, err=True)
                if sys.stdin.isatty()
                else sys.stdin.readline().removeprefix("\ufeff").rstrip("\r\n")
            )
        return ApiClient(self.url, token, self.user, password, self.ca)


def _token(file: Path) -> str:
    """Return the first token in a file. Raises CtlError."""
    try:
        for line in read_file(file).decode("utf-8-sig").split("\n"):
            # As the broker reads the file: a token may have a `#` in it.
            token = line.strip()
            if token and not token.startswith("#"):
                for problem in open_secret(str(file)):
                    typer.echo(f"canopy: {problem}", err=True)
                return token
    except (OSError, UnicodeDecodeError) as error:
        raise CtlError(f"{file}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    raise CtlError(f"{file}: has no token")


def of_settings(config: Path) -> tuple[str, Path | None, Path | None]:
    """Return URL, token file and authority of the broker that runs with these settings.

    Raises:
        CtlError: they are wrong, or the broker does not listen for HTTP.
    """
    try:
        http = load_settings(config).http
    except SettingsError as error:
        raise CtlError(str(error)) from None
    if not http.listen:
        raise CtlError(
            f"{config}: the broker does not listen for HTTP with these settings; add [http] with "
            f'listen = ["{DEFAULT_URL}"], and start it again'
        )
    # A Unix socket needs no password.
    endpoint = min(http.endpoints, key=lambda each: not each.path)
    if not endpoint.path:
        host = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(endpoint.host, endpoint.host)
        endpoint = endpoint._replace(host=host)
    tokens = [Path(name) for name in (http.operator_token_file, http.viewer_token_file) if name]
    token = next((file for file in tokens if os.access(file, os.R_OK)), tokens[0] if tokens else None)
    return (
        endpoint.url(),
        None if endpoint.path else token,
        Path(http.certificate) if endpoint.scheme == "https" else None,
    )


def done(context: typer.Context, text: str) -> None:
    """Confirm a command in a line, or as JSON."""
    typer.echo(json.dumps({"done": text}) if options(context).as_json else text)


def options(context: typer.Context) -> Options:
    found = context.find_object(Options)
    assert found is not None
    return found


def failures_in_one_line(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command: its failures end it with one line and exit code 1."""
    return foreseen(command, CtlError)
