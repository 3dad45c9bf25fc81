"""The routes of clients and sessions: their state, queues and losses, and disconnecting them.

Durations are seconds; moments are UTC. Links to other brokers do not count as clients. A mounted client's topics are
shown with the mount before them.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.host import Host, shared_reports, worker_of
from canopy_mqtt.admin.paging import BUILT, Meta, Page, PageQuery, cut, first_names, first_sessions, in_turns, name_of
from canopy_mqtt.admin.routing import BASE, Call, Routes
from canopy_mqtt.core.causes import ADMINISTRATIVE_ACTION
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.packets import NEVER, V5, V31
from canopy_mqtt.core.ledger import by_cause
from canopy_mqtt.core.queues.queue_terms import POLICIES
from canopy_mqtt.core.refusals import KINDS
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.ends import CLOSE
from canopy_mqtt.observe.recent_clients import RecentClient, RecentClients

ROUTES: Final = Routes("clients")

VERSIONS: Final = {V31: "3.1", V5: "5.0"}

LAST: Final = datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp()
"""The last second that can be written as a date: the two clocks differ by parts of one, and a ban may end then."""

KICKED: Final = "an operator ended the connection"


class Client(BaseModel):
    """A client, connected or away."""

    clientid: str
    username: str | None
    state: Literal["connected", "disconnected"]
    connected: bool
    ip_address: str
    """Of the current connection, or of the last one."""
    port: int | None
    """Of the current connection; null: there is none, or it uses a Unix socket."""
    listener: str
    proto_ver: str
    keepalive: int
    """Seconds; 0: the client asked for none, or is away."""
    clean_start: bool
    connected_at: str | None
    disconnected_at: str | None
    """Null: it is connected, or its session never expires, so that the time is unknown."""
    expiry_interval: int | None
    """Session Expiry Interval; null: the session does not expire."""
    subscriptions_cnt: int
    inflight_cnt: int
    """QoS 1 and 2 messages that the client has not acknowledged."""
    mqueue_len: int
    """Messages that are queued for it."""
    mqueue_bytes: int
    mqueue_dropped: int
    """Messages that it has lost during its session."""
    lag: float
    """Seconds for which the oldest queued message has waited."""
    delivered: int
    """Messages that its session has delivered."""
    received: int
    """Messages that the current connection has published."""
    worker: str | None
    """The worker that has the client: `w0` and so on; null: the broker is one process."""


class LastRefusal(BaseModel):
    """The last action that a client was refused."""

    action: str
    """`publish`, `subscribe`, `receive` (a message was not sent to it), `will`, `retain` (it was delivered only)."""
    topic: str
    """A topic name, or the filter of a subscription; cut to 1,024 characters."""
    reason_code: int
    reason: str
    """The cause: a rule with its file and line, a setting, a plug-in."""
    at: str


class Details(Client):
    """One client in full detail."""

    dropped: dict[str, int]
    """Lost messages by cause."""
    refused: dict[str, int]
    """Actions that the broker refused during the session, by action."""
    last_refusal: LastRefusal | None
    authenticator: str
    certificate: str
    """The subject of its certificate."""
    groups: list[str]
    mount: str
    receive_maximum: int
    """QoS 1 and 2 messages that may be in flight to it."""
    maximum_packet_size: int | None
    inflight_bytes: int
    queue_policy: str
    queue_limit_messages: int
    queue_limit_bytes: int
    max_delay: float
    """Seconds for which messages to it may wait for more, so that they leave in one write; 0: none, or it is away."""
    high_water: int
    """The most messages that were queued for the current connection at a time."""
    awaiting_rel_cnt: int
    """QoS 2 messages from it that wait for a PUBREL."""
    will_topic: str | None
    bridge: bool


class Subscription(BaseModel):
    """A subscription, with its options (MQTT 5.0, section 3.8.3.1)."""

    clientid: str
    topic: str
    """The topic filter, with `$share/name/` if it is shared."""
    qos: int
    """The granted QoS."""
    nl: int
    """No Local."""
    rap: int
    """Retain As Published."""
    rh: int
    """Retain Handling."""
    subid: int | None
    """Subscription identifier."""


class ClientQuery(PageQuery):
    """Selects clients."""

    clientid: Annotated[str, Field(max_length=65_535)] | None = None
    like_clientid: Annotated[str, Field(max_length=65_535)] | None = None
    """A part of the client identifier; case does not matter."""
    username: Annotated[str, Field(max_length=65_535)] | None = None
    like_username: Annotated[str, Field(max_length=65_535)] | None = None
    """A part of the user name; case does not matter."""
    ip_address: Annotated[str, Field(max_length=64)] | None = None
    """An IP address or a network."""
    conn_state: Literal["connected", "disconnected"] | None = None
    min_lag: Annotated[float, Field(ge=0)] | None = None
    """Only clients whose oldest message has waited for at least this number of seconds."""
    min_dropped: Annotated[int, Field(ge=0)] | None = None
    """Only clients that have lost at least this number of messages."""


def connection_of(session: Session) -> Connection | None:
    """Return the connection of a session; None: its client is away."""
    owner = None if session.send_buffer is None else session.send_buffer.owner
    return owner if isinstance(owner, Connection) else None


NOT_FOUND: Final = "there is no such client"


def find(broker: Host, client_id: str) -> Session:
    """Return the session of a client. Raises ApiError."""
    session = broker.router.sessions.get(client_id)
    if session is None or session.internal:
        raise ApiError(404, "CLIENTID_NOT_FOUND", NOT_FOUND)
    return session


def moment(broker: Host, at: float) -> str:
    """Format a moment of the loop's clock."""
    seconds = min(time.time() - broker.loop.time() + at, LAST)
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _facts(broker: Host, session: Session) -> dict[str, object]:
    connection = connection_of(session)
    principal, send_buffer = session.principal, session.send_buffer
    now = broker.loop.time()
    port = connection.address.rpartition(":")[2] if connection is not None else ""
    expires = session.expiry_interval
    disconnected = session.expires_at - expires if send_buffer is None and session.expires_at else 0.0
    return {
        "clientid": session.client_id,
        "username": session.user_name,
        "state": "disconnected" if send_buffer is None else "connected",
        "connected": send_buffer is not None,
        "ip_address": principal.host,
        "port": int(port) if port.isdecimal() else None,
        "listener": principal.listener,
        "proto_ver": VERSIONS.get(session.version, "3.1.1"),
        "keepalive": 0 if connection is None else connection.protocol.keep_alive,
        "clean_start": connection is not None and connection.protocol.clean_start,
        "connected_at": None if send_buffer is None else moment(broker, session.attached_at),
        "disconnected_at": moment(broker, disconnected) if disconnected else None,
        "expiry_interval": None if expires == NEVER else expires,
        "subscriptions_cnt": len(session.subscriptions),
        "inflight_cnt": session.in_flight_messages(),
        "mqueue_len": session.waiting_messages() + (0 if send_buffer is None else send_buffer.messages),
        "mqueue_bytes": session.waiting_bytes() + (0 if send_buffer is None else send_buffer.bytes),
        "mqueue_dropped": session.ledger.in_all(),
        "lag": round(session.waited(now), 3),
        "delivered": session.delivered_in_all(),
        "received": 0 if connection is None else connection.protocol.messages_received,
        "worker": worker_of(broker),
    }


