"""`canopy ctl recent`: the clients to which something happened last, also after they have left."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from broker.ctl.lists import Columns, Limit, show
from broker.ctl.options import asking


def _counts(of: dict[str, Any]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in of["counts"].items())


LOSERS: Final[Columns] = {
    "client": lambda of: of["clientid"],
    "user": lambda of: of["username"],
    "address": lambda of: of["ip_address"],
    "state": lambda of: "here" if of["here"] else "gone",
    "first": lambda of: of["first_at"],
    "last": lambda of: of["last_at"],
    "lost": lambda of: sum(of["counts"].values()),
    "causes": _counts,
}

REFUSED: Final[Columns] = {
    "client": lambda of: of["clientid"],
    "user": lambda of: of["username"],
    "address": lambda of: of["ip_address"],
    "last": lambda of: of["last_at"],
    "refused": _counts,
    "last topic": lambda of: of["topic"],
    "by": lambda of: of["reason"],
}


class What(StrEnum):
    """What happened to them."""

    LOSERS = "losers"
    REFUSED = "refused"


@asking
def recent(
    context: typer.Context,
    what: Annotated[What, typer.Argument(metavar="losers|refused", show_default=False)],
    limit: Limit = 100,
) -> None:
    """List the last 100 clients that lost messages or were refused something, also those that have left.

    refused: a publish, a subscription or a delivery, and by which rule.
    """
    show(context, LOSERS if what is What.LOSERS else REFUSED, f"/{what.value}", limit)
