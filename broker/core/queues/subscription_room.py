"""Applies the terms of one subscription (`SubscriptionQueue`) to an arriving message.

Messages that are too old are dropped first, a newer message replaces the one of its topic, and above the depth the
oldest is dropped, or the new one. This concerns the client's one queue: what waits in the session (`SessionQueue`), and
what waits in the outbox of its connection; None: it is away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from broker.core.counters import AGE, FULL_BYTES, FULL_MESSAGES, GLOBAL, REPLACED
from broker.core.queues.delivery import Delivery, SubscriptionQueue
from broker.core.queues.live.outbox import ACCEPTED, Outbox
from broker.core.queues.message import Message
from broker.core.queues.policies.queue_policy import DISCONNECT, DROP_OLDEST
from broker.core.queues.session_queue import STALE, SessionQueue

if TYPE_CHECKING:
    from broker.core.topics.subscription import SharedGroup

GO_ON: Final = -2
"""Answer of a subscription queue that has room."""


def shed_stale(queue: SessionQueue, sub_queue: SubscriptionQueue, now: float, most: i64, outbox: Outbox | None) -> i64:
    """Drop what has waited in a subscription queue for longer than it may, at most so many; how many there were."""
    count: i64 = 0
    while count < most and (delivery := sub_queue.stale(now)) is not None:
        queue.shed_one(delivery, AGE, outbox)
        count += 1
    return count


def offer_live(queue: SessionQueue, delivery: Delivery, sub_queue: SubscriptionQueue, outbox: Outbox) -> int:
    """Offer a QoS 0 delivery with terms of its own to the outbox: ACCEPTED, or the cause of its drop."""
    size: i64 = delivery.message.size()
    _make_live_room(sub_queue, size, outbox)
    cause = outbox.offer_late(delivery)
    if cause == ACCEPTED:
        queue.enter(sub_queue, delivery)
    elif sub_queue.policy == DISCONNECT and cause in (FULL_MESSAGES, FULL_BYTES) and size <= outbox.max_bytes:
        outbox.overflow()
    return cause


def _make_live_room(sub_queue: SubscriptionQueue, size: i64, outbox: Outbox) -> None:
    """Have a subscription queue that drops its oldest do so where it is the whole queue that has no room."""
    if sub_queue.policy != DROP_OLDEST or size > outbox.max_bytes:
        return
    while outbox.messages >= outbox.max_messages or outbox.bytes + size > outbox.max_bytes:
        oldest = sub_queue.oldest()
        if oldest is None or not oldest.live:
            return
        outbox.queue.shed_one(oldest, FULL_MESSAGES if outbox.messages >= outbox.max_messages else FULL_BYTES)


def make_room(
    queue: SessionQueue,
    outbox: Outbox | None,
    sub_queue: SubscriptionQueue,
    message: Message,
    qos: int,
    retain: bool,
    identifiers: tuple[int, ...],
    group: SharedGroup | None,
) -> int:
    """What a subscription queue makes of a message: GO_ON, or ACCEPTED in place of an older one, or why not."""
    shed_stale(queue, sub_queue, queue.load.now, STALE, outbox)
    same = sub_queue.of_topic(message.topic)
    if same is not None:
        if (same.qos == 0) == (qos == 0):
            answer = _renew(queue, outbox, sub_queue, same, message, qos, retain, identifiers, group)
            if answer != GO_ON:
                return answer
        else:
            # They wait in different places: the newer one, then, in the last.
            queue.shed_one(same, REPLACED, outbox)
    while sub_queue.waiting >= sub_queue.depth:
        oldest = sub_queue.oldest() if sub_queue.policy == DROP_OLDEST else None
        if oldest is None:
            if sub_queue.policy == DISCONNECT and outbox is not None:
                outbox.overflow()
            return queue.drop(FULL_MESSAGES)
        queue.shed_one(oldest, FULL_MESSAGES, outbox)
    return GO_ON


def _renew(
    queue: SessionQueue,
    outbox: Outbox | None,
    sub_queue: SubscriptionQueue,
    waiting: Delivery,
    message: Message,
    qos: int,
    retain: bool,
    identifiers: tuple[int, ...],
    group: SharedGroup | None,
) -> int:
    """Put a newer message of the topic in the place of the one that waits. GO_ON when that one had to go."""
    load = queue.load
    grown: i64 = message.size()
    grown -= waiting.message.size()
    if waiting.live:
        assert outbox is not None
        fits = outbox.bytes + grown <= outbox.max_bytes or outbox.messages == 1
    else:
        fits = queue.bytes + grown <= queue.max_bytes or queue.messages == 1
    if not fits:
        return queue.drop(FULL_BYTES)
    if grown > 0 and not load.has_room(0, grown):
        relieved = load.relieve(0, grown)
        if not waiting.waits:
            return GO_ON
        if not relieved:
            return queue.drop(GLOBAL)
    if waiting.live:
        assert outbox is not None
        outbox.queue.replace(grown)
    else:
        queue.bytes += grown
        queue.owner.queued += grown
        load.bytes += grown
        queue.drop(REPLACED)
    waiting.settle(True)
    waiting.message = message
    waiting.qos = qos
    waiting.retain = retain
    waiting.identifiers = identifiers
    waiting.group = group
    sub_queue.renew(waiting, load.now)
    if queue.journal is not None and not waiting.live:
        queue.journal.renewed(queue.client_id, waiting)
    return ACCEPTED
