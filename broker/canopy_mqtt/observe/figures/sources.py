"""The sources of figures: the parts of one broker, and a `Reading` of them at one time.

A reading asks each part once, however many figures use its answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

from canopy_mqtt.core.routing.nodes import NODES
from canopy_mqtt.links.status import status
from canopy_mqtt.observe.figures.process import Process
from canopy_mqtt.observe.room import RoomUse, rooms

if TYPE_CHECKING:
    from canopy_mqtt.core.counters import Counters
    from canopy_mqtt.core.queue_totals import QueueTotals
    from canopy_mqtt.core.routing.router import Router
    from canopy_mqtt.links.link import UpstreamLink
    from canopy_mqtt.links.manager import LinkManager
    from canopy_mqtt.net.server import Server
    from canopy_mqtt.observe.monitor import Monitor
    from canopy_mqtt.observe.store_watch import StoreWatch
    from canopy_mqtt.observe.top import Top
    from canopy_mqtt.observe.trace.traces import Traces
    from canopy_mqtt.record.recorder import Recorder


class Security(Protocol):
    """The counters of authentication (`canopy_mqtt.assembly.securing`)."""

    def counts(self) -> Iterator[tuple[str, int]]:
        """Yield the figures below `$SYS/broker/security/`; none if the broker does not authenticate."""

    def refusals(self) -> dict[str, int]:
        """Return the number of refused clients by the name of the reason code."""


class Sources:
    """The parts of a running broker. A part that it does not have is None."""

    def __init__(
        self,
        server: Server,
        recorder: Recorder | None = None,
        links: LinkManager | None = None,
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
        """The most clients that were connected at any reading."""
        self.alarms: Callable[[], dict[str, int]] | None = None
        """Returns the number of raised alarms of each kind."""
        self.certificates: Callable[[], dict[str, float]] | None = None
        """Returns the end of certificates other than those of the listeners, by file, in seconds since 1970."""
        self.process = Process()
        self.monitor: Monitor
        """The slow clients, and those that lost messages."""
        self.top: Top | None = None
        """The lists of the most expensive topics and clients, if they are counted."""
        self.of_program: Callable[[], int] = lambda: 0
        """Returns the number of subscriptions of the embedding program."""
        self.http: Callable[[], dict[str, int]] | None = None
        """Returns the figures of HTTP connections, if the broker listens for them."""
        self.traces: Traces | None = None
        """The traces, and the spans."""
        self.worker = ""
        """The name of this worker, where there are several."""

    @property
    def upstreams(self) -> dict[str, UpstreamLink]:
        """The links to upstream brokers, by name. Of a worker, those to the others are none."""
        links = {} if self.links is None else self.links.links
        return {name: link for name, link in links.items() if not name.startswith(NODES)} if self.worker else links

    def read(self) -> Reading:
        return Reading(self, self.server.loop.time())


class Reading:
    """The state at one time, in seconds of the loop's clock."""

    def __init__(self, sources: Sources, now: float) -> None:
        self.sources = sources
        self.now = now
        self.server: Server = sources.server
        self.router: Router = sources.server.router
        self.counters: Counters = self.router.counters
        self.totals: QueueTotals = self.counters.totals
        self.recorder: Recorder | None = sources.recorder
        self.process: Process = sources.process

    @cached_property
    def rooms(self) -> list[RoomUse]:
        """Return the use of each limit that accounts share."""
        return rooms(self.router)

    @cached_property
    def connected(self) -> int:
        """The number of connected clients, without links, other nodes and the embedding program."""
        found = len(self.router.peers.send_buffers) - int(self.router.peers.internal)
        self.sources.most_clients = max(self.sources.most_clients, found)
        return found

    @cached_property
    def sessions(self) -> int:
        """The number of clients' sessions, connected or not."""
        links = 0 if self.sources.links is None else self.sources.links.session_count
        return len(self.router.sessions) - links - self.sources.of_program()

    @property
    def subscriptions(self) -> int:
        """The number of subscriptions, without those of other nodes."""
        nodes = [] if self.sources.links is None else self.sources.links.other_nodes()
        return self.router.table.count - sum(node.subscriptions for node in nodes)

    @cached_property
    def security(self) -> dict[str, int]:
        """The figures of authentication; empty if the broker does not authenticate."""
        return {} if self.sources.security is None else dict(self.sources.security.counts())

    @cached_property
    def http(self) -> dict[str, int]:
        """The figures of HTTP connections; empty if the broker does not listen for them."""
        return {} if self.sources.http is None else self.sources.http()

    @cached_property
    def store(self) -> dict[str, object]:
        """The figures of the store; empty if all state is in memory."""
        return {} if self.sources.store is None else dict(self.sources.store.figures())

    @cached_property
    def upstream(self) -> dict[str, dict[str, object]]:
        """The figures of each link, by its name."""
        return {name: dict(status(link)) for name, link in self.sources.upstreams.items()}


MINUTES: Final = {"1min": 1, "5min": 5, "15min": 15}


class LoadAverages:
    """Load averages of growing totals, as mosquitto computes them: exponential moving averages over 1, 5 and 15
    minutes.

    `note` is called once for each interval of `$SYS`; the figures, per minute, are those of that time.
    """

    def __init__(self) -> None:
        self._at = -1.0
        self._totals: dict[str, int] = {}
        self._averages: dict[tuple[str, str], float] = {}

    def note(self, totals: Mapping[str, int], now: float) -> None:
        """Record the totals at `now`, in seconds."""
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
        """Return the averages by name of the total and span; empty before the first `note`."""
        return self._averages
