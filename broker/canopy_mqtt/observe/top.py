"""Lists the most expensive topics, prefixes and publishers by incoming messages, and subscribers by outgoing ones.

Owns the timer and the lists; `sampling` counts. Rates of topics, prefixes and publishers are averages
over a fading window, from a sample, with bounds on their error. Rates of subscribers are exact and cover the time since
the last but one pass. The sample excludes the broker's own messages and those of links. The memory does not grow with
the number of clients or topics.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from canopy_mqtt.core.hooks import PublishSampler
from canopy_mqtt.observe.sampling.sampler import (
    BYTES,
    MAX_PREFIX_LEVELS,
    MESSAGES,
    PREFIXES,
    PUBLISHERS,
    TOPICS,
    Sampler,
    Window,
)
from canopy_mqtt.observe.sampling.subscribers import BY_BYTES, BY_DROPS, BY_LAG, BY_MESSAGES, SubscriberWalk
from canopy_mqtt.settings import Top as TopSettings

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server

Of: TypeAlias = Literal["topics", "prefixes", "publishers", "subscribers"]
By: TypeAlias = Literal["messages", "bytes", "drops", "lag"]

SAMPLED: Final[dict[Of, int]] = {"topics": TOPICS, "prefixes": PREFIXES, "publishers": PUBLISHERS}
RATES: Final[dict[By, int]] = {"messages": MESSAGES, "bytes": BYTES}
WALKED: Final[dict[By, int]] = {"messages": BY_MESSAGES, "bytes": BY_BYTES, "drops": BY_DROPS, "lag": BY_LAG}

BEAT: Final = 1.0
"""Seconds between two ticks: a tick renews the budget of the sample, and may begin a pass over the subscribers."""

WINDOWS: Final = (60.0, 3_600.0)
"""Seconds over which rates are averaged: the present, and the last hour."""

SAMPLES: Final = 50
"""Sampled messages a second, about: they cost less than half a thousandth of a processor. Below this rate every message
is counted."""

WALKS_APART: Final = 10.0
"""Seconds between two passes over the subscribers: with 100,000 of them a pass takes some tens of milliseconds."""

PIECE: Final = 2_000
"""Sessions in one turn of a pass: a millisecond at most."""

CONTAINED: Final = 0.9
"""A prefix is left out if one longer prefix has this share of it or more."""

MORE: Final = 2 * MAX_PREFIX_LEVELS
"""Prefixes that are examined for each one in the list: most prefixes of one topic have the same rate."""

MIN_RATE: Final = 0.0005
"""Rates below this are left out: they would be shown as 0."""


@dataclass(frozen=True, slots=True)
class TopEntry:
    """One entry of a list. `value - error` is a lower bound and `value` an upper one, except for sampling, whose
    standard deviation is `deviation`.
    """

    name: str
    value: float
    error: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True, slots=True)
class TopList:
    """A list, the largest value first. Values are rates a second; lag is in seconds."""

    places: list[TopEntry]
    total: float
    """The total of all, including those that are not in the list; of lag, the longest."""
    absent: float
    """The highest possible value of a name that is not counted, except for sampling."""
    seconds: float
    """The period of the values: the time in which the window fades to a third, or the time between two passes."""
    gap: int
    """Bytes (each message adds a constant) between two samples; 1: every message is counted."""


class NoSuchList(Exception):
    """The broker does not count this list; the text says why."""


class Top:
    """The lists of one broker."""

    def __init__(self, server: Server, settings: TopSettings) -> None:
        self._server = server
        self.settings = settings
        self._sampler: Sampler | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_piece: asyncio.Handle | None = None
        # The walk that is under way, and the last one that is through; when the next is due, and when the last began.
        self._walk: SubscriberWalk | None = None
        self._walked: SubscriberWalk | None = None
        self._due = 0.0
        self._began = 0.0

    def start(self) -> None:
        """Start counting, if the settings ask for it."""
        counters = self.settings.counters
        if not counters:
            return
        now = self._server.loop.time()
        # Clients cannot predict the samples.
        source = random.SystemRandom().randrange(1 << 64)
        self._sampler = Sampler(WINDOWS, counters, SAMPLES, random.Random(source).random, now)
        self._server.router.sampler = self._sampler
        self._began = now
        self._due = now + WALKS_APART
        self._timer = self._server.loop.call_later(BEAT, self._beat)

    def stop(self) -> None:
        """Stop counting, and forget the counts of the sample."""
        for handle in (self._timer, self._next_piece):
            if handle is not None:
                handle.cancel()
        self._timer = self._next_piece = self._walk = None
        self._sampler = None
        self._server.router.sampler = PublishSampler()

    def _beat(self) -> None:
        # First: whatever happens, there is another one.
        loop = self._server.loop
        self._timer = loop.call_later(BEAT, self._beat)
        try:
            now = loop.time()
            if self._sampler is not None:
                self._sampler.pass_time(now)
                self._sampler.renew()
            if now >= self._due and self._walk is None:
                self._due = now + WALKS_APART
                sessions = list(self._server.router.sessions.values())
                self._walk = SubscriberWalk(sessions, self.settings.counters, now - self._began)
                self._began = now
                self._continue_pass()
        except Exception as error:
            self._server.faults.broke("top", error)

    def _continue_pass(self) -> None:
        """Process one turn of a pass; the rest follows in later turns of the event loop."""
        self._next_piece = None
        walk = self._walk
        if walk is None:
            return
        try:
            if walk.step(PIECE, self._server.loop.time()):
                self._next_piece = self._server.loop.call_soon(self._continue_pass)
                return
            self._walked = walk
        except Exception as error:
            self._server.faults.broke("top", error)
        self._walk = None

    # -- what is shown -------------------------------------------------------------------------------------------------

    def list(self, of: Of, by: By, window: float | None = None, limit: int = 10) -> TopList:
        """Return the first `limit` entries. `window` is one of `WINDOWS`, by default the first; subscribers have none.

        Raises:
            NoSuchList: it is not counted.
        """
        if not self.settings.counters:
            raise NoSuchList("nothing is counted: top.counters is 0")
        if of == "subscribers":
            return self._subscribers(by, limit)
        if by not in RATES:
            raise NoSuchList(f"by {by} there are subscribers alone")
        if self._sampler is None:
            raise NoSuchList("the windows are: none, the broker stops")
        return self._sampled(self._sampler, of, by, _window(self._sampler, window), limit)

    def _sampled(self, sampler: Sampler, of: Of, by: By, window: Window, limit: int) -> TopList:
        sampler.pass_time(self._server.loop.time())
        # At the start a rate over the time that has passed would be one over next to nothing.
        span = max(window.span, BEAT)
        counted = window.counted[RATES[by]][SAMPLED[of]]
        places = [
            TopEntry(
                counter.name.decode("utf-8", "replace") + ("#" if of == "prefixes" else ""),
                counter.count / span,
                counter.error / span,
                counter.variance**0.5 / span,
            )
            for counter in counted.heaviest(MORE * limit if of == "prefixes" else limit)
            if counter.count / span >= MIN_RATE
        ]
        if of == "prefixes":
            places = _without_duplicates(places)
        # Each message has one topic and one publisher, and as many prefixes as it has.
        whole = window.counted[RATES[by]][TOPICS]
        return TopList(places[:limit], whole.total / span, counted.floor() / span, window.seconds, int(sampler.gap))

    def _subscribers(self, by: By, limit: int) -> TopList:
        walk = self._walked
        if walk is None:
            return TopList([], 0.0, 0.0, WALKS_APART, 1)
        measure = WALKED[by]
        places = [TopEntry(name.decode("utf-8", "replace"), value) for name, value in walk.heaviest(measure, limit)]
        return TopList(places, walk.totals[measure], walk.floor(measure), walk.elapsed, 1)

    def all(self, limit: int) -> Iterator[tuple[Of, By, TopList]]:
        if self.settings.counters:
            for of in SAMPLED:
                for by in RATES:
                    yield of, by, self.list(of, by, None, limit)
            for by in WALKED:
                yield "subscribers", by, self._subscribers(by, limit)


def _window(sampler: Sampler, seconds: float | None) -> Window:
    """Return the window of this length, by default the first. Raises NoSuchList."""
    for window in sampler.windows:
        if seconds is None or window.seconds == seconds:
            return window
    lengths = ", ".join(f"{each.seconds:g}" for each in sampler.windows)
    raise NoSuchList(f"the windows are: {lengths}")


def _without_duplicates(places: list[TopEntry]) -> list[TopEntry]:
    """Return prefixes, the largest first, without those that one longer prefix nearly equals."""
    longer: dict[str, float] = {}
    for place in places:
        shorter, _, _ = place.name[:-2].rpartition("/")
        if shorter:
            longer[shorter] = max(longer.get(shorter, 0.0), place.value)
    return [place for place in places if longer.get(place.name[:-2], 0.0) < CONTAINED * place.value]
