"""The part of one session's queue that is on disk only, and how it is read back.

Owns the pages, oldest first, and the current read. Promises: each message is counted in exactly one of the sums at any
time, in memory's from the moment of the request; at most one read is in progress; losses are counted. It knows neither
where in the queue the pages are (`SessionQueue`) nor files (`Journal.fetch`).
"""

from __future__ import annotations

from collections import deque

from mypy_extensions import i64

from broker.core.counters import GLOBAL
from broker.core.persistence.journal import DeliveryRecord, Fetch, Journal
from broker.core.persistence.pages import FETCHED_BYTES, PAGE_BYTES, Page, Pages, Starved
from broker.core.queues.delivery import Delivery
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.queue_totals import Crowded, QueueTotals
from broker.core.queues.requests import RequestMessage


def is_pageable(delivery: Delivery) -> bool:
    """Whether a delivery may wait on disk alone: those may whom nobody looks for before their turn comes."""
    return delivery.sub_queue is None and delivery.group is None and not isinstance(delivery.message, RequestMessage)


class PagedQueue(Crowded):
    """The interface of the queue that has the pages."""

    def count(self, messages: i64, size: i64) -> None:
        """So many more wait, or fewer, in all."""
        raise NotImplementedError

    def hold_qos0(self, hold: bool) -> None:
        """There may be QoS 0 in the pages: live ones wait behind it; or there is none any more."""
        raise NotImplementedError

    def put_back(self, deliveries: list[Delivery]) -> None:
        """These are in memory again, before the pages that are left."""
        raise NotImplementedError

    def disk_ended(self) -> None:
        """There are no pages any more."""
        raise NotImplementedError


class DiskQueue(Starved):
    """The pages of one session, if any of its messages are on disk only."""

    def __init__(self, queue: PagedQueue, ledger: Ledger, load: QueueTotals, pages: Pages) -> None:
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
