"""Who is connected, as retained messages: `<topic>/<client id>` holds `online` from a client's connection to its end.

Owns these messages. Who has been told of is not remembered here: the retained tree is the memory, and its limits hold.
Who is not told of yet has a timer (`presence.delay`), at most one for each client that is connected. Client
identifiers are encoded as under `$SYS/broker/clients/`. Messages are published with QoS 1, so that a listener, or a
link, that is away for a moment misses none. Links to upstream brokers are no clients.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from broker.core.queues.message import Message
from broker.core.topics.topic_tree import Retainable
from broker.observe.systopics import ESCAPES, LONGEST_TOPIC

if TYPE_CHECKING:
    from broker.net.server import Server

ONLINE: Final = b"online"

TURN: Final = 1000
"""Messages published, or looked at, in one turn at the start and at the stop: some milliseconds."""


class Presence:
    """Publishes who is connected to one server below `topic`, which is a topic name.

    Promises:
    - A client that has gone before it was here for `delay` seconds is never told of. 0: each is, at once.
    - A client that has gone is cleared, however its connection ended; one that is taken over by its own new connection
      is not, and nobody hears of that. One whose session is kept while it is away is not online.
    - What an earlier run left behind (a store keeps retained messages) is cleared at the start, and all of it at an
      orderly stop. What others published there is left alone until the client itself comes or goes.
    """

    def __init__(self, server: Server, topic: str, delay: float = 0.0) -> None:
        self.topic = topic
        self._server = server
        self._delay = delay
        self._not_yet: dict[str, asyncio.TimerHandle] = {}
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
        for timer in self._not_yet.values():
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
        if _is_ours(self._server.router.retained.get(topic)):
            # It is of the connection that was taken over.
            return
        if not self._delay:
            self._publish(topic, ONLINE)
        elif client_id not in self._not_yet:
            self._not_yet[client_id] = self._server.loop.call_later(self._delay, self._stayed, client_id, topic)

    def gone(self, client_id: str) -> None:
        """A connection of a client is over."""
        topic = self._name(client_id)
        if not topic or self._stopping or self._connected(client_id):
            return
        timer = self._not_yet.pop(client_id, None)
        if timer is not None:
            timer.cancel()
        else:
            self._publish(topic, b"")

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
