"""How the commands of `canopy` end when something fails.

Owns `fail` and `foreseen`: a foreseen failure is a line for people, never a trace. Stands below `cli` and the
commands of the rooms (`record.cli`, `store.cli`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, NoReturn

import typer

FAILED: Final = 1
MISUSED: Final = 2
"""Exit codes: something is wrong, or the command line is."""


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End the command with a message; every line of it says who speaks."""
    for line in text.splitlines():
        typer.echo(f"canopy: {line}", err=True)
    raise typer.Exit(code)


def foreseen(command: Callable[..., Any], error: type[Exception]) -> Callable[..., Any]:
    """A command whose failures of one kind, and a reader that has gone, end it in order."""

    @wraps(command)
    def guarded(*arguments: Any, **flags: Any) -> Any:
        try:
            return command(*arguments, **flags)
        except error as failure:
            fail(str(failure))
        except BrokenPipeError:
            # Whoever read has had enough, and Python would complain at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None

    return guarded
