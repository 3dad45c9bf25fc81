"""The messages that wait in a session, until its client connects again or acknowledges others.

Owns the session's queue with its limits, and the choice of what is dropped if something does not fit: here, or in the
outbox on behalf of a subscription (`SubscriptionQueue`). Each drop is counted by cause. In-flight messages are never
dropped, and the order never changes. Dropping has amortised constant cost: a drop from the middle leaves an empty gap,
and gaps never outnumber the messages (except for a few).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from broker.core.accounts import Account
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
from broker.core.permissions import NEVER_MADE, Permissions
from broker.core.persistence.journal import DeliveryRecord, Fetch, Journal
from broker.core.persistence.pages import FETCHED_BYTES, PAGE_BYTES, Page, Pages
from broker.core.principal import Principal
from broker.core.queues.delivery import DROPPED, Delivery, SubscriptionQueue
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.live.outbox import ACCEPTED, Outbox
from broker.core.queues.live.send_queue import NEVER_TAKEN
from broker.core.queues.message import Message
from broker.core.queues.policies.queue_policy import DISCONNECT, DROP_NEWEST, DROP_OLDEST
from broker.core.queues.queue_totals import Crowded, QueueTotals, bound
from broker.core.queues.requests import RequestMessage
from broker.core.topics.subscription import SharedGroup

if TYPE_CHECKING:
    from broker.core.topics.subscription import SharedGroup

GO_ON: Final = -2
"""Answer of `make_room_in` where there is room."""

STALE: Final = 64
"""Messages that are too old and are dropped at most when another one comes: more than come, and never long."""

GAPS: Final = 64
"""Gaps that are not worth closing."""


class SessionQueue(Crowded):
    """One client's queue in its session. `messages` and `bytes`: what waits; a limit of 0: unlimited.

    Of it some may be on disk alone (`disk`): behind the first `_ahead` of `pending`, and before the rest. `outbox`,
    where a method takes it, is that of the client's connection; None: it is away.
    """

    def __init__(self, ledger: Ledger, counters: Counters, max_messages: int, max_bytes: int) -> None:
        """`ledger`: where losses are written down."""
        self.max_messages: i64 = bound(max_messages)
        self.max_bytes: i64 = bound(max_bytes)  # what holds now, and the queue's own bound: see `fit`
        self._own_max_bytes: i64 = self.max_bytes
        self.policy: i64 = DROP_NEWEST
        # What is still to be asked about what waits; None: the rules were not looked at for the client that it is now.
        self.review: Review | None = None
        self.journal: Journal | None = None  # who keeps what waits; see `Session.keep_in`
        self.pages: Pages | None = None  # with it: where messages may wait on disk alone
        self.pending: deque[Delivery] | None = None  # in memory; with gaps, and None when nothing waits at all
        self.disk: DiskQueue | None = None  # None: nothing waits on disk alone
        self._ahead: i64 = 0
        self.messages: i64 = 0
        self.bytes: i64 = 0
        # QoS 0 among them (kept while offline): live ones of the same topic queue up behind [MQTT-4.6.0-5].
        # One more while QoS 0 has to wait in any case (`hold_qos0`).
        self.qos0: i64 = 0
        self._gaps: i64 = 0
        self._pressed = False
        # As in `SendQueue`: whether publishers wait for this client, and when it last took something, or kept up.
        self.holds = True
        self._taken_at: float = NEVER_TAKEN
        self.client_id = ledger.client_id
        self._ledger = ledger
        self._counters = counters
        self.load = counters.load
        # Whose account has the bytes that wait here in memory; see `belong_to`.
        self.owner: Account = counters.load.internal

    def limit(self, policy: int, max_messages: int, max_bytes: int) -> None:
        """Give the queue other terms; what waits already stays. Bounds of 0: unlimited."""
        self.policy = policy
        self.max_messages = bound(max_messages)
        self._own_max_bytes = bound(max_bytes)
        self.max_bytes = self._own_max_bytes

    def fit(self, left: i64) -> None:
        """Keep to `left` bytes, where that is less than the queue's own bound; what waits already stays."""
        self.max_bytes = left if left < self._own_max_bytes else self._own_max_bytes

    # -- whose it is ---------------------------------------------------------------------------------------------------

    def belong_to(self, account: Account) -> None:
        """Have another account answer for what waits here, now and later."""
        if self.messages > 0:
            self.load.queue_ends(self.owner)
        self.owner.queued -= self.bytes_in_memory
        self.owner = account
        account.queued += self.bytes_in_memory
        if self.messages > 0:
            self.load.queue_begins(self.owner)

    # -- in ------------------------------------------------------------------------------------------------------------

    def add(self, delivery: Delivery, outbox: Outbox | None, quota: i64) -> int:
        """Have a delivery wait here: ACCEPTED, or the cause of its drop. `quota`: what is left of the send quota."""
        size: i64 = delivery.message.size()
        if self.messages >= self.max_messages or self.bytes + size > self.max_bytes:
            self._shed_expired()
        messages: i64 = self.messages + 1 - self.max_messages
        beyond: i64 = self.bytes + size - self.max_bytes
        if size > self.max_bytes:
            # It fits when the queue is empty. Nothing goes for it.
            beyond = self.bytes
        if messages > 0 or beyond > 0:
            cause = FULL_MESSAGES if messages > 0 else FULL_BYTES
            if size > self.max_bytes or not self._make_room(delivery.sub_queue, messages, beyond, cause):
                sub_queue = delivery.sub_queue
                if outbox is not None and size <= self.max_bytes:
                    if self.policy == DISCONNECT or (sub_queue is not None and sub_queue.policy == DISCONNECT):
                        outbox.overflow()
                    elif quota <= 0 and delivery.qos > 0:
                        # It reads, perhaps, but it does not acknowledge.
                        cause = NO_QUOTA
                return self.drop(cause)
        if self.pages is not None and self._is_for_disk(delivery, size, self.pages):
            if self._begin_disk(self.pages).add(delivery, self.journal, self.policy == DROP_OLDEST):
                return ACCEPTED
            return self.drop(GLOBAL)
        if not self.load.has_room(1, size) and not self.load.admits(1, size, self.messages, self.bytes):
            return self.drop(GLOBAL)
        pending = self.pending
        if pending is None:
            pending = deque()
            self.pending = pending
        pending.append(delivery)
        delivery.live = False
        delivery.since = self.load.now
        if self.messages == 0:
            # Until now it has kept up.
            self._taken_at = self.load.now
            self.load.queue_begins(self.owner)
        self.messages += 1
        self.bytes += size
        self.owner.queued += size
        self.load.messages += 1
        self.load.bytes += size
        if delivery.qos == 0:
            self.qos0 += 1
        self._press(outbox)
        if self.journal is not None:
            self.journal.queued(self.client_id, delivery)
        if delivery.sub_queue is not None:
            self.enter(delivery.sub_queue, delivery)
        return ACCEPTED

    def _make_room(self, sub_queue: SubscriptionQueue | None, messages: i64, size: i64, cause: int) -> bool:
        """Make room here for so many messages and bytes, as far as a policy has something to shed for it."""
        if sub_queue is not None and sub_queue.policy == DROP_OLDEST:
            while messages > 0 or size > 0:
                oldest = sub_queue.oldest()
                if oldest is None or oldest.live:
                    break
                messages -= 1
                size -= oldest.message.size()
                self._drop_one(oldest, cause)
        if (messages > 0 or size > 0) and self.policy == DROP_OLDEST:
            self.shed(messages, size, cause)
            return True
        return messages <= 0 and size <= 0

    def _press(self, outbox: Outbox | None) -> None:
        """Whoever routes is told when half of what may wait does."""
        if outbox is None or not (self.messages * 2 > self.max_messages or self.bytes * 2 > self.max_bytes):
            return
        load = self.load
        if not self._pressed:
            # Once, until the client has worked most of it off: one that does not read slows nobody.
            self._pressed = True
            self._counters.backed_up += 1
        if self.crowded(load.now):
            load.crowds += 1
            load.crowded_session = self

    def crowded(self, now: float) -> bool:
        """See `Crowded`: the client acknowledges, if not for long."""
        return (
            self.holds
            and self.policy != DROP_OLDEST
            and (self.messages * 2 > self.max_messages or self.bytes * 2 > self.max_bytes)
            and now < self._taken_at + self.load.standstill
        )

    def part(self) -> i64:
        """See `Crowded`: a sixteenth of what may wait."""
        return self.max_messages >> 4

    def part_bytes(self) -> i64:
        """See `Crowded`: three eighths of what may wait."""
        return (self._own_max_bytes >> 3) * 3

    # -- on disk alone -------------------------------------------------------------------------------------------------

    @property
    def in_memory(self) -> i64:
        """How many of `messages` are in memory."""
        return self.messages if self.disk is None else self.messages - self.disk.messages

    @property
    def bytes_in_memory(self) -> i64:
        """How many of `bytes` are."""
        return self.bytes if self.disk is None else self.bytes - self.disk.bytes

    def _is_for_disk(self, delivery: Delivery, size: i64, pages: Pages) -> bool:
        """Whether a delivery is to wait on disk alone."""
        if self.disk is None:
            return pages.beyond(self.messages, self.bytes, size, self.load.bytes) and is_pageable(delivery)
        # Behind what is there, but not past what had to stay in memory.
        return (self.pending is None or len(self.pending) <= self._ahead) and is_pageable(delivery)

    def _begin_disk(self, pages: Pages) -> DiskQueue:
        """The part that is on disk, which begins behind all that waits in memory."""
        if self.pending is None:
            self.pending = deque()
        if self.disk is None:
            self.disk = DiskQueue(self, self._ledger, self.load, pages)
            self._ahead = len(self.pending)
        return self.disk

    def restore_page(self, page: Page, pages: Pages, qos0: bool) -> None:
        """Take back a page that a store kept, behind all that waits. `qos0`: there may be QoS 0 in it."""
        self._begin_disk(pages).restore(page, qos0)

    def ask_disk(self, outbox: Outbox) -> None:
        """Have what is on disk alone be read while there is still something before it: less than a page."""
        disk = self.disk
        if disk is None or self.pages is None or self.journal is None:
            return
        if self._ahead == 0 or (self._ahead < self.pages.page and self.bytes_in_memory < PAGE_BYTES):
            disk.ask(self.journal, outbox)

    def count(self, messages: i64, size: i64) -> None:
        before: i64 = self.messages
        self.messages += messages
        self.bytes += size
        if before == 0 and messages > 0:
            self.load.queue_begins(self.owner)
        elif before > 0 and self.messages == 0:
            self.load.queue_ends(self.owner)

    def put_back(self, deliveries: list[Delivery]) -> None:
        pending = self.pending
        assert pending is not None
        behind: list[Delivery] = []
        while len(pending) > self._ahead:
            behind.append(pending.pop())
        for delivery in deliveries:
            pending.append(delivery)
            self.owner.queued += delivery.message.size()
            if delivery.qos == 0:
                self.qos0 += 1
        self._ahead = len(pending)
        while behind:
            pending.append(behind.pop())

    def disk_ended(self) -> None:
        self.disk = None
        if self.messages == 0:
            self.pending = None
            self._gaps = 0

    # -- out -----------------------------------------------------------------------------------------------------------

    def first(self) -> Delivery | None:
        """What has waited longest; None when nothing waits, or it is on disk alone."""
        pending = self.pending
        if pending is None:
            return None
        disk = self.disk
        while pending and (disk is None or self._ahead > 0):
            delivery = pending[0]
            if delivery.state != DROPPED:
                return delivery
            pending.popleft()
            self._ahead -= 1
            self._gaps -= 1
        if disk is None:
            self.pending = None
        return None

    def waited(self, now: float, since: float) -> float:
        """Seconds since the first that waits came, or since `since` if that is later; 0.0 when nothing waits."""
        first = self.first()
        if first is None:
            return 0.0
        # Not since before its client came: what waited for its return is not its fault.
        return now - (first.since if first.since > since else since)

    def pop_first(self, delivery: Delivery) -> None:
        """The first, as `first` gave it, waits here no more. What becomes of it is the caller's to say."""
        pending = self.pending
        assert pending is not None
        pending.popleft()
        self._ahead -= 1
        if self.review is not None:
            self.review.gone()
        self._unqueue(delivery)

    def _unqueue(self, delivery: Delivery) -> None:
        """Take one that waits here out of the accounts; its place in the broker's sum is still held."""
        size: i64 = delivery.message.size()
        self.messages -= 1
        self.bytes -= size
        self.owner.queued -= size
        if delivery.qos == 0:
            self.qos0 -= 1
        if self.messages == 0:
            self.load.queue_ends(self.owner)
            self.pending = None
            self._gaps = 0
            if self.review is not None:
                self.review.left = 0
        self._taken_at = self.load.now
        if self._pressed and self.messages * 4 < self.max_messages and self.bytes * 4 < self.max_bytes:
            self._pressed = False

    def take(self, delivery: Delivery) -> None:
        """Take one out, wherever it stands; its place in the broker's sum is still held."""
        assert self.pending is not None
        self.pending.remove(delivery)
        self._unqueue(delivery)
        if delivery.sub_queue is not None:
            delivery.sub_queue.leave(delivery)

    def waiting(self) -> list[Delivery]:
        """What waits in memory, in its order: a copy."""
        return [] if self.pending is None else [each for each in self.pending if each.state != DROPPED]

    def take_shared(self, groups: set[SharedGroup]) -> list[Delivery]:
        """Take out all that was chosen for this member of some shared subscriptions."""
        taken = [each for each in self.waiting() if each.group in groups]
        self.take_out(taken)
        load = self.load
        for delivery in taken:
            load.messages -= 1
            load.bytes -= delivery.message.size()
            if delivery.sub_queue is not None:
                delivery.sub_queue.leave(delivery)
        return taken

    def take_out(self, some: list[Delivery]) -> None:
        """Take out some of `waiting`; what else has an account of them, such as the broker's sum, still has."""
        for delivery in some:
            self._unqueue(delivery)
        if some:
            self._close_gaps(set(some))

    def _close_gaps(self, gone: set[Delivery]) -> None:
        """Have `pending` hold what waits, and neither gaps nor those that have just gone."""
        pending = self.pending
        self._gaps = 0
        if pending is None:
            return
        kept: deque[Delivery] = deque()
        before: i64 = self._ahead
        ahead: i64 = 0
        for at, delivery in enumerate(pending):
            if delivery.state != DROPPED and delivery not in gone:
                kept.append(delivery)
                if at < before:
                    ahead += 1
        self._ahead = ahead
        self.pending = kept if kept or self.disk is not None else None

    def doubt(self, permissions: Permissions, principal: Principal) -> None:
        """Once for each change of the rules: see that its client's right to what waits now is asked for."""
        if self.review is None:
            self.review = Review(principal)
        waiting: i64 = 0 if self.pending is None else len(self.pending)
        self.review.begin(permissions, waiting if self.disk is None else waiting + self.disk.messages)

    def bars(self, delivery: Delivery) -> bool:
        """Whether the first that waits may not be sent any more; or with a lower QoS, which it has then."""
        review = self.review
        most = delivery.qos if review is None else review.most(delivery, self.load.permissions)
        if 0 <= most < delivery.qos:
            delivery.qos = most
            if most == 0:
                self.qos0 += 1
                delivery.settle(True)
        return most < 0

    def hold_qos0(self, hold: bool) -> None:
        """Have QoS 0 wait though none waits before it, from now on or no more. Callers keep track of which it is."""
        self.qos0 += 1 if hold else -1

    def settle(self) -> None:
        """Nobody will say any more whom the requests that wait here reach: the session is over, or its connection."""
        if self.pending is not None:
            for delivery in self.pending:
                delivery.settle(True)

    def end(self) -> None:
        """The session is over: nothing waits any more. What did was counted."""
        load = self.load
        load.messages -= self.in_memory
        load.bytes -= self.bytes_in_memory
        self.owner.queued -= self.bytes_in_memory
        if self.messages > 0:
            self.load.queue_ends(self.owner)
        if self.disk is not None:
            self.disk.end()
            self.disk = None
        if self.pending is not None:
            # Their subscription queues may be remembered elsewhere.
            for delivery in self.pending:
                if delivery.sub_queue is not None:
                    delivery.sub_queue.leave(delivery)
        self.pending = None
        self.messages = 0
        self.bytes = 0
        self.qos0 = self._gaps = 0
        self.review = None

    # -- shedding ------------------------------------------------------------------------------------------------------

    def shed(self, messages: i64, size: i64, cause: int) -> None:
        """Drop the oldest of what waits here until so many messages have gone, and so many bytes; or none is left."""
        count: i64 = 0
        while messages > 0 or size > 0:
            delivery = self.first()
            if delivery is None:
                if self.disk is None or cause == GLOBAL:
                    # Memory is short then, and the disk's part takes none.
                    break
                page = self.disk.drop_page(cause, self.journal)
                messages -= page.messages
                size -= page.bytes
                continue
            messages -= 1
            size -= delivery.message.size()
            count += 1
            self.pop_first(delivery)
            self._forget(delivery)
        if count > 0:
            self._ledger.lost(cause, count)

    def give_up(self, delivery: Delivery, cause: int) -> None:
        """One that is out of the queue is dropped."""
        self._forget(delivery)
        self.drop(cause)

    def _forget(self, delivery: Delivery) -> None:
        """One that is out of the queue has no place in the broker's sum any more, nor with anybody else."""
        self.load.messages -= 1
        self.load.bytes -= delivery.message.size()
        sub_queue = delivery.sub_queue
        if sub_queue is not None:
            sub_queue.leave(delivery)
        if self.journal is not None:
            self.journal.finished(self.client_id, delivery)
        delivery.settle(True)

    def _shed_expired(self) -> None:
        """Drop what has expired, from the front on: a queue that is full of it is not full [MQTT-3.3.2-5]."""
        now = self.load.now
        for _ in range(16 * STALE):
            delivery = self.first()
            if delivery is None and self.disk is not None and self.disk.expired(now):
                self.disk.drop_page(EXPIRED, self.journal)
                continue
            if delivery is None or not delivery.message.expired(now):
                return
            self.pop_first(delivery)
            self.give_up(delivery, EXPIRED)

    def shed_one(self, delivery: Delivery, cause: int, outbox: Outbox | None) -> None:
        """Drop one that waits, here or in the outbox, wherever it stands."""
        if delivery.live:
            assert outbox is not None
            outbox.queue.shed_one(delivery, cause)
        else:
            self._drop_one(delivery, cause)

    def _drop_one(self, delivery: Delivery, cause: int) -> None:
        self._unqueue(delivery)
        self.give_up(delivery, cause)
        delivery.drop()
        if self.pending is None:
            return
        self._gaps += 1
        if self._gaps > self.messages + GAPS:
            self._close_gaps(set())

    # -- subscription queues -------------------------------------------------------------------------------------------

    def enter(self, sub_queue: SubscriptionQueue, delivery: Delivery) -> None:
        """A delivery of a subscription queue begins to wait, here or in the outbox."""
        load = self.load
        sub_queue.enter(delivery, load.now)
        if sub_queue.max_age > 0.0:
            load.aging[sub_queue] = None

    def shed_stale(self, sub_queue: SubscriptionQueue, now: float, most: i64, outbox: Outbox | None) -> i64:
        """Drop what has waited in a subscription queue for longer than it may, at most so many; how many there were."""
        count: i64 = 0
        while count < most and (delivery := sub_queue.stale(now)) is not None:
            self.shed_one(delivery, AGE, outbox)
            count += 1
        return count

    def offer_live(self, delivery: Delivery, sub_queue: SubscriptionQueue, outbox: Outbox) -> int:
        """Offer a QoS 0 delivery with terms of its own to the outbox: ACCEPTED, or the cause of its drop."""
        size: i64 = delivery.message.size()
        self._make_live_room(sub_queue, size, outbox)
        cause = outbox.offer_late(delivery)
        if cause == ACCEPTED:
            self.enter(sub_queue, delivery)
        elif sub_queue.policy == DISCONNECT and cause in (FULL_MESSAGES, FULL_BYTES) and size <= outbox.max_bytes:
            outbox.overflow()
        return cause

    def _make_live_room(self, sub_queue: SubscriptionQueue, size: i64, outbox: Outbox) -> None:
        """Have a subscription queue that drops its oldest do so where it is the whole queue that has no room."""
        if sub_queue.policy != DROP_OLDEST or size > outbox.max_bytes:
            return
        while outbox.messages >= outbox.max_messages or outbox.bytes + size > outbox.max_bytes:
            oldest = sub_queue.oldest()
            if oldest is None or not oldest.live:
                return
            outbox.queue.shed_one(oldest, FULL_MESSAGES if outbox.messages >= outbox.max_messages else FULL_BYTES)

    def make_room_in(
        self,
        outbox: Outbox | None,
        sub_queue: SubscriptionQueue,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
    ) -> int:
        """What a subscription queue makes of a message: GO_ON, or ACCEPTED in place of an older one, or why not."""
        self.shed_stale(sub_queue, self.load.now, STALE, outbox)
        same = sub_queue.of_topic(message.topic)
        if same is not None:
            if (same.qos == 0) == (qos == 0):
                answer = self._renew(outbox, sub_queue, same, message, qos, retain, identifiers, group)
                if answer != GO_ON:
                    return answer
            else:
                # They wait in different places: the newer one, then, in the last.
                self.shed_one(same, REPLACED, outbox)
        while sub_queue.waiting >= sub_queue.depth:
            oldest = sub_queue.oldest() if sub_queue.policy == DROP_OLDEST else None
            if oldest is None:
                if sub_queue.policy == DISCONNECT and outbox is not None:
                    outbox.overflow()
                return self.drop(FULL_MESSAGES)
            self.shed_one(oldest, FULL_MESSAGES, outbox)
        return GO_ON

    def _renew(
        self,
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
        load = self.load
        grown: i64 = message.size()
        grown -= waiting.message.size()
        if waiting.live:
            assert outbox is not None
            fits = outbox.bytes + grown <= outbox.max_bytes or outbox.messages == 1
        else:
            fits = self.bytes + grown <= self.max_bytes or self.messages == 1
        if not fits:
            return self.drop(FULL_BYTES)
        if grown > 0 and not load.has_room(0, grown):
            relieved = load.relieve(0, grown)
            if not waiting.waits:
                return GO_ON
            if not relieved:
                return self.drop(GLOBAL)
        if waiting.live:
            assert outbox is not None
            outbox.queue.replace(grown)
        else:
            self.bytes += grown
            self.owner.queued += grown
            load.bytes += grown
            self.drop(REPLACED)
        waiting.settle(True)
        waiting.message = message
        waiting.qos = qos
        waiting.retain = retain
        waiting.identifiers = identifiers
        waiting.group = group
        sub_queue.renew(waiting, load.now)
        if self.journal is not None and not waiting.live:
            self.journal.renewed(self.client_id, waiting)
        return ACCEPTED

    def drop(self, cause: int) -> int:
        """Count a message that does not come to wait here, or no more. Returns the cause."""
        self._ledger.lost(cause, 1)
        return cause


HIGHEST: Final = 2
"""The QoS that lowers none."""


class Review:
    """The check of one client's queue: `left` messages from the first on remain."""

    def __init__(self, principal: Principal) -> None:
        self.left: i64 = 0
        self._principal = principal
        self._epochs: i64 = NEVER_MADE  # of the rules that were seen last
        self._allowed: Delivery | None = None  # the first that waits, once it was asked about

    def begin(self, permissions: Permissions, waiting: i64) -> None:
        """Have the right to what waits now be asked for, once for each change of the rules."""
        permissions.refresh()
        if self._epochs != permissions.epochs:
            self._epochs = permissions.epochs
            self.left = waiting
            self._allowed = None

    def most(self, delivery: Delivery, permissions: Permissions | None) -> int:
        """The QoS with which the first that waits may be sent, at most; below 0: not at all. Asks once about each."""
        if self.left <= 0 or permissions is None or not permissions.filters or delivery is self._allowed:
            return HIGHEST
        most = permissions.receive_qos(self._principal, delivery.message.topic.decode())
        if most >= 0:
            self._allowed = delivery
        return most

    def gone(self) -> None:
        """The first waits no more."""
        if self.left > 0:
            self.left -= 1
            self._allowed = None


def is_pageable(delivery: Delivery) -> bool:
    """Whether a delivery may wait on disk alone: those may whom nobody looks for before their turn comes."""
    return delivery.sub_queue is None and delivery.group is None and not isinstance(delivery.message, RequestMessage)


class DiskQueue:
    """The pages of one session, if any of its messages are on disk only."""

    def __init__(self, queue: SessionQueue, ledger: Ledger, load: QueueTotals, pages: Pages) -> None:
        self.messages: i64 = 0
        self.bytes: i64 = 0
        self._holds_qos0 = False
        self._queue = queue
        self._ledger = ledger
        self._load = load
        self._sums = pages
        self._pages: deque[Page] = deque()
        # What is being read: so many pages from the first on, for whom.
        self._fetch: QueueFetch | None = None
        self._asked: i64 = 0
        self._outbox: Outbox | None = None

    def add(self, delivery: Delivery, journal: Journal | None, drop_oldest: bool) -> bool:
        """Have a delivery wait here as the last. False: the disk has no room, nor may the oldest here give it."""
        assert journal is not None
        sums = self._sums
        size: i64 = delivery.message.size()
        while sums.bytes + size > sums.disk_bytes and sums.messages > 0:
            if not drop_oldest or not self._pages:
                self._end_if_empty()
                return False
            self._drop_first(GLOBAL, journal)
        journal.paged(self._ledger.client_id, delivery)
        self._append(delivery, size)
        if delivery.qos == 0:
            self._hold_qos0()
        return True

    def _append(self, delivery: Delivery, size: i64) -> None:
        expires_at = delivery.message.expires_at
        page = self._pages[-1] if len(self._pages) > self._asked else None
        if page is None or page.messages >= self._sums.page or page.bytes + size > PAGE_BYTES:
            page = Page(delivery.record, delivery.record, 0, 0)
            page.expires_at = expires_at
            self._pages.append(page)
        page.last = delivery.record
        page.messages += 1
        page.bytes += size
        if page.expires_at != 0.0 and (expires_at == 0.0 or expires_at > page.expires_at):
            page.expires_at = expires_at
        self._queue.count(1, size)
        self._count(1, size)

    def restore(self, page: Page, qos0: bool) -> None:
        """A page that a store kept is the last. `qos0`: there may be QoS 0 in it."""
        self._pages.append(page)
        self._queue.count(page.messages, page.bytes)
        self._count(page.messages, page.bytes)
        if qos0:
            self._hold_qos0()

    def pages(self) -> list[Page]:
        """The pages, oldest first: a copy."""
        return list(self._pages)

    def _hold_qos0(self) -> None:
        if not self._holds_qos0:
            self._holds_qos0 = True
            self._queue.hold_qos0(True)

    def _count(self, messages: i64, size: i64) -> None:
        self.messages += messages
        self.bytes += size
        self._sums.messages += messages
        self._sums.bytes += size

    # -- back into memory ----------------------------------------------------------------------------------------------

    def ask(self, journal: Journal, outbox: Outbox) -> None:
        """Have the first pages be read, unless some are being read. Where memory has no room: in a while."""
        # What is being read may have been asked for on an earlier connection.
        self._outbox = outbox
        if self._fetch is not None or not self._pages:
            return
        first = self._pages[0]
        last = first
        count: i64 = 0
        messages: i64 = 0
        size: i64 = 0
        for page in self._pages:
            if count > 0 and (messages + page.messages > self._sums.fetched or size + page.bytes > FETCHED_BYTES):
                break
            last = page
            count += 1
            messages += page.messages
            size += page.bytes
        load = self._load
        if not load.has_room(messages, size) and not load.relieve(messages, size):
            self._sums.starved[self] = None
            return
        if not self._pages or self._pages[0] is not first:
            # Room was made here.
            self._sums.starved[self] = None
            return
        load.messages += messages
        load.bytes += size
        self._asked = count
        self._fetch = QueueFetch(self, journal, first.first, last.last, messages, size)
        journal.fetch(self._ledger.client_id, self._fetch)

    def try_again(self) -> None:
        outbox = self._outbox
        if outbox is not None and not outbox.closed:
            outbox.schedule_flush()

    def fetched(self, records: list[DeliveryRecord], size: i64, journal: Journal) -> None:
        """The pages that were asked for have come."""
        messages: i64 = 0
        while self._asked > 0:
            page = self._pages.popleft()
            self._asked -= 1
            messages += page.messages
            if self._asked == 0:
                # What comes behind them may be in memory from now on.
                journal.read_back(self._ledger.client_id, page.last)
        self._fetch = None
        self._count(-messages, -size)
        load = self._load
        deliveries: list[Delivery] = []
        for record in records:
            delivery = record.queued(load.now)
            journal.restored(self._ledger.client_id, delivery, record.number)
            delivery.since = load.now
            deliveries.append(delivery)
            messages -= 1
            size -= delivery.message.size()
        self._queue.put_back(deliveries)
        if messages != 0 or size != 0:
            # Somebody has changed the file.
            self._queue.count(-messages, -size)
            load.messages -= messages
            load.bytes -= size
            self._ledger.lost(GLOBAL, messages)
        self._end_if_empty()
        outbox = self._outbox
        if outbox is not None and not outbox.closed:
            outbox.schedule_flush()

    # -- dropping ------------------------------------------------------------------------------------------------------

    def expired(self, now: float) -> bool:
        """Whether all of the first page has."""
        return len(self._pages) > 0 and 0.0 < self._pages[0].expires_at <= now

    def drop_page(self, cause: int, journal: Journal | None) -> Page:
        """Drop the first page; what is being read is not wanted any more."""
        page = self._drop_first(cause, journal)
        self._end_if_empty()
        return page

    def _drop_first(self, cause: int, journal: Journal | None) -> Page:
        self._cancel()
        page = self._pages.popleft()
        self._queue.count(-page.messages, -page.bytes)
        self._count(-page.messages, -page.bytes)
        if journal is not None:
            journal.unpaged(self._ledger.client_id, page)
        self._ledger.lost(cause, page.messages)
        return page

    def _end_if_empty(self) -> None:
        if self.messages == 0:
            self.end()
            if self._holds_qos0:
                self._queue.hold_qos0(False)
            self._queue.disk_ended()

    def end(self) -> None:
        """The session is over."""
        self._cancel()
        self._pages.clear()
        self._count(-self.messages, -self.bytes)
        self._sums.starved.pop(self, None)

    def _cancel(self) -> None:
        fetch = self._fetch
        if fetch is not None:
            fetch.over = True
            self._fetch = None
            self._asked = 0
            self._load.messages -= fetch.messages
            self._load.bytes -= fetch.bytes


class QueueFetch(Fetch):
    """A read of pages of a session's queue."""

    def __init__(self, disk: DiskQueue, journal: Journal, first: i64, last: i64, messages: i64, size: i64) -> None:
        super().__init__(first, last, messages)
        self.bytes: i64 = size
        self._disk = disk
        self._journal = journal

    def committed(self, number: i64) -> i64:
        del number
        if not self.over:
            self._disk.fetched(self.records, self.bytes, self._journal)
        return len(self.records)
