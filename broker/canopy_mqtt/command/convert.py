"""`canopy convert` turns a mosquitto.conf into settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from canopy_mqtt.convert import mosquitto
from canopy_mqtt.convert.source import ConvertError
from canopy_mqtt.terminal import MISUSED, fail

UNCONVERTED: Final = 3
"""The exit code of `convert` if its output does not do all that the source asks for."""


app = typer.Typer(rich_markup_mode=None)


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A mosquitto.conf, of mosquitto 2.0 or 2.1.")],
) -> None:
    """Convert a mosquitto.conf to Canopy settings: canopy convert mosquitto.conf > canopy.toml.

    Lines that become no setting stand as comments at the head, and on standard error, with the reason and Canopy's
    alternative. The exit code is 3 if one of them asked for something that the settings do not do.
    """
    try:
        converted = mosquitto.convert(file)
    except ConvertError as error:
        fail(str(error), MISUSED)
    # TOML is UTF-8, whatever the locale.
    typer.echo(converted.toml.encode(), nl=False)
    for line in (*converted.guards, *converted.missing, *converted.hints):
        typer.echo(f"canopy: {line}", err=True)
    if converted.guards or converted.missing:
        raise typer.Exit(UNCONVERTED)
