"""One coarse timer for all connections.

Owns the times at which connections want to be looked at: connect time-out, keep alive, stalled writes, lingering
closes. Promises: one event-loop timer in all, none while nothing is due; adding costs a dictionary look-up; a check
comes at most `RESOLUTION` late and never early. What a connection does when it is looked at is its own business.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

RESOLUTION: Final = 0.1
"""Seconds between two looks of the wheel while anything waits."""


class Checked(Protocol):
    """Something that wants to be looked at from time to time."""

    check_at: float

    def check(self, now: float) -> float:
        """Look; return when to look again (s, loop time), 0.0 for never."""


class Wheel:
    """Buckets of connections by the time of their next check."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, list[Checked]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0

    def add(self, item: Checked, when: float) -> None:
        """Look at `item` at `when`, or earlier when that was agreed before."""
        if 0.0 < item.check_at <= when:
            return
        item.check_at = when
        slot = int(when / RESOLUTION) + 1
        bucket = self._buckets.get(slot)
        if bucket is None:
            self._buckets[slot] = [item]
        else:
            bucket.append(item)
        if self._timer is None:
            self._last = int(self._loop.time() / RESOLUTION)
            self._timer = self._loop.call_later(RESOLUTION, self._turn)

    def close(self) -> None:
        """Forget everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.clear()

    def _turn(self) -> None:
        now = self._loop.time()
        slot = int(now / RESOLUTION)
        for due in range(self._last + 1, slot + 1):
            bucket = self._buckets.pop(due, None)
            if bucket is not None:
                for item in bucket:
                    # Entries of items that asked for an earlier check since then are stale.
                    if 0.0 < item.check_at <= now:
                        item.check_at = 0.0
                        again = item.check(now)
                        if again > 0.0:
                            self.add(item, again)
        self._last = slot
        self._timer = self._loop.call_later(RESOLUTION, self._turn) if self._buckets else None
