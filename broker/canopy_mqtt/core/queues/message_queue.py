"""The messages that wait in a session, until its client connects again or acknowledges others.

Owns the session's queue with its limits, and the choice of what is dropped if something does not fit: here, or in the
buffer on behalf of a subscription (`MessageTerms`). Each drop is counted by cause. In-flight messages are never
dropped, and the order never changes. Dropping has amortised constant cost: a drop from the middle leaves an empty gap,
and gaps never outnumber the messages (except for a few).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.accounts import Account
from canopy_mqtt.core.counters import UNLIMITED, Counters, QueueTotals, bound
from canopy_mqtt.core.hooks import NEVER_MADE, Permissions
from canopy_mqtt.core.ledger import (
    ACCEPTED,
    AGE,
    EXPIRED,
    FULL_BYTES,
    FULL_MESSAGES,
    GLOBAL,
    GO_ON,
    NO_QUOTA,
    REPLACED,
    Ledger,
)
from canopy_mqtt.core.persistence.journal import FETCHED_BYTES, PAGE_BYTES, DeliveryRecord, Fetch, Journal, Page, Pages
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import DROPPED, Delivery, order_of
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.queues.queue_terms import DISCONNECT, DROP_NEWEST, DROP_OLDEST, MessageTerms
from canopy_mqtt.core.queues.requests import RequestMessage
from canopy_mqtt.core.queues.send_buffer import NEVER_TAKEN, SendBuffer

if TYPE_CHECKING:
    from canopy_mqtt.core.session.session import Session
    from canopy_mqtt.core.topics.subscription import SharedGroup

STALE: Final = 64
"""Messages that are too old and are dropped at most when another one comes: more than come, and never long."""

MERGE_SHIFT: Final = 2
"""Four messages that wait count for one unit of work when others are put between them."""

GAPS: Final = 64
"""Gaps that are not worth closing."""


class MessageQueue:
    """One client's queue in its session. `messages` and `bytes`: what waits. It is unlimited until `limit` is called.

    Of it some may be on disk alone (`disk`): behind the first `_ahead` of `pending`, and before the rest.
    `send_buffer`, where a method takes it, is that of the client's connection; None: it is offline.
    """

    def __init__(self, session: Session, counters: Counters) -> None:
        self.max_messages: i64 = UNLIMITED
        self.max_bytes: i64 = UNLIMITED  # what holds now: `ClientAccount.fit` may set it below the queue's own
        self.own_max_bytes: i64 = UNLIMITED
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
        # QoS 0 among them (kept while offline): live ones of the same topic queue up behind [MQTT-4.6.0-5]
        # (`count_qos0`).
        self.qos0: i64 = 0
        self._gaps: i64 = 0
        self._over_half_reported = False
        # As in `SendBuffer`: whether publishers wait for this client, and when it last took something, or kept up.
        self.holds = True
        self._taken_at: float = NEVER_TAKEN
        self.client_id = session.client_id
        self._session = session
        self._ledger = session.ledger
        self._counters = counters
        self.load = counters.load
        # Whose account has the bytes that wait here in memory; see `belong_to`.
        self.owner: Account = counters.load.internal

    def limit(self, policy: int, max_messages: int, max_bytes: int) -> None:
        """Give the queue other terms; what waits already stays. Bounds of 0: unlimited."""
        self.policy = policy
        self.max_messages = bound(max_messages)
        self.own_max_bytes = bound(max_bytes)
        self.max_bytes = self.own_max_bytes

    # -- whose it is ---------------------------------------------------------------------------------------------------

    def belong_to(self, account: Account) -> None:
        """Let another account answer for what waits here, now and later."""
        if self.messages > 0:
            self.load.queue_ends(self.owner)
        self.owner.queued -= self.bytes_in_memory
        self.owner = account
        account.queued += self.bytes_in_memory
        if self.messages > 0:
            self.load.queue_begins(self.owner)

    # -- in ------------------------------------------------------------------------------------------------------------

    def add(self, delivery: Delivery, send_buffer: SendBuffer | None, quota: i64) -> int:
        """Queue a delivery: ACCEPTED, or the cause of its drop. `quota`: the rest of the send quota."""
        size: i64 = delivery.message.size
        if self.messages >= self.max_messages or self.bytes + size > self.max_bytes:
            self._shed_expired()
        messages: i64 = self.messages + 1 - self.max_messages
        beyond: i64 = self.bytes + size - self.max_bytes
        if size > self.max_bytes:
            # One that exceeds the limit alone is accepted into an empty queue only, and no other message goes for it.
            beyond = self.bytes
        if messages > 0 or beyond > 0:
            cause = FULL_MESSAGES if messages > 0 else FULL_BYTES
            if size > self.max_bytes or not self._make_room(delivery.message_terms, messages, beyond, cause):
                message_terms = delivery.message_terms
                if send_buffer is not None and size <= self.max_bytes:
                    if self.policy == DISCONNECT or (message_terms is not None and message_terms.policy == DISCONNECT):
                        send_buffer.overflow()
                    elif quota <= 0 and delivery.qos > 0:
                        # The client reads, perhaps, but it does not acknowledge.
                        cause = NO_QUOTA
                return self._ledger.lost(cause, 1)
        if self.pages is not None and self._is_for_disk(delivery, size, self.pages):
            if self._begin_disk(self.pages).add(delivery, self.journal, self.policy == DROP_OLDEST):
                return ACCEPTED
            return self._ledger.lost(GLOBAL, 1)
        load = self.load
        # `QueueTotals.has_room`, spelled out: this is asked for every message that waits.
        if (
            (load.messages >= load.max_messages or load.bytes + size > load.max_bytes)
            and not load.has_room(1, size)
            and not load.admits(1, size, self.messages, self.bytes)
        ):
            return self._ledger.lost(GLOBAL, 1)
        pending = self.pending
        if pending is None:
            pending = deque()
            self.pending = pending
        pending.append(delivery)
        delivery.live = False
        delivery.since = load.now
        if self.messages == 0:
            # Until now it has kept up.
            self._taken_at = load.now
            load.queue_begins(self.owner)
        self.messages += 1
        self.bytes += size
        self.owner.queued += size
        load.messages += 1
        load.bytes += size
        if delivery.qos == 0:
            self.count_qos0(1)
        if send_buffer is not None and (self.messages * 2 > self.max_messages or self.bytes * 2 > self.max_bytes):
            self._report_over_half()
        if self.journal is not None:
            self.journal.queued(self.client_id, delivery)
        if delivery.message_terms is not None:
            self.enter(delivery.message_terms, delivery, load.now)
        return ACCEPTED

    def _make_room(self, message_terms: MessageTerms | None, messages: i64, size: i64, cause: int) -> bool:
        """Make room here for these messages and bytes, as far as a policy lets something be shed for it."""
        if message_terms is not None and message_terms.policy == DROP_OLDEST:
            while messages > 0 or size > 0:
                oldest = message_terms.oldest()
                if oldest is None or oldest.live:
                    break
                messages -= 1
                size -= oldest.message.size
                self._drop_one(oldest, cause)
        if (messages > 0 or size > 0) and self.policy == DROP_OLDEST:
            self.shed(messages, size, cause)
            return True
        return messages <= 0 and size <= 0

    def _report_over_half(self) -> None:
        """Tell routing that more than half of the messages that may wait do, though the client is there."""
        load = self.load
        if not self._over_half_reported:
            # Once, until the client has worked most of it off: one that does not read slows no publisher.
            self._over_half_reported = True
            self._counters.half_full += 1
            self._counters.backed_up += 1
        if self.holds_publishers(load.now):
            load.over_half += 1
            load.over_half_queue = self

    def holds_publishers(self, now: float) -> bool:
        """Return whether publishers should wait: more than half of what may wait does, and the client acknowledges."""
        return (
            self.holds
            and self.policy != DROP_OLDEST
            and (self.messages * 2 > self.max_messages or self.bytes * 2 > self.max_bytes)
            and now < self._taken_at + self.load.standstill
        )

    # -- on disk alone -------------------------------------------------------------------------------------------------

    @property
    def in_memory(self) -> i64:
        """Return how many of `messages` are in memory."""
        return self.messages if self.disk is None else self.messages - self.disk.messages

    @property
    def bytes_in_memory(self) -> i64:
        """Return how many of `bytes` are."""
        return self.bytes if self.disk is None else self.bytes - self.disk.bytes

    def _is_for_disk(self, delivery: Delivery, size: i64, pages: Pages) -> bool:
        """Return whether a delivery is to wait on disk alone."""
        if self.disk is None:
            return pages.beyond(self.messages, self.bytes, size, self.load.bytes) and is_pageable(delivery)
        # Behind what waits, but not past what had to stay in memory.
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

    def ask_disk(self, send_buffer: SendBuffer) -> None:
        """Ask for messages on disk alone while there is still something before them: less than a page."""
        disk = self.disk
        if disk is None or self.pages is None or self.journal is None:
            return
        if self._ahead == 0 or (self._ahead < self.pages.page and self.bytes_in_memory < PAGE_BYTES):
            disk.ask(self.journal, send_buffer)

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
            self.owner.queued += delivery.message.size
            if delivery.qos == 0:
                self.count_qos0(1)
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
        """Return what has waited longest; None when nothing waits, or it is on disk alone."""
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
        size: i64 = delivery.message.size
        self.messages -= 1
        self.bytes -= size
        self.owner.queued -= size
        if delivery.qos == 0:
            self.count_qos0(-1)
        if self.messages == 0:
            self.load.queue_ends(self.owner)
            self.pending = None
            self._gaps = 0
            if self.review is not None:
                self.review.left = 0
        self._taken_at = self.load.now
        if self._over_half_reported and self.messages * 4 < self.max_messages and self.bytes * 4 < self.max_bytes:
            self._over_half_reported = False

    def take(self, delivery: Delivery) -> None:
        """Take one out, wherever it stands; its place in the broker's sum is still held."""
        assert self.pending is not None
        self.pending.remove(delivery)
        self._unqueue(delivery)
        if delivery.message_terms is not None:
            delivery.message_terms.leave(delivery)

    def merge(self, some: list[Delivery]) -> None:
        """Take in messages of a share group, in their order, each at its place in it, whatever the bounds are.

        They were let in long ago: callers keep to the bounds. The queue has no others, and none on disk alone.
        """
        if not some:
            return
        load = self.load
        if self.messages == 0:
            self._taken_at = load.now
            self.pending = None
            self._gaps = 0
        pending = self.pending = self.pending or deque()
        if not pending or pending[-1].order < some[0].order:
            pending.extend(some)
        else:
            before: list[Delivery] = []
            while pending and pending[0].order < some[-1].order:
                before.append(pending.popleft())
            load.budget.used += len(before) >> MERGE_SHIFT
            before += some
            before.sort(key=order_of, reverse=True)
            pending.extendleft(before)
            some = some[::-1]  # as they come to the front
        size: i64 = sum([each.message.size for each in some])
        self.count(len(some), size)
        self.owner.queued += size
        load.messages += len(some)
        load.bytes += size
        for delivery in some:
            if delivery.qos == 0:
                self.count_qos0(1)
            if self.journal is not None:
                self.journal.placed(delivery.order)
                self.journal.queued(self.client_id, delivery)
                self.journal.placed(0)
            if delivery.message_terms is not None:
                self.enter(delivery.message_terms, delivery, delivery.since)

    def check_over_half(self) -> None:
        """A message has come for clients that are connected: tell routing if more than half of what may wait does."""
        if self.messages * 2 > self.max_messages or self.bytes * 2 > self.max_bytes:
            self._report_over_half()

    def waiting(self) -> list[Delivery]:
        """Return the messages that wait in memory, in their order: a copy."""
        return [] if self.pending is None else [each for each in self.pending if each.state != DROPPED]

    def take_shared(self, some: list[Delivery]) -> None:
        """Take out some of `waiting`, which others get."""
        self.take_out(some)
        for delivery in some:
            self.forget(delivery)

    def take_out(self, some: list[Delivery]) -> None:
        """Take out some of `waiting`; what else has an account of them, such as the broker's sum, still has."""
        for delivery in some:
            self._unqueue(delivery)
        if some:
            self._close_gaps(set(some))

    def _close_gaps(self, gone: set[Delivery]) -> None:
        """Make `pending` anew, without gaps and without those that have just gone."""
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

    def begin_review(self, permissions: Permissions, principal: Principal) -> None:
        """Once for each change of the rules: see that its client's right to what waits now is asked for."""
        if self.review is None:
            self.review = Review(principal)
        waiting: i64 = 0 if self.pending is None else len(self.pending)
        self.review.begin(permissions, waiting if self.disk is None else waiting + self.disk.messages)

    def bars(self, delivery: Delivery) -> bool:
        """Return whether the first that waits may not be sent any more; or with a lower QoS, which it has then."""
        review = self.review
        most = delivery.qos if review is None else review.most(delivery, self.load.permissions)
        if 0 <= most < delivery.qos:
            delivery.qos = most
            if most == 0:
                self.count_qos0(1)
                delivery.settle()
        return most < 0

    def count_qos0(self, change: i64) -> None:
        """Count QoS 0 that waits, or (1) that has to wait though none does, until that is over (-1)."""
        before: i64 = self.qos0
        self.qos0 = before + change
        if before == 0 or before == -change:
            self._session.update_fast_path()

    def settle(self) -> None:
        """Settle the requests that wait here: the session is over, or its connection, and no answer can come."""
        if self.pending is not None:
            for delivery in self.pending:
                delivery.settle()

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
            # Their terms may be remembered elsewhere.
            for delivery in self.pending:
                if delivery.message_terms is not None:
                    delivery.message_terms.leave(delivery)
        self.pending = None
        self.messages = 0
        self.bytes = 0
        self.qos0 = self._gaps = 0
        self.review = None

    # -- shedding ------------------------------------------------------------------------------------------------------

    def shed(self, messages: i64, size: i64, cause: int) -> None:
        """Drop the oldest that wait here until that many messages and bytes have gone, or there are no more."""
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
            size -= delivery.message.size
            count += 1
            self.pop_first(delivery)
            self.forget(delivery)
        if count > 0:
            self._ledger.lost(cause, count)

    def give_up(self, delivery: Delivery, cause: int) -> None:
        """One that is out of the queue is dropped."""
        self.forget(delivery)
        self._ledger.lost(cause, 1)

    def forget(self, delivery: Delivery) -> None:
        """Take one that is out of the queue out of the broker's sum and all other accounts."""
        self.load.messages -= 1
        self.load.bytes -= delivery.message.size
        message_terms = delivery.message_terms
        if message_terms is not None:
            message_terms.leave(delivery)
        if self.journal is not None:
            self.journal.finished(self.client_id, delivery)
        delivery.settle()

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

    def shed_one(self, delivery: Delivery, cause: int, send_buffer: SendBuffer | None) -> None:
        """Drop one that waits, here or in the send buffer, wherever it stands."""
        if delivery.live:
            assert send_buffer is not None
            send_buffer.shed_one(delivery, cause)
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

    # -- terms of single messages --------------------------------------------------------------------------------------

    def enter(self, message_terms: MessageTerms, delivery: Delivery, since: float) -> None:
        """A delivery with terms of its own waits, here or in the send buffer, since then."""
        load = self.load
        message_terms.enter(delivery, since)
        if message_terms.max_age > 0.0:
            load.aging[message_terms] = None

    def shed_stale(self, message_terms: MessageTerms, now: float, most: i64, send_buffer: SendBuffer | None) -> i64:
        """Drop at most `most` messages of a subscription that have waited too long; return how many there were."""
        count: i64 = 0
        while count < most and (delivery := message_terms.stale(now)) is not None:
            self.shed_one(delivery, AGE, send_buffer)
            count += 1
        return count

    def offer_live(self, delivery: Delivery, message_terms: MessageTerms, send_buffer: SendBuffer) -> int:
        """Offer a QoS 0 delivery with terms of its own to the send buffer: ACCEPTED, or the cause of its drop."""
        size: i64 = delivery.message.size
        self._make_live_room(message_terms, size, send_buffer)
        cause = send_buffer.offer_late(delivery)
        if cause == ACCEPTED:
            self.enter(message_terms, delivery, self.load.now)
        elif (
            message_terms.policy == DISCONNECT
            and cause in (FULL_MESSAGES, FULL_BYTES)
            and size <= send_buffer.max_bytes
        ):
            send_buffer.overflow()
        return cause

    def _make_live_room(self, message_terms: MessageTerms, size: i64, send_buffer: SendBuffer) -> None:
        """Drop the oldest of a subscription with that policy if it is the whole queue that has no room."""
        if message_terms.policy != DROP_OLDEST or size > send_buffer.max_bytes:
            return
        while send_buffer.messages >= send_buffer.max_messages or send_buffer.bytes + size > send_buffer.max_bytes:
            oldest = message_terms.oldest()
            if oldest is None or not oldest.live:
                return
            send_buffer.shed_one(
                oldest, FULL_MESSAGES if send_buffer.messages >= send_buffer.max_messages else FULL_BYTES
            )

    def apply_terms(
        self,
        send_buffer: SendBuffer | None,
        message_terms: MessageTerms,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
    ) -> int:
        """Apply the terms of a subscription to a message: GO_ON, or ACCEPTED in place of an older one, or why not."""
        self.shed_stale(message_terms, self.load.now, STALE, send_buffer)
        same = message_terms.of_topic(message.topic)
        if same is not None:
            if (same.qos == 0) == (qos == 0):
                answer = self._renew(send_buffer, message_terms, same, message, qos, retain, identifiers, group)
                if answer != GO_ON:
                    return answer
            else:
                # They wait in different places: the newer one, then, in the last.
                self.shed_one(same, REPLACED, send_buffer)
        while message_terms.waiting >= message_terms.depth:
            oldest = message_terms.oldest() if message_terms.policy == DROP_OLDEST else None
            if oldest is None:
                if message_terms.policy == DISCONNECT and send_buffer is not None:
                    send_buffer.overflow()
                return self._ledger.lost(FULL_MESSAGES, 1)
            self.shed_one(oldest, FULL_MESSAGES, send_buffer)
        return GO_ON

    def _renew(
        self,
        send_buffer: SendBuffer | None,
        message_terms: MessageTerms,
        waiting: Delivery,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
    ) -> int:
        """Put a newer message of the topic in the place of the one that waits. GO_ON when that one had to go."""
        load = self.load
        grown: i64 = message.size
        grown -= waiting.message.size
        if waiting.live:
            assert send_buffer is not None
            fits = send_buffer.bytes + grown <= send_buffer.max_bytes or send_buffer.messages == 1
        else:
            fits = self.bytes + grown <= self.max_bytes or self.messages == 1
        if not fits:
            return self._ledger.lost(FULL_BYTES, 1)
        if grown > 0 and not load.has_room(0, grown):
            relieved = load.relieve(0, grown)
            if not waiting.waits:
                return GO_ON
            if not relieved:
                return self._ledger.lost(GLOBAL, 1)
        if waiting.live:
            assert send_buffer is not None
            send_buffer.replace(grown)
        else:
            self.bytes += grown
            self.owner.queued += grown
            load.bytes += grown
            self._ledger.lost(REPLACED, 1)
        waiting.settle()
        waiting.message = message
        waiting.qos = qos
        waiting.retain = retain
        waiting.identifiers = identifiers
        waiting.group = group
        message_terms.renew(waiting, load.now)
        if self.journal is not None and not waiting.live:
            self.journal.renewed(self.client_id, waiting)
        return ACCEPTED


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
        """Begin to ask for the right to the messages that wait now, once for each change of the rules."""
        permissions.refresh()
        if self._epochs != permissions.epochs:
            self._epochs = permissions.epochs
            self.left = waiting
            self._allowed = None

    def most(self, delivery: Delivery, permissions: Permissions | None) -> int:
        """The QoS with which the first that waits may be sent, at most; below 0: not at all. Asks once about each."""
        if self.left <= 0 or permissions is None or not permissions.filters or delivery is self._allowed:
            return HIGHEST
        most = permissions.asked.receive_qos(self._principal, delivery.message.topic.decode())
        if most >= 0:
            self._allowed = delivery
        return most

    def gone(self) -> None:
        """The first waits no more."""
        if self.left > 0:
            self.left -= 1
            self._allowed = None


