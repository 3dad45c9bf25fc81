"""Measures what a delay saves: paced loads with `queue.max_delay` of 0, 5, 20 and 100 ms.

Owns four rows, with a fresh broker for each delay: pairs of 10 messages and of 1,000 messages a second, a fan-in, and
1,000 messages a second to each of 300 subscribers. ``broker %`` of the last is told for 3,000 subscribers as well: the
work for each of them is the same, so that so many brokers, or cores, would do it. Every message is accounted for. A
step whose p99 exceeds the delay by more than 5 ms says so.
"""

from __future__ import annotations

import socket
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from benchmarks.clients import opened
from benchmarks.network import links
from benchmarks.network.links import Link, Loop, receive
from benchmarks.network.loads import Shape, publishes, topic
from benchmarks.network.measure import Timed, measure
from benchmarks.network.paced import Clocked, Paced
from benchmarks.network.streams import Ledger, MergedCheck, StreamCheck, Templates
from benchmarks.runner import Bench, Case, Line, Row, line_of, peers
from canopy_load.brokers.process import BrokerProcess

DELAYS_MS: Final = (0, 5, 20, 100)
LATE_US: Final = 5_000
"""Microseconds beyond the delay that one message in a hundred may take."""

RATE: Final = 10_000.0
"""Messages a second of all publishers together, in pairs and fan-in."""

SUBSCRIBERS: Final = 300
SUBSCRIBER_RATE: Final = 1_000.0
GROWN: Final = 10
"""The factor from `SUBSCRIBERS` to the 3,000 for which other brokers publish figures."""

SHAPE: Final = Shape(window=2_048, burst=1)
"""Two seconds of one publisher's messages may be under way."""


class Clock(Clocked, Timed):
    """Publishers that send in turn, by the clock; when each sent which message is known by its sequence number."""

    def __init__(self, loop: Loop, publishers: list[socket.socket], rate: float) -> None:
        Clocked.__init__(self, 1.0 / rate)
        Timed.__init__(self)
        self.ledger = Ledger()
        self.templates = Templates(SHAPE.cycle, SHAPE.level)
        self.sent = 0
        self._links = [Link(loop, sock) for sock in publishers]
        self._built = [publishes(number, SHAPE) for number in range(len(publishers))]
        self._sent_at = [array("q", bytes(8 * SHAPE.cycle)) for _ in publishers]

    def came(self, publisher: int, first: int, now: int) -> None:
        """Note the latency of the oldest message of a read: the longest of them, so that no figure is flattered."""
        self.latencies.append(now - self._sent_at[publisher][first % SHAPE.cycle])

    def _send(self) -> None:
        turn, number = divmod(self.sent, len(self._links))
        self._sent_at[number][turn % SHAPE.cycle] = time.monotonic_ns()
        self._links[number].send(self._built[number][turn % SHAPE.cycle])
        self.sent += 1


class Spread(Clock):
    """One publisher to many subscribers."""

    def __init__(self, loop: Loop, publisher: socket.socket, subscribers: list[socket.socket], rate: float) -> None:
        super().__init__(loop, [publisher], rate)
        self.taken = 0
        self._count = len(subscribers)
        for sock in subscribers:
            loop.add(sock, _Ear(self, loop, sock).read)

    def missing(self) -> int:
        """Deliveries under way."""
        return self.sent * self._count - self.taken


class _Ear:
    def __init__(self, load: Spread, loop: Loop, sock: socket.socket) -> None:
        self._load = load
        self._sock = sock
        self._buffer = loop.buffer
        self._check = StreamCheck(load.templates, load.ledger)
        self._taken = 0

    def read(self) -> None:
        size = receive(self._sock, self._buffer)
        advanced = self._check.feed(self._buffer[:size]) if size else 0
        if advanced:
            self._load.came(0, self._taken, time.monotonic_ns())
            self._taken += advanced
            self._load.taken += advanced


