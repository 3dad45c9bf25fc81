"""All links of a node: those to the other nodes, and those to upstream brokers.

Owns the SUBACKs that wait for other nodes: a client that is told that it has subscribed gets what is published at any
node from then on. A node that is down is not waited for, and none for longer than `link_timeout`. A node that starts
opens for clients when it and the others know what clients want (`meet`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from canopy_mqtt.cluster.greeting import Greeting
from canopy_mqtt.cluster.node_link import NodeLink, upstream_of
from canopy_mqtt.cluster.parts import Parts
from canopy_mqtt.core.hooks import Confirmed
from canopy_mqtt.core.routing.nodes import NODES, NodeSession
from canopy_mqtt.links.link import UpstreamLink
from canopy_mqtt.links.manager import LinkManager, NodeState
from canopy_mqtt.settings import Cluster, Settings, Upstream

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server

MAX_WAITING: Final = 4_096
"""SUBACKs that wait at a time. Those beyond, and beyond the part of a client (`Parts`), go at once: each keeps a packet
with a client's reason codes."""

MAX_AWAITED: Final = 16_384
"""Filters that all these SUBACKs wait for, together. Beyond, and beyond the part of a client, a SUBACK waits until the
other nodes have confirmed everything: all these are looked at at once when a link comes up or goes down."""


LOOK: Final = 0.02
"""Seconds between two looks whether the other nodes are linked, at the start."""


class Waiting:
    """A SUBACK that waits until that time at most. `topic_filters`: for these; empty: for all that is asked for."""

    def __init__(self, told: Confirmed, topic_filters: list[str], until: float) -> None:
        self.told = told
        self.topic_filters = topic_filters
        self.until = until
        self.open = len(topic_filters)
        """How many of the filters some node that is up has not confirmed."""


