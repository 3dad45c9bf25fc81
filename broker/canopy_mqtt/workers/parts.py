"""Limits on what all workers keep together: each has a part, which the supervisor makes larger where it is needed.

Owns the parts. A worker compares what it keeps with its part alone, so that nothing that it does for a client waits for
another process. Several times a second it is told its part, and answers how much it uses: what is free is divided among
all, more of it to those that have used up half of what they had. Promises: the parts together are never more than the
limit, but for what workers keep already; a part is given only when the others are known to have less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from canopy_mqtt.settings import Settings

PERIOD: Final = 0.25
"""Seconds between two times that a worker is told its parts."""

SHORT: Final = 4
"""Of what is free, workers that need more have this many times as much as all others."""

UNLIMITED: Final = -1
"""The part of what has no limit."""

TOTALS: Final = (
    ("session", "max_sessions"),
    ("session", "max_bytes"),
    ("queue", "total_messages"),
    ("queue", "total_bytes"),
    ("limits", "max_alias_bytes"),
    ("limits", "max_partial_bytes"),
)
"""The settings of these limits, in the order in which parts are told."""


class Total:
    """One limit, and the parts of it. `limit`: 0 is none."""

    def __init__(self, limit: int, workers: int) -> None:
        self.limit = limit
        # Of each worker: what it uses, what it may take it that it has, and what of this was free when it was told.
        self.used = [0] * workers
        self.parts = [0] * workers
        self._free = [0] * workers
        self._turn = 0

    def part(self, worker: int) -> int:
        """Return what a worker is to be told."""
        if not self.limit:
            return UNLIMITED
        free = max(0, self.limit - sum(self.used))
        count = len(self.used)
        weights = [1 + SHORT * count * self._is_short(each) for each in range(count)]
        own, rest = divmod(free * weights[worker], sum(weights))
        # The last pieces go round: one that needs them takes them, and the others give them back, which takes a turn,
        # and another one where it is told in the same round.
        own += rest > 0 and (self._is_short(worker) or self._turn // (3 * count) % count == worker)
        self._turn += 1
        left = self.limit - sum(self.parts) + self.parts[worker]
        part = max(self.used[worker], min(self.used[worker] + own, left))
        self._free[worker] = part - self.used[worker]
        self.parts[worker] = max(self.parts[worker], part)
        return part

    def uses(self, worker: int, used: int, told: int) -> None:
        """A worker uses so much, and knows its part."""
        self.used[worker] = used
        self.parts[worker] = max(used, told)

    def _is_short(self, worker: int) -> bool:
        left = self.parts[worker] - self.used[worker]
        return self._free[worker] > 0 and left * 2 <= self._free[worker]


class Parts:
    """The parts of all workers. `tell` says something to one of them."""

    def __init__(self, settings: Settings, tell: Callable[[int, str, list[int]], None]) -> None:
        self._totals = [Total(0, settings.workers.count) for _ in TOTALS]
        self._tell = tell
        # What a worker was told, and has not answered yet; and those that have answered before.
        self._told: dict[int, list[int]] = {}
        self._known: set[int] = set()
        self._stored = bool(settings.store.path)
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Use the limits of other settings."""
        for total, (section, name) in zip(self._totals, TOTALS, strict=True):
            total.limit = getattr(getattr(settings, section), name)

    def tell(self, worker: int) -> None:
        """Tell a worker its parts, if it has answered the last time. One that starts is only asked what it uses."""
        if worker not in self._told:
            known = worker in self._known
            told = [total.part(worker) if known else 0 for total in self._totals]
            self._told[worker] = told
            self._tell(worker, "parts", told if known else [])

    def uses(self, worker: int, used: Sequence[int]) -> None:
        """Hear how much a worker uses of each. One that starts is told its parts at once, before it has a client."""
        starts = worker not in self._known
        self._known.add(worker)
        for total, held, told in zip(self._totals, used, self._told.pop(worker), strict=True):
            total.uses(worker, held, told)
        if starts:
            self.tell(worker)

    def gone(self, worker: int) -> None:
        """A worker has ended. What a store has kept of it comes back with it."""
        self._told.pop(worker, None)
        self._known.discard(worker)
        if not self._stored:
            for total in self._totals:
                total.uses(worker, 0, 0)
