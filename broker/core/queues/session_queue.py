"""The messages that wait in a session, until its client connects again or acknowledges others.

Owns the session's queue with its limits, and the choice of what is dropped if something does not fit: here, or in the
outbox on behalf of a subscription (`SubscriptionQueue`). Each drop is counted by cause. In-flight messages are never
dropped, and the order never changes. Dropping has amortised constant cost: a drop from the middle leaves an empty gap,
and gaps never outnumber the messages (except for a few).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from broker.core.accounts import Account
from broker.core.counters import (
    EXPIRED,
    FULL_BYTES,
    FULL_MESSAGES,
    GLOBAL,
    NO_QUOTA,
    Counters,
)
from broker.core.permissions import Permissions
from broker.core.persistence.journal import Journal
from broker.core.persistence.pages import PAGE_BYTES, Page, Pages
from broker.core.principal import Principal
from broker.core.queues.delivery import DROPPED, Delivery, SubscriptionQueue
from broker.core.queues.disk_queue import DiskQueue, PagedQueue, is_pageable
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.live.outbox import ACCEPTED, Outbox
from broker.core.queues.live.send_queue import NEVER_TAKEN
from broker.core.queues.policies.queue_policy import DISCONNECT, DROP_NEWEST, DROP_OLDEST
from broker.core.queues.queue_totals import bound
from broker.core.queues.windows.review import Review
from broker.core.topics.subscription import SharedGroup

if TYPE_CHECKING:
    from mypy_extensions import i64

STALE: Final = 64
"""Messages that are too old and are dropped at most when another one comes: more than come, and never long."""

GAPS: Final = 64
"""Gaps that are not worth closing."""


class SessionQueue(PagedQueue):
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

    def drop(self, cause: int) -> int:
        """Count a message that does not come to wait here, or no more. Returns the cause."""
        self._ledger.lost(cause, 1)
        return cause
