"""Pages: the parts of sessions' queues that are on disk only, of which memory keeps the totals.

Owns `Page`, and `Pages`: the limits above which messages are on disk only, and the totals of all sessions. It knows
neither queues (`queues.session_queue`) nor files (the store).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

if TYPE_CHECKING:
    from broker.core.queues.session_queue import DiskQueue

PAGE: Final = 256
PAGE_BYTES: Final = 262_144
"""Messages of a page, and the bytes that they count for, at most; a longer message is a page of its own. Where the
oldest are dropped, a page goes at once: an eighth of the disk's work, and no more of a queue than a few per cent."""

FETCHED: Final = 1_024
FETCHED_BYTES: Final = 524_288
"""What is read back at a time, where that is more than a page: some milliseconds. The next is read when less than a
page is left."""

UNBOUNDED: Final = 1 << 60


class Page:
    """Consecutive messages of one session that are on disk only.

    `first`, `last`: the store's numbers of the deliveries; `expires_at`: when all of them have expired (s, monotonic);
    0.0: never, or nobody knows.
    """

    def __init__(self, first: int, last: int, messages: int, size: int) -> None:
        self.first: i64 = first
        self.last: i64 = last
        self.messages: i64 = messages
        self.bytes: i64 = size
        self.expires_at = 0.0


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
        """Whether one more of `size` bytes waits on disk alone, where so many of `waiting` bytes wait in memory.

        `total`: bytes in all queues. The disk has to have room for it.
        """
        return (
            messages >= self.max_messages or waiting + size > self.max_bytes or total + size > self.total_bytes
        ) and self.bytes + size <= self.disk_bytes

    def retry(self) -> None:
        """Have all try again who found no room in memory: to be called every second or so."""
        if self.starved:
            starved, self.starved = self.starved, {}
            for each in starved:
                each.try_again()
