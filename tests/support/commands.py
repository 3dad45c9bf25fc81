"""The `canopy` command line without what it does: whether words are taken, and as what."""

from __future__ import annotations

from typing import Any

from typer.main import get_command

from canopy_mqtt.command.cli import app


def options(*words: str) -> dict[str, Any]:
    """The options of the command that these words call, by name.

    Raises:
        click's UsageError: there is no such command or option.
    """
    command: Any = get_command(app)
    context = command.make_context("canopy", list(words), resilient_parsing=False)
    found: dict[str, Any] = dict(context.params)
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(rest), parent=context)
        found |= context.params
    return found