def is_pageable(delivery: Delivery) -> bool:
    """Return whether a delivery may wait on disk alone: it may if it is not looked for before its turn comes."""
    return (
        delivery.message_terms is None and delivery.group is None and not isinstance(delivery.message, RequestMessage)
    )


class DiskQueue:
    """The pages of one session, if any of its messages are on disk only."""

    def __init__(self, queue: MessageQueue, ledger: Ledger, load: QueueTotals, pages: Pages) -> None:
        self.messages: i64 = 0
        self.bytes: i64 = 0
        self._holds_qos0 = False
        self._queue = queue
        self._ledger = ledger
        self._load = load
        self._sums = pages
        self._pages: deque[Page] = deque()
        # The read in progress: how many pages from the first on it has, and for which connection.
        self._fetch: QueueFetch | None = None
        self._asked: i64 = 0
        self._send_buffer: SendBuffer | None = None

    def add(self, delivery: Delivery, journal: Journal | None, drop_oldest: bool) -> bool:
        """Queue a delivery as the last. False: the disk has no room, nor may the oldest here give it."""
        assert journal is not None
        sums = self._sums
        size: i64 = delivery.message.size
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
        page.held |= delivery.message.held
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

    def _hold_qos0(self) -> None:
        if not self._holds_qos0:
            self._holds_qos0 = True
            self._queue.count_qos0(1)

    def _count(self, messages: i64, size: i64) -> None:
        self.messages += messages
        self.bytes += size
        self._sums.messages += messages
        self._sums.bytes += size

    # -- back into memory ----------------------------------------------------------------------------------------------

    def ask(self, journal: Journal, send_buffer: SendBuffer) -> None:
        """Ask for the first pages, unless some are being read. Where memory has no room: later (`Pages.retry`)."""
        # What is being read may have been asked for on an earlier connection.
        self._send_buffer = send_buffer
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
        """Let the writer of the connection look at the queue."""
        send_buffer = self._send_buffer
        if send_buffer is not None and not send_buffer.closed:
            send_buffer.schedule_flush()

    def fetched(self, records: list[DeliveryRecord], size: i64, journal: Journal) -> None:
        """The pages that were asked for have come."""
        messages: i64 = 0
        held = False
        while self._asked > 0:
            page = self._pages.popleft()
            self._asked -= 1
            messages += page.messages
            held |= page.held
            if self._asked == 0:
                # What comes behind them may be in memory from now on.
                journal.read_back(self._ledger.client_id, page.last)
        self._fetch = None
        self._count(-messages, -size)
        load = self._load
        deliveries: list[Delivery] = []
        for record in records:
            delivery = record.queued(load.now)
            delivery.message.held = held
            journal.restored(self._ledger.client_id, delivery, record.number)
            delivery.since = load.now
            deliveries.append(delivery)
            messages -= 1
            size -= delivery.message.size
        self._queue.put_back(deliveries)
        if messages != 0 or size != 0:
            # The file was changed by another program.
            self._queue.count(-messages, -size)
            load.messages -= messages
            load.bytes -= size
            self._ledger.lost(GLOBAL, messages)
        self._end_if_empty()
        self.try_again()

    # -- dropping ------------------------------------------------------------------------------------------------------

    def expired(self, now: float) -> bool:
        """Return whether all of the first page has."""
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
                self._queue.count_qos0(-1)
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
