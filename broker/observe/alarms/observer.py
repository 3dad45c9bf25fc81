"""What alarms are about: reads the broker's figures and says how each thing is, and which bounds it has.

Owns the kinds of alarms, and what has to be remembered from one look to the next. What it remembers is bounded by the
settings: an entry for each link.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.core.counters import AGE, EXPIRED, REPLACED, Counters
from broker.core.queues.queue_totals import UNLIMITED
from broker.observe.room import rooms
from broker.settings import Alarms

if TYPE_CHECKING:
    from broker.observe.figures.sources import Sources

KINDS: Final = {
    "loop-lag": "the event loop is late: all clients wait",
    "queue-memory": "queued messages use most of their memory limit",
    "room": "room for all clients is short, and those that hold most get no more",
    "disk-space": "a disk is nearly full",
    "certificate": "a certificate has expired or will expire soon",
    "upstream-down": "an upstream broker is unreachable",
    "drop-rate": "messages are dropped",
    "authentication-failures": "clients send wrong credentials",
    "store-failing": "the store cannot be written",
    "store-damaged": "a part of the store was damaged, and is lost",
    "recorder-failing": "nothing is recorded",
    "recorder-behind": "publishers wait for the recorder",
}
"""The names of alarms, and what each says."""

INTENDED: Final = (EXPIRED, AGE, REPLACED)
"""Causes of drops that somebody asked for: a message had grown too old, or a newer one took its place."""

CLEAR_RATIO: Final = 0.8
"""An alarm is cleared when its value has been below that share of its bound, so that one that hovers there is told
once,"""

CLEAR_TIMES: Final = 6.0
"""for as many times `alarms.raise_after`."""

DAY: Final = 86_400.0

LONGEST_NAME: Final = 256
"""Characters of an account's name in an alarm."""

SHORTEST: Final = 0.001
"""Seconds that the time between two looks counts for at least."""


class Observation(NamedTuple):
    """How one thing is."""

    kind: str
    instance: str
    """Which of several: a link, a file; "" where there is but one."""
    value: float
    unit: str
    bounds: Bounds
    detail: str = ""
    """What is known besides, in one line."""


def disk_used(path: str) -> float:
    """The share of a disk that is used, by what the broker's user could still write. It blocks: it is for a thread.

    0.0 where that cannot be found out: then whoever writes there says what is wrong.
    """
    try:
        found = os.statvfs(path)
    except OSError:
        return 0.0
    used = found.f_blocks - found.f_bfree
    whole = used + found.f_bavail
    return used / whole if whole else 0.0


