"""`canopy ctl clients`, `kick`, `subs` and `ban`: lists clients, and ends connections and sessions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from canopy_mqtt.ctl.api_client import named
from canopy_mqtt.ctl.lists import Columns, Limit, facts, show
from canopy_mqtt.ctl.options import done, failures_in_one_line, options
from canopy_mqtt.ctl.top import printable
from canopy_mqtt.ctl.trace import seconds

Like = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Only client identifiers that contain this text, in capitals or not.")
]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Only clients of this user.")]
Lag = Annotated[
    float | None, typer.Option(min=0, metavar="SECONDS", help="Only clients whose oldest message has waited this long.")
]
Dropped = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Only clients that have lost this many messages.")
]

CLIENTS: Final[Columns] = {
    "client": lambda of: of["clientid"],
    "user": lambda of: of["username"],
    "state": lambda of: of["state"],
    "address": lambda of: of["ip_address"],
    "MQTT": lambda of: of["proto_ver"],
    "subs": lambda of: of["subscriptions_cnt"],
    "in flight": lambda of: of["inflight_cnt"],
    "queued": lambda of: of["mqueue_len"],
    "lag": lambda of: of["lag"],
    "lost": lambda of: of["mqueue_dropped"],
}

SESSIONS: Final[Columns] = {
    "client": lambda of: of["clientid"],
    "user": lambda of: of["username"],
    "left": lambda of: of["disconnected_at"],
    "expires after": lambda of: "never" if of["expiry_interval"] is None else of["expiry_interval"],
    "subs": lambda of: of["subscriptions_cnt"],
    "queued": lambda of: of["mqueue_len"],
    "bytes": lambda of: of["mqueue_bytes"],
    "lost": lambda of: of["mqueue_dropped"],
}

SUBSCRIPTIONS: Final[Columns] = {
    "client": lambda of: of["clientid"],
    "QoS": lambda of: of["qos"],
    "options": lambda of: ", ".join(
        word
        for word, holds in (
            ("no local", of["nl"]),
            ("retain as published", of["rap"]),
            (f"retain handling {of['rh']}", of["rh"]),
            (f"identifier {of['subid']}", of["subid"]),
        )
        if holds
    ),
    "topic filter": lambda of: of["topic"],
}


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


class Recent(StrEnum):
    """Selects recent clients by event."""

    LOSERS = "losers"
    REFUSED = "refused"


@failures_in_one_line
def clients(
    context: typer.Context,
    client_id: Annotated[
        str | None, typer.Argument(metavar="CLIENT", help="Show all about this client, connected or not.")
    ] = None,
    away: Annotated[
        bool, typer.Option("--away", help="List the sessions whose clients are away, in place of those connected.")
    ] = False,
    recent: Annotated[
        Recent | None,
        typer.Option(
            metavar="losers|refused",
            help="List the last 100 clients that lost messages, or were refused something, also those that have left.",
        ),
    ] = None,
    like: Like = None,
    user: User = None,
    address: Annotated[
        str | None, typer.Option(metavar="NETWORK", help="Only clients from this IP address or network.")
    ] = None,
    min_lag: Lag = None,
    min_dropped: Dropped = None,
    limit: Limit = 100,
) -> None:
    """List clients, by client identifier, or show one of them."""
    if client_id is not None:
        if away or any(each is not None for each in (recent, like, user, address, min_lag, min_dropped)):
            raise typer.BadParameter("options choose from all clients: give CLIENT or options")
        facts(context, options(context).api().call("GET", f"/clients/{named(client_id)}"))
        return
    if recent is not None:
        if away or any(each is not None for each in (like, user, address, min_lag, min_dropped)):
            raise typer.BadParameter("--recent takes --limit alone")
        show(context, LOSERS if recent is Recent.LOSERS else REFUSED, f"/{recent.value}", limit)
        return
    show(
        context, SESSIONS if away else CLIENTS, "/clients", limit, conn_state="disconnected" if away else "connected",
        like_clientid=like, username=user, ip_address=address, min_lag=min_lag, min_dropped=min_dropped,
    )  # fmt: skip


@failures_in_one_line
def kick(
    context: typer.Context,
    client_id: Annotated[str, typer.Argument(metavar="CLIENT", help="A client identifier.", show_default=False)],
    session: Annotated[
        bool, typer.Option("--session", help="End its session too: the broker keeps nothing of it.")
    ] = False,
) -> None:
    """End the connection of a client. Its session stays until it expires, and the client may reconnect."""
    part, what = ("sessions", "session") if session else ("clients", "connection")
    options(context).api().call("DELETE", f"/{part}/{named(client_id)}")
    done(context, f"ended the {what} of {printable(client_id)}")


@failures_in_one_line
def subs(
    context: typer.Context,
    client_id: Annotated[str | None, typer.Argument(metavar="CLIENT", help="Only those of this client.")] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="FILTER", help="Only those with exactly this topic filter.")
    ] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this share group.")] = None,
    limit: Limit = 100,
) -> None:
    """List subscriptions, by client identifier and topic filter."""
    show(context, SUBSCRIPTIONS, "/subscriptions", limit, clientid=client_id, topic=topic, share_group=group)


class Kind(StrEnum):
    """The kinds of bans."""

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
"""The API's names of them."""

WORDS: Final = {called: kind.value for kind, called in KINDS.items()}

BANS: Final[Columns] = {
    "kind": lambda of: WORDS.get(of["as"], of["as"]),
    "who": lambda of: of["who"],
    "by": lambda of: of["by"],
    "until": lambda of: of["until"],
    "reason": lambda of: of["reason"],
}


@failures_in_one_line
def ban(
    context: typer.Context,
    kind: Annotated[Kind | None, typer.Argument(metavar="KIND", help="client, user, address or network.")] = None,
    who: Annotated[
        str | None,
        typer.Argument(metavar="WHO", help="A client identifier, user name, IP address, or network (10.0.0.0/8)."),
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
