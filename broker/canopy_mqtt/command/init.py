"""`canopy init` writes a settings file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from canopy_mqtt.command.initial_settings import USES, InitError, next_commands, settings_for, write
from canopy_mqtt.terminal import MISUSED, fail

app = typer.Typer(rich_markup_mode=None)


@app.command()
def init(
    use: Annotated[
        str,
        typer.Argument(
            metavar="USE", help="dev, edge, public, recorder or cluster.", autocompletion=lambda: list(USES)
        ),
    ] = "dev",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write; - for standard output.")
    ] = Path("canopy.toml"),
    database: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Of cluster: the nodes share their durable sessions in this database, postgresql://USER@HOST/NAME.",
        ),
    ] = "",
    compose: Annotated[
        bool,
        typer.Option(
            "--compose",
            help="Of cluster: the nodes run in containers, with a PostgreSQL: writes a compose file as well.",
        ),
    ] = False,
) -> None:
    """Write a commented settings file to start from, and print the next commands.

    dev: a developer's machine. edge: a small machine, linked to a broker in the cloud. public: TLS, users and rules.
    recorder: records all traffic for analysis. cluster: three nodes, and a file for each, with its name behind that of
    FILE. Keys and passwords are expected beside FILE; existing ones stay.
    """
    if use not in USES:
        fail(f"{use}: allowed: {', '.join(USES)}", MISUSED)
    try:
        if str(output) == "-":
            if compose:
                raise InitError("--compose writes several files: name one of them (--output FILE)")
            typer.echo(settings_for(use, database=database).encode(), nl=False)
            return
        written = write(use, output, database, compose)
    except InitError as error:
        fail(str(error))
    typer.echo(f"{', '.join(map(str, written))}: {USES[use].about}\n\nnext:")
    for command in next_commands(use, output, written, database, compose):
        typer.echo(f"    {command}")
