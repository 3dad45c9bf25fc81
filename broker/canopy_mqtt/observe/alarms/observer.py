"""The kinds of alarms: reads the broker's figures and turns them into observations with bounds.

Owns the counters of the last check, from which it computes rates. The settings bound its memory: one entry for each
link.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.ledger import AGE, EXPIRED, REPLACED
from canopy_mqtt.core.queue_totals import UNLIMITED
from canopy_mqtt.core.routing.nodes import NODES
from canopy_mqtt.observe.room import rooms
from canopy_mqtt.settings import Alarms

if TYPE_CHECKING:
    from canopy_mqtt.observe.figures.sources import Sources

KINDS: Final = {
    "loop-lag": "the event loop is late: all clients wait",
    "queue-memory": "queued messages use most of their memory limit",
    "room": "room for all clients is short, and those that hold most get no more",
    "disk-space": "a disk is nearly full",
    "certificate": "a certificate has expired or will expire soon",
    "upstream-down": "an upstream broker is unreachable",
    "link-down": "another node of the cluster is unreachable",
    "node-differs": "another node of the cluster has other users, rules or settings, or another time",
    "drop-rate": "messages are dropped",
    "authentication-failures": "clients send wrong credentials",
    "store-failing": "the store cannot be written",
    "store-blocked": "a transaction in the database keeps it from giving back room",
    "store-damaged": "a part of the store was damaged, and is lost",
    "recorder-failing": "nothing is recorded",
    "recorder-behind": "publishers wait for the recorder",
}
"""Each kind of alarm, with its meaning."""

INTENDED: Final = (EXPIRED, AGE, REPLACED)
"""Causes of drops that a client or a setting asked for: the message grew too old, or a newer one took its place."""

CLEAR_RATIO: Final = 0.8
"""An alarm is cleared when its value has been below this share of its bound, so that a value close to the bound raises
it only once."""

CLEAR_TIMES: Final = 6.0
"""The value has to stay below for this many times `alarms.raise_after`."""

DAY: Final = 86_400.0

MAX_NAME_LENGTH: Final = 256
"""Characters of an account's name in an alarm."""

MIN_ELAPSED: Final = 0.001
"""The shortest time between two checks, in seconds, that rates are computed with."""


class Observation(NamedTuple):
    """The measured state of one thing."""

    kind: str
    instance: str
    """The link or file, if the kind has several; otherwise ""."""
    value: float
    unit: str
    bounds: Bounds
    detail: str = ""
    """Further details in one line."""


def disk_used(path: str) -> float:
    """Return the used share of a disk, without the part reserved for root. Blocks: run it in a thread.

    0.0 if the system does not tell: the writer to that disk reports the fault.
    """
    try:
        found = os.statvfs(path)
    except OSError:
        return 0.0
    used = found.f_blocks - found.f_bfree
    whole = used + found.f_bavail
    return used / whole if whole else 0.0


class Observer:
    """Makes the observations of one broker. All methods run in the event loop, except `disks`."""

    def __init__(self, sources: Sources, settings: Alarms, folders: dict[str, str]) -> None:
        """`folders`: the folders that are written to, by what writes there."""
        self._sources = sources
        self.settings = settings
        self._folders = folders
        self._at: float | None = None
        self._lag = (0, 0.0)
        self._dropped = self._failures = 0

    @property
    def has_disks(self) -> bool:
        """True if something writes to a disk and there is an alarm for it."""
        return bool(self._folders and self.settings.disk_used)

    def disks(self) -> dict[str, float]:
        """Return the used share of each disk by what writes there. Blocks: run it in a thread."""
        return {name: disk_used(path) for name, path in self._folders.items()}

    def look(self, disks: dict[str, float], now: float) -> list[Observation]:
        """Return all observations. Rates cover the time since the last call; the first call has none."""
        found = [*self._queues(), *self._rooms(), *self._disks(disks), *self._certificates(time.time())]
        found += [*self._links(now), *self._nodes(), *self._store(), *self._recorder()]
        # However soon: one that is missing would count as gone.
        found += self._rates(0.0 if self._at is None else max(now - self._at, MIN_ELAPSED))
        self._at = now
        return found

    def _bounds(self, limit: float, *, at_once: bool = False) -> Bounds:
        settings = self.settings
        return Bounds(
            limit, limit * CLEAR_RATIO, 0.0 if at_once else settings.raise_after, CLEAR_TIMES * settings.raise_after
        )

    def _rates(self, elapsed: float) -> Iterator[Observation]:
        """Yield the rates of all counters since the last check."""
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
            late = total / count if count else server.router.counters.totals.lag_at(server.loop.time())
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
        totals = self._sources.server.router.counters.totals
        if self.settings.room and totals.max_bytes < UNLIMITED:
            share = int(totals.bytes) / int(totals.max_bytes)
            yield Observation("queue-memory", "", share, "", self._bounds(self.settings.room))

    def _rooms(self) -> Iterator[Observation]:
        if not self.settings.room:
            return
        for room in rooms(self._sources.server.router):
            if room.bound:
                detail = f"{room.used:.0%} of {room.setting}"
                if room.largest:
                    name, held = room.largest[0]
                    detail += f"; {name[:MAX_NAME_LENGTH]} holds most of it, {held / room.bound:.0%}"
                yield Observation("room", room.name, room.used, "", self._bounds(self.settings.room), detail)

    def _disks(self, disks: dict[str, float]) -> Iterator[Observation]:
        limit = self.settings.disk_used
        for name, share in disks.items():
            # What is far from full at `CLEAR_RATIO` of its bound would never be told of as mended.
            bounds = Bounds(limit, limit - 0.2 * (1.0 - limit), 0.0, CLEAR_TIMES * self.settings.raise_after)
            yield Observation("disk-space", name, share, "", bounds, self._folders[name])

    def _certificates(self, clock: float) -> Iterator[Observation]:
        """Yield the days since each certificate expired (negative before that): the value only grows."""
        days = self.settings.certificate_days
        if not days:
            return
        ends = {} if self._sources.certificates is None else dict(self._sources.certificates())
        for listener in self._sources.server.listeners.open:
            if listener.certificates is not None:
                ends.update(listener.certificates.expires)
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
            kind = "link-down" if name.startswith(NODES) else "upstream-down"
            yield Observation(kind, name.removeprefix(NODES), seconds, "s", bounds, link.trouble)

    def _nodes(self) -> Iterator[Observation]:
        links = self._sources.links
        for node in () if links is None else links.other_nodes():
            yield Observation("node-differs", node.name, float(bool(node.differs)), "", self._bounds(1.0), node.differs)

    def _store(self) -> Iterator[Observation]:
        watch = self._sources.store
        if watch is not None:
            bounds = self._bounds(1.0, at_once=True)
            detail = watch.state if watch.failing else ""
            yield Observation("store-failing", "", float(watch.failing), "", bounds, detail)
            yield Observation("store-blocked", "", float(watch.blocked), "", self._bounds(1.0))
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
    """Return the number of messages that were dropped against the will of client and settings."""
    return counters.dropped_in_all() - sum(counters.dropped[cause] for cause in INTENDED)


def _level(file: str) -> str:
    """Return a path as one level of a topic and of a URL."""
    return file.strip("/").replace("/", "_").replace("+", "_").replace("#", "_")


@dataclass(slots=True)
class Bounds:
    """The bounds at which an alarm is raised and cleared. `clear_below` is at most `raise_at`; times are in seconds."""

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
        """Take a new value. Returns True if it raises or clears the alarm."""
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
