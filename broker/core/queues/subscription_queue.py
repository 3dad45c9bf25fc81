"""The messages of one subscription (or of one client) that keep to terms of their own: newest only, age, depth.

Owns `SubscriptionQueue`: its terms, how many of its messages wait, and what it takes to find the one that goes first:
its waiting deliveries in the order of their age, and, for `LATEST`, one by topic. A client's queues stay one line in
one order; a subscription queue is an account of some of what stands in it.

Promises: each operation costs the same, amortised, however much waits. What is remembered here is bounded by what
waits. A subscription queue without a bound on age, and with another policy than `DROP_OLDEST`, remembers a number.

Refuses: to take anything out of a queue. `session` does, and tells the subscription queue.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, cast

from broker.core.queues.queue_policy import DROP_OLDEST, LATEST, QueueOptions
from broker.core.queues.queue_totals import bound
from broker.core.topics.subscription import OwnQueue, Subscriber, Subscription

if TYPE_CHECKING:
    from mypy_extensions import i64

    from broker.core.queues.message import Delivery

SLACK: Final = 64
"""Entries of the order of age that may be stale before it is made anew."""


class Place:
    """A place in the order of age; empty once the delivery has left, or got a newer message and another place."""

    def __init__(self, delivery: Delivery) -> None:
        self.delivery: Delivery | None = delivery


class SubscriptionQueue(OwnQueue):
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


def queue_of(subscription: Subscription) -> SubscriptionQueue | None:
    """The queue that a subscription has to itself; None: its messages wait on the terms of its client."""
    return cast("SubscriptionQueue | None", subscription.sub_queue)
