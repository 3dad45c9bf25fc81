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
from canopy_mqtt.core.counters import Counters
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
)
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queue_totals import UNLIMITED, bound
from canopy_mqtt.core.queues.delivery import DROPPED, Delivery, order_of
from canopy_mqtt.core.queues.disk_queue import PAGE_BYTES, DiskQueue, Page, Pages, is_pageable
from canopy_mqtt.core.queues.queue_terms import DISCONNECT, DROP_NEWEST, DROP_OLDEST, MessageTerms
from canopy_mqtt.core.queues.send_buffer import NEVER_TAKEN

if TYPE_CHECKING:
    from canopy_mqtt.core.session.session import Session

STALE: Final = 64
"""Messages that are too old and are dropped at most when another one comes: more than come, and never long."""

MERGE_SHIFT: Final = 2
"""Four messages that wait count for one unit of work when others are put between them."""

GAPS: Final = 64
"""Gaps that are not worth closing."""


class MessageQueue:
    """One client's queue in its session. `messages` and `bytes`: what waits. It is unlimited until `limit` is called.

    Of it some may be on disk alone (`disk`): behind the first `_ahead` of `pending`, and before the rest.
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
        self.totals = counters.totals
        # Whose account has the bytes that wait here in memory; see `belong_to`.
        self.owner: Account = counters.totals.internal

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
            self.totals.queue_ends(self.owner)
        self.owner.queued -= self.bytes_in_memory
        self.owner = account
        account.queued += self.bytes_in_memory
        if self.messages > 0:
            self.totals.queue_begins(self.owner)

    # -- in ------------------------------------------------------------------------------------------------------------

    def add(self, delivery: Delivery) -> int:
        """Queue a delivery: ACCEPTED, or the cause of its drop."""
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
                send_buffer = self._session.send_buffer
                if send_buffer is not None and size <= self.max_bytes:
                    if self.policy == DISCONNECT or (message_terms is not None and message_terms.policy == DISCONNECT):
                        send_buffer.overflow()
                    elif delivery.qos > 0 and self._session.send_quota() <= 0:
                        # The client reads, perhaps, but it does not acknowledge.
                        cause = NO_QUOTA
                return self._ledger.lost(cause, 1)
        if self.pages is not None and self._is_for_disk(delivery, size, self.pages):
            if self._begin_disk(self.pages).add(delivery, self.journal, self.policy == DROP_OLDEST):
                return ACCEPTED
            return self._ledger.lost(GLOBAL, 1)
        totals = self.totals
        # `QueueTotals.has_room`, spelled out: this is asked for every message that waits.
        if (
            (totals.messages >= totals.max_messages or totals.bytes + size > totals.max_bytes)
            and not totals.has_room(1, size)
            and not totals.admits(1, size, self.messages, self.bytes)
        ):
            return self._ledger.lost(GLOBAL, 1)
        pending = self.pending
        if pending is None:
            pending = deque()
            self.pending = pending
        pending.append(delivery)
        delivery.live = False
        delivery.since = totals.now
        if self.messages == 0:
            # Until now it has kept up.
            self._taken_at = totals.now
            totals.queue_begins(self.owner)
        self.messages += 1
        self.bytes += size
        self.owner.queued += size
        totals.messages += 1
        totals.bytes += size
        if delivery.qos == 0:
            self.count_qos0(1)
        if self._session.send_buffer is not None:
            self.check_over_half()
        if self.journal is not None:
            self.journal.queued(self.client_id, delivery)
        if delivery.message_terms is not None:
            self.enter(delivery.message_terms, delivery, totals.now)
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
        totals = self.totals
        if not self._over_half_reported:
            # Once, until the client has worked most of it off: one that does not read slows no publisher.
            self._over_half_reported = True
            self._counters.half_full += 1
            self._counters.backed_up += 1
        if self.holds_publishers(totals.now):
            totals.over_half += 1
            totals.over_half_queue = self

    def holds_publishers(self, now: float) -> bool:
        """Return whether publishers should wait: more than half of what may wait does, and the client acknowledges."""
        return (
            self.holds
            and self.policy != DROP_OLDEST
            and (self.messages * 2 > self.max_messages or self.bytes * 2 > self.max_bytes)
            and now < self._taken_at + self.totals.standstill
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
            return pages.beyond(self.messages, self.bytes, size, self.totals.bytes) and is_pageable(delivery)
        # Behind what waits, but not past what had to stay in memory.
        return (self.pending is None or len(self.pending) <= self._ahead) and is_pageable(delivery)

    def _begin_disk(self, pages: Pages) -> DiskQueue:
        """The part that is on disk, which begins behind all that waits in memory."""
        if self.pending is None:
            self.pending = deque()
        if self.disk is None:
            self.disk = DiskQueue(self, self._ledger, self.totals, pages)
            self._ahead = len(self.pending)
        return self.disk

    def restore_page(self, page: Page, pages: Pages, qos0: bool) -> None:
        """Take back a page that a store kept, behind all that waits. `qos0`: there may be QoS 0 in it."""
        self._begin_disk(pages).restore(page, qos0)

    def ask_disk(self) -> None:
        """Ask for messages on disk alone while there is still something before them: less than a page."""
        disk, send_buffer = self.disk, self._session.send_buffer
        if disk is None or self.pages is None or self.journal is None or send_buffer is None:
            return
        if self._ahead == 0 or (self._ahead < self.pages.page and self.bytes_in_memory < PAGE_BYTES):
            disk.ask(self.journal, send_buffer)

    def count(self, messages: i64, size: i64) -> None:
        before: i64 = self.messages
        self.messages += messages
        self.bytes += size
        if before == 0 and messages > 0:
            self.totals.queue_begins(self.owner)
        elif before > 0 and self.messages == 0:
            self.totals.queue_ends(self.owner)

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
            self.totals.queue_ends(self.owner)
            self.pending = None
            self._gaps = 0
            if self.review is not None:
                self.review.left = 0
        self._taken_at = self.totals.now
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
        totals = self.totals
        if self.messages == 0:
            self._taken_at = totals.now
            self.pending = None
            self._gaps = 0
        pending = self.pending = self.pending or deque()
        if not pending or pending[-1].order < some[0].order:
            pending.extend(some)
        else:
            before: list[Delivery] = []
            while pending and pending[0].order < some[-1].order:
                before.append(pending.popleft())
            totals.budget.used += len(before) >> MERGE_SHIFT
            before += some
            before.sort(key=order_of, reverse=True)
            pending.extendleft(before)
            some = some[::-1]  # as they come to the front
        size: i64 = sum([each.message.size for each in some])
        self.count(len(some), size)
        self.owner.queued += size
        totals.messages += len(some)
        totals.bytes += size
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
        most = delivery.qos if review is None else review.most(delivery, self.totals.permissions)
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
        totals = self.totals
        totals.messages -= self.in_memory
        totals.bytes -= self.bytes_in_memory
        self.owner.queued -= self.bytes_in_memory
        if self.messages > 0:
            self.totals.queue_ends(self.owner)
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
        self.totals.messages -= 1
        self.totals.bytes -= delivery.message.size
        message_terms = delivery.message_terms
        if message_terms is not None:
            message_terms.leave(delivery)
        if self.journal is not None:
            self.journal.finished(self.client_id, delivery)
        delivery.settle()

    def _shed_expired(self) -> None:
        """Drop what has expired, from the front on: a queue that is full of it is not full [MQTT-3.3.2-5]."""
        now = self.totals.now
        for _ in range(16 * STALE):
            delivery = self.first()
            if delivery is None and self.disk is not None and self.disk.expired(now):
                self.disk.drop_page(EXPIRED, self.journal)
                continue
            if delivery is None or not delivery.message.expired(now):
                return
            self.pop_first(delivery)
            self.give_up(delivery, EXPIRED)

    def shed_one(self, delivery: Delivery, cause: int) -> None:
        """Drop one that waits, here or in the send buffer, wherever it stands."""
        if delivery.live:
            send_buffer = self._session.send_buffer
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
        totals = self.totals
        message_terms.enter(delivery, since)
        if message_terms.max_age > 0.0:
            totals.aging[message_terms] = None

    def shed_stale(self, message_terms: MessageTerms, now: float, most: i64) -> i64:
        """Drop at most `most` messages of a subscription that have waited too long; return how many there were."""
        count: i64 = 0
        while count < most and (delivery := message_terms.stale(now)) is not None:
            self.shed_one(delivery, AGE)
            count += 1
        return count

    def offer_live(self, delivery: Delivery, message_terms: MessageTerms) -> int:
        """Offer a QoS 0 delivery with terms of its own to the send buffer: ACCEPTED, or the cause of its drop."""
        size: i64 = delivery.message.size
        send_buffer = self._session.send_buffer
        assert send_buffer is not None
        if message_terms.policy == DROP_OLDEST and size <= send_buffer.max_bytes:
            # The whole buffer has no room: the oldest of the subscription goes.
            while send_buffer.messages >= send_buffer.max_messages or send_buffer.bytes + size > send_buffer.max_bytes:
                oldest = message_terms.oldest()
                if oldest is None or not oldest.live:
                    break
                full = send_buffer.messages >= send_buffer.max_messages
                send_buffer.shed_one(oldest, FULL_MESSAGES if full else FULL_BYTES)
        cause = send_buffer.offer_late(delivery)
        if cause == ACCEPTED:
            self.enter(message_terms, delivery, self.totals.now)
        elif (
            message_terms.policy == DISCONNECT
            and cause in (FULL_MESSAGES, FULL_BYTES)
            and size <= send_buffer.max_bytes
        ):
            send_buffer.overflow()
        return cause

    def apply_terms(self, message_terms: MessageTerms, delivery: Delivery) -> int:
        """Apply the terms of a subscription to a message that comes: GO_ON, or ACCEPTED in place of an older one, or
        why not."""
        self.shed_stale(message_terms, self.totals.now, STALE)
        same = message_terms.of_topic(delivery.message.topic)
        if same is not None:
            if (same.qos == 0) == (delivery.qos == 0):
                answer = self._renew(message_terms, same, delivery)
                if answer != GO_ON:
                    return answer
            else:
                # They wait in different places: the newer one, then, in the last.
                self.shed_one(same, REPLACED)
        while message_terms.waiting >= message_terms.depth:
            oldest = message_terms.oldest() if message_terms.policy == DROP_OLDEST else None
            if oldest is None:
                send_buffer = self._session.send_buffer
                if message_terms.policy == DISCONNECT and send_buffer is not None:
                    send_buffer.overflow()
                return self._ledger.lost(FULL_MESSAGES, 1)
            self.shed_one(oldest, FULL_MESSAGES)
        return GO_ON

    def _renew(self, message_terms: MessageTerms, waiting: Delivery, newer: Delivery) -> int:
        """Put a newer message of the topic in the place of the one that waits. GO_ON when that one had to go."""
        totals = self.totals
        send_buffer = self._session.send_buffer if waiting.live else None
        grown: i64 = newer.message.size
        grown -= waiting.message.size
        if send_buffer is not None:
            fits = send_buffer.bytes + grown <= send_buffer.max_bytes or send_buffer.messages == 1
        else:
            fits = self.bytes + grown <= self.max_bytes or self.messages == 1
        if not fits:
            return self._ledger.lost(FULL_BYTES, 1)
        if grown > 0 and not totals.has_room(0, grown):
            relieved = totals.relieve(0, grown)
            if not waiting.waits:
                return GO_ON
            if not relieved:
                return self._ledger.lost(GLOBAL, 1)
        if send_buffer is not None:
            send_buffer.replace(grown)
        else:
            self.bytes += grown
            self.owner.queued += grown
            totals.bytes += grown
            self._ledger.lost(REPLACED, 1)
        waiting.settle()
        waiting.message, waiting.qos, waiting.retain = newer.message, newer.qos, newer.retain
        waiting.identifiers, waiting.group = newer.identifiers, newer.group
        message_terms.renew(waiting, totals.now)
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
