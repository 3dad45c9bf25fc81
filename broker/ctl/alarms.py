"""`canopy ctl alarms`: what is wrong with a broker now, and what was."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker.ctl.options import asking, options
from broker.ctl.top import printable


@asking
def alarms(
    context: typer.Context,
    history: Annotated[bool, typer.Option("--history", help="Show past alarms, the latest first.")] = False,
) -> None:
    """Show current alarms. The exit code is 3 if there are any, for scripts."""
    answer = options(context).api().call("GET", "/alarms", activated="false" if history else None)
    found = answer["data"]
    if options(context).as_json:
        typer.echo(json.dumps(answer))
    elif not found:
        typer.echo("no alarm has been raised and cleared" if history else "no alarm is raised")
    else:
        table = Table("alarm", "since", "seconds", "what it says", box=None)
        for alarm in found:
            seconds = str(alarm["duration"] // 1_000)
            # Text: what somebody wrote into it is no markup of the table.
            name, message = Text(printable(alarm["name"])), Text(printable(alarm["message"]))
            table.add_row(name, alarm["activate_at"][:19], seconds, message)
        Console(highlight=False, soft_wrap=True).print(table)
    if found and not history:
        raise typer.Exit(3)
