"""`canopy ctl room`: how much of each bound is used, and which users and addresses hold most."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer

from broker.ctl.lists import Columns, table
from broker.ctl.options import asking, options

ROOMS: Final[Columns] = {
    "room": lambda of: of["room"],
    "held": lambda of: of["held"],
    "bound": lambda of: of["bound"] or "none",
    "used": lambda of: f"{of['held'] / of['bound']:.1%}" if of["bound"] else "",
    "accounts": lambda of: of["accounts"],
    "fair share": lambda of: of["share"] if of["bound"] else "",
    "refused": lambda of: of["refused"],
    "gave way": lambda of: of["gave_way"],
}

HOLDERS: Final[Columns] = {
    "room": lambda of: of["room"],
    "account": lambda of: of["account"],
    "held": lambda of: of["held"],
    "of the bound": lambda of: f"{of['held'] / of['bound']:.1%}" if of["bound"] else "",
}


@asking
def room(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=0, max=100, metavar="N", help="Accounts of each room.")] = 3,
) -> None:
    """Show how much of each bound is used, and which users and addresses hold most."""
    found: dict[str, Any] = options(context).api().call("GET", "/room", limit=limit)
    if options(context).as_json:
        typer.echo(json.dumps(found))
        return
    table(ROOMS, found["data"])
    holders = [
        {**holder, "room": each["room"], "bound": each["bound"]} for each in found["data"] for holder in each["largest"]
    ]
    if holders:
        typer.echo()
        table(HOLDERS, holders)
