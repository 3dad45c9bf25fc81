"""The `canopy` command.

Promises: every foreseen failure is reported in plain lines on standard error, without a traceback. Exit codes: 0
success, 1 the broker cannot run or is not healthy, 2 the settings or the command line are wrong; after a second signal,
128 and the signal's number. `command_groups` finds the commands.
"""

from __future__ import annotations

from typing import Annotated

import typer

from canopy_mqtt.buildinfo import build_info
from canopy_mqtt.command.command_groups import Canopy
from canopy_mqtt.terminal import HELP, escape_what_cannot_be_written, open_missing_streams, system_failures

app = typer.Typer(
    name="canopy",
    help="An MQTT 3.1.1 and 5.0 broker.",
    cls=Canopy,
    context_settings=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    open_missing_streams()
    escape_what_cannot_be_written()
    with system_failures():
        app(prog_name="canopy")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(str(build_info()))
        raise typer.Exit


@app.callback()
def canopy(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Print version and build, and exit."
        ),
    ] = False,
) -> None:
    """An MQTT 3.1.1 and 5.0 broker."""
