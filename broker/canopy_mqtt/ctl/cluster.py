"""`canopy ctl cluster` and `session`: the nodes of a cluster, and a session that they share."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from canopy_mqtt.ctl.api_client import named
from canopy_mqtt.ctl.clients import Like
from canopy_mqtt.ctl.lists import Columns, Limit, facts, show, table
from canopy_mqtt.ctl.operations import SOME
from canopy_mqtt.ctl.options import failures_in_one_line, options
from canopy_mqtt.ctl.top import printable

NODES: Final[Columns] = {
    "node": lambda of: of["name"],
    "state": lambda of: of["state"],
    "seen": lambda of: of["seen"],
    "version": lambda of: of["version"],
    "clients": lambda of: of["clients"],
    "durable": lambda of: of["durable"],
    "link": lambda of: of["link"],
}

SESSIONS: Final[Columns] = {
    "client": lambda of: of["clientid"],
    "account": lambda of: of["account"],
    "node": lambda of: of["node"] or "-",
    "expires in": lambda of: of["expires_in"],
    "expires after": lambda of: "never" if of["expiry_interval"] is None else of["expiry_interval"],
    "subs": lambda of: of["subscriptions_cnt"],
    "queued": lambda of: of["mqueue_len"],
}

SUBSCRIPTIONS: Final[Columns] = {"QoS": lambda of: of["qos"], "topic filter": lambda of: of["topic"]}


@failures_in_one_line
def cluster(context: typer.Context) -> None:
    """Show the nodes of the broker's cluster. The exit code is 3 if a node or the link to it is down.

    seen: seconds since its last sign of life in the database that the nodes share; clients: connected there; durable:
    those of them whose sessions outlive their connections; link: from this broker. Below the table: nodes with other
    users, rules or settings than this one, or another time.
    """
    answer = options(context).api().call("GET", "/cluster")
    if options(context).as_json:
        typer.echo(json.dumps(answer))
    else:
        table(NODES, answer["data"])
        for node in answer["data"]:
            if node["differs"]:
                typer.echo(printable(f"{node['name']} differs from this node: {node['differs']}"))
    if any(node["state"] == "down" or node["link"] in ("down", "none") for node in answer["data"]):
        raise typer.Exit(SOME)


@failures_in_one_line
def session(
    context: typer.Context,
    client_id: Annotated[
        str | None, typer.Argument(metavar="CLIENT", help="A client identifier; without one, list them.")
    ] = None,
    away: Annotated[bool, typer.Option("--away", help="List only those whose clients are connected nowhere.")] = False,
    like: Like = None,
    limit: Limit = 100,
) -> None:
    """Show a session that the nodes of a cluster share, or list them by client identifier.

    At any node, also if its client is connected elsewhere, or away: in their database. In the list, 10,000
    queued messages stand for more, too.
    """
    if client_id is None:
        show(context, SESSIONS, "/sessions", limit, like_clientid=like, conn_state="disconnected" if away else None)
        return
    if away or like is not None:
        raise typer.BadParameter("options choose from all sessions: give CLIENT or options")
    answer = options(context).api().call("GET", f"/sessions/{named(client_id)}")
    if options(context).as_json:
        typer.echo(json.dumps(answer))
        return
    subscriptions = answer.pop("subscriptions")
    facts(context, answer)
    if subscriptions:
        typer.echo()
        table(SUBSCRIPTIONS, subscriptions)
