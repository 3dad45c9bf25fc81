"""A message on its way to one session, and the queue of a subscription in which it may wait.

Owns `Delivery`, which is in flight or waits, and `SubscriptionQueue`, the account of those of one subscription (or one
client) with its own terms: newest only, age, depth. It has their order by age and, for `LATEST`, one by topic. A
client's queues remain one queue in one order; nothing is removed from them here. Each operation has amortised constant
cost, and memory is bounded by what waits.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i32, i64, u8

from broker.core.queues.message import Message
from broker.core.queues.policies.queue_policy import DROP_OLDEST, LATEST, QueueOptions
from broker.core.queues.queue_totals import bound
from broker.core.queues.requests import Request
from broker.core.topics.subscription import SharedGroup, Subscriber

# States of a Delivery.
QUEUED: Final = 0
"""Waiting in the session, without a packet identifier."""
SENT: Final = 1
"""In flight: offered to the writer, waiting for PUBACK or PUBREC."""
RELEASED: Final = 2
"""QoS 2 only: PUBREC came, PUBREL was sent, waiting for PUBCOMP."""
DONE: Final = 3
"""Acknowledged, refused or given up."""
DROPPED: Final = 4
"""Shed from a queue in which it still stands."""

MOST_ATTEMPTS: Final = 2**31 - 1
"""Of one delivery; the fields of a `Delivery` hold no more."""

SLACK: Final = 64
"""Entries of the order of age that may be stale before it is made anew."""


class Delivery:
    """One message on its way to one session with QoS 1 or 2, or QoS 0 if the frame is made when it is written.

    `group` is the shared subscription it was chosen for, if any: what that member leaves unsent goes to another.
    """

    def __init__(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
    ) -> None:
        # Thousands of these are alive under load: small fields stand together.
        self.message = message
        self.identifiers = identifiers
        self.group = group
        # Where terms of their own hold for its message: whose account it is on, since when (s) it waits, and whether.
        self.sub_queue: SubscriptionQueue | None = None
        self.place: Place | None = None
        # The request whose publisher wants to know whether this reaches anybody, until that is known.
        self.asked: Request | None = None
        self.since = 0.0
        # Its place in the order of what is in flight (`InFlight`).
        self.turn: i64 = 0
        # The name that a store gave it; 0: none.
        self.record: i64 = 0
        self.packet_id: i32 = 0
        # How often it was handed to a transport; from the second time on it carries DUP [MQTT-3.3.1-1].
        self.attempts: i32 = 0
        self.qos: u8 = qos
        self.state: u8 = QUEUED
        self.retain = retain
        # Whether it takes part in the send quota of the present connection (section 4.9).
        self.counted = False
        self.waits = False
        # Whether it stands in the queue of a connection (QoS 0), and not in the session's.
        self.live = False

    def frame(self, v5: bool, expiry: int, dup: bool, alias: int, with_topic: bool) -> bytes:
        """Its PUBLISH packet; see `Message.frame`."""
        return self.message.frame(
            v5, self.qos, self.retain, dup, self.packet_id, self.identifiers, expiry, alias, with_topic
        )

    def is_plain(self) -> bool:
        """Whether it is sent for the first time with QoS 1 or 2, and has nothing that is decided when it is written."""
        return (
            self.attempts == 0
            and self.qos > 0
            and self.state == SENT
            and self.sub_queue is None
            and self.message.expires_at == 0.0
            and not self.retain
            and len(self.identifiers) == 0
        )

    def settle(self, reached: bool) -> None:
        """It is known now, or never will be (then it counts as reached); nothing where nobody has asked."""
        request = self.asked
        if request is not None:
            self.asked = None
            request.settle(reached)

    def drop(self) -> None:
        """It was shed from the middle of a queue, and stays there as a gap that holds nothing."""
        self.state = DROPPED
        self.message = NOTHING


NOTHING: Final = Message(b"", b"", 0, False, b"", 0.0, "")
"""What a delivery holds that was shed."""


class DeliveryRun:
    """First deliveries of QoS 1 or 2 to one client, in a row, with their frames in one piece, ready to be written."""

    def __init__(self, deliveries: list[Delivery], frames: bytes) -> None:
        self.deliveries = deliveries
        self.frames = frames


class Place:
    """A place in the order of age; empty after the delivery has left, or got a newer message and another place."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery: Delivery | None = delivery


