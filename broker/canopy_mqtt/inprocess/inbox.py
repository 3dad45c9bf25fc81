"""The queue between the router and a subscription of the program: a buffer from which messages are taken as objects.

Limits and drops are those of any client: it is a session with a buffer. But no frames are encoded. `Inbox` stands in
place of a connection: the send buffer wakes it when messages are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.packets import V5
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import DROPPED, Delivery
from canopy_mqtt.core.queues.message import Message as Routed
from canopy_mqtt.core.queues.send_buffer import NOT_SENT, SendBuffer
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.inprocess.properties import Properties
from canopy_mqtt.net.timers import Endpoint


class Message:
    """An application message that a subscription of the program receives."""

    def __init__(self, message: Routed, retained: bool, expiry: int) -> None:
        self._message: Final = message
        self.retained: Final = retained
        """True for a retained message that was sent because the subscription is new."""
        self._expiry: Final = expiry

    @property
    def topic(self) -> str:
        """Its topic name."""
        return self._message.topic.decode()

    @property
    def payload(self) -> bytes:
        """Its payload."""
        return self._message.payload()

    @property
    def qos(self) -> int:
        """The QoS with which it was published."""
        return self._message.qos

    @property
    def publisher(self) -> str:
        """The client identifier of its publisher; empty: the program, or the broker itself."""
        return self._message.publisher

    @property
    def properties(self) -> Properties:
        """Its MQTT 5.0 properties: content type, response topic, user properties, …"""
        return Properties.decoded(self._message.properties, self._expiry)

    def __repr__(self) -> str:
        return f"<Message {self.topic!r}: {len(self.payload)} bytes, QoS {self.qos}>"


class ProgramSession(Session):
    """The session of one subscription: no access rule applies, and each message comes as an object."""

    def __init__(self, client_id: str, max_messages: int, max_bytes: int, counters: Counters) -> None:
        super().__init__(client_id, max_messages, max_bytes, counters, Principal(client_id=client_id))
        self.internal = True
        self.attach(V5, 1, False)

    def update_fast_path(self) -> None:
        """Never use the fast path: frames are of no use here."""
        self.fast_path = False


class Inbox(Endpoint):
    """The owner of the buffer. It calls `on_messages` when there are messages to take, or when the queue overflowed."""

    def __init__(self, session: ProgramSession, send_buffer: SendBuffer, on_messages: Callable[[], None]) -> None:
        super().__init__()
        self.session: Final = session
        self.send_buffer: Final = send_buffer
        self._on_messages: Final = on_messages
        send_buffer.owner = self

    def wake(self, now: float) -> None:
        """Pass on that there are messages to take, or that the queue overflowed and its policy is `disconnect`."""
        del now
        self._on_messages()

    def check(self, now: float) -> float:
        """Return no deadline: nothing here has a time limit."""
        del now
        return 0.0

    def take(self, most: i64, now: float) -> list[Message]:
        """Take up to `most` messages, the oldest first. None: the queue is empty; the next message wakes the inbox."""
        send_buffer = self.send_buffer
        session = self.session
        if session.backlog:
            session.totals.now = now
            session.refill(now)
        taken: list[Message] = []
        if send_buffer.empty:
            send_buffer.listed = False
            return taken
        send_buffer.begin_batch()
        used: i64 = 0
        gaps: i64 = 0
        count: i64 = 0
        length: i64 = 0
        for item in send_buffer.items:
            if count >= most:
                break
            used += 1
            if not isinstance(item, Delivery) or item.state == DROPPED:
                gaps += 1
                continue
            message = item.message
            expiry = send_buffer.take_delivery(item, now)
            if expiry != NOT_SENT:
                taken.append(Message(message, item.retain, expiry))
                count += 1
                length += message.size
        send_buffer.end_batch(used, gaps, count, length, now)
        return taken