class Observer:
    """Looks at one broker. Called in the event loop, `disks` apart."""

    def __init__(self, sources: Sources, settings: Alarms, folders: dict[str, str]) -> None:
        """`folders`: where something writes, by what it is."""
        self._sources = sources
        self.settings = settings
        self._folders = folders
        self._at: float | None = None
        self._lag = (0, 0.0)
        self._dropped = self._failures = 0

    @property
    def has_disks(self) -> bool:
        """Whether there is something that writes to a disk, and an alarm for that."""
        return bool(self._folders and self.settings.disk_used)

    def disks(self) -> dict[str, float]:
        """How full the disks are, by what writes there. It blocks: it is for a thread."""
        return {name: disk_used(path) for name, path in self._folders.items()}

    def look(self, disks: dict[str, float], now: float) -> list[Observation]:
        """How everything is. Rates are those since the last look; there are none at the first."""
        found = [*self._queues(), *self._rooms(), *self._disks(disks), *self._certificates(time.time())]
        found += [*self._links(now), *self._store(), *self._recorder()]
        # However soon: one that is missing would count as gone.
        found += self._rates(0.0 if self._at is None else max(now - self._at, SHORTEST))
        self._at = now
        return found

    def _bounds(self, limit: float, *, at_once: bool = False) -> Bounds:
        settings = self.settings
        return Bounds(
            limit, limit * CLEAR_RATIO, 0.0 if at_once else settings.raise_after, CLEAR_TIMES * settings.raise_after
        )

    def _rates(self, elapsed: float) -> Iterator[Observation]:
        """What is counted: how fast it went since the last look."""
        settings = self.settings
        server = self._sources.server
        lags = server.lag_monitor.lags
        count, total = lags.count - self._lag[0], lags.sum - self._lag[1]
        self._lag = (lags.count, lags.sum)
        dropped, self._dropped = self._dropped, _lost(server.router.counters)
        failures, self._failures = self._failures, self._wrong()
        if elapsed <= 0.0:
            return
        if settings.loop_lag:
            late = total / count if count else server.router.counters.load.lag_at(server.loop.time())
            yield Observation("loop-lag", "", late, "s", self._bounds(settings.loop_lag))
        if settings.drop_rate:
            rate = (self._dropped - dropped) / elapsed
            yield Observation("drop-rate", "", rate, "messages/s", self._bounds(settings.drop_rate))
        if settings.authentication_failures:
            rate = (self._failures - failures) / elapsed
            limit = self._bounds(settings.authentication_failures)
            yield Observation("authentication-failures", "", rate, "failures/s", limit)

    def _wrong(self) -> int:
        security = self._sources.security
        return 0 if security is None else dict(security.counts()).get("failures", 0)

    def _queues(self) -> Iterator[Observation]:
        load = self._sources.server.router.counters.load
        if self.settings.room and load.max_bytes < UNLIMITED:
            share = int(load.bytes) / int(load.max_bytes)
            yield Observation("queue-memory", "", share, "", self._bounds(self.settings.room))

    def _rooms(self) -> Iterator[Observation]:
        if not self.settings.room:
            return
        for room in rooms(self._sources.server.router):
            if room.bound:
                detail = f"{room.used:.0%} of {room.setting}"
                if room.largest:
                    name, held = room.largest[0]
                    detail += f"; {name[:LONGEST_NAME]} holds most of it, {held / room.bound:.0%}"
                yield Observation("room", room.name, room.used, "", self._bounds(self.settings.room), detail)

    def _disks(self, disks: dict[str, float]) -> Iterator[Observation]:
        limit = self.settings.disk_used
        for name, share in disks.items():
            # What is far from full at `CLEAR_RATIO` of its bound would never be told of as mended.
            bounds = Bounds(limit, limit - 0.2 * (1.0 - limit), 0.0, CLEAR_TIMES * self.settings.raise_after)
            yield Observation("disk-space", name, share, "", bounds, self._folders[name])

    def _certificates(self, clock: float) -> Iterator[Observation]:
        """Days that certificates have held longer than they may be left alone: they only grow."""
        days = self.settings.certificate_days
        if not days:
            return
        ends = {} if self._sources.certificates is None else dict(self._sources.certificates())
        for listener in self._sources.server.listeners.open:
            if listener.certificates is not None:
                ends.update(listener.certificates.loaded.expires)
        for file, expires in ends.items():
            left = (expires - clock) / DAY
            detail = f"{file}: {left:.1f} days left" if left > 0.0 else f"{file}: expired {-left:.1f} days ago"
            bounds = Bounds(-float(days), -float(days), 0.0, 0.0)
            yield Observation("certificate", _level(file), -left, "days since it expired", bounds, detail)

    def _links(self, now: float) -> Iterator[Observation]:
        limit = self.settings.upstream_down
        links = self._sources.links
        if not limit or links is None:
            return
        for name, link in links.links.items():
            bounds = Bounds(limit, limit, 0.0, CLEAR_TIMES * self.settings.raise_after)
            seconds = 0.0 if link.connected else now - link.down_since
            yield Observation("upstream-down", name, seconds, "s", bounds, link.trouble)

    def _store(self) -> Iterator[Observation]:
        watch = self._sources.store
        if watch is not None:
            bounds = self._bounds(1.0, at_once=True)
            detail = watch.state if watch.failing else ""
            yield Observation("store-failing", "", float(watch.failing), "", bounds, detail)
            yield Observation("store-damaged", "", float(bool(watch.damage)), "", bounds, watch.damage)

    def _recorder(self) -> Iterator[Observation]:
        recorder = self._sources.recorder
        if recorder is not None:
            bounds, failure = self._bounds(1.0, at_once=True), recorder.failure
            yield Observation("recorder-failing", "", float(bool(failure)), "", bounds, failure)
            behind = recorder.behind
            detail = f"{behind:,} events wait to be written" if behind else ""
            yield Observation("recorder-behind", "", float(bool(behind)), "", self._bounds(1.0), detail)


def _lost(counters: Counters) -> int:
    """Messages that were dropped though nobody asked for that."""
    return counters.dropped_in_all() - sum(counters.dropped[cause] for cause in INTENDED)


def _level(file: str) -> str:
    """A path as one level of a topic and of a URL."""
    return file.strip("/").replace("/", "_").replace("+", "_").replace("#", "_")


@dataclass(slots=True)
class Bounds:
    """When it is raised, and when cleared. `clear_below` is not above `raise_at`; times in seconds."""

    raise_at: float
    clear_below: float
    raise_after: float
    clear_after: float


class Hysteresis:
    """The state of one alarm, against two bounds and two times, so that it does not flutter.

    It is raised when the value has been at `raise_at` or above for `raise_after` seconds, and cleared when it has been
    below `clear_below` for `clear_after` seconds; what it is in between changes nothing. Pure: callers pass `now`.
    """

    def __init__(self) -> None:
        self.raised = False
        # Since when it has looked as if it should change; None: it does not.
        self._since: float | None = None

    def look(self, value: float, bounds: Bounds, now: float) -> bool:
        """The value is so. True when the alarm is raised or cleared by that."""
        turns = value < bounds.clear_below if self.raised else value >= bounds.raise_at
        if not turns:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        if now - self._since < (bounds.clear_after if self.raised else bounds.raise_after):
            return False
        self.raised = not self.raised
        self._since = None
        return True
