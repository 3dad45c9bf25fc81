"""Who is connected (`broker.observe.presence`), as far as other nodes are concerned: who tells that a client is gone
whose node is.

Owns who is told to be offline on behalf of a node that is gone, and when. Each retained message is of the node that
wrote it last: the stamps of `retained` say which. Promises: nothing is remembered for a client; the work of one turn is
bounded; what two nodes clear, or one in error, is mended by the node that has the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.core.topics.topic_tree import RetainedCursor
from broker.mesh.bus import Bus
from broker.mesh.ownership.moves.leaving import chosen
from broker.mesh.retained.replicas import Replicas

if TYPE_CHECKING:
    from broker.net.server import Server

TURN: Final = 100
"""Topics that are looked at, and may be written, in one turn: some milliseconds."""

AGAIN: Final = 30.0
"""Seconds after which each node clears what a node that is gone has left, whoever was chosen for that: he may be gone
himself, or another process since."""


class PresenceTopics(Protocol):
    """The retained messages below `topic` that say who is connected (`presence.topic`)."""

    topic: str

    def look(self, topic: str) -> None:
        """Another node wrote it, or none that is there: have it say what is true, if a client here is meant."""

    def clear(self, topic: str) -> bool:
        """Have it say that a client is offline; whether it said that it is online."""


class NodesPresence:
    """Tells of the clients of nodes that are gone for `dead_after` seconds.

    - Of the nodes that are there one is chosen for each client (rendezvous hashing), so that it is published once. What
      is left after `AGAIN` seconds more is cleared by any.
    - A node that finds one of its connected clients cleared by another tells that it is here; one that finds a client
      told to be here by an earlier process of its own name clears it.
    """

    def __init__(
        self,
        server: Server,
        bus: Bus,
        replicas: Replicas,
        topics: PresenceTopics,
        dead_after: float,
        alive: Callable[[], bool],
    ) -> None:
        """`alive`: whether this node still is one."""
        self._server = server
        self._log: Any = server.log
        self._bus = bus
        self._stamps = replicas.stamps
        self._topics = topics
        self._dead_after = dead_after
        self._alive = alive
        self._prefix = f"{topics.topic}/"
        # The nodes that are gone, and when their clients are next looked at.
        self._gone: dict[str, asyncio.Handle] = {}
        # Topics that are to be looked at, each once.
        self._looks: dict[str, None] = {}
        self._due: asyncio.Handle | None = None
        replicas.overwritten = self._overwritten
        # What was told before this node was one has no stamp of its own.
        self._walk: RetainedCursor | None = server.router.retained.walk(f"{self._prefix}+")
        self._soon()

    def stop(self) -> None:
        """This node ends."""
        for handle in self._gone.values():
            handle.cancel()
        self._gone.clear()
        if self._due is not None:
            self._due.cancel()
            self._due = None

    # -- for who tells -------------------------------------------------------------------------------------------------

    def writer(self, topic: str) -> str:
        """The node that wrote what is retained there; "": unknown."""
        entry = self._stamps.get(topic)
        return "" if entry is None or entry.stamp[0] == 0 else entry.stamp[1]

    @property
    def node(self) -> str:
        """This node."""
        return self._bus.node

    def lives(self, node: str) -> bool:
        """Whether a node is this one, or there."""
        return node == self._bus.node or node in self._bus.nodes()

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def joined(self, node: str) -> None:
        """It is there, and speaks for its clients itself."""
        handle = self._gone.pop(node, None)
        if handle is not None:
            handle.cancel()

    def left(self, node: str) -> None:
        """It is gone, perhaps for a moment."""
        self.joined(node)
        if self._alive():
            self._gone[node] = self._server.loop.call_later(self._dead_after, self._begin, node, False)

    def _begin(self, node: str, any_node: bool) -> None:
        self._sweep(node, any_node, self._server.router.retained.walk(f"{self._prefix}+"), 0)

    def _sweep(self, node: str, any_node: bool, walk: RetainedCursor, count: int) -> None:
        """Tell that some more clients of a node are gone."""
        try:
            nodes = [self._bus.node, *self._bus.nodes()]
            for each in walk.take(TURN):
                topic = each.topic
                if self.writer(topic) == node and (any_node or chosen(topic, nodes) == self._bus.node):
                    count += self._topics.clear(topic)
            self._server.after_batch()
        except Exception as error:
            self._server.faults.broke("mesh", error)
        loop = self._server.loop
        if not walk.done:
            self._gone[node] = loop.call_soon(self._sweep, node, any_node, walk, count)
            return
        if count:
            self._log.warning("clients of a node are gone", node=node, clients=count)
        if any_node:
            del self._gone[node]
        else:
            self._gone[node] = loop.call_later(AGAIN, self._begin, node, True)

    # -- topics that others write --------------------------------------------------------------------------------------

    def _overwritten(self, topic: str) -> None:
        if topic.startswith(self._prefix):
            self._looks[topic] = None
            self._soon()

    def _soon(self) -> None:
        if self._due is None and self._alive():
            self._due = self._server.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due = None
        try:
            if self._walk is not None:
                self._looks.update((each.topic, None) for each in self._walk.take(TURN))
                self._walk = None if self._walk.done else self._walk
            for topic in [topic for topic, _ in zip(self._looks, range(TURN), strict=False)]:
                del self._looks[topic]
                self._topics.look(topic)
            self._server.after_batch()
        except Exception as error:
            self._server.faults.broke("mesh", error)
        if self._looks or self._walk is not None:
            self._soon()