class SubscriptionQueue:
    """Terms and accounts. `max_age` in seconds, `depth` in messages; 0: unlimited."""

    def __init__(self, session: Subscriber, policy: int, max_age: float, depth: int) -> None:
        self.session = session
        # What its subscriber asked for, if it is of one.
        self.options: QueueOptions | None = None
        # Whether its messages are worth less the longer they wait.
        self.fresh = policy == LATEST or max_age > 0.0
        self.policy: i64 = policy
        self.max_age = max_age
        self.depth: i64 = bound(depth)
        # Messages that wait: QoS 0 in the outbox, any in the session's queue. What is in flight waits no more.
        self.waiting: i64 = 0
        self._by_age: deque[Place] | None = deque() if max_age > 0.0 or policy == DROP_OLDEST else None
        self._topics: dict[bytes, Delivery] | None = {} if policy == LATEST else None

    def same(self, policy: int, max_age: float, depth: int) -> bool:
        """Whether these are its terms."""
        return self.policy == policy and self.max_age == max_age and self.depth == bound(depth)

    def enter(self, delivery: Delivery, now: float) -> None:
        """A delivery of this subscription queue begins to wait."""
        delivery.waits = True
        self.waiting += 1
        self._place(delivery, now)
        if self._topics is not None:
            self._topics[delivery.message.topic] = delivery

    def renew(self, delivery: Delivery, now: float) -> None:
        """It has a new message, which waits since now."""
        # Where it has its place in the order already, as with many of a topic in one read.
        if delivery.since != now:
            self._place(delivery, now)

    def _place(self, delivery: Delivery, now: float) -> None:
        delivery.since = now
        by_age = self._by_age
        if by_age is None:
            return
        _vacate(delivery)
        place = Place(delivery)
        delivery.place = place
        by_age.append(place)
        if len(by_age) > 2 * self.waiting + SLACK:
            live: deque[Place] = deque()
            for each in by_age:
                if each.delivery is not None:
                    live.append(each)
            self._by_age = live

    def leave(self, delivery: Delivery) -> None:
        """It waits no more: it is written, in flight, or dropped."""
        if not delivery.waits:
            return
        delivery.waits = False
        self.waiting -= 1
        topics = self._topics
        if topics is not None and topics.get(delivery.message.topic) is delivery:
            del topics[delivery.message.topic]
        if self._by_age is not None:
            _vacate(delivery)
            self.oldest()

    def of_topic(self, topic: bytes) -> Delivery | None:
        """The delivery of a topic that waits, in a subscription queue that keeps the latest; else None."""
        topics = self._topics
        return None if topics is None else topics.get(topic)

    def oldest(self) -> Delivery | None:
        """The waiting delivery whose message came first; None where nothing waits, or nobody keeps the order."""
        by_age = self._by_age
        if by_age is None:
            return None
        while by_age:
            delivery = by_age[0].delivery
            if delivery is not None:
                return delivery
            by_age.popleft()
        return None

    def too_old(self, delivery: Delivery, now: float) -> bool:
        """Whether its message has waited longer than it may."""
        return self.max_age > 0.0 and now - delivery.since > self.max_age

    def stale(self, now: float) -> Delivery | None:
        """The oldest waiting delivery if it is too old; None when there is none."""
        if self.max_age == 0.0:
            return None
        delivery = self.oldest()
        return delivery if delivery is not None and self.too_old(delivery, now) else None


def _vacate(delivery: Delivery) -> None:
    """Its place in the order is empty from now on, and holds nothing."""
    place = delivery.place
    if place is not None:
        place.delivery = None
        delivery.place = None
