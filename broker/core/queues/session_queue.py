"""The messages that wait in a session: for the client's return, or for its window. The base of `Session`.

Owns the session's own queue with its bounds, the lanes of what has terms of its own, and the choice of what is shed
when something does not fit: here, or in the outbox on behalf of a lane. The ledger of what was offered and dropped.

Promises:
- The queue is bounded in messages and bytes, and by what the broker allows in all its queues. What does not fit is
  dropped, or what makes room for it is, and counted by cause.
- Nothing that is in flight is shed; nor is the order of what stays changed.
- Shedding costs the same whatever waits, amortised. What was shed from the middle stays as a gap that holds nothing,
  and gaps never outnumber what waits (but for a few).

Refuses: packet identifiers, windows and acknowledgements (`session`), and everything about frames (`outbox`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from broker.core.counters import (
    AGE,
    EXPIRED,
    FULL_BYTES,
    FULL_MESSAGES,
    GLOBAL,
    NO_QUOTA,
    REPLACED,
    Counters,
)
from broker.core.persistence.journal import Journal
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.message import DROPPED, Delivery, Message
from broker.core.queues.outbox import ACCEPTED, Outbox
from broker.core.queues.queue_policy import DISCONNECT, DROP_NEWEST, DROP_OLDEST, SubscriptionQueueTerms
from broker.core.queues.queue_totals import bound
from broker.core.queues.requests import AskedLink
from broker.core.queues.subscription_queue import SubscriptionQueue
from broker.core.topics.subscription import SharedGroup, Subscriber

if TYPE_CHECKING:
    from mypy_extensions import i64

GO_ON: Final = -2
"""Answer of a lane that has room."""

STALE: Final = 64
"""Messages that are too old and are dropped at most when another one comes: more than come, and never long."""

GAPS: Final = 64
"""Gaps that are not worth closing."""


class SessionQueue(Subscriber):
    """One client's queue in its session. Bounds: `max_messages` and `max_bytes`, 0: unlimited."""

    def __init__(self, client_id: str, max_messages: int, max_bytes: int, counters: Counters) -> None:
        self.client_id = client_id
        self._counters = counters
        self._load = counters.load
        self.ledger = Ledger(client_id, counters)
        # The connection, if there is one. `outbox` is changed by FanoutState.apply alone.
        self.outbox: Outbox | None = None
        # Who keeps this session; None when nobody does, or it ends with its connection.
        self.journal: Journal | None = None
        # No topic aliases are used, so that frames can be shared; and whether a QoS 0 frame may go straight to the
        # outbox: none waits here that it would overtake either, and no terms hold for it but the queue's.
        self.plain = True
        self.fast_path = True
        # The terms: `sub_queue` holds those that are about single messages.
        self.max_messages: i64 = bound(max_messages)
        self.max_bytes: i64 = bound(max_bytes)
        # Of what is in flight to the client; one message may always be.
        self.max_inflight_bytes: i64 = self.max_bytes
        self.policy: i64 = DROP_NEWEST
        self.sub_queue: SubscriptionQueue | None = None
        self.queue_qos0 = False
        # Whether the acknowledgements of its client tell if anybody was reached: it is a link, with a broker behind it.
        # Changed while nobody is connected, or when a connection begins.
        self.answers = False
        # Its present connection, once a request was sent to it.
        self.asked_link: AskedLink | None = None
        # Publishes that the client may be sent before it acknowledges one.
        self.quota: i64 = 0
        # The queue: with gaps, and None when nothing waits.
        self.pending: deque[Delivery] | None = None
        self.pending_messages: i64 = 0
        self.pending_bytes: i64 = 0
        self._gaps: i64 = 0
        # QoS 0 among them (kept while offline): live ones of the same topic queue up behind [MQTT-4.6.0-5].
        self._pending_qos0: i64 = 0
        self._pressed = False
        # The ledger of what did not go through the present outbox; what was dropped anywhere is in `ledger`.
        self.offered: i64 = 0
        self.delivered: i64 = 0
        # When the present connection came (s).
        self.attached_at = 0.0

    def limit(self, policy: int, sub_queue: SubscriptionQueue | None, max_messages: int, max_bytes: int) -> None:
        """Give the queue other terms; what waits already stays. Bounds of 0: unlimited."""
        self.policy = policy
        self.sub_queue = sub_queue
        self.max_messages = bound(max_messages)
        self.max_bytes = bound(max_bytes)
        self.max_inflight_bytes = self.max_bytes
        self.update_fast_path()

    def has_terms(self, terms: SubscriptionQueueTerms) -> bool:
        """Whether these are what all of its messages keep to."""
        sub_queue = self.sub_queue
        if sub_queue is not None:
            return sub_queue.same(terms.policy, terms.max_age, terms.depth)
        return self.policy == terms.policy and terms.max_age == 0.0 and terms.depth == 0

    def update_fast_path(self) -> None:
        """What decides whether plain frames may go straight to the connection's queue has changed."""
        tap = self._load.tap
        self.fast_path = (
            self.plain and self._pending_qos0 == 0 and self.sub_queue is None and (tap is None or not tap.deliveries)
        )

    # -- in ------------------------------------------------------------------------------------------------------------

    def _enqueue(self, delivery: Delivery) -> int:
        """Have a delivery wait here: ACCEPTED, or the cause of its drop."""
        size: i64 = delivery.message.size()
        if self.pending_messages >= self.max_messages or self.pending_bytes + size > self.max_bytes:
            self._shed_expired()
        messages: i64 = self.pending_messages + 1 - self.max_messages
        beyond: i64 = self.pending_bytes + size - self.max_bytes
        if messages > 0 or beyond > 0:
            cause = FULL_MESSAGES if messages > 0 else FULL_BYTES
            if not self._make_session_room(delivery.sub_queue, messages, beyond, size, cause):
                outbox = self.outbox
                sub_queue = delivery.sub_queue
                if outbox is not None and size <= self.max_bytes:
                    if self.policy == DISCONNECT or (sub_queue is not None and sub_queue.policy == DISCONNECT):
                        outbox.overflow()
                    elif self.quota <= 0 and delivery.qos > 0:
                        # It reads, perhaps, but it does not acknowledge.
                        cause = NO_QUOTA
                return self._drop(cause)
        if not self._load.has_room(1, size) and not self._load.relieve(1, size):
            return self._drop(GLOBAL)
        pending = self.pending
        if pending is None:
            pending = deque()
            self.pending = pending
        pending.append(delivery)
        delivery.live = False
        delivery.since = self._load.now
        self.pending_messages += 1
        self.pending_bytes += size
        self._hold(size)
        if delivery.qos == 0:
            self._pending_qos0 += 1
            self.fast_path = False
        if not self._pressed and self.outbox is not None and self.pending_messages * 2 > self.max_messages:
            # Once, until the client has worked most of it off: one that does not read slows nobody.
            self._pressed = True
            self._counters.backed_up += 1
        if self.journal is not None:
            self.journal.queued(self.client_id, delivery)
        return ACCEPTED

    def _make_session_room(
        self, sub_queue: SubscriptionQueue | None, messages: i64, size: i64, coming: i64, cause: int
    ) -> bool:
        """Make room here for a message of `coming` bytes, as far as a policy has something to shed for it."""
        if coming > self.max_bytes:
            return False
        if sub_queue is not None and sub_queue.policy == DROP_OLDEST:
            while messages > 0 or size > 0:
                oldest = sub_queue.oldest()
                if oldest is None or oldest.live:
                    break
                messages -= 1
                size -= oldest.message.size()
                self.shed_one(oldest, cause)
        if (messages > 0 or size > 0) and self.policy == DROP_OLDEST:
            self.shed(messages, size, cause)
            return True
        return messages <= 0 and size <= 0

    def _make_live_room(self, sub_queue: SubscriptionQueue, size: i64, outbox: Outbox) -> None:
        """Have a lane that drops its oldest do so where it is the whole queue that has no room."""
        if sub_queue.policy != DROP_OLDEST or size > outbox.max_bytes:
            return
        while outbox.messages >= outbox.max_messages or outbox.bytes + size > outbox.max_bytes:
            oldest = sub_queue.oldest()
            if oldest is None or not oldest.live:
                return
            self.shed_one(oldest, FULL_MESSAGES if outbox.messages >= outbox.max_messages else FULL_BYTES)

    def _ask(self, delivery: Delivery) -> None:
        """A link has taken a delivery: if it is of a request, have its acknowledgement tell whom it reaches.

        Only of a link that is there; QoS 0 is not acknowledged.
        """
        request = self._load.request
        if request is None or delivery.qos == 0 or self.outbox is None:
            return
        link = self.asked_link
        if link is None:
            link = AskedLink()
            self.asked_link = link
        if link.silent and self.owes():
            return
        link.silent = False
        delivery.asked = request
        request.ask(link)

    def owes(self) -> bool:
        """Whether the client has anything to acknowledge besides what it was sent last."""
        return self.pending is not None

    def _stop_answering(self) -> None:
        """The link will not say any more whom the requests on their way reach."""
        if self.answers and self.pending is not None:
            for delivery in self.pending:
                delivery.settle(True)

    def _hold(self, size: i64) -> None:
        """One message more in the broker's queues, of `size` bytes."""
        load = self._load
        load.messages += 1
        load.bytes += size

    def _let_go(self, size: i64) -> None:
        load = self._load
        load.messages -= 1
        load.bytes -= size

    # -- out -----------------------------------------------------------------------------------------------------------

    def _first(self) -> Delivery | None:
        """What has waited longest; None when nothing waits."""
        pending = self.pending
        if pending is None:
            return None
        while pending:
            delivery = pending[0]
            if delivery.state != DROPPED:
                return delivery
            pending.popleft()
            self._gaps -= 1
        self.pending = None
        return None

    def _pop_first(self, delivery: Delivery) -> None:
        """The first, as `_first` gave it, waits here no more. What becomes of it is the caller's to say."""
        pending = self.pending
        assert pending is not None
        pending.popleft()
        self._unqueue(delivery)

    def _unqueue(self, delivery: Delivery) -> None:
        """Take one that waits here out of the accounts; its place in the broker's sum is still held."""
        self.pending_messages -= 1
        self.pending_bytes -= delivery.message.size()
        if delivery.qos == 0:
            self._pending_qos0 -= 1
            self.update_fast_path()
        if self.pending_messages == 0:
            self.pending = None
            self._gaps = 0
        if self._pressed and self.pending_messages * 4 < self.max_messages:
            self._pressed = False

    # -- shedding ------------------------------------------------------------------------------------------------------

    def shed(self, messages: i64, size: i64, cause: int) -> None:
        """Drop the oldest of what waits here until so many messages have gone, and so many bytes; or none is left."""
        while messages > 0 or size > 0:
            delivery = self._first()
            if delivery is None:
                return
            messages -= 1
            size -= delivery.message.size()
            self._pop_first(delivery)
            self._give_up(delivery, cause)

    def _give_up(self, delivery: Delivery, cause: int) -> None:
        """One that is out of the queue is dropped."""
        self._let_go(delivery.message.size())
        sub_queue = delivery.sub_queue
        if sub_queue is not None:
            sub_queue.leave(delivery)
        if self.journal is not None:
            self.journal.finished(self.client_id, delivery)
        delivery.settle(True)
        self._drop(cause)

    def _shed_expired(self) -> None:
        """Drop what has expired, from the front on: a queue that is full of it is not full [MQTT-3.3.2-5]."""
        now = self._load.now
        while True:
            delivery = self._first()
            if delivery is None or not delivery.message.expired(now):
                return
            self._pop_first(delivery)
            self._give_up(delivery, EXPIRED)

    def shed_one(self, delivery: Delivery, cause: int) -> None:
        """Drop one that waits, here or in the outbox, wherever it stands."""
        if delivery.live:
            assert self.outbox is not None
            self.outbox.shed_one(delivery, cause)
            return
        self._unqueue(delivery)
        self._give_up(delivery, cause)
        delivery.drop()
        pending = self.pending
        if pending is None:
            return
        self._gaps += 1
        if self._gaps > self.pending_messages + GAPS:
            live: deque[Delivery] = deque()
            for each in pending:
                if each.state != DROPPED:
                    live.append(each)
            self.pending = live
            self._gaps = 0

    def shed_stale(self, sub_queue: SubscriptionQueue, now: float, most: i64) -> i64:
        """Drop what has waited in a lane for longer than it may, at most so many; how many there were."""
        count: i64 = 0
        while count < most:
            delivery = sub_queue.stale(now)
            if delivery is None:
                break
            self.shed_one(delivery, AGE)
            count += 1
        return count

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def _enter(self, sub_queue: SubscriptionQueue, delivery: Delivery) -> None:
        """A delivery of a lane begins to wait, here or in the outbox."""
        load = self._load
        sub_queue.enter(delivery, load.now)
        if sub_queue.max_age > 0.0:
            load.aging[sub_queue] = None

    def _sub_queue_room(
        self,
        sub_queue: SubscriptionQueue,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
    ) -> int:
        """What a lane makes of a message that comes: GO_ON, or ACCEPTED in place of an older one, or why not."""
        self.shed_stale(sub_queue, self._load.now, STALE)
        same = sub_queue.of_topic(message.topic)
        if same is not None:
            if (same.qos == 0) == (qos == 0):
                answer = self._renew(sub_queue, same, message, qos, retain, identifiers, group)
                if answer != GO_ON:
                    return answer
            else:
                # They wait in different places: the newer one, then, in the last.
                self.shed_one(same, REPLACED)
        while sub_queue.waiting >= sub_queue.depth:
            oldest = sub_queue.oldest() if sub_queue.policy == DROP_OLDEST else None
            if oldest is None:
                if sub_queue.policy == DISCONNECT and self.outbox is not None:
                    self.outbox.overflow()
                return self._drop(FULL_MESSAGES)
            self.shed_one(oldest, FULL_MESSAGES)
        return GO_ON

    def _renew(
        self,
        sub_queue: SubscriptionQueue,
        waiting: Delivery,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
    ) -> int:
        """Put a newer message of the topic in the place of the one that waits. GO_ON when that one had to go."""
        outbox = self.outbox
        grown: i64 = message.size()
        grown -= waiting.message.size()
        if waiting.live:
            assert outbox is not None
            fits = outbox.bytes + grown <= outbox.max_bytes
        else:
            fits = self.pending_bytes + grown <= self.max_bytes
        if not fits:
            return self._drop(FULL_BYTES)
        if grown > 0 and not self._load.has_room(0, grown):
            relieved = self._load.relieve(0, grown)
            if not waiting.waits:
                return GO_ON
            if not relieved:
                return self._drop(GLOBAL)
        if waiting.live:
            assert outbox is not None
            outbox.renewed(grown)
        else:
            self.pending_bytes += grown
            self._load.bytes += grown
            self._drop(REPLACED)
        waiting.settle(True)
        waiting.message = message
        waiting.qos = qos
        waiting.retain = retain
        waiting.identifiers = identifiers
        waiting.group = group
        sub_queue.renew(waiting, self._load.now)
        if self.answers:
            self._ask(waiting)
        if self.journal is not None and not waiting.live:
            self.journal.renewed(self.client_id, waiting)
        return ACCEPTED

    def waited(self, now: float) -> float:
        """Seconds that messages for a connected client spend in its queues; 0.0 when none waits, or it is away.

        In the session's: one that reads and does not acknowledge is slow, too.
        """
        outbox = self.outbox
        if outbox is None:
            return 0.0
        longest = outbox.waited(now)
        first = self._first()
        if first is not None:
            # Not since before it came: what waited for its return is not its fault.
            since = first.since if first.since > self.attached_at else self.attached_at
            if now - since > longest:
                longest = now - since
        return longest

    # -- the ledger ----------------------------------------------------------------------------------------------------

    def _drop(self, cause: int) -> int:
        self.ledger.lost(cause, 1)
        return cause
