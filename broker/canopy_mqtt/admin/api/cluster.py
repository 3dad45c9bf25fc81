"""The routes of a cluster: its nodes, and sessions that all of them share."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, Field

from canopy_mqtt.admin.api.clients import NOT_FOUND
from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.host import shared_reports
from canopy_mqtt.admin.paging import PageOfAll, PageQuery, cut, name_of
from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.store.base import NodeReport, SharedReports
from canopy_mqtt.version import __version__

ROUTES: Final = Routes("cluster")


class Node(BaseModel):
    """A node of the cluster."""

    name: str
    state: str
    """`alive` or `down`, as the database says; without one that the nodes share, `unknown` of other nodes."""
    seen: float | None
    """Seconds since its last sign of life in the database."""
    version: str
    clients: int | None
    """Connected there."""
    durable: int | None
    """Those of them whose sessions outlive their connections."""
    link: str
    """From here: `connected` or `down`; `here`: this node; `none`: `cluster.nodes` does not name it here."""
    differs: str
    """Which of users, rules, settings and clock differ from those of the node that is asked; empty: none that is
    known."""


class Nodes(BaseModel):
    """All nodes that the settings name or that are alive."""

    of_all_nodes: ClassVar[bool] = True
    data: list[Node]


class Subscription(BaseModel):
    topic: str
    qos: int


class SessionLine(BaseModel):
    """A session in the database that nodes share, in a list."""

    clientid: str
    account: str
    """For whose limits it counts: `user NAME` or `address ADDRESS`."""
    node: str
    """Where its client is connected; empty: nowhere."""
    expiry_interval: int | None
    """Seconds; null: it never expires."""
    expires_in: float | None
    """Seconds; null: its client is connected, or it never expires."""
    mqueue_len: int
    """Messages that wait; in a list, 10,000 stands for more, too."""
    subscriptions_cnt: int


class Session(SessionLine):
    """A session in the database that nodes share."""

    of_all_nodes: ClassVar[bool] = True
    epoch: int
    """One more with each connection."""
    inflight_cnt: int
    """Messages of QoS 2 that its client has not completed."""
    subscriptions: list[Subscription]
    """The first 1,000, by topic filter."""


def reports_of(call: Call) -> SharedReports:
    """Return what the store tells. Raises ApiError: it is no store that nodes share."""
    reports = shared_reports(call.broker)
    if reports is None:
        raise ApiError(404, "NOT_FOUND", "this broker shares its sessions with no other (canopy ctl clients CLIENT)")
    return reports


@ROUTES.add("GET", f"{BASE}/cluster")
async def cluster(call: Call) -> Nodes:
    """The nodes of the cluster."""
    broker = call.broker
    settings = broker.settings.cluster
    if not settings.name or broker.links is None:
        raise ApiError(404, "NOT_FOUND", "this broker is no node of a cluster")
    others = {each.name: each for each in broker.links.other_nodes()}
    found: dict[str, NodeReport] = {}
    reports = shared_reports(broker)
    if reports is not None:
        found = {each.name: each for each in await reports.nodes()}
    nodes = []
    for name in sorted({settings.node, *others, *(each.name for each in found.values() if each.alive)}):
        report, other = found.get(name), others.get(name)
        own = name == settings.node
        link = "here" if own else "none" if other is None else "connected" if other.up else "down"
        state = "alive" if own else "down" if found else "unknown"
        if report is not None:
            state = "alive" if report.alive else "down"
        nodes.append(
            Node(
                name=name,
                state=state,
                seen=None if report is None else round(report.seen, 1),
                version=report.version if report is not None else __version__ if own else "",
                clients=None if report is None else report.clients,
                durable=None if report is None else report.durable,
                link=link,
                differs="" if other is None else other.differs,
            )
        )
    return Nodes(data=nodes)


class SessionQuery(PageQuery):
    """Selects sessions."""

    like_clientid: Annotated[str, Field(max_length=65_535)] = ""
    """A part of the client identifier; case does not matter."""
    conn_state: Literal["connected", "disconnected"] | None = None


@ROUTES.add("GET", f"{BASE}/sessions", query=SessionQuery)
async def sessions(call: Call) -> PageOfAll[SessionLine]:
    """The sessions in the database that nodes share, by client identifier, wherever their clients are."""
    query = call.query
    after = name_of(query.cursor) if query.cursor else ""
    if "\0" in after + query.like_clientid:
        raise ApiError(400, "BAD_REQUEST", "no client identifier has the character U+0000")
    away = None if query.conn_state is None else query.conn_state == "disconnected"
    found = await reports_of(call).sessions(after, query.like_clientid, away, query.limit + 1)
    lines, meta = cut(list(found), query.limit, lambda each: each.client_id)
    data = [
        SessionLine(
            clientid=each.client_id,
            account=each.account,
            node=each.node,
            expiry_interval=each.expiry,
            expires_in=None if each.expires_in is None else round(each.expires_in, 1),
            mqueue_len=each.waiting,
            subscriptions_cnt=each.subscriptions,
        )
        for each in lines
    ]
    return PageOfAll(data=data, meta=meta)


@ROUTES.add("GET", f"{BASE}/sessions/{{client_id}}")
async def session(call: Call) -> Session:
    """A session in the database that nodes share, wherever its client is."""
    client_id = call.path["client_id"]
    found = await reports_of(call).session(client_id)
    if found is None:
        raise ApiError(404, "CLIENTID_NOT_FOUND", NOT_FOUND)
    return Session(
        clientid=client_id,
        account=found.account,
        node=found.node,
        epoch=found.epoch,
        expiry_interval=found.expiry,
        expires_in=None if found.expires_in is None else round(found.expires_in, 1),
        mqueue_len=found.waiting,
        inflight_cnt=found.in_flight,
        subscriptions_cnt=found.subscriptions,
        subscriptions=[Subscription(topic=name, qos=qos) for name, qos in found.filters],
    )
