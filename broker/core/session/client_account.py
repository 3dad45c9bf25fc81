"""One account for everything that the broker keeps for one client: filters, retained messages, session, and messages.

Each part has its own limit; `limits.max_client_bytes` limits the sum. What a client makes grow directly (filters,
retained messages) is refused above it. Messages may use what these leave, and always `MESSAGE_ROOM`. The outbox of a
connected client is not included, so live messages cost nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.accounts import Account
from broker.core.queues.queue_totals import UNLIMITED, bound
from broker.core.queues.session_queue import SessionQueue
from broker.core.queues.windows.send_window import SendWindow

if TYPE_CHECKING:
    from mypy_extensions import i64

MESSAGE_ROOM: Final = 1_048_576
"""Bytes of messages that may wait in a session, and as many that may be in flight, whatever else its client holds."""


class ClientAccount:
    """Bytes, by use. A caller that changes `filters` or `retained` calls `fit`."""

    def __init__(self, queue: SessionQueue, window: SendWindow) -> None:
        """`queue` and `window` are the session's, and are given their bounds from here."""
        # Its subscriptions, each as if it shared nothing with others (`topics.filter_bytes`).
        self.filters: i64 = 0
        # What it has published and is retained (`routing.retained.shares`).
        self.retained: i64 = 0
        # The session by itself (`session_bytes`).
        self.session: i64 = 0
        self._max_bytes: i64 = UNLIMITED
        self._max_inflight_bytes: i64 = window.max_bytes
        self._queue = queue
        self._window = window

    @property
    def owner(self) -> Account:
        """The account of the client's principal, which holds all of this but what is retained."""
        return self._queue.owner

    @property
    def bytes(self) -> i64:
        """All of it."""
        return self.filters + self.retained + self.session + self._queue.bytes + self._window.bytes

    def limit(self, max_bytes: int, max_inflight_bytes: int) -> None:
        """Bound the account, and what is in flight by itself. 0: unlimited."""
        self._max_bytes = bound(max_bytes)
        self._max_inflight_bytes = bound(max_inflight_bytes)
        self._window.max_bytes = self._max_inflight_bytes
        self.fit()

    def has_room(self, size: i64) -> bool:
        """Whether its client may have so many bytes more."""
        return size <= self.room

    @property
    def room(self) -> i64:
        """Bytes that its client may have more, at most `UNLIMITED`."""
        return self._max_bytes if self._max_bytes >= UNLIMITED else self._max_bytes - self.bytes

    def fit(self) -> None:
        """Have messages keep to what the rest leaves: called when that has changed, and before one is queued."""
        if self._max_bytes >= UNLIMITED:
            return
        left: i64 = self._max_bytes - self.filters - self.retained - self.session
        if left < MESSAGE_ROOM:
            left = MESSAGE_ROOM
        window = self._window
        window.max_bytes = left if left < self._max_inflight_bytes else self._max_inflight_bytes
        left -= window.bytes
        if left < MESSAGE_ROOM:
            left = MESSAGE_ROOM
        self._queue.fit(left)
