"""The counts of an interval: one object for each process, emptied each second.

Owns: the counters and the latencies of one process. Compiled.

Promises: latencies are kept with three significant digits (half a thousandth off at most), so that their number is
always bounded: about 1,000 for each factor of two.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

_FINE: Final = 2048

COUNTS: Final = (
    "sent", "received", "bytes_sent", "bytes_received", "gaps", "copies", "connects", "connections_lost", "subscribes",
    "foreign", "answered", "answered_again",
)  # fmt: skip
TIMES: Final = ("round_trips", "latencies", "carried", "late", "connect_times", "subscribe_times")


class Tally:
    """Counters since the last `take`, and the latencies in microseconds."""

    def __init__(self) -> None:
        self.sent: i64 = 0
        self.received: i64 = 0
        self.bytes_sent: i64 = 0
        self.bytes_received: i64 = 0
        self.gaps: i64 = 0
        """Messages seen to be missing, less those that came after all."""
        self.copies: i64 = 0
        """Further copies, of any kind."""
        self.connects: i64 = 0
        self.connections_lost: i64 = 0
        self.subscribes: i64 = 0
        self.foreign: i64 = 0
        """Messages without a mark of this run that came to subscribers."""
        self.answered: i64 = 0
        """Requests that were answered for the first time."""
        self.answered_again: i64 = 0
        self.round_trips: dict[int, int] = {}
        """From when a request was due to its answer."""
        self.latencies: dict[int, int] = {}
        self.since: i64 = 0
        """When the stage began (microseconds)."""
        self.carried: dict[int, dict[int, int]] = {}
        """By stage (from 0), those of `latencies` that belong to an earlier one: they were meant to be sent in it."""
        self.late: dict[int, int] = {}
        self.connect_times: dict[int, int] = {}
        self.subscribe_times: dict[int, int] = {}
        self._begins: list[int] = []
        self._value: i64 = -1
        self._count: i64 = 0

    def latency(self, microseconds: i64) -> None:
        if microseconds == self._value:
            self._count += 1
            return
        self._flush()
        self._value = microseconds
        self._count = 1

    def enter(self, at: i64) -> None:
        """Begin the next stage, or the drain behind the last."""
        self._begins.append(at)
        self.since = at

    def carry(self, microseconds: i64, sent: i64) -> None:
        """Note that the latency recorded last is of a message meant to be sent at `sent`, before this stage began."""
        stage = max(0, bisect_right(self._begins, sent) - 1)
        add(self.carried.setdefault(stage, {}), microseconds, 1)

    def _flush(self) -> None:
        if self._count > 0:
            add(self.latencies, self._value, self._count)
            self._count = 0

    def take(self) -> dict[str, object]:
        """Return all counts since the last call, by name, and begin again."""
        self._flush()
        taken: dict[str, object] = {}
        for name in COUNTS:
            taken[name] = int(getattr(self, name))
            setattr(self, name, 0)
        for name in TIMES:
            taken[name] = getattr(self, name)
            setattr(self, name, {})
        return taken


def add(times: dict[int, int], microseconds: i64, count: i64) -> None:
    """Count a time, rounded to three significant digits; a negative one (clocks that disagree) as 0."""
    value = microseconds
    if value < 0:
        value = 0
    shift: i64 = 0
    while (value >> shift) >= _FINE:
        shift += 1
    key: int = (value >> shift) << shift
    times[key] = times.get(key, 0) + int(count)
