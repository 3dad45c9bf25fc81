"""`canopy ctl bans`, `ban` and `unban`: who is kept out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import typer

from broker.ctl.asking import named
from broker.ctl.lists import Columns, Limit, facts, show
from broker.ctl.options import asking, done, options
from broker.ctl.top import printable
from broker.ctl.trace import seconds


class Kind(StrEnum):
    """What a ban applies to."""

    CLIENT = "client"
    USER = "user"
    ADDRESS = "address"
    NETWORK = "network"


KINDS: Final = {
    Kind.CLIENT: "clientid",
    Kind.USER: "username",
    Kind.ADDRESS: "peerhost",
    Kind.NETWORK: "peerhost_net",
}
"""What the API calls them."""

WORDS: Final = {called: kind.value for kind, called in KINDS.items()}

BANS: Final[Columns] = {
    "kind": lambda of: WORDS.get(of["as"], of["as"]),
    "who": lambda of: of["who"],
    "by": lambda of: of["by"],
    "until": lambda of: of["until"],
    "reason": lambda of: of["reason"],
}

How: TypeAlias = Annotated[Kind, typer.Argument(metavar="KIND", show_default=False)]
Who: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="WHO", help="A client identifier, user name, IP address, or network (10.0.0.0/8).", show_default=False
    ),
]


@asking
def bans(context: typer.Context, limit: Limit = 100) -> None:
    """List current bans, by operators and for guessing passwords."""
    show(context, BANS, "/banned", limit)


@asking
def ban(
    context: typer.Context,
    kind: How,
    who: Who,
    how_long: Annotated[
        float | None,
        typer.Option("--for", parser=seconds, metavar="TIME", help="30s, 5m, 1h; default: until it is lifted."),
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT")] = "",
) -> None:
    """Ban a client, and end its connections. A restart of the broker lifts the ban."""
    body = {"as": KINDS[kind], "who": who, "reason": reason}
    if how_long is not None:
        body["until"] = (datetime.now(UTC) + timedelta(seconds=how_long)).isoformat()
    made = options(context).api().call("POST", "/banned", body)
    facts(context, made if options(context).as_json else {name: of(made) for name, of in BANS.items()})


@asking
def unban(context: typer.Context, kind: How, who: Who) -> None:
    """Lift a ban, including one for guessed passwords."""
    options(context).api().call("DELETE", f"/banned/{KINDS[kind]}/{named(who)}")
    done(context, f"lifted the ban of {kind.value} {printable(who)}")
