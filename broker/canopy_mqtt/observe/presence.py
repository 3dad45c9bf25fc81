"""Publishes connected clients as retained messages: `<topic>/<client id>` holds `online` while the client is connected.

Owns these messages. The retained tree is the only memory of them, so that its limits hold. A client that is not
announced yet has a timer (`presence.delay`), at most one for each connection. Client identifiers are encoded as under
`$SYS/broker/clients/`. Messages are published with QoS 1, so that a listener or a link that is briefly away misses
none. Links to other brokers do not count as clients.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.observe.systopics import ESCAPES, MAX_TOPIC_BYTES

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server

ONLINE: Final = b"online"

TURN: Final = 1000
"""Messages that are published, or checked, in one turn at the start and at the stop: some milliseconds."""


class Presence:
    """Publishes the connected clients of one server below `topic`, which is a topic name.

    Promises:
    - A client that stays for less than `delay` seconds is never announced. With 0, each is announced at once.
    - A client that leaves is cleared, however its connection ended. A client that takes over its own connection stays
      announced without a change. A client that is away is not online, even if its session is kept.
    - At the start the messages of an earlier run (a store keeps them) are cleared, and at an orderly stop all of them.
      Messages that others published there stay until that client comes or goes.
    """

    def __init__(self, server: Server, topic: str, delay: float = 0.0) -> None:
        self.topic = topic
        self._server = server
        self._delay = delay
        self._not_yet: dict[str, asyncio.TimerHandle] = {}
        self._stopping = False
        self._waking = False
        # Microseconds since 1970, as messages between nodes have them.
        self._began = int(time.time() * 1e6)
        # The topics of which several nodes may have kept what is not true any more.
        self._untrue: set[str] = set()

    async def start(self) -> None:
        """Clear the messages of an earlier run, and announce the clients that are connected already."""
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
        """Clear all messages, and announce no more clients."""
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
        topic = self._name(client_id)
        if not topic or self._stopping:
            return
        if _is_ours(self._server.router.retained.get(topic)):
            # The message is about the connection that was taken over.
            return
        if not self._delay:
            self._publish(topic, ONLINE)
        elif client_id not in self._not_yet:
            self._not_yet[client_id] = self._server.loop.call_later(self._delay, self._stayed, client_id, topic)

    def gone(self, client_id: str) -> None:
        topic = self._name(client_id)
        if not topic or self._stopping or self._connected(client_id):
            return
        timer = self._not_yet.pop(client_id, None)
        if timer is not None:
            timer.cancel()
        else:
            self._publish(topic, b"")

    def is_echo(self, topic: str, at: int) -> bool:
        """Return whether another worker has kept what an earlier run of this one said of a client, and clear it there.

        `at`: when it was said, in microseconds since 1970.
        """
        name = topic.removeprefix(f"{self.topic}/")
        client_id = unquote(name)
        keeps = self._server.router.keeps
        if at >= self._began or name == topic or "/" in name or keeps is None or not keeps(client_id):
            return False
        if topic not in self._untrue and not self._connected(client_id):
            self._untrue.add(topic)
            self._server.loop.call_soon(self._clear, client_id, topic)
        return True

    def _clear(self, client_id: str, topic: str) -> None:
        self._untrue.discard(topic)
        if not self._stopping and not self._connected(client_id):
            self._publish(topic, b"")

    def _stayed(self, client_id: str, topic: str) -> None:
        del self._not_yet[client_id]
        self._publish(topic, ONLINE)

    def _connected(self, client_id: str) -> bool:
        session = self._server.router.sessions.get(client_id)
        return session is not None and session.send_buffer is not None

    def _clients(self) -> list[str]:
        return [session.client_id for session in self._server.router.peers.send_buffers if not session.internal]

    def _name(self, client_id: str) -> str:
        """Return the topic of a client; "" if it would be longer than a topic name can be."""
        topic = f"{self.topic}/{client_id.translate(ESCAPES)}"
        return topic if len(topic.encode()) <= MAX_TOPIC_BYTES else ""

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


def _is_ours(value: object) -> bool:
    """True if the broker itself published a retained message."""
    return isinstance(value, Message) and value.publisher == ""
