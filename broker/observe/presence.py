"""Who is connected, as retained messages: `<topic>/<client id>` holds `online` from a client's connection to its end.

Owns these messages. Who has been told of is not remembered here: the retained tree is the memory, and its limits hold.
Who is not told of yet has a timer (`presence.delay`), at most one for each client that is connected. Client
identifiers are encoded as under `$SYS/broker/clients/`. Messages are published with QoS 1, so that a listener, or a
link, that is away for a moment misses none. Links to upstream brokers are no clients.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote

from broker.core.queues.message import Message
from broker.core.topics.topic_tree import Retainable
from broker.observe.systopics import ESCAPES, LONGEST_TOPIC

if TYPE_CHECKING:
    from broker.net.server import Server

ONLINE: Final = b"online"

MOVES: Final = 10.0
"""Seconds within which a client whose connection another node of a mesh has ended is there, or counts as gone."""

TURN: Final = 1000
"""Messages published, or looked at, in one turn at the start and at the stop: some milliseconds."""


class Others(Protocol):
    """The other nodes of a mesh: each tells of its own clients."""

    @property
    def node(self) -> str:
        """What this node is called."""

    def writer(self, topic: str) -> str:
        """The node that wrote what is retained there; "": unknown."""

    def lives(self, node: str) -> bool:
        """Whether a node is this one, or there."""


class Presence:
    """Publishes who is connected to one server below `topic`, which is a topic name.

    Promises:
    - A client that has gone before it was here for `delay` seconds is never told of. 0: each is, at once.
    - A client that has gone is cleared, however its connection ended; one that is taken over by its own new connection
      is not, and nobody hears of that. One whose session is kept while it is away is not online.
    - One that comes from another node of a mesh, or goes there, is no news either. What another node wrote of a client
      that is connected here is made true again (`look`).
    - What an earlier run left behind (a store keeps retained messages) is cleared at the start, and all of it at an
      orderly stop. What others published there is left alone until the client itself comes or goes.
    """

    def __init__(self, server: Server, topic: str, delay: float = 0.0) -> None:
        self.topic = topic
        self.others: Others | None = None
        """The other nodes of a mesh, where there is one."""
        self._server = server
        self._delay = delay
        self._not_yet: dict[str, asyncio.TimerHandle] = {}
        # Clients that have gone to another node, until that has told of them.
        self._moving: dict[str, asyncio.TimerHandle] = {}
        self._stopping = False
        self._waking = False

    async def start(self) -> None:
        """Clear what is not true any more, and tell of those who are here already."""
        cursor = self._server.router.retained.walk(f"{self.topic}/+")
        while not cursor.done:
            for node in cursor.take(TURN):
                client_id = unquote(node.topic.rpartition("/")[2])
                if _is_ours(node.value) and not self._connected(client_id):
                    self._publish(node.topic, b"")
            await asyncio.sleep(0)
        for client_id in self._clients():
            self.came(client_id)

    async def stop(self) -> None:
        """Clear everything, and tell of nobody any more."""
        self._stopping = True
        for timer in (*self._not_yet.values(), *self._moving.values()):
            timer.cancel()
        for at, client_id in enumerate(self._clients(), 1):
            topic = self._name(client_id)
            if topic and client_id not in self._not_yet:
                self._publish(topic, b"")
            if at % TURN == 0:
                await asyncio.sleep(0)

    def came(self, client_id: str) -> None:
        """A client has connected."""
        topic = self._name(client_id)
        if not topic or self._stopping:
            return
        moving = self._moving.pop(client_id, None)
        if moving is not None:
            moving.cancel()
        if _is_ours(self._server.router.retained.get(topic)):
            # It is of the connection that was taken over. If that was another node's, it is this one's from now on.
            if self.others is not None and self.others.writer(topic) != self.others.node:
                self._keep(topic)
            return
        if not self._delay:
            self._publish(topic, ONLINE)
        elif client_id not in self._not_yet:
            self._not_yet[client_id] = self._server.loop.call_later(self._delay, self._stayed, client_id, topic)

    def gone(self, client_id: str, taken: bool = False) -> None:
        """A connection of a client is over. `taken`: another connection has taken its place."""
        topic = self._name(client_id)
        if not topic or self._stopping or self._connected(client_id):
            return
        timer = self._not_yet.pop(client_id, None)
        if timer is not None:
            timer.cancel()
        elif taken and self.others is not None:
            # By another node: that one tells of it.
            self._moving[client_id] = self._server.loop.call_later(MOVES, self._has_moved, client_id, topic)
        else:
            self._publish(topic, b"")

    def look(self, topic: str) -> None:
        """Another node wrote what is retained there, or nobody who lives: have it be true of a client of this node."""
        others = self.others
        client_id = unquote(topic.rpartition("/")[2])
        if others is None or self._stopping or topic != self._name(client_id) or client_id in self._not_yet:
            return
        value = self._server.router.retained.get(topic)
        if self._connected(client_id):
            if value is None:
                self._publish(topic, ONLINE)
            elif _is_ours(value) and not others.lives(others.writer(topic)):
                self._keep(topic)
        elif others.writer(topic) == others.node and client_id not in self._moving:
            # Of an earlier process.
            self.clear(topic)

    def clear(self, topic: str) -> bool:
        """Tell that a client is gone whose node is; whether it was told to be here. Not where it is connected here."""
        if self._stopping or not _is_ours(self._server.router.retained.get(topic)):
            return False
        if self._connected(unquote(topic.rpartition("/")[2])):
            self._keep(topic)
            return False
        self._publish(topic, b"")
        return True

    def _has_moved(self, client_id: str, topic: str) -> None:
        del self._moving[client_id]
        others = self.others
        if others is not None and others.writer(topic) == others.node and not self._connected(client_id):
            self.clear(topic)

    def _keep(self, topic: str) -> None:
        """Have it be this node that tells of a client: nobody hears of that."""
        self._server.router.retain(_message(topic, ONLINE))

    def _stayed(self, client_id: str, topic: str) -> None:
        del self._not_yet[client_id]
        self._publish(topic, ONLINE)

    def _connected(self, client_id: str) -> bool:
        session = self._server.router.sessions.get(client_id)
        return session is not None and session.outbox is not None

    def _clients(self) -> list[str]:
        """All clients that are connected."""
        return [session.client_id for session in self._server.router.peers.outboxes if not session.own]

    def _name(self, client_id: str) -> str:
        """The topic of a client; "" where it would be longer than a topic can be."""
        topic = f"{self.topic}/{client_id.translate(ESCAPES)}"
        return topic if len(topic.encode()) <= LONGEST_TOPIC else ""

    def _publish(self, topic: str, payload: bytes) -> None:
        try:
            self._server.router.publish(_message(topic, payload), None)
        except Exception as error:
            self._server.faults.broke("presence", error)
        if not self._waking:
            # Not at once: connections end while writers are being woken.
            self._waking = True
            self._server.loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = False
        self._server.after_batch()


def _message(topic: str, payload: bytes) -> Message:
    return Message(topic.encode(), payload, 1, True, b"", 0.0, "")


def _is_ours(value: Retainable | None) -> bool:
    """Whether a retained message is the broker's own."""
    return isinstance(value, Message) and value.publisher == ""