def view(broker: Host, session: Session) -> Client:
    return Client.model_validate(_facts(broker, session))


def details(broker: Host, session: Session) -> Details:
    principal, send_buffer, terms = session.principal, session.send_buffer, session.message_terms
    # A session that needed no queue and no window yet does not get them for being looked at.
    unused = session.stand_in(broker.router.counters)
    queue, window = session.made_queue or unused.queue, session.made_window or unused.window
    largest = None if send_buffer is None else send_buffer.max_packet
    mine = {
        "dropped": by_cause(session.ledger.dropped),
        "refused": _refused(session),
        "last_refusal": _last_refusal(broker, session),
        "authenticator": principal.authenticator,
        "certificate": principal.certificate,
        "groups": list(principal.groups),
        "mount": principal.mount,
        "receive_maximum": window.limit,
        "maximum_packet_size": largest,
        "inflight_bytes": window.bytes,
        "queue_policy": POLICIES[queue.policy if terms is None else terms.policy],
        "queue_limit_messages": queue.max_messages,
        "queue_limit_bytes": queue.max_bytes,
        "max_delay": 0.0 if send_buffer is None or send_buffer.peer is None else send_buffer.peer.max_delay(),
        "high_water": 0 if send_buffer is None else send_buffer.high_water,
        "awaiting_rel_cnt": len(session.received_qos2 or ()),
        "will_topic": None if session.will is None else session.will.topic,
        "bridge": session.bridge or bool(session.link_peer),
    }
    return Details.model_validate(_facts(broker, session) | mine)


