"""One coarse timer for all connections.

Owns the times at which connections are checked: connect time-out, keep alive, stalled writes, closes. Promises: one
event-loop timer in all, none while nothing is due; adding and removing cost a dictionary look-up; a check comes at most
`RESOLUTION` late and never early. An item has at most one time, and is referenced no longer than it waits. An item
whose check raises is told (`check_failed`) and not checked again; the others are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from mypy_extensions import i64, mypyc_attr

RESOLUTION: Final = 0.1
"""Seconds between two looks of the wheel while anything waits."""

CHECKS: Final = 128
"""Items that are looked at in one turn, each of which may end a connection: some milliseconds. The others follow at
once, after whatever else the event loop has to do."""


@mypyc_attr(allow_interpreted_subclasses=True)
class WheelItem:
    """An item of the wheel: its `check` is called at its time."""

    def __init__(self) -> None:
        # When it will be looked at (s, loop time); 0.0: not at all. And the number of its slot. The wheel's to change.
        self.check_at = 0.0
        self.slot = 0

    def check(self, now: float) -> float:
        """Check for time-outs; return the time of the next check (s, loop time), 0.0 for never."""
        raise NotImplementedError

    def check_failed(self, error: Exception) -> None:
        """Called when the check has raised. Must not raise."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Endpoint(WheelItem):
    """A connection, as the rounds know it: of a client, to another broker, or to a subscription of the program."""

    def __init__(self) -> None:
        super().__init__()
        # The number of the first round in which it may read on: its receivers have been written to by then.
        self.ready_in: i64 = 0
        # The connection waits for a turn in which to read on, or to write.
        self.waits = False
        self.waits_to_write = False
        # How long its messages may wait for more, once that was asked: a `PeerDelay`.
        self.delay: object | None = None

    def wake(self, now: float) -> None:
        """Write, or wake the writer: the send buffer has something to take, or was closed, perhaps with the protocol.

        `now`: the loop's clock. Must not raise: others are woken after it.
        """
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """End this connection after a fault of the broker while it was served. Must not raise."""
        raise NotImplementedError

    def check_failed(self, error: Exception) -> None:
        self.failed(error)

    def turn(self, work: i64) -> None:
        """Continue an unfinished read for so much work. Must not raise."""
        raise NotImplementedError

    def write_turn(self) -> None:
        """Write a batch. Must not raise."""
        raise NotImplementedError

    def end_in_turn(self) -> None:
        """End the connection, for which `Rounds.end` was called. Must not raise."""
        raise NotImplementedError


class TimerWheel:
    """Buckets of connections by the time of their next check."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, set[WheelItem]] = {}
        # Slots whose time has come, as far as they have not been looked at.
        self._due: deque[tuple[int, set[WheelItem]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0

    def __len__(self) -> int:
        return sum([len(bucket) for bucket in self._buckets.values()]) + sum([len(bucket) for _, bucket in self._due])

    def add(self, item: WheelItem, when: float) -> None:
        """Check `item` at `when`, or earlier if that was agreed before."""
        if 0.0 < item.check_at <= when:
            return
        self.remove(item)
        if self._timer is None:
            self._last = int(self._loop.time() / RESOLUTION)
            self._timer = self._loop.call_later(RESOLUTION, self._turn)
        # What is overdue has its turn with the next slot: the earlier ones have been.
        when = max(when, (self._last + 0.5) * RESOLUTION)
        slot = int(when / RESOLUTION) + 1
        item.check_at = when
        item.slot = slot
        bucket = self._buckets.get(slot)
        if bucket is None:
            self._buckets[slot] = {item}
        else:
            bucket.add(item)

    def remove(self, item: WheelItem) -> None:
        """Check `item` no more."""
        if item.check_at == 0.0:
            return
        item.check_at = 0.0
        bucket = self._buckets.get(item.slot)
        if bucket is not None:
            bucket.discard(item)
            if not bucket:
                del self._buckets[item.slot]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.clear()
        self._due.clear()

    def _turn(self) -> None:
        # First: whatever a check does, another turn comes.
        self._timer = self._loop.call_later(RESOLUTION, self._turn)
        now = self._loop.time()
        slot = int(now / RESOLUTION)
        if slot - self._last > len(self._buckets):
            # The clock was put forward: by days, perhaps.
            passed = sorted([due for due in self._buckets if due <= slot])
        else:
            passed = [due for due in range(self._last + 1, slot + 1) if due in self._buckets]
        for due in passed:
            self._due.append((due, self._buckets.pop(due)))
        self._last = slot
        left = CHECKS
        while self._due and left > 0:
            due, bucket = self._due[0]
            if not bucket:
                self._due.popleft()
                continue
            left -= 1
            item = bucket.pop()
            # One that was removed or moved by the check of another says so.
            if item.check_at == 0.0 or item.slot != due:
                continue
            item.check_at = 0.0
            try:
                again = item.check(now)
                if again > 0.0:
                    self.add(item, again)
            except Exception as error:
                item.check_failed(error)
        if self._due:
            self._rearm(0.0)
        elif not self._buckets:
            self._rearm(-1.0)

    def _rearm(self, delay: float) -> None:
        """Schedule the next turn in `delay` seconds; negative: none."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._loop.call_later(delay, self._turn) if delay >= 0.0 else None
