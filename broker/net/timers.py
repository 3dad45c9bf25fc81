"""One coarse timer for all connections.

Owns the times at which connections want to be looked at: connect time-out, keep alive, stalled writes, closes.
Promises: one event-loop timer in all, none while nothing is due; adding and removing cost a dictionary look-up; a
check comes at most `RESOLUTION` late and never early. An item stands in one place at most, and is referred to no
longer than it waits. What a connection does when it is looked at is its own business.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mypy_extensions import mypyc_attr

RESOLUTION: Final = 0.1
"""Seconds between two looks of the wheel while anything waits."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Checked:
    """Something that wants to be looked at from time to time."""

    def __init__(self) -> None:
        # When it will be looked at (s, loop time); 0.0: not at all. The wheel's to change.
        self.check_at = 0.0

    def check(self, now: float) -> float:
        """Look; return when to look again (s, loop time), 0.0 for never."""
        raise NotImplementedError


class Wheel:
    """Buckets of connections by the time of their next check."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, set[Checked]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0

    def __len__(self) -> int:
        """How many items wait."""
        return sum([len(bucket) for bucket in self._buckets.values()])

    def add(self, item: Checked, when: float) -> None:
        """Look at `item` at `when`, or earlier when that was agreed before."""
        if 0.0 < item.check_at <= when:
            return
        self.remove(item)
        item.check_at = when
        bucket = self._buckets.get(_slot(when))
        if bucket is None:
            self._buckets[_slot(when)] = {item}
        else:
            bucket.add(item)
        if self._timer is None:
            self._last = int(self._loop.time() / RESOLUTION)
            self._timer = self._loop.call_later(RESOLUTION, self._turn)

    def remove(self, item: Checked) -> None:
        """Do not look at `item` any more."""
        if item.check_at == 0.0:
            return
        slot = _slot(item.check_at)
        item.check_at = 0.0
        bucket = self._buckets.get(slot)
        if bucket is not None:
            bucket.discard(item)
            if not bucket:
                del self._buckets[slot]

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
            if bucket is None:
                continue
            for item in bucket:
                # One that was removed or moved by the check of another says so.
                if item.check_at == 0.0 or _slot(item.check_at) != due:
                    continue
                item.check_at = 0.0
                again = item.check(now)
                if again > 0.0:
                    self.add(item, again)
        self._last = slot
        self._timer = self._loop.call_later(RESOLUTION, self._turn) if self._buckets else None


def _slot(when: float) -> int:
    """The turn in which a time has certainly passed."""
    return int(when / RESOLUTION) + 1
