"""One other node: its session here, and the stream over which it gets what it wants of what is published here.

Owns the session, from the node's first coming until it has been away for `mesh.node_expiry`, and one connection at a
time. While the node is there it connects, and connects again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from broker.core.codec.packets import SubscriptionRequest
from broker.core.codec.topic_names import parse_shared
from broker.core.queues.live.outbox import Outbox
from broker.core.routing.remote.loop_detection import FROM_NODE
from broker.mesh.links.arrivals import Arrivals
from broker.mesh.links.protocol import NodeProtocol
from broker.mesh.links.session import NodeSession
from broker.mesh.streams import Streams
from broker.settings import Mesh as MeshSettings
from broker.upstream.protocol.connection import ClientConnection, Owner

if TYPE_CHECKING:
    from broker.net.server import Server

PATIENCE: Final = 10.0
"""Seconds for a CONNACK."""

RETRY: Final = (0.05, 5.0)
"""Seconds before a connection is made again, at first and at most."""


class NodeLink(Owner):
    """What goes to one node. Made when the node first comes."""

    def __init__(
        self,
        server: Server,
        settings: MeshSettings,
        streams: Streams,
        own: str,
        node: str,
        changed: Callable[[], None],
        session: NodeSession | None = None,
    ) -> None:
        """`changed`: is told that the node takes what is published here. `session`: what there is of it already."""
        self.node = node
        self.there = False
        """Whether the bus has the node."""
        self.connected = False
        """Whether the node takes what is published here."""
        self.session = made(server, settings, node) if session is None else session
        self.marks: dict[str, None] = {}
        """The moves of sessions for which a mark was put into its queue (`late`)."""
        self._server = server
        self._settings = settings
        self._streams = streams
        self._changed = changed
        self._client_id = FROM_NODE + own
        self._connection: ClientConnection | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._failures = 0
        self._over: asyncio.TimerHandle | None = None
        self._arrivals = Arrivals(self.session)

    @property
    def down_since(self) -> float:
        """Since when it does not, while it does not (s, the loop's clock)."""
        return self.session.away_since

    # -- what the node wants -------------------------------------------------------------------------------------------

    def subscribe(self, name: str) -> None:
        """The node wants a topic filter, or has members of a share group (`$share/name/filter`)."""
        if name in self.session.subscriptions:
            return
        group, topic_filter = parse_shared(name)
        # Whatever its QoS is, and with RETAIN as it came. In a share group there is no No Local [MQTT-3.8.3-4].
        request = SubscriptionRequest(name, 2, not group, True, 2)
        self._server.router.subscribe(self.session, group, topic_filter, request, 0)

    def share(self, name: str, connected: int) -> None:
        """So many members of a share group are connected at the node, of `$share/name/filter`; 0: they are all away."""
        self.subscribe(name)
        member = self.session.subscriptions.get(name)
        if member is not None and member.group is not None:
            member.weight = connected
            member.group.place(member)

    def unsubscribe(self, name: str) -> None:
        """The node does not want it any more."""
        self._server.router.unsubscribe(self.session, name)

    # -- what is on its way -------------------------------------------------------------------------------------------

    def when_arrived(self, call: Callable[[], None]) -> None:
        """Call something when the node has all that was published for it until now; not if the link ends before."""
        self._arrivals.wait(call)
        self._watch()

    def _watch(self) -> None:
        connection = self._connection
        if connection is not None:
            awaited = self._arrivals.awaited
            cast(NodeProtocol, connection.protocol).on_acknowledged = self._acknowledged if awaited else None

    def _acknowledged(self) -> None:
        self._arrivals.look()
        if not self._arrivals.awaited:
            self._watch()

    # -- the node comes and goes ---------------------------------------------------------------------------------------

    def joined(self) -> None:
        """The node is there."""
        self.there = True
        if self._over is not None:
            self._over.cancel()
            self._over = None
        self._failures = 0
        self._connect()

    def left(self) -> None:
        """The node is gone: what is for it waits for a while."""
        self.there = False
        self._stop_trying()

    def expire_at(self, when: float, ended: Callable[[NodeLink], None]) -> None:
        """Give it up at a time (s, the loop's clock), unless it comes back; `ended` is called then."""
        self._over = self._server.loop.call_at(when, self._expire, ended)

    def _expire(self, ended: Callable[[NodeLink], None]) -> None:
        try:
            ended(self)
            self.end()
        except Exception as error:
            self.broke(error)

    def let_go(self) -> None:
        """This node stops: what waits is kept, where there is a store."""
        self._stop_trying()
        self._arrivals.end()
        if self._over is not None:
            self._over.cancel()
            self._over = None
        self.session.keep_at_once()
        if self.session.keeper is None:
            self._end_session()

    def end(self) -> None:
        """It does not come back: nothing waits for it any more."""
        self.let_go()
        self._end_session()

    def _end_session(self) -> None:
        router = self._server.router
        router.end_session(self.session, self._server.loop.time())
        self._server.after_batch()

    async def stop(self, flush: float) -> None:
        """Give what waits so many seconds to get there, and disconnect."""
        loop = self._server.loop
        until = loop.time() + flush
        # Nothing tells when the last acknowledgement has come.
        while self.connected and not self._idle() and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self.there = False
        self._stop_trying()
        connection = self._connection
        if connection is not None and not connection.over:
            connection.close("the node stops", False)

    def _idle(self) -> bool:
        session = self.session
        outbox = session.outbox
        return not session.inflight and not session.backlog and (outbox is None or outbox.empty)

    # -- the connection ------------------------------------------------------------------------------------------------

    def _stop_trying(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _connect(self) -> None:
        self._retry = None
        connection = self._connection
        if not self.there or (connection is not None and not connection.over):
            return
        server = self._server
        router = server.router
        outbox = Outbox(router.peers.touched, router.counters, 0, self._settings.queue_bytes)
        expiry = max(1, round(self._settings.node_expiry))
        protocol = NodeProtocol(router, self.session, outbox, self._client_id, expiry)
        self._connection = connection = ClientConnection(server.hub, protocol, self, not self.session.known, PATIENCE)
        try:
            self._streams.open(self.node, lambda: cast(asyncio.Protocol, connection))
        except ConnectionError:
            # It has just left: `left` follows.
            self._connection = None

    def opened(self) -> None:
        """The node has accepted us."""
        self.connected = True
        # What the node had as another process counts as arrived.
        self._acknowledged()
        self._watch()
        self._failures = 0
        self._server.log.info("node connected", node=self.node)
        self._changed()

    def ended(self) -> None:
        """The connection is over."""
        connection = self._connection
        was_connected, self.connected = self.connected, False
        if connection is None or not self.there:
            return
        protocol = cast(NodeProtocol, connection.protocol)
        if was_connected or self._failures == 0:
            self._server.log.warning("node not connected", node=self.node, why=protocol.close_text)
        self._failures += 1
        least, most = RETRY
        longest = min(most, least * 2.0 ** min(self._failures - 1, 16))
        self._retry = self._server.loop.call_later(longest * random.uniform(0.5, 1.0), self._connect)

    def broke(self, error: Exception) -> None:
        """A fault of ours, for the log."""
        self._server.faults.broke("mesh", error, node=self.node)


def made(server: Server, settings: MeshSettings, node: str) -> NodeSession:
    """The session of a node that comes for the first time."""
    router, now = server.router, server.loop.time()
    session = NodeSession(node, 0, settings.queue_bytes, router.counters)
    session.away_since = now
    router.session_table.add(session)
    journal = router.journal
    if journal is not None:
        journal.session_kept(session.client_id, session.principal, session.expiry_interval, now)
        session.keep_in(journal)
    return session
