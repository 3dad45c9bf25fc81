"""`canopy ctl top`: shows the most expensive topics and clients as tables that refresh themselves, until Ctrl-C.

Promises: names, which clients choose, are shown as printable text; without a terminal (a pipe, `--once`, `--json`) the
tables are printed once.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from canopy_mqtt.ctl.api_client import ApiClient
from canopy_mqtt.ctl.options import failures_in_one_line, options

UNITS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Of(StrEnum):
    TOPICS = "topics"
    PREFIXES = "prefixes"
    PUBLISHERS = "publishers"
    SUBSCRIBERS = "subscribers"


class By(StrEnum):
    MESSAGES = "messages"
    BYTES = "bytes"
    DROPS = "drops"
    LAG = "lag"


@failures_in_one_line
def top(
    context: typer.Context,
    of: Annotated[list[Of] | None, typer.Option(help="Which tables; default: all.")] = None,
    by: Annotated[By, typer.Option(help="Sort by this; drops and lag only for subscribers.")] = By.MESSAGES,
    window: Annotated[float | None, typer.Option(metavar="SECONDS", help="60 (the default) or 3600.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=4_096, help="Rows of each table.")] = 8,
    every: Annotated[float, typer.Option(min=0.2, metavar="SECONDS", help="Time between updates.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show the tables once and exit.")] = False,
) -> None:
    """Show the most expensive topics, prefixes, publishers and subscribers."""
    api = options(context).api()
    wanted = of or ([Of.SUBSCRIBERS] if by in (By.DROPS, By.LAG) else list(Of))
    if options(context).as_json:
        typer.echo(json.dumps(_ask(api, wanted, by, window, limit)))
        return
    console = Console()
    if once or not sys.stdout.isatty():
        console.print(tables(_ask(api, wanted, by, window, limit)))
        return
    with suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(tables(_ask(api, wanted, by, window, limit)), refresh=True)
            time.sleep(every)


def _ask(api: ApiClient, wanted: Sequence[Of], by: By, window: float | None, limit: int) -> list[dict[str, Any]]:
    return [
        api.call("GET", "/top", of=of.value, by=by.value, window=None if of is Of.SUBSCRIBERS else window, limit=limit)
        for of in wanted
    ]


def tables(lists: Sequence[dict[str, Any]]) -> Group:
    return Group(*(_table(each) for each in lists))


def _table(found: dict[str, Any]) -> Table | Text:
    lag = found["by"] == "lag"
    what = "lag" if lag else f"{found['by']}/s"
    about = "now" if lag else f"over {found['seconds']:.4g} s"
    total = "longest" if lag else "total"
    title = f"{found['of']} by {what}, {about}, {total} {number(found['total'])}"
    if not found["data"]:
        return Text(f"{title}: none")
    made = Table(title=title, title_justify="left", expand=True)
    made.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")
    made.add_column(what, justify="right")
    made.add_column("share", justify="right")
    made.add_column("±", justify="right")
    for place in found["data"]:
        share = place["value"] / found["total"] if found["total"] and not lag else None
        # Twice the standard deviation of the sampling, and by what the counter may be too high.
        doubt = 2 * place["deviation"] + place["error"]
        made.add_row(
            Text(printable(place["name"])),
            number(place["value"]),
            "" if share is None else f"{share:.1%}",
            number(doubt) if doubt else "",
        )
    return made


def printable(name: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)


def number(value: float) -> str:
    for unit, letter in UNITS:
        if value >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"