def _refused(session: Session) -> dict[str, int]:
    refused = session.ledger.refused
    return {} if refused is None else {KINDS[kind]: count for kind, count in enumerate(refused.counts) if count}


def _last_refusal(broker: Host, session: Session) -> LastRefusal | None:
    refused = session.ledger.refused
    if refused is None or refused.last is None:
        return None
    last = refused.last
    return LastRefusal(
        action=KINDS[last.kind],
        topic=last.topic,
        reason_code=last.reason_code,
        reason=last.settle(refused.principal, broker.router.access_control),
        at=moment(broker, last.at),
    )


def subscription_of(session: Session, name: str) -> Subscription:
    found = session.subscriptions[name]
    return Subscription(
        clientid=session.client_id,
        topic=name,
        qos=found.qos,
        nl=int(found.no_local),
        rap=int(found.retain_as_published),
        rh=found.retain_handling,
        subid=found.identifier or None,
    )


async def subscriptions_of(
    session: Session, after: str | None, limit: int, wanted: Callable[[str], bool]
) -> list[Subscription]:
    """Return the first `limit` `wanted` subscriptions of a session behind `after`, by topic filter.

    Fewer than `limit`: there are no others.
    """
    found: list[Subscription] = []
    while True:
        lacking = limit - len(found)
        names = await first_names(session.subscriptions, after, lacking, wanted)
        # Some may have gone since they were looked at.
        found += [subscription_of(session, name) for name in names if name in session.subscriptions]
        if len(names) < lacking or len(found) == limit:
            return found
        after = names[-1]


class _Wanted:
    """Matches sessions against a query."""

    def __init__(self, broker: Host, query: ClientQuery) -> None:
        self._broker = broker
        self._query = query
        self._like_clientid = (query.like_clientid or "").casefold()
        self._like_username = (query.like_username or "").casefold()
        self._network: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None
        if query.ip_address is not None:
            try:
                self._network = ipaddress.ip_network(query.ip_address, strict=False)
            except ValueError:
                raise ApiError(400, "BAD_REQUEST", "ip_address: must be an IP address or network") from None

    def __call__(self, session: Session) -> bool:
        query = self._query
        user = session.user_name
        if query.clientid is not None and session.client_id != query.clientid:
            return False
        if self._like_clientid and self._like_clientid not in session.client_id.casefold():
            return False
        if query.username is not None and user != query.username:
            return False
        if query.like_username is not None and (user is None or self._like_username not in user.casefold()):
            return False
        if query.conn_state is not None and (query.conn_state == "connected") != (session.send_buffer is not None):
            return False
        if query.min_dropped is not None and session.ledger.in_all() < query.min_dropped:
            return False
        if query.min_lag is not None and session.waited(self._broker.loop.time()) < query.min_lag:
            return False
        return self._network is None or self._from(session.principal.host)

    def _from(self, host: str) -> bool:
        try:
            return ipaddress.ip_address(host) in self._network if self._network is not None else True
        except ValueError:
            return False


@ROUTES.add("GET", f"{BASE}/clients", query=ClientQuery)
async def clients(call: Call) -> Page[Client]:
    """Clients, by client identifier."""
    broker, query = call.broker, call.query
    if query.clientid is not None:
        # No need to look at the others.
        session = broker.router.sessions.get(query.clientid)
        there = session is not None and not session.internal and _Wanted(broker, query)(session)
        found = [session] if there and session is not None and not query.cursor else []
        return Page(data=[view(broker, each) for each in found], meta=Meta(limit=query.limit, hasnext=False))
    sessions, meta = await first_sessions(broker, query, _Wanted(broker, query))
    return Page(data=[view(broker, each) async for each in in_turns(sessions, BUILT)], meta=meta)


@ROUTES.add("GET", f"{BASE}/clients/{{client_id}}")
async def client(call: Call) -> Details:
    """One client."""
    return details(call.broker, find(call.broker, call.path["client_id"]))


