"""`canopy ctl figures`: what a broker counts."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from broker.ctl.options import asking, options


@asking
def figures(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Pattern of names, such as messages.*.")] = "*",
) -> None:
    """Show the broker's figures: current values, and totals since its start. docs/sys.md explains them."""
    api = options(context).api()
    answer = api.call("GET", "/stats") | api.call("GET", "/metrics")
    found = {name: value for name, value in sorted(answer.items()) if fnmatchcase(name, pattern)}
    if options(context).as_json:
        typer.echo(json.dumps(found))
        return
    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in found.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else f"{value:,.3f}")
    Console(highlight=False, soft_wrap=True).print(table)
