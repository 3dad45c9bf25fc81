"""All links of a node: those to the other nodes, and those to upstream brokers.

Owns the SUBACKs that wait for other nodes: a client that is told that it has subscribed gets what is published at any
node from then on. A node that is down is not waited for, and none for longer than `link_timeout`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from canopy_mqtt.cluster.greeting import Greeting
from canopy_mqtt.cluster.node_link import NodeLink, upstream_of
from canopy_mqtt.core.hooks import Confirmed
from canopy_mqtt.core.routing.nodes import NODES, NodeSession
from canopy_mqtt.links.link import UpstreamLink
from canopy_mqtt.links.manager import LinkManager, NodeState
from canopy_mqtt.settings import Cluster, Settings, Upstream

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server

MAX_WAITING: Final = 4_096
"""SUBACKs that wait at a time. Beyond, they go at once: each keeps a client's filters' reason codes."""

MAX_NEW: Final = 4_096
"""Filters of one SUBSCRIBE that are waited for: the last ones, which are asked for last."""


class Waiting(NamedTuple):
    """A SUBACK that waits, for these filters, until that time."""

    told: Confirmed
    topic_filters: list[str]
    until: float


class NodeLinks(LinkManager):
    """The links of a node. For a server that has been started."""

    def __init__(self, server: Server, cluster: Cluster, own: Greeting) -> None:
        super().__init__(server)
        self.nodes = {each.name: each for each in cluster.others}
        self._cluster = cluster
        self._own = own
        # What was wanted since the last SUBSCRIBE was done.
        self._new: dict[str, None] = {}
        self._waiting: deque[Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def wanted_links(self, settings: Settings) -> Sequence[Upstream]:
        """Return the settings of all links: the nodes stay as they were at the start."""
        keeps = self.server.router.journal is not None
        return (*settings.upstream, *(upstream_of(self._cluster, each, keeps) for each in self.nodes.values()))

    def link_of(self, settings: Upstream) -> UpstreamLink:
        """Make a link to a node, or to an upstream broker."""
        if not settings.name.startswith(NODES):
            return super().link_of(settings)
        node = self.nodes[settings.name[len(NODES) :]]
        return NodeLink(self.server, settings, node, self._own, self._cluster.link_timeout, self._look)

    def node_links(self) -> list[NodeLink]:
        return [link for link in self.links.values() if isinstance(link, NodeLink)]

    def node_session(self, name: str) -> NodeSession | None:
        """Return the session in which messages wait for a node; None: it has never been here."""
        session = self.server.router.sessions.get(NODES + name)
        return session if isinstance(session, NodeSession) else None

    def other_nodes(self) -> list[NodeState]:
        """Return the state of each other node."""
        found: list[NodeState] = []
        for link in self.node_links():
            session = self.node_session(link.node.name)
            waiting = dropped = 0
            if session is not None:
                window = session.made_window
                waiting = int(session.queue.bytes) + (0 if window is None else int(window.bytes))
                dropped = session.ledger.in_all()
            found.append(NodeState(link.node.name, link.connected, waiting, dropped))
        return found

    @property
    def session_count(self) -> int:
        """The number of the router's sessions that belong to links or nodes, and to no client."""
        return super().session_count + sum(1 for name in self.nodes if self.node_session(name) is not None)

    async def stop(self) -> None:
        """End all links. Nothing is waited for any more."""
        await super().stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()

    # -- SUBACKs that wait ---------------------------------------------------------------------------------------------

    def wanted(self, topic_filter: str) -> None:
        super().wanted(topic_filter)
        if len(self._new) >= MAX_NEW:
            del self._new[next(iter(self._new))]
        self._new[topic_filter] = None

    def waits(self, told: Confirmed) -> bool:
        """Return whether some node does not know a filter yet: `told` hears when all that are up know all of them."""
        topic_filters = [each for each in self._new if self._is_open(each)]
        self._new.clear()
        if not topic_filters or len(self._waiting) >= MAX_WAITING:
            return False
        until = self.server.loop.time() + self._cluster.link_timeout
        self._waiting.append(Waiting(told, topic_filters, until))
        if self._timer is None:
            self._timer = self.server.loop.call_at(until, self._time_is_over)
        return True

    def _is_open(self, topic_filter: str) -> bool:
        """Return whether a node that is up has not confirmed a filter yet."""
        return any(link.connected and not link.declarer.is_confirmed(topic_filter) for link in self.node_links())

    def _time_is_over(self) -> None:
        self._timer = None
        self._look()

    def _look(self) -> None:
        """Send the SUBACKs that have waited for long enough: links confirm in order, so the first are the first."""
        waiting = self._waiting
        if not waiting:
            return
        now = self.server.loop.time()
        sent = False
        while waiting and (waiting[0].until <= now or not any(map(self._is_open, waiting[0].topic_filters))):
            sent = True
            try:
                waiting.popleft().told.confirmed()
            except Exception as error:
                self.server.faults.broke("cluster", error)
        if sent:
            self.server.after_batch()
        if waiting and self._timer is None:
            self._timer = self.server.loop.call_at(waiting[0].until, self._time_is_over)
