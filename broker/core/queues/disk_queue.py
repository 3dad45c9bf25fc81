"""What of one session's queue is on disk alone, and how it comes back.

Owns the pages, oldest first, and what is being read of them. Promises: each message has its place in one of the sums at
any time, in memory's from the moment at which it is asked for; one read is under way at most. Refuses: to know where
in the queue the pages stand (`SessionQueue`), and files (`Journal.fetch`).
"""

from __future__ import annotations

from collections import deque

from mypy_extensions import i64

from broker.core.persistence.journal import DeliveryRecord, Fetch, Journal
from broker.core.persistence.pages import FETCHED_BYTES, PAGE_BYTES, Page, Pages, Starved
from broker.core.queues.delivery import Delivery
from broker.core.queues.outbox import Outbox
from broker.core.queues.queue_totals import QueueTotals


class PagedQueue:
    """The queue that the pages belong to."""

    def take_back(self, records: list[DeliveryRecord], messages: i64, size: i64) -> None:
        """What was read of `messages` of `size` bytes in all is in memory again, before the pages that are left."""
        raise NotImplementedError


class DiskQueue(Starved):
    """The pages of one session. There is none where nothing waits on disk alone."""

    def __init__(self, queue: PagedQueue, client_id: str, load: QueueTotals, pages: Pages) -> None:
        self.messages: i64 = 0
        self.bytes: i64 = 0
        # Whether QoS 0 may be among them: live ones wait behind it.
        self.qos0 = False
        self._queue = queue
        self._client_id = client_id
        self._load = load
        self._sums = pages
        self._pages: deque[Page] = deque()
        # What is being read: so many pages from the first on, for whom.
        self._fetch: QueueFetch | None = None
        self._asked: i64 = 0
        self._outbox: Outbox | None = None

    def append(self, delivery: Delivery) -> None:
        """A delivery, which the store has given a number, waits here as the last."""
        message = delivery.message
        size: i64 = message.size()
        page = self._pages[-1] if len(self._pages) > self._asked else None
        if page is None or page.messages >= self._sums.page or page.bytes + size > PAGE_BYTES:
            page = Page(delivery.record, delivery.record, 0, 0)
            page.expires_at = message.expires_at
            self._pages.append(page)
        page.last = delivery.record
        page.messages += 1
        page.bytes += size
        if page.expires_at != 0.0 and (message.expires_at == 0.0 or message.expires_at > page.expires_at):
            page.expires_at = message.expires_at
        self._count(1, size)

    def take_back(self, page: Page) -> None:
        """A page that a store kept is the last."""
        self._pages.append(page)
        self._count(page.messages, page.bytes)

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
        self._fetch = QueueFetch(self, first.first, last.last, messages, size)
        journal.fetch(self._client_id, self._fetch)

    def try_again(self) -> None:
        outbox = self._outbox
        if outbox is not None and not outbox.closed:
            outbox.schedule_flush()

    def fetched(self, records: list[DeliveryRecord], size: i64) -> None:
        """The pages that were asked for have come."""
        messages: i64 = 0
        while self._asked > 0:
            page = self._pages.popleft()
            self._asked -= 1
            messages += page.messages
        self._fetch = None
        self._count(-messages, -size)
        outbox = self._outbox
        self._queue.take_back(records, messages, size)
        if outbox is not None and not outbox.closed:
            outbox.schedule_flush()

    # -- dropping ------------------------------------------------------------------------------------------------------

    def expired(self, now: float) -> bool:
        """Whether all of the first page has."""
        return len(self._pages) > 0 and 0.0 < self._pages[0].expires_at <= now

    def drop_first(self) -> Page:
        """Take the first page out of the accounts; what is being read is not wanted any more."""
        self._cancel()
        page = self._pages.popleft()
        self._count(-page.messages, -page.bytes)
        return page

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
    """Pages of a session's queue that are being read."""

    def __init__(self, disk: DiskQueue, first: i64, last: i64, messages: i64, size: i64) -> None:
        super().__init__(first, last, messages)
        self.bytes: i64 = size
        self._disk = disk

    def committed(self, number: i64) -> i64:
        del number
        if not self.over:
            self._disk.fetched(self.records, self.bytes)
        return len(self.records)
