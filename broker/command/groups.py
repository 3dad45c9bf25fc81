"""The groups of commands: `canopy load`, `canopy ctl` and the others.

Promises: a group is imported when somebody asks for it, so that `canopy serve` starts without them.
"""

from __future__ import annotations

from collections import UserDict
from typing import Any, Final

import typer

from broker.command.commands import Anywhere, Group

NAMES: Final = ("load", "acl", "ctl", "record", "store", "pipeline")
"""As `canopy --help` lists them, after the commands that stand alone."""


class Canopy(Group):
    """`canopy` itself: its own commands, and the groups."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands({**self.commands, **dict.fromkeys(NAMES)})


class _Commands(UserDict[str, Any]):
    """Commands by name; a group is None until it is looked at."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if found is None:
            alone = typer.Typer(rich_markup_mode=None)
            alone.add_typer(_imported(name), name=name, cls=Anywhere if name == "ctl" else Group)
            found = self.data[name] = typer.main.get_group(alone).commands[name]
        return found


def _imported(name: str) -> typer.Typer:
    match name:
        case "load":
            from loadtest.load.cli.app import app
        case "acl":
            from broker.command.acl import app
        case "ctl":
            from broker.ctl.cli import app
        case "record":
            from broker.command.record_verify import app
        case "store":
            from broker.store.cli import app
        case _:
            from pipeline.cli import app
    return app
