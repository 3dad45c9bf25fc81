"""Things that fall due: session expiry, delayed wills, expiry of retained messages.

Owns a heap of times; knows nothing of clocks. The shell asks `next_due()`, arms one timer, and calls the router
back. Promises: adding costs O(log n), an entry that no longer holds is skipped by whoever it was for (see
`Router.tick`), and each owner keeps at most one live entry, so that the heap grows with sessions and messages, not
with reconnects.
"""

from __future__ import annotations

import heapq


class Deadlines:
    """A heap of (time, thing). Times are seconds of the caller's monotonic clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, object]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when: float, thing: object) -> None:
        """`thing` falls due at `when`."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, thing))

    def next_due(self) -> float:
        """The earliest time, or -1.0 when there is none."""
        return self._heap[0][0] if self._heap else -1.0

    def pop_due(self, now: float) -> object | None:
        """The next thing whose time has come, taken out; None when there is none."""
        if self._heap and self._heap[0][0] <= now:
            return heapq.heappop(self._heap)[2]
        return None