class Merged(Clock):
    """Many publishers to one subscriber, who subscribed with a wildcard."""

    def __init__(self, loop: Loop, publishers: list[socket.socket], subscriber: socket.socket, rate: float) -> None:
        super().__init__(loop, publishers, rate)
        self._taken = [0] * len(publishers)
        self._check = MergedCheck(self.templates, self.ledger, len(publishers), SHAPE.burst)
        self._sock = subscriber
        self._buffer = loop.buffer
        loop.add(subscriber, self._read)

    def missing(self) -> int:
        """Deliveries under way."""
        return self.sent - sum(self._taken)

    def _read(self) -> None:
        size = receive(self._sock, self._buffer)
        if not size:
            return
        now = time.monotonic_ns()
        advanced = self._check.advanced
        for publisher in self._check.feed(self._buffer[:size]):
            if advanced[publisher]:
                self.came(publisher, self._taken[publisher], now)
                self._taken[publisher] += advanced[publisher]
                advanced[publisher] = 0


Load: TypeAlias = Paced | Spread | Merged


def _pairs(count: int, case: Case, stack: ExitStack, process: BrokerProcess, loop: Loop) -> Load:
    count = case.scaled(count)
    subscribers, publishers = _clients(count, topic, count, stack, process)
    return Paced(loop, publishers, subscribers, RATE / case.divide)


def _fan_in(case: Case, stack: ExitStack, process: BrokerProcess, loop: Loop) -> Load:
    subscribers, publishers = _clients(1, lambda _: "bench/+", case.scaled(100), stack, process)
    return Merged(loop, publishers, subscribers[0], RATE / case.divide)


def _crowd(case: Case, stack: ExitStack, process: BrokerProcess, loop: Loop) -> Load:
    subscribers, publishers = _clients(case.scaled(SUBSCRIBERS), lambda _: topic(0), 1, stack, process)
    return Spread(loop, publishers[0], subscribers, SUBSCRIBER_RATE)


def _clients(
    subscribers: int, topic_filter: Callable[[int], str], publishers: int, stack: ExitStack, process: BrokerProcess
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Connect subscribers, with a topic filter each, and publishers."""
    hearing = opened(stack, process.port, *[f"sub-{number}" for number in range(subscribers)])
    sending = opened(stack, process.port, *[f"pub-{number}" for number in range(publishers)])
    links.subscribe_all(hearing, lambda number: [(topic_filter(number), 0)])
    links.prepare(hearing + sending)
    return hearing, sending


def _run(make: Callable[[Case, ExitStack, BrokerProcess, Loop], Load], grown: int, case: Case) -> Iterator[Line]:
    for delay in DELAYS_MS:
        with case.broker(f"queue.max_delay={delay / 1_000}") as process, Loop() as loop, ExitStack() as stack:
            load = make(case, stack, process, loop)
            sample = measure(case.meter(process), loop, load)
        figures = {f"broker % × {grown}": 100 * sample.broker_share * grown} if grown > 1 else {}
        line = line_of(f"{delay} ms", sample, figures)
        if sample.p99_us is not None and sample.p99_us > delay * 1_000 + LATE_US:
            line = replace(line, notes=(*line.notes, f"p99 above {delay} + {LATE_US // 1_000} ms"))
        yield line


BENCH: Final = Bench(
    "delay",
    "What a delay (`queue.max_delay`) saves.",
    {
        "pairs": Row("1,000 pairs paced at 10,000 msg/s", partial(_run, partial(_pairs, 1_000), 1)),
        "busy-pairs": Row("10 pairs paced at 10,000 msg/s", partial(_run, partial(_pairs, 10), 1)),
        "fan-in": Row("100 → 1 paced at 10,000 msg/s", partial(_run, _fan_in, 1)),
        "crowd": Row("1 → 300 paced at 1,000 msg/s", partial(_run, _crowd, GROWN)),
    },
    peers("canopy"),
    repeats=3,
)