@ROUTES.add("DELETE", f"{BASE}/clients/{{client_id}}", role="operator")
async def kick(call: Call) -> None:
    """End the connection of a client; its session stays until it expires."""
    session = find(call.broker, call.path["client_id"])
    connection = connection_of(session)
    if connection is None:
        raise ApiError(
            404,
            "CLIENTID_NOT_FOUND",
            "the client is not connected; it has a session, which DELETE /sessions/… (canopy ctl kick --session) ends",
        )
    call.broker.log.warning("client disconnected by an operator", client_id=session.client_id, by=call.caller.name)
    connection.end(CLOSE, ADMINISTRATIVE_ACTION, reason_codes.ADMINISTRATIVE_ACTION, KICKED)


@ROUTES.add("GET", f"{BASE}/clients/{{client_id}}/subscriptions", query=PageQuery)
async def client_subscriptions(call: Call) -> Page[Subscription]:
    """The subscriptions of one client, by topic filter."""
    session, query = find(call.broker, call.path["client_id"]), call.query
    after = name_of(query.cursor) if query.cursor else None
    found = await subscriptions_of(session, after, query.limit + 1, lambda _: True)
    data, meta = cut(found, query.limit, lambda each: each.topic)
    return Page(data=data, meta=meta)


@ROUTES.add("DELETE", f"{BASE}/sessions/{{client_id}}", role="operator")
async def end_session(call: Call) -> None:
    """End a session, with its connection if there is one. Its will is published.

    One that nodes share ends at whichever of them its client is connected.
    """
    broker = call.broker
    client_id = call.path["client_id"]
    reports = shared_reports(broker)
    if reports is not None and client_id not in broker.router.sessions:
        if not await reports.end_session(client_id):
            raise ApiError(404, "CLIENTID_NOT_FOUND", NOT_FOUND)
        broker.log.warning("session ended by an operator", client_id=client_id, by=call.caller.name)
        return
    session = find(broker, client_id)
    broker.log.warning("session ended by an operator", client_id=session.client_id, by=call.caller.name)
    connection = connection_of(session)
    if connection is not None:
        if session.claim is not None:
            # Else it goes back to the store that brokers share, and lasts there.
            session.expiry_interval = 0
        connection.end(CLOSE, ADMINISTRATIVE_ACTION, reason_codes.ADMINISTRATIVE_ACTION, KICKED)
    now = broker.loop.time()
    broker.router.peers.drain(broker.router, now)
    broker.router.end_session(session, now)
    broker.after_batch()


class Recent(BaseModel):
    """A client, connected or gone."""

    clientid: str
    """Cut to 512 bytes, as are the other texts."""
    username: str | None
    ip_address: str
    first_at: str
    """When it was first remembered: the counts begin there."""
    last_at: str
    counts: dict[str, int]
    """Messages that it lost, by cause; or what was refused, by action."""
    here: bool
    """True if it has a session now."""


class RecentRefusal(Recent):
    """A client with a refused action."""

    topic: str
    """Of the last refusal: a topic name, or the filter of a subscription."""
    reason: str
    """The cause: a rule with its file and line, a setting, a plug-in."""


def recent(broker: Host, client: RecentClient) -> Recent:
    return Recent(
        clientid=client.client_id,
        username=client.user_name,
        ip_address=client.address,
        first_at=moment(broker, client.first),
        last_at=moment(broker, client.last),
        counts=dict(client.counts),
        here=client.client_id in broker.router.sessions,
    )


def refusal(broker: Host, client: RecentClient) -> RecentRefusal:
    return RecentRefusal(**recent(broker, client).model_dump(), topic=client.topic, reason=client.reason)


def _some(clients: RecentClients, query: PageQuery) -> tuple[list[RecentClient], Meta]:
    found = clients.newest()
    return found[: query.limit], Meta(limit=query.limit, hasnext=False)


@ROUTES.add("GET", f"{BASE}/losers", query=PageQuery)
async def losers(call: Call) -> Page[Recent]:
    """The clients that lost messages last, the newest first."""
    found, meta = _some(call.broker.monitor.losers, call.query)
    return Page(data=[recent(call.broker, each) for each in found], meta=meta)


@ROUTES.add("GET", f"{BASE}/refused", query=PageQuery)
async def refused(call: Call) -> Page[RecentRefusal]:
    """The clients that were refused something last, the newest first."""
    found, meta = _some(call.broker.refusal_log.recent, call.query)
    return Page(data=[refusal(call.broker, each) for each in found], meta=meta)
