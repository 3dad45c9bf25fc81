"""Limits on what all workers keep together: each has a part, which the supervisor makes larger where it is needed.

Owns the parts. A worker compares what it keeps with its part alone, so that nothing that it does for a client waits for
another process. Several times a second it is told its part, and answers how much it uses: what is free is divided among
all, more of it to those that have used up half of what they had. Promises: the parts together are never more than the
limit, but for what workers keep already; a part is given only when the others are known to have less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from canopy_mqtt.settings import Settings

PERIOD: Final = 0.25
"""Seconds between two times that a worker is told its parts."""

SHORT: Final = 8
"""Of what is free, workers that need more have this many times as much as all others."""

MAX_PART: Final = 1 << 62

UNLIMITED: Final = -1
"""The part of what has no limit."""

TOTALS: Final = (
    ("session", "max_sessions"),
    ("session", "max_bytes"),
    ("queue", "total_messages"),
    ("queue", "total_bytes"),
    ("limits", "max_alias_bytes"),
    ("limits", "max_partial_bytes"),
    ("store", "disk_bytes"),
)
"""The settings of these limits, in the order in which parts are told."""

MAX_ACCOUNTS: Final = 1_000
"""Accounts with parts of `limits.max_user_bytes` by what they need; of all others each worker has an equal part."""


class Total:
    """One limit, and the parts of it. `limit`: 0 is none."""

    def __init__(self, limit: int, workers: int, part: int = 0) -> None:
        """`part`: what each worker has already."""
        self.limit = limit
        # Of each worker: what it uses, what it may take it that it has, and what of this was free when it was told.
        self.used = [0] * workers
        self.parts = [part] * workers
        self._free = [part] * workers
        self.wants = [False] * workers
        """Of each worker: it needs more than its part, whatever it uses."""
        self._turn = 0

    def part(self, worker: int, most: int = MAX_PART) -> int:
        """Return what a worker is to be told: no more than `most`, unless it uses more."""
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
        part = max(self.used[worker], min(self.used[worker] + own, left, most))
        self._free[worker] = part - self.used[worker]
        self.parts[worker] = max(self.parts[worker], part)
        return part

    def uses(self, worker: int, used: int, told: int) -> None:
        """A worker uses so much, and knows its part."""
        self.used[worker] = used
        self.parts[worker] = max(used, told)

    def _is_short(self, worker: int) -> bool:
        left = self.parts[worker] - self.used[worker]
        return self.wants[worker] or (self._free[worker] > 0 and left * 2 <= self._free[worker])


def equal_part(limit: int, workers: int) -> int:
    """Return the part of a limit that each worker has where it goes by no needs; 0: there is no limit."""
    return limit and max(1, limit // workers)


class Accounts:
    """The accounts that need more than an equal part of `limits.max_user_bytes` somewhere.

    A worker names an account that has used up half of its part, or was refused more. Then all are told parts of it, as
    of a limit of all, until each uses less than half of an equal part again.
    """

    def __init__(self, limit: int, workers: int) -> None:
        self.limit = limit
        self._workers = workers
        self._totals: dict[str, Total] = {}

    def parts(self, worker: int) -> dict[str, int]:
        """Return what a worker is to be told: each account that has parts, and its own one."""
        equal = equal_part(self.limit, self._workers)
        told: dict[str, int] = {}
        for name, total in list(self._totals.items()):
            total.limit = self.limit
            rests = max(total.used) * 2 < equal and not any(total.wants)
            if not self.limit or (rests and max(total.parts) <= equal):
                del self._totals[name]
            else:
                told[name] = total.part(worker, equal if rests else MAX_PART)
        return told

    def uses(self, worker: int, used: Mapping[str, tuple[int, bool]], told: Mapping[str, int]) -> None:
        """A worker uses so much, or was refused more, and knows its parts."""
        equal = equal_part(self.limit, self._workers)
        for name, (held, wants) in used.items():
            total = self._totals.get(name)
            if total is None and len(self._totals) < MAX_ACCOUNTS and self.limit:
                total = self._totals[name] = Total(self.limit, self._workers, equal)
            if total is not None:
                total.uses(worker, held, told.get(name, equal))
                total.wants[worker] = wants

    def gone(self, worker: int) -> None:
        """A worker has ended, and kept nothing."""
        for total in self._totals.values():
            total.uses(worker, 0, equal_part(self.limit, self._workers))
            total.wants[worker] = False


class Parts:
    """The parts of all workers. `tell` says something to one of them."""

    def __init__(self, settings: Settings, tell: Callable[[int, str, list[int], dict[str, int]], None]) -> None:
        self._totals = [Total(0, settings.workers.count) for _ in TOTALS]
        self._accounts = Accounts(0, settings.workers.count)
        self._tell = tell
        # What a worker was told, and has not answered yet; and those that have answered before.
        self._told: dict[int, tuple[list[int], dict[str, int]]] = {}
        self._known: set[int] = set()
        self._stored = bool(settings.store.path)
        self.change(settings)

    def change(self, settings: Settings) -> None:
        """Use the limits of other settings."""
        for total, (section, name) in zip(self._totals, TOTALS, strict=True):
            total.limit = getattr(getattr(settings, section), name)
        self._accounts.limit = settings.limits.max_user_bytes

    def tell(self, worker: int) -> None:
        """Tell a worker its parts, if it has answered the last time. One that starts is only asked what it uses."""
        if worker not in self._told:
            known = worker in self._known
            told = [total.part(worker) if known else 0 for total in self._totals]
            accounts = self._accounts.parts(worker)
            self._told[worker] = told, accounts
            self._tell(worker, "parts", told if known else [], accounts)

    def uses(self, worker: int, used: Sequence[tuple[int, bool]], by_account: Mapping[str, tuple[int, bool]]) -> None:
        """Hear how much a worker uses of each, and by which accounts that have parts, or need some; True: it was
        refused more.

        One that starts is told its parts at once, before it has a client.
        """
        starts = worker not in self._known
        self._known.add(worker)
        parts, accounts = self._told.pop(worker)
        for total, (held, wants), told in zip(self._totals, used, parts, strict=True):
            total.uses(worker, held, told)
            total.wants[worker] = wants
        self._accounts.uses(worker, by_account, accounts)
        if starts:
            self.tell(worker)

    def gone(self, worker: int) -> None:
        """A worker has ended. What a store has kept of it comes back with it."""
        self._told.pop(worker, None)
        self._known.discard(worker)
        if not self._stored:
            for total in self._totals:
                total.uses(worker, 0, 0)
            self._accounts.gone(worker)
