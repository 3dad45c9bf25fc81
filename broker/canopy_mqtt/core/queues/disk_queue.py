"""The messages that wait on disk alone, in a session whose queue would take too much memory.

Owns the `Page`s of each session (`DiskQueue`), the limits and sums of all of them (`Pages`), and reading them back
(`Fetch`). The oldest are read while something still waits before them in memory, and stay in the store meanwhile.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from canopy_mqtt.core.ledger import GLOBAL, Ledger
from canopy_mqtt.core.persistence.commits import Waiter
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.queues.requests import RequestMessage

if TYPE_CHECKING:
    from canopy_mqtt.core.persistence.journal import DeliveryRecord, Journal
    from canopy_mqtt.core.queues.delivery import Delivery
    from canopy_mqtt.core.queues.message_queue import MessageQueue
    from canopy_mqtt.core.queues.send_buffer import SendBuffer

PAGE: Final = 256
PAGE_BYTES: Final = 262_144
"""Messages of a page, and the bytes that they count for, at most; a longer message is a page of its own. Where the
oldest are dropped, a page goes at once: an eighth of the disk's work, and no more of a queue than a few per cent."""

FETCHED: Final = 1_024
FETCHED_BYTES: Final = 524_288
"""Deliveries that are read back at a time, where that is more than a page: some milliseconds. The
next is read when less than a page is left."""

UNBOUNDED: Final = 1 << 60


class Page:
    """Consecutive messages of one session that are on disk only.

    `first`, `last`: the store's numbers of the deliveries; `expires_at`: when all of them have expired (s, monotonic);
    0.0: never, or unknown; `held`: some of them are `Message.held`. All are when they are read back, and so stay behind
    those in memory.
    """

    def __init__(self, first: int, last: int, messages: int, size: int) -> None:
        self.first: i64 = first
        self.last: i64 = last
        self.messages: i64 = messages
        self.bytes: i64 = size
        self.expires_at = 0.0
        self.held = False


class Pages:
    """The limits, and the sums over all sessions.

    `max_messages`, `max_bytes`: of what waits for one session in memory; what comes beyond waits on disk alone.
    `total_bytes`: of all queues in memory, beyond which whatever comes to a session waits so. `disk_bytes`: of what
    waits so, of all sessions. Bytes as queues count them. 0: unlimited; `max_messages` 0: nothing waits on disk alone.
    """

    def __init__(self, max_messages: int, max_bytes: int, total_bytes: int, disk_bytes: int) -> None:
        self.max_messages: i64 = max_messages if max_messages > 0 else UNBOUNDED
        self.max_bytes: i64 = max_bytes if max_bytes > 0 and max_messages > 0 else UNBOUNDED
        self.total_bytes: i64 = total_bytes if total_bytes > 0 and max_messages > 0 else UNBOUNDED
        self.disk_bytes: i64 = disk_bytes if disk_bytes > 0 else UNBOUNDED
        self.page: i64 = PAGE
        self.fetched: i64 = FETCHED
        # What waits on disk alone, of all sessions, and who waits for room in memory.
        self.messages: i64 = 0
        self.bytes: i64 = 0
        self.starved: dict[DiskQueue, None] = {}

    def beyond(self, messages: i64, waiting: i64, size: i64, total: i64) -> bool:
        """Return whether one more of `size` bytes waits on disk alone, beside `messages` of `waiting` bytes in memory.

        `total`: bytes in all queues. The disk has to have room for it.
        """
        return (
            messages >= self.max_messages or waiting + size > self.max_bytes or total + size > self.total_bytes
        ) and self.bytes + size <= self.disk_bytes

    def retry(self) -> None:
        """Let all queues that found no room in memory try again: to be called every second or so."""
        if self.starved:
            starved, self.starved = self.starved, {}
            for each in starved:
                each.try_again()


@mypyc_attr(allow_interpreted_subclasses=True)
class Fetch(Waiter):
    """A request for messages on disk: those of a session with numbers from `first` to `last`.

    The store puts what it finds into `records`, and calls `Commits.hand`. It waits until all `messages` are committed;
    fewer come where rows are missing from the file.
    """

    def __init__(self, first: i64, last: i64, messages: i64) -> None:
        super().__init__()
        self.first: i64 = first
        self.last: i64 = last
        self.messages: i64 = messages
        self.records: list[DeliveryRecord] = []
        # They are not waited for any more.
        self.over = False


def is_pageable(delivery: Delivery) -> bool:
    """Return whether a delivery may wait on disk alone: it may if it is not looked for before its turn comes."""
    return (
        delivery.message_terms is None and delivery.group is None and not isinstance(delivery.message, RequestMessage)
    )


class DiskQueue:
    """The pages of one session, if any of its messages are on disk only."""

    def __init__(self, queue: MessageQueue, ledger: Ledger, totals: QueueTotals, pages: Pages) -> None:
        self.messages: i64 = 0
        self.bytes: i64 = 0
        self._holds_qos0 = False
        self._queue = queue
        self._ledger = ledger
        self._totals = totals
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
        totals = self._totals
        if not totals.has_room(messages, size) and not totals.relieve(messages, size):
            self._sums.starved[self] = None
            return
        if not self._pages or self._pages[0] is not first:
            # Room was made here.
            self._sums.starved[self] = None
            return
        totals.messages += messages
        totals.bytes += size
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
        totals = self._totals
        deliveries: list[Delivery] = []
        for record in records:
            delivery = record.queued(totals.now)
            delivery.message.held = held
            journal.restored(self._ledger.client_id, delivery, record.number)
            delivery.since = totals.now
            deliveries.append(delivery)
            messages -= 1
            size -= delivery.message.size
        self._queue.put_back(deliveries)
        if messages != 0 or size != 0:
            # The file was changed by another program.
            self._queue.count(-messages, -size)
            totals.messages -= messages
            totals.bytes -= size
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
            self._totals.messages -= fetch.messages
            self._totals.bytes -= fetch.bytes


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
