"""Where figures are read: the rooms of one broker, and a `Reading` of them at one time.

A reading asks each room once, however many figures are made of its answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

from broker.observe.figures.process import Process
from broker.observe.room import RoomUse, rooms
from broker.upstream.links.status import status

if TYPE_CHECKING:
    from broker.net.server import Server
    from broker.observe.top import Top
    from broker.observe.trace.traces import Traces
    from broker.record.recorder import Recorder
    from broker.storing import StoreWatch
    from broker.upstream.links.links import Links


class Security(Protocol):
    """Who comes in, as far as it is counted (`broker.securing`)."""

    def counts(self) -> Iterator[tuple[str, int]]:
        """What `$SYS/broker/security/` tells; nothing where nothing is asked of clients."""

    def refusals(self) -> dict[str, int]:
        """How many clients were refused, by the name of the reason code."""


class Sources:
    """The rooms of a broker that runs. What there is not is None."""

    def __init__(
        self,
        server: Server,
        recorder: Recorder | None = None,
        links: Links | None = None,
        security: Security | None = None,
        store: StoreWatch | None = None,
    ) -> None:
        self.server = server
        self.recorder = recorder
        self.links = links
        self.security = security
        self.store = store
        self.loads = LoadAverages()
        self.started = server.loop.time()
        self.most_clients = 0
        """The most clients that were connected when somebody looked."""
        self.alarms: Callable[[], dict[str, int]] | None = None
        """Whoever has alarms tells how many of each kind are raised."""
        self.certificates: Callable[[], dict[str, float]] | None = None
        """When certificates besides those of the listeners end, by file, in seconds since 1970."""
        self.process = Process()
        self.top: Top | None = None
        """Who knows what costs most; None where nobody does."""
        self.of_program: Callable[[], int] = lambda: 0
        """How many subscriptions there are of the program that the broker runs in."""
        self.http: Callable[[], dict[str, int]] | None = None
        """Whoever listens for HTTP tells of its connections."""
        self.traces: Traces | None = None
        """Who traces clients, and makes spans of messages."""

    def read(self) -> Reading:
        """How things are now."""
        return Reading(self, self.server.loop.time())


class Reading:
    """How things are at one time, in seconds of the loop's clock."""

    def __init__(self, sources: Sources, now: float) -> None:
        self.sources = sources
        self.now = now
        self.server = sources.server
        self.router = sources.server.router
        self.counters = self.router.counters
        self.load = self.counters.load
        self.recorder = sources.recorder
        self.process = sources.process

    @cached_property
    def rooms(self) -> list[RoomUse]:
        """How much of each room is used."""
        return rooms(self.router)

    @cached_property
    def connected(self) -> int:
        """Clients that are connected; links are none, nor is what the program subscribes to."""
        links = () if self.sources.links is None else self.sources.links.links.values()
        found = len(self.router.peers.outboxes) - sum(1 for link in links if link.connected)
        found -= self.sources.of_program()
        self.sources.most_clients = max(self.sources.most_clients, found)
        return found

    @cached_property
    def sessions(self) -> int:
        """Sessions of clients, connected or not."""
        links = 0 if self.sources.links is None else self.sources.links.session_count
        return len(self.router.sessions) - links - self.sources.of_program()

    @cached_property
    def security(self) -> dict[str, int]:
        """What authentication counts; nothing where nothing is asked of clients."""
        return {} if self.sources.security is None else dict(self.sources.security.counts())

    @cached_property
    def http(self) -> dict[str, int]:
        """What is told of connections of HTTP; nothing where nobody listens for them."""
        return {} if self.sources.http is None else self.sources.http()

    @cached_property
    def store(self) -> dict[str, object]:
        """What the store says of itself; nothing where everything is in memory."""
        return {} if self.sources.store is None else dict(self.sources.store.figures())

    @cached_property
    def upstream(self) -> dict[str, dict[str, object]]:
        """What is told of each link, by its name."""
        links = {} if self.sources.links is None else self.sources.links.links
        return {name: dict(status(link)) for name, link in links.items()}


MINUTES: Final = {"1min": 1, "5min": 5, "15min": 15}


class LoadAverages:
    """Of any totals that only grow, as mosquitto computes them: exponential moving averages over 1, 5 and 15 minutes.

    `note` is called once for each interval of `$SYS`; the figures, per minute, are those of that time.
    """

    def __init__(self) -> None:
        self._at = -1.0
        self._totals: dict[str, int] = {}
        self._averages: dict[tuple[str, str], float] = {}

    def note(self, totals: Mapping[str, int], now: float) -> None:
        """These are the totals at `now`, in seconds."""
        elapsed = now - self._at
        if self._at >= 0.0 and elapsed <= 0.0:
            return
        for name, total in totals.items():
            # Before the first interval is over, nothing is known of how fast anything goes.
            pace = 0.0 if self._at < 0.0 else (total - self._totals.get(name, 0)) * 60.0 / elapsed
            for span, minutes in MINUTES.items():
                before = self._averages.get((name, span), 0.0)
                weight = 0.0 if self._at < 0.0 else math.exp(-elapsed / (60.0 * minutes))
                self._averages[name, span] = pace + weight * (before - pace)
        self._totals = dict(totals)
        self._at = now

    def averages(self) -> dict[tuple[str, str], float]:
        """By name of the total and span; empty before the first note."""
        return self._averages
