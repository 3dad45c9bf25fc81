"""Loads the commands: `canopy serve` and the other single ones, and the groups `canopy load`, `canopy ctl` and others.

Promises: a command is imported only when it is used, so that `canopy health`, which containers call again and again,
starts without the broker, and `canopy serve` without the load tester.
"""

from __future__ import annotations

from collections import UserDict
from typing import Any, Final

import typer

from canopy_mqtt.terminal import Anywhere, Group

SINGLE: Final = ("serve", "init", "check-config", "convert", "health", "passwd", "prove")
GROUPS: Final = ("load", "acl", "ctl", "record", "store", "pipeline")
"""The order in `canopy --help`."""


class Canopy(Group):
    """`canopy` itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands(dict.fromkeys((*SINGLE, *GROUPS)))


class _Commands(UserDict[str, Any]):
    """Commands by name; one is None until it is used."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if found is None:
            parent = imported = _imported(name)
            if name in GROUPS:
                parent = typer.Typer(rich_markup_mode=None)
                parent.add_typer(imported, name=name, cls=Anywhere if name == "ctl" else Group)
            found = self.data[name] = typer.main.get_group(parent).commands[name]
        return found


def _imported(name: str) -> typer.Typer:
    match name:
        case "serve":
            from canopy_mqtt.command.serve import app
        case "init":
            from canopy_mqtt.command.init import app
        case "check-config":
            from canopy_mqtt.command.check_config import app
        case "convert":
            from canopy_mqtt.command.convert import app
        case "health":
            from canopy_mqtt.command.health import app
        case "passwd":
            from canopy_mqtt.command.passwd import app
        case "prove":
            from canopy_load.cli.prove import app
        case "load":
            from canopy_load.cli.app import app
        case "acl":
            from canopy_mqtt.command.acl import app
        case "ctl":
            from canopy_mqtt.command.ctl import app
        case "record":
            from canopy_mqtt.command.record_verify import app
        case "store":
            from canopy_mqtt.command.store import app
        case _:
            from canopy_pipeline.cli import app
    return app
