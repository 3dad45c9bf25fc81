"""Things that fall due: session expiry, delayed wills, expiry of retained messages.

Owns a heap of times; knows nothing of clocks. The shell asks `next_due()`, arms one timer, and calls the router
back. Promises: each thing has at most one time; setting it again replaces the old one, and cancelling takes it away.
What was replaced is skipped when it comes up and swept out when it outnumbers what is live, so that memory grows
with the things that wait and not with how often they are changed. All operations cost O(log n), amortised.
"""

from __future__ import annotations

import heapq
from typing import Final

SLACK: Final = 64
"""Entries that may be stale before a sweep is worth it."""


class Deadlines:
    """Things by the time at which they fall due (s, the caller's monotonic clock). Things are hashable."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, object]] = []
        self._due: dict[object, float] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def set(self, thing: object, when: float) -> None:
        """`thing` falls due at `when`, and no more at the time that was set before."""
        if self._due.get(thing) == when:
            return
        self._due[thing] = when
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, thing))
        self._sweep()

    def cancel(self, thing: object) -> None:
        """`thing` does not fall due any more."""
        if self._due.pop(thing, None) is not None:
            self._sweep()

    def next_due(self) -> float:
        """The earliest time, or -1.0 when nothing waits."""
        heap = self._heap
        while heap:
            when, _, thing = heap[0]
            if self._due.get(thing) == when:
                return when
            heapq.heappop(heap)
        return -1.0

    def pop_due(self, now: float) -> object | None:
        """The next thing whose time has come, taken out; None when there is none."""
        when = self.next_due()
        if when < 0.0 or when > now:
            return None
        thing = heapq.heappop(self._heap)[2]
        del self._due[thing]
        return thing

    def _sweep(self) -> None:
        """Make the heap anew when most of it is stale."""
        if len(self._heap) > 2 * len(self._due) + SLACK:
            live: list[tuple[float, int, object]] = []
            for entry in self._heap:
                if self._due.get(entry[2]) == entry[0]:
                    live.append(entry)
            heapq.heapify(live)
            self._heap = live
