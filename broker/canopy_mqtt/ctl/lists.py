"""Shows lists of a broker's API: as many pages as needed, as one table or as JSON.

Promises: names, which clients choose, are shown as printable text, without markup of the table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from canopy_mqtt.ctl.api_client import ApiClient
from canopy_mqtt.ctl.options import options
from canopy_mqtt.ctl.top import printable

PAGE: Final = 1_000
"""Entries of one request."""

NAMING: Final = frozenset({"pid", "port"})
"""Numbers that are names: they get no separators."""

WIDEST: Final = 1_000_000
"""Characters of a row: more than names of 65,535 bytes each take."""

Limit: TypeAlias = Annotated[int, typer.Option(min=1, metavar="N", help="Show at most this many.")]

Columns: TypeAlias = dict[str, Callable[[dict[str, Any]], object]]
"""Headings, and functions that return the value of an entry below each; numbers are aligned to the right."""


def entries(api: ApiClient, path: str, limit: int, **query: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the first `limit` entries of a list, and what describes them: whether there are more (`hasnext`), and the
    node whose own they are (`node`; None: those of all). Raises CtlError."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = api.call("GET", path, limit=min(PAGE, limit - len(found)), cursor=cursor, **query)
        found += page["data"]
        cursor = page["meta"]["cursor"]
        if cursor is None or len(found) >= limit:
            return found, {"limit": limit, "hasnext": cursor is not None, "node": page["meta"].get("node")}


def show(context: typer.Context, columns: Columns, path: str, limit: int, **query: Any) -> None:
    """Print a list of the API as a table, or as JSON. A line on standard error says if there are more entries."""
    found, meta = entries(options(context).api(), path, limit, **query)
    if options(context).as_json:
        typer.echo(json.dumps({"data": found, "meta": meta}))
        return
    table(columns, found)
    if meta["hasnext"]:
        typer.echo(f"canopy: there are more; --limit shows more than {limit:,}", err=True)


def table(columns: Columns, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a table of any width, so that other programs can search it."""
    made = Table(box=None)
    cells = [[of(row) for of in columns.values()] for row in rows]
    for number, heading in enumerate(columns):
        numbers = bool(cells) and all(isinstance(row[number], int | float) for row in cells)
        made.add_column(heading, justify="right" if numbers else "left", no_wrap=True)
    for row in cells:
        made.add_row(*(Text(_cell(heading, cell)) for heading, cell in zip(columns, row, strict=True)))
    # As wide as the longest names: a terminal's width would cut them, and what is cut names nothing.
    wide = Console(width=WIDEST).measure(made).maximum
    Console(highlight=False, width=max(wide, 1), soft_wrap=True).print(made)


def facts(context: typer.Context, found: dict[str, Any]) -> None:
    """Print the values of one object, a line for each, or as JSON."""
    if options(context).as_json:
        typer.echo(json.dumps(found))
        return
    wide = max((len(name) for name in found), default=0)
    for name, value in found.items():
        typer.echo(f"{name:<{wide}}  {_cell(name, value) or '-'}")


def _cell(name: str, value: object) -> str:
    return str(value) if name in NAMING and isinstance(value, int) else _text(value)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{printable(str(name))}={_text(each)}" for name, each in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(_text(each) for each in value) or "-"
    return printable(str(value))


def write(data: bytes) -> None:
    """Write bytes unchanged to standard output."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
