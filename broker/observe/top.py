"""Who and what costs most: the topics, prefixes and publishers of what comes in, and the subscribers of what goes out.

Owns the timer and what is shown; the counting is the core's (`core.sampling`). Of topics, prefixes and publishers the
rates are averages over a window that fades, from a sample, with bounds on their error. Of subscribers they are exact,
since the walk before the last one. What the broker itself publishes, and what comes from links, is not in the sample.
Nothing here grows with the number of clients or topics.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from broker.core.sampling.sampler import BYTES, LEVELS, MESSAGES, PREFIXES, PUBLISHERS, TOPICS, Window
from broker.core.sampling.subscribers import BY_BYTES, BY_DROPS, BY_LAG, BY_MESSAGES, SubscriberWalk
from broker.settings import Top as TopSettings

if TYPE_CHECKING:
    from broker.net.server import Server

Of: TypeAlias = Literal["topics", "prefixes", "publishers", "subscribers"]
By: TypeAlias = Literal["messages", "bytes", "drops", "lag"]

SAMPLED: Final[dict[Of, int]] = {"topics": TOPICS, "prefixes": PREFIXES, "publishers": PUBLISHERS}
RATES: Final[dict[By, int]] = {"messages": MESSAGES, "bytes": BYTES}
WALKED: Final[dict[By, int]] = {"messages": BY_MESSAGES, "bytes": BY_BYTES, "drops": BY_DROPS, "lag": BY_LAG}

BEAT: Final = 1.0
"""Seconds between two beats: a new budget for the sample, and perhaps a walk."""

WINDOWS: Final = (60.0, 3_600.0)
"""Seconds over which rates are averaged: what is going on, and what was in the last hour."""

SAMPLES: Final = 200
"""Messages that are looked at in a second, about: two thousandths of a processor. Up to so many, all are counted."""

WALKS_APART: Final = 10.0
"""Seconds between two walks over the subscribers: with 100,000 of them a walk takes some tens of milliseconds."""

PIECE: Final = 2_000
"""Sessions that a walk looks at in one turn of the event loop: a millisecond at most."""

CONTAINED: Final = 0.9
"""A prefix of which this share or more is below one longer prefix says nothing that the longer one does not."""

MORE: Final = 2 * LEVELS
"""Prefixes that are looked at for each that is told: of those of one topic most say the same."""

LEAST: Final = 0.0005
"""A rate that is told as 0 is not told."""


@dataclass(frozen=True, slots=True)
class Place:
    """One line. `value - error` is a lower bound and `value` an upper one, both but for the sampling, whose standard
    deviation is `deviation`."""

    name: str
    value: float
    error: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True, slots=True)
class TopList:
    """The heaviest first. Values are a second, but for lag, which is in seconds."""

    places: list[Place]
    total: float
    """Of all, those that are not in the list among them; of lag, the longest."""
    absent: float
    """What one that is not counted at all has at most, but for the sampling."""
    seconds: float
    """What the values are about: the time in which what came in fades to a third, or between two walks."""
    gap: int
    """Bytes (each message has some more) for one that is looked at; 1: all is counted, and nothing is sampled."""


class NoSuchList(Exception):
    """What is asked for is not counted; the text says why."""


class Top:
    """The lists of one broker."""

    def __init__(self, server: Server, settings: TopSettings) -> None:
        self._server = server
        self.settings = settings
        self._sampler = server.router.sampler
        self._timer: asyncio.TimerHandle | None = None
        self._next_piece: asyncio.Handle | None = None
        # The walk that is under way, and the last one that is through; when the next is due, and when the last began.
        self._walk: SubscriberWalk | None = None
        self._walked: SubscriberWalk | None = None
        self._due = 0.0
        self._began = 0.0

    def start(self) -> None:
        """Begin to count, if the settings have it."""
        counters = self.settings.counters
        if not counters:
            return
        now = self._server.loop.time()
        # Nobody outside can tell what is looked at.
        source = random.SystemRandom().randrange(1 << 64)
        self._sampler.start(WINDOWS, counters, SAMPLES, random.Random(source).random, now)
        self._began = now
        self._due = now + WALKS_APART
        self._timer = self._server.loop.call_later(BEAT, self._beat)

    def stop(self) -> None:
        """Count no more."""
        for handle in (self._timer, self._next_piece):
            if handle is not None:
                handle.cancel()
        self._timer = self._next_piece = self._walk = None
        self._sampler.stop()

    def _beat(self) -> None:
        # First: whatever happens, there is another one.
        loop = self._server.loop
        self._timer = loop.call_later(BEAT, self._beat)
        try:
            now = loop.time()
            self._sampler.pass_time(now)
            self._sampler.renew()
            if now >= self._due and self._walk is None:
                self._due = now + WALKS_APART
                sessions = list(self._server.router.sessions.values())
                self._walk = SubscriberWalk(sessions, self.settings.counters, now - self._began)
                self._began = now
                self._go_on()
        except Exception as error:
            self._server.faults.broke("top", error)

    def _go_on(self) -> None:
        """Some of the walk; the rest after the others have had their turn."""
        self._next_piece = None
        walk = self._walk
        if walk is None:
            return
        try:
            if walk.go_on(PIECE, self._server.loop.time()):
                self._next_piece = self._server.loop.call_soon(self._go_on)
                return
            self._walked = walk
        except Exception as error:
            self._server.faults.broke("top", error)
        self._walk = None

    # -- what is shown -------------------------------------------------------------------------------------------------

    def list(self, of: Of, by: By, window: float | None = None, limit: int = 10) -> TopList:
        """The first `limit`. `window`: one of `WINDOWS`, the first where it is None; subscribers have none.

        Raises:
            NoSuchList: it is not counted.
        """
        if not self.settings.counters:
            raise NoSuchList("nothing is counted: top.counters is 0")
        if of == "subscribers":
            return self._subscribers(by, limit)
        if by not in RATES:
            raise NoSuchList(f"by {by} there are subscribers alone")
        return self._sampled(of, by, self._window(window), limit)

    def _window(self, seconds: float | None) -> Window:
        windows = self._sampler.windows
        for window in windows:
            if seconds is None or window.seconds == seconds:
                return window
        told = ", ".join(f"{each.seconds:g}" for each in windows)
        raise NoSuchList(f"the windows are: {told or 'none, the broker stops'}")

    def _sampled(self, of: Of, by: By, window: Window, limit: int) -> TopList:
        self._sampler.pass_time(self._server.loop.time())
        # At the start a rate over the time that has passed would be one over next to nothing.
        span = max(window.span, BEAT)
        counted = window.counted[RATES[by]][SAMPLED[of]]
        places = [
            Place(
                counter.name.decode("utf-8", "replace") + ("#" if of == "prefixes" else ""),
                counter.count / span,
                counter.error / span,
                counter.variance**0.5 / span,
            )
            for counter in counted.heaviest(MORE * limit if of == "prefixes" else limit)
            if counter.count / span >= LEAST
        ]
        if of == "prefixes":
            places = _told_once(places)
        # Each message has one topic and one publisher, and as many prefixes as it has.
        whole = window.counted[RATES[by]][TOPICS]
        return TopList(
            places[:limit], whole.total / span, counted.floor() / span, window.seconds, int(self._sampler.gap)
        )

    def _subscribers(self, by: By, limit: int) -> TopList:
        walk = self._walked
        if walk is None:
            return TopList([], 0.0, 0.0, WALKS_APART, 1)
        measure = WALKED[by]
        places = [Place(name.decode("utf-8", "replace"), value) for name, value in walk.heaviest(measure, limit)]
        return TopList(places, walk.totals[measure], walk.floor(measure), walk.elapsed, 1)

    def all(self, limit: int) -> Iterator[tuple[Of, By, TopList]]:
        """Every list that there is."""
        if self.settings.counters:
            for of in SAMPLED:
                for by in RATES:
                    yield of, by, self.list(of, by, None, limit)
            for by in WALKED:
                yield "subscribers", by, self._subscribers(by, limit)


def _told_once(places: list[Place]) -> list[Place]:
    """Prefixes, the heaviest first, without those that are nearly all one longer prefix."""
    longer: dict[str, float] = {}
    for place in places:
        shorter, _, _ = place.name[:-2].rpartition("/")
        if shorter:
            longer[shorter] = max(longer.get(shorter, 0.0), place.value)
    return [place for place in places if longer.get(place.name[:-2], 0.0) < CONTAINED * place.value]
