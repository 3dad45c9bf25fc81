"""`canopy ctl clients`, `client`, `kick`, `sessions`, `end` and `subs`: who is there, and ending connections."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from broker.ctl.asking import named
from broker.ctl.lists import Columns, Limit, facts, show
from broker.ctl.options import asking, done, options
from broker.ctl.top import printable

ClientId = Annotated[str, typer.Argument(metavar="CLIENT", help="A client identifier.", show_default=False)]
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


@asking
def clients(
    context: typer.Context,
    like: Like = None,
    user: User = None,
    address: Annotated[
        str | None, typer.Option(metavar="NETWORK", help="Only clients from this IP address or network.")
    ] = None,
    min_lag: Lag = None,
    min_dropped: Dropped = None,
    limit: Limit = 100,
) -> None:
    """List the clients that are connected, by client identifier."""
    show(
        context, CLIENTS, "/clients", limit, conn_state="connected", like_clientid=like, username=user,
        ip_address=address, min_lag=min_lag, min_dropped=min_dropped,
    )  # fmt: skip


@asking
def sessions(
    context: typer.Context, like: Like = None, user: User = None, min_dropped: Dropped = None, limit: Limit = 100
) -> None:
    """List the sessions whose clients are away, by client identifier."""
    show(
        context, SESSIONS, "/clients", limit, conn_state="disconnected", like_clientid=like, username=user,
        min_dropped=min_dropped,
    )  # fmt: skip


@asking
def client(context: typer.Context, client_id: ClientId) -> None:
    """Show the details of one client, connected or not."""
    facts(context, options(context).api().call("GET", f"/clients/{named(client_id)}"))


@asking
def kick(context: typer.Context, client_id: ClientId) -> None:
    """End the connection of a client. Its session stays until it expires, and the client may reconnect."""
    options(context).api().call("DELETE", f"/clients/{named(client_id)}")
    done(context, f"ended the connection of {printable(client_id)}")


@asking
def end(context: typer.Context, client_id: ClientId) -> None:
    """End a client's session and connection. The broker keeps nothing of the session."""
    options(context).api().call("DELETE", f"/sessions/{named(client_id)}")
    done(context, f"ended the session of {printable(client_id)}")


@asking
def subs(
    context: typer.Context,
    client_id: Annotated[str | None, typer.Argument(metavar="[CLIENT]", help="Only those of this client.")] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="FILTER", help="Only those with exactly this topic filter.")
    ] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this share group.")] = None,
    limit: Limit = 100,
) -> None:
    """List subscriptions, by client identifier and topic filter."""
    show(context, SUBSCRIPTIONS, "/subscriptions", limit, clientid=client_id, topic=topic, share_group=group)