class NodeLinks(LinkManager):
    """The links of a node. For a server that has been started."""

    def __init__(self, server: Server, cluster: Cluster, own: Greeting) -> None:
        super().__init__(server)
        self.nodes = {each.name: each for each in cluster.others}
        self._cluster = cluster
        self._own = own
        self._node_links: list[NodeLink] = []
        self._has_met = False
        # What other nodes have kept for an earlier run of this one is wanted: a store of its own has kept its sessions.
        self._wants_earlier = server.router.journal is not None and server.router.shared is None
        self.heard: Callable[[str, bytes, bytes], None] | None = None
        """Told what another node says to this one: its name, topic and payload; set before `prepare`."""
        self.differs: Callable[[str], str] = lambda _: ""
        """Returns what a node has otherwise than this one."""
        # The SUBACKs that wait, the oldest first; those among them that wait for all; and for each filter that some
        # node that is up has not confirmed, those that wait for it. SUBACKs that have gone may still be among these.
        self._waiting: OrderedDict[Waiting, None] = OrderedDict()
        self._for_all: dict[Waiting, None] = {}
        self._awaited: dict[str, list[Waiting]] = {}
        self._subacks = Parts(MAX_WAITING)
        self._filters = Parts(MAX_AWAITED)
        self._timer: asyncio.TimerHandle | None = None
        # Which links were up when that was last looked at.
        self._up: list[NodeLink] = []

    def wanted_links(self, settings: Settings) -> Sequence[Upstream]:
        """Return the settings of all links: the nodes stay as they were at the start."""
        nodes = self.nodes.values()
        return (*settings.upstream, *(upstream_of(self._cluster, each, self._wants_earlier) for each in nodes))

    def link_of(self, settings: Upstream) -> UpstreamLink:
        """Make a link to a node, or to an upstream broker."""
        if not settings.name.startswith(NODES):
            return super().link_of(settings)
        node = self.nodes[settings.name[len(NODES) :]]
        link = NodeLink(
            self.server, settings, node, self._own, self._cluster.link_timeout, self._links_changed, self._answered
        )
        if self.heard is not None:
            link.link_state.heard = partial(self.heard, node.name)
        self._node_links.append(link)
        return link

    def linked(self, nodes: Iterable[str]) -> bool:
        """Return whether this node hears all of these, which may be nodes that it has no link to."""
        return {link.node.name for link in self._node_links if link.connected}.issuperset(nodes)

    async def meet(self, living: Collection[str] | None, stops: Callable[[], bool]) -> None:
        """Dial the other nodes, and wait until this one and those of `living` (None: all) know of each other what their
        clients want, for `link_timeout` at most: else what is published here before that would not reach them.

        Before the first client can come. `stops`: whether the broker is being stopped meanwhile.
        """
        self._has_met = True
        for link in self._node_links:
            link.start()
        self._find_demanding()
        met = [link for link in self._node_links if living is None or link.node.name in living]
        until = self.server.loop.time() + self._cluster.link_timeout
        while not all(map(self._knows, met)) and self.server.loop.time() < until and not stops():  # noqa: ASYNC110
            await asyncio.sleep(LOOK)

    def _knows(self, link: NodeLink) -> bool:
        """Return whether a node knows what is wanted here, and this one what is wanted there."""
        session = self.node_session(link.node.name)
        return link.connected and link.declarer.settled and session is not None and session.has_declared

    def start(self) -> None:
        for link in self.links.values():
            if not (self._has_met and isinstance(link, NodeLink)):
                link.start()
        self._find_demanding()

    def _find_demanding(self) -> None:
        super()._find_demanding()
        table = self.server.router.table
        table.confirms = table.listener is not None

    def node_session(self, name: str) -> NodeSession | None:
        """Return the session in which messages wait for a node; None: it has never been here."""
        session = self.server.router.sessions.get(NODES + name)
        return session if isinstance(session, NodeSession) else None

    def other_nodes(self) -> list[NodeState]:
        """Return the state of each other node."""
        found: list[NodeState] = []
        for link in self._node_links:
            session = self.node_session(link.node.name)
            waiting = dropped = subscriptions = 0
            if session is not None:
                window = session.made_window
                waiting = int(session.queue.bytes) + (0 if window is None else int(window.bytes))
                dropped = session.ledger.in_all()
                subscriptions = len(session.subscriptions)
            differs = self.differs(link.node.name) if link.connected else ""
            found.append(NodeState(link.node.name, link.connected, waiting, dropped, subscriptions, differs))
        return found

    @property
    def session_count(self) -> int:
        """The number of the router's sessions that belong to links or nodes, and to no client."""
        return super().session_count + sum(1 for name in self.nodes if self.node_session(name) is not None)

    async def stop(self) -> None:
        """End all links. Nothing is waited for any more."""
        self.server.router.table.confirms = False
        await super().stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._forget()

    # -- SUBACKs that wait ---------------------------------------------------------------------------------------------

    def waits(self, told: Confirmed, topic_filters: list[str]) -> bool:
        """Return whether a node that is up does not know one of the filters yet: `told` hears when all know all."""
        whose = told.client_id, told.account
        if not self._subacks.has_room(*whose, 1):
            return False
        awaited: list[str] = []
        if self._filters.has_room(*whose, len(topic_filters)):
            awaited = [each for each in dict.fromkeys(topic_filters) if self._is_open(each)]
            if not awaited:
                return False
        elif self._all_settled():
            return False
        until = self.server.loop.time() + self._cluster.link_timeout
        waiting = Waiting(told, awaited, until)
        self._waiting[waiting] = None
        self._subacks.change(*whose, 1)
        if awaited:
            self._await(waiting, awaited)
        else:
            self._for_all[waiting] = None
        if self._timer is None:
            self._timer = self.server.loop.call_at(until, self._time_is_over)
        return True

    def _await(self, waiting: Waiting, topic_filters: list[str]) -> None:
        """Note the filters for which a SUBACK waits."""
        waiting.open = len(topic_filters)
        self._filters.change(waiting.told.client_id, waiting.told.account, len(topic_filters))
        for topic_filter in topic_filters:
            self._awaited.setdefault(topic_filter, []).append(waiting)

    def _forget(self) -> None:
        """Note no filter any more."""
        self._for_all.clear()
        self._awaited.clear()
        self._filters = Parts(MAX_AWAITED)

    def _is_open(self, topic_filter: str) -> bool:
        """Return whether a node that is up has not confirmed a filter yet."""
        return any(link.connected and not link.declarer.is_confirmed(topic_filter) for link in self._node_links)

    def _answered(self, topic_filters: list[str]) -> None:
        """Send the SUBACKs that waited for these filters alone. A node may have confirmed them."""
        if not self._waiting:
            return
        done: list[Waiting] = []
        for topic_filter in topic_filters:
            waiting = self._awaited.get(topic_filter)
            if waiting is None or self._is_open(topic_filter):
                continue
            del self._awaited[topic_filter]
            for each in waiting:
                self._filters.change(each.told.client_id, each.told.account, -1)
                each.open -= 1
                if each.open == 0:
                    done.append(each)
        self._tell(done)

    def _links_changed(self) -> None:
        """A link may be up or down: if one is, find out anew what each SUBACK waits for."""
        before, self._up = self._up, [link for link in self._node_links if link.connected]
        if not self._waiting or self._up == before:
            return
        self._awaited.clear()
        self._filters = Parts(MAX_AWAITED)
        done: list[Waiting] = []
        for waiting in self._waiting:
            if waiting in self._for_all:
                continue
            awaited = [each for each in waiting.topic_filters if self._is_open(each)]
            if awaited:
                self._await(waiting, awaited)
            else:
                done.append(waiting)
        self._tell(done)

    def _time_is_over(self) -> None:
        """Send the SUBACKs that have waited for long enough."""
        self._timer = None
        now = self.server.loop.time()
        done: list[Waiting] = []
        for waiting in self._waiting:
            if waiting.until > now:
                break
            done.append(waiting)
        self._tell(done)
        if self._waiting:
            self._timer = self.server.loop.call_at(next(iter(self._waiting)).until, self._time_is_over)

    def _all_settled(self) -> bool:
        """Return whether the nodes that are up have confirmed everything."""
        return all(link.declarer.settled for link in self._node_links if link.connected)

    def _tell(self, done: list[Waiting]) -> None:
        """Send these SUBACKs, and those that wait for all, if all is confirmed."""
        if self._for_all and self._all_settled():
            done += self._for_all
        sent = False
        for waiting in done:
            self._for_all.pop(waiting, None)
            if self._waiting.pop(waiting, waiting) is None:
                sent = True
                self._subacks.change(waiting.told.client_id, waiting.told.account, -1)
                try:
                    waiting.told.confirmed()
                except Exception as error:
                    self.server.faults.broke("cluster", error)
        if not self._waiting:
            self._forget()
        if sent:
            self.server.after_batch()
