"""`canopy ctl ban`: who is kept out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

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


@asking
def ban(
    context: typer.Context,
    kind: Annotated[Kind | None, typer.Argument(metavar="[KIND]", help="client, user, address or network.")] = None,
    who: Annotated[
        str | None,
        typer.Argument(metavar="[WHO]", help="A client identifier, user name, IP address, or network (10.0.0.0/8)."),
    ] = None,
    how_long: Annotated[
        float | None,
        typer.Option("--for", parser=seconds, metavar="TIME", help="30s, 5m, 1h; default: until it is lifted."),
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT")] = "",
    lift: Annotated[bool, typer.Option("--lift", help="Lift the ban, including one for guessed passwords.")] = False,
    limit: Limit = 100,
) -> None:
    """Ban a client, and end its connections; or lift a ban; or list current bans, without KIND and WHO.

    A restart of the broker lifts all bans. The list has those for guessed passwords too.
    """
    if kind is None or who is None:
        if kind is not None or lift or how_long is not None or reason:
            raise typer.BadParameter("KIND and WHO are missing, as in: canopy ctl ban address 192.0.2.7")
        show(context, BANS, "/banned", limit)
        return
    if lift:
        options(context).api().call("DELETE", f"/banned/{KINDS[kind]}/{named(who)}")
        done(context, f"lifted the ban of {kind.value} {printable(who)}")
        return
    body = {"as": KINDS[kind], "who": who, "reason": reason}
    if how_long is not None:
        body["until"] = (datetime.now(UTC) + timedelta(seconds=how_long)).isoformat()
    made = options(context).api().call("POST", "/banned", body)
    facts(context, made if options(context).as_json else {name: of(made) for name, of in BANS.items()})
