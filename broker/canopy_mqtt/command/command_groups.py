"""Loads the groups of commands, `canopy load`, `canopy ctl` and the others, and the command `canopy prove`.

Promises: a group is imported only when it is used, so that `canopy serve` starts without it.
"""

from __future__ import annotations

from collections import UserDict
from typing import Any, Final

import typer

from canopy_mqtt.terminal import Anywhere, Group

NAMES: Final = ("load", "prove", "acl", "ctl", "record", "store", "pipeline")
"""The order in `canopy --help`, after the single commands."""


class Canopy(Group):
    """`canopy` itself: its own commands, and the groups."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands({**self.commands, **dict.fromkeys(NAMES)})


class _Commands(UserDict[str, Any]):
    """Commands by name; a group is None until it is used."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if found is None:
            alone = typer.Typer(rich_markup_mode=None)
            if name == "prove":
                _add_prove(alone)
            else:
                alone.add_typer(_imported(name), name=name, cls=Anywhere if name == "ctl" else Group)
            found = self.data[name] = typer.main.get_group(alone).commands[name]
        return found


def _add_prove(app: typer.Typer) -> None:
    """Add the command `prove`, which is no group."""
    from canopy_load.cli.common import told
    from canopy_load.cli.prove import prove

    app.command("prove")(told(prove))


def _imported(name: str) -> typer.Typer:
    match name:
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
