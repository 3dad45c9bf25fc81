"""The queue between the router and a subscription of the program: an outbox from which messages are taken as they are.

What comes in, and what is dropped when it is full, is decided as for any client: it is a session with an outbox. But no
frame is made of what is taken. `Inbox` is to the outbox what a connection is: it is told that there is something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.core.codec.packets import V5
from broker.core.counters import Counters
from broker.core.principal import Principal
from broker.core.queues.delivery import DROPPED, Delivery
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.live.send_queue import NOT_SENT
from broker.core.queues.message import Message as Routed
from broker.core.session.session import Session
from broker.inprocess.properties import Properties
from broker.net.scheduling.hub import Link


class Message:
    """An application message as a subscription of the program gets it."""

    def __init__(self, message: Routed, retained: bool, expiry: int) -> None:
        self._message: Final = message
        self.retained: Final = retained
        """Whether it is a retained message, sent because the subscription is new."""
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
    """The session of one subscription: no rule is asked for it, and each message comes as an object."""

    def __init__(self, client_id: str, max_messages: int, max_bytes: int, counters: Counters) -> None:
        super().__init__(client_id, max_messages, max_bytes, counters, Principal(client_id=client_id))
        self.own = True
        self.attach(V5, 1, False)

    def update_fast_path(self) -> None:
        """Never the bytes of a frame."""
        self.fast_path = False


class Inbox(Link):
    """The owner of the outbox. `told` is called when something can be taken, or when its queue ran over."""

    def __init__(self, session: ProgramSession, outbox: Outbox, told: Callable[[], None]) -> None:
        super().__init__()
        self.session: Final = session
        self.outbox: Final = outbox
        self._told: Final = told
        outbox.owner = self

    def wake(self, now: float) -> None:
        """There is something to take."""
        del now
        self._told()

    def ended_by_core(self) -> None:
        """The queue ran over, and its policy is `disconnect`."""
        self._told()

    def broke(self, error: Exception) -> None:
        """A fault of ours when it was told: it takes what is there the next time."""
        del error

    def check(self, now: float) -> float:
        """Nothing here takes too long."""
        del now
        return 0.0

    def take(self, most: i64, now: float) -> list[Message]:
        """Up to so many messages that wait, the oldest first. None: nothing waits; the next one is told of."""
        outbox = self.outbox
        queue = outbox.queue
        session = self.session
        if session.backlog:
            session.totals.now = now
            session.pump(now)
        taken: list[Message] = []
        if outbox.empty:
            outbox.woken()
            return taken
        queue.begin_batch()
        used: i64 = 0
        gaps: i64 = 0
        count: i64 = 0
        length: i64 = 0
        for item in queue.items:
            if count >= most:
                break
            used += 1
            if not isinstance(item, Delivery) or item.state == DROPPED:
                gaps += 1
                continue
            message = item.message
            expiry = queue.take_delivery(item, now)
            if expiry != NOT_SENT:
                taken.append(Message(message, item.retain, expiry))
                count += 1
                length += message.size()
        queue.end_batch(used, gaps, count, length, now)
        return taken
