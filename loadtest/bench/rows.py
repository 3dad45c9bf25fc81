"""The rows of the benchmark: what each puts on a broker.

Owns: the registry ``ROWS`` (name to ``Row``) and the numbers in it: how many clients, how large a window.

Promises: a row closes every connection it opened, and asks of a broker only what ``needs`` names. Windows are the same
for every broker. All messages of a row in flight together stay below 4,096 for any one subscriber.

Refuses: to tune a row for a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from socket import socket
from typing import Final

from loadtest.bench import frames, links
from loadtest.bench.links import Loop
from loadtest.bench.loads import AckedPairs, ClosedLoop, FanIn, FanOut, QuietPairs, Shape, topic
from loadtest.bench.measure import Clocks, Meter, Sample, Spent, add_latency, measure
from loadtest.bench.paced import Churn, Paced
from loadtest.bench.peers import FILTERS, QOS, QOS2, V5
from loadtest.bench.process import HOST, BrokerProcess

CHURN_RATE: Final = 1000.0  # cycles a second, each one SUBSCRIBE and one UNSUBSCRIBE
ZEEK_RATE: Final = 20_000.0  # messages a second of all pairs together
ZEEK_PAIRS: Final = 10
WARM_CLIENTS: Final = 10  # connected before memory is first looked at, so that lazy set-up is not counted


@dataclass(frozen=True)
class Bench:
    """What a row is run with; counts of a thousand and more are divided by ``divide`` (a quick run's shortcut)."""

    meter: Meter
    divide: int = 1

    @property
    def port(self) -> int:
        """The broker's port."""
        return self.meter.process.port

    def scaled(self, count: int) -> int:
        """A count of clients or filters for this run."""
        return max(2, count // self.divide) if count >= 1000 else count

    @contextmanager
    def clients(self, kind: str, count: int, level: int = frames.MQTT_3_1_1) -> Iterator[list[socket]]:
        """Connected clients, closed when the block is left."""
        opened = links.open_clients(HOST, self.port, [f"{kind}-{number}" for number in range(count)], level)
        try:
            yield opened
        finally:
            links.close_all(opened)


@dataclass(frozen=True)
class Row:
    """One row: ``run`` measures it once on a fresh broker; ``files`` is how many clients it holds open at most."""

    name: str
    title: str
    run: Callable[[Bench], Sample]
    needs: frozenset[str] = frozenset()
    unit: str = "message"
    files: int = 300


def _pairs(bench: Bench, count: int, shape: Shape, qos: int = 0) -> Sample:
    level = shape.level
    with (
        Loop() as loop,
        bench.clients("sub", count, level) as subscribers,
        bench.clients("pub", count, level) as publishers,
    ):
        links.subscribe_all(subscribers, lambda number: [(topic(number), qos)], level)
        links.prepare(subscribers + publishers)
        load: ClosedLoop
        if qos:
            load = AckedPairs(loop, publishers, subscribers, shape, qos)
        else:
            load = QuietPairs(loop, publishers, subscribers, shape)
        return measure(bench.meter, loop, load)


def _fan_out(bench: Bench) -> Sample:
    with (
        Loop() as loop,
        bench.clients("sub", bench.scaled(1000)) as subscribers,
        bench.clients("pub", 1) as publishers,
    ):
        links.subscribe_all(subscribers, lambda _: [(topic(0), 0)])
        links.prepare(subscribers + publishers)
        return measure(bench.meter, loop, FanOut(loop, publishers[0], subscribers, Shape(window=64, burst=32)))


def _fan_in(bench: Bench) -> Sample:
    with Loop() as loop, bench.clients("sub", 1) as subscribers, bench.clients("pub", 100) as publishers:
        links.subscribe_all(subscribers, lambda _: [("bench/+", 0)])
        links.prepare(subscribers + publishers)
        return measure(bench.meter, loop, FanIn(loop, publishers, subscribers[0], Shape(window=32, burst=32)))


def _paced(bench: Bench, publishers: int, subscribers: int, rate: float) -> Sample:
    with Loop() as loop:
        return _paced_on(loop, bench, publishers, subscribers, rate)


def _paced_on(loop: Loop, bench: Bench, publishers: int, subscribers: int, rate: float) -> Sample:
    with bench.clients("sub", subscribers) as hearing, bench.clients("pub", publishers) as sending:
        each = subscribers // publishers
        links.subscribe_all(hearing, lambda number: [(topic(number // each), 0)])
        links.prepare(hearing + sending)
        load = Paced(loop, sending, hearing, rate)
        sample = measure(bench.meter, loop, load, at_begin=load.forget)
        add_latency(sample, load.latencies.tolist(), load.lateness.tolist())
        return sample


def _beside_idle(bench: Bench) -> Sample:
    shape = Shape()
    without = _pairs(bench, 10, shape)
    with bench.clients("idle", bench.scaled(4000)) as idle:
        links.subscribe_all(idle, lambda number: [(f"idle/{number}/+", 0)])
        bench.meter.process.settle()
        return replace(_pairs(bench, 10, shape), without=without)


def _zeek(bench: Bench, others: int) -> Sample:
    """Paced pairs, beside ``others`` subscribers whose filters match none of their topics."""
    rate = ZEEK_RATE / bench.divide
    with Loop() as alone, Loop() as beside:  # while descriptors are low: a loop made later could not pace as finely
        without = _paced_on(alone, bench, ZEEK_PAIRS, ZEEK_PAIRS, rate)
        if not others:
            return without
        with bench.clients("other", bench.scaled(others)) as silent:
            links.subscribe_all(silent, lambda number: [(f"zeek/{number}/+", 0)])
            bench.meter.process.settle()
            return replace(_paced_on(beside, bench, ZEEK_PAIRS, ZEEK_PAIRS, rate), without=without)


def _connect(bench: Bench) -> Sample:
    process, count = bench.meter.process, bench.scaled(4000)
    with bench.clients("warm", WARM_CLIENTS):
        process.settle()
        memory, clocks = process.resident(), Clocks(process)
        with bench.clients("client", count):
            return _settled(process, clocks, clocks.read(), count, memory)


def _subscribe(bench: Bench, clients: int, filters: Callable[[int], list[tuple[str, int]]]) -> Sample:
    process, count = bench.meter.process, clients * len(filters(0))
    with bench.clients("sub", clients) as subscribers:
        process.settle()
        memory, clocks = process.resident(), Clocks(process)
        links.subscribe_all(subscribers, filters)
        return _settled(process, clocks, clocks.read(), count, memory)


def _settled(process: BrokerProcess, clocks: Clocks, answered: Spent, count: int, memory: int) -> Sample:
    """The cost of ``count`` units: the time until all were answered, CPU and memory once the broker is at rest."""
    process.settle()
    spent = replace(answered, broker=clocks.read().broker)
    resident = process.resident()
    return Sample(count, spent, resident, bytes_each=(resident - memory) / count)


def _own_filters(bench: Bench) -> Sample:
    each = bench.scaled(1000)
    return _subscribe(bench, 100, lambda client: [(f"device/{client}/+/{number}/#", 0) for number in range(each)])


def _same_filters(bench: Bench) -> Sample:
    same = [("bench/+/a/#", 0), ("bench/+/b/#", 0), ("bench/all", 0), ("command/#", 0)]
    return _subscribe(bench, bench.scaled(4000), lambda _: same)


def _beside_churn(bench: Bench) -> Sample:
    shape = Shape(window=1024, burst=256)
    without = _pairs(bench, 1, shape)
    with (
        Loop() as loop,
        bench.clients("sub", 1) as subscribers,
        bench.clients("pub", 1) as publishers,
        bench.clients("churn", 1) as churners,
    ):
        links.subscribe_all(subscribers, lambda number: [(topic(number), 0)])
        links.prepare(subscribers + publishers + churners)
        load = QuietPairs(loop, publishers, subscribers, shape)
        churn = Churn(loop, churners[0], CHURN_RATE)
        churn.start()
        return replace(measure(bench.meter, loop, load, churn.tick), without=without, skipped=churn.skipped)


_QOS2: Final = frozenset({QOS, QOS2})
_V5: Final = Shape(level=frames.MQTT_5)
_ACKED: Final = Shape(window=64, burst=32)
_LARGE: Final = Shape(payload=16_384, window=8, burst=4)

ROWS: Final[dict[str, Row]] = {
    row.name: row
    for row in (
        Row("one-to-one", "1 → 1, QoS 0", lambda bench: _pairs(bench, 1, Shape(window=1024, burst=256))),
        Row("pairs", "100 pairs, QoS 0", lambda bench: _pairs(bench, 100, Shape())),
        Row("fan-out", "1 → 1,000 fan-out", _fan_out, files=1100),
        Row("fan-in", "100 → 1 fan-in (bench/+)", _fan_in, frozenset({FILTERS})),
        Row("pairs-v5", "100 pairs, MQTT 5", lambda bench: _pairs(bench, 100, _V5), frozenset({V5})),
        Row("pairs-qos1", "100 pairs, QoS 1 both sides", lambda bench: _pairs(bench, 100, _ACKED, 1), frozenset({QOS})),
        Row("pairs-qos2", "100 pairs, QoS 2 both sides", lambda bench: _pairs(bench, 100, _ACKED, 2), _QOS2),
        Row("pairs-16k", "10 pairs, 16 KiB payload", lambda bench: _pairs(bench, 10, _LARGE)),
        Row(
            "paced-pairs",
            "1,000 pairs paced at 10,000 msg/s",
            lambda bench: _paced(bench, bench.scaled(1000), bench.scaled(1000), 10_000.0 / bench.divide),
            files=2100,
        ),
        Row(
            "paced-fan-out",
            "1 → 1,000 paced at 20 msg/s",
            lambda bench: _paced(bench, 1, bench.scaled(1000), 20.0),
            files=1100,
        ),
        Row("idle", "10 pairs beside 4,000 idle subscribers", _beside_idle, files=4100),
        Row("connect", "connect 4,000 clients", _connect, unit="client", files=4100),
        Row("own-filters", "100 × 1,000 filters device/%c/+/%n/#", _own_filters, frozenset({FILTERS}), "filter"),
        Row("same-filters", "4,000 × the same 4 filters", _same_filters, frozenset({FILTERS}), "filter", 4100),
        Row("churn", "1 → 1 beside 1,000 SUBSCRIBE + UNSUBSCRIBE/s", _beside_churn, frozenset({FILTERS})),
        Row("zeek-0", "10 pairs at 20,000 msg/s", lambda bench: _zeek(bench, 0)),
        Row("zeek-20", "10 pairs at 20,000 msg/s + 20 others", lambda bench: _zeek(bench, 20)),
        Row("zeek-1000", "10 pairs at 20,000 msg/s + 1,000 others", lambda bench: _zeek(bench, 1000), files=1100),
        Row("zeek-4000", "10 pairs at 20,000 msg/s + 4,000 others", lambda bench: _zeek(bench, 4000), files=4100),
    )
}
