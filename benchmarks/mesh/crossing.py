"""What a message costs that is published on one node and received on another, and how long it takes.

Owns: loads of the network bench with publishers on one broker and subscribers on the other, and who is measured: a
Canopy alone, two that are one, a mosquitto alone, and two with a bridge. Alone, publishers and subscribers are on one.
The CPU is that of all processes of an entrant.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from benchmarks.bridge import mosquitto_bridge
from benchmarks.figures import aligned, number
from benchmarks.mesh import nodes
from benchmarks.mesh.nodes import Together
from benchmarks.network import links
from benchmarks.network.links import LoadError, Loop
from benchmarks.network.loads import AckedPairs, QuietPairs, Shape, topic
from benchmarks.network.measure import Meter, Sample, add_latency, measure
from benchmarks.network.paced import Paced
from loadtest.brokers import frames
from loadtest.brokers.process import HOST, BrokerFailed, BrokerProcess, free_port
from loadtest.brokers.registry import PEERS, Order
from loadtest.brokers.stats import median, ratio

LOCAL: Final = "canopy"
MESH: Final = "canopy, 2 nodes"
ALONE: Final = "mosquitto"
BRIDGE: Final = "mosquitto, bridge"
ENTRANTS: Final = (LOCAL, MESH, ALONE, BRIDGE)

PAIRS_SHAPE: Final = Shape()
COMPARED: Final = {MESH: LOCAL, BRIDGE: ALONE}
"""What crosses, beside what does not."""


@dataclass(frozen=True)
class Row:
    """A load: so many pairs at a QoS, in bursts of a shape, or `rate` messages a second (QoS 0)."""

    name: str
    title: str
    pairs: int
    qos: int = 0
    shape: Shape = PAIRS_SHAPE
    rate: float = 0.0


ROWS: Final = {
    row.name: row
    for row in (
        Row("one", "1 pair, QoS 0, bursts of 256", 1, shape=Shape(window=1024, burst=256)),
        Row("pairs", "100 pairs, QoS 0, bursts of 64", 100),
        Row("pairs-v5", "100 pairs, QoS 0, MQTT 5, bursts of 64", 100, shape=Shape(level=frames.MQTT_5)),
        Row("pairs-qos1", "100 pairs, QoS 1, bursts of 32", 100, 1, Shape(window=64, burst=32)),
        Row("single-qos1", "10 pairs, QoS 1, one in flight for each", 10, 1, Shape(window=1, burst=1)),
        Row("paced", "10 pairs, QoS 0, 1,000 messages/s", 10, rate=1_000.0),
        Row("paced-fast", "10 pairs, QoS 0, 5,000 messages/s", 10, rate=5_000.0),
    )
}
"""By name, in the order in which they are measured."""


@dataclass(frozen=True)
class Place:
    """Where a load is put: the processes that are metered, the port of publishers, and that of subscribers."""

    process: Together
    source: int
    target: int


def _canopy_alone(stack: ExitStack, core: int | None, qos: int) -> Place:
    del qos
    return _alone(stack, "canopy", core)


def _mosquitto_alone(stack: ExitStack, core: int | None, qos: int) -> Place:
    del qos
    return _alone(stack, "mosquitto", core)


def _alone(stack: ExitStack, name: str, core: int | None) -> Place:
    port = free_port()
    command = PEERS[name].command(port, nodes.folder(stack))
    return Place(Together([stack.enter_context(BrokerProcess(command, port, core))]), port, port)


def _two_nodes(stack: ExitStack, core: int | None, qos: int) -> Place:
    del qos
    first, second = nodes.start_nodes(stack, 2, core)
    return Place(Together([first.process, second.process]), first.port, second.port)


def _bridged(stack: ExitStack, core: int | None, qos: int) -> Place:
    target, source = free_port(), free_port()
    peer = PEERS["mosquitto"]
    command = peer.begin(Order(target, nodes.folder(stack)))
    remote = stack.enter_context(BrokerProcess(command, target, core))
    command = mosquitto_bridge(source, target, nodes.folder(stack), "bench/#", qos)
    edge = stack.enter_context(BrokerProcess(command, source, core))
    return Place(Together([edge, remote]), source, target)


_BEGIN: Final[dict[str, Callable[[ExitStack, int | None, int], Place]]] = {
    LOCAL: _canopy_alone,
    MESH: _two_nodes,
    ALONE: _mosquitto_alone,
    BRIDGE: _bridged,
}


def run(row: Row, entrant: str, core: int | None, seconds: float) -> Sample:
    """One run on fresh processes. Raises BrokerFailed, LoadError."""
    with nodes.scene() as stack:
        place = _BEGIN[entrant](stack, core, row.qos)
        nodes.await_carried(place.source, place.target, "bench/ready")
        return put(row, place, seconds)


def put(row: Row, place: Place, seconds: float) -> Sample:
    """Put a load on what runs already."""
    names, level = range(row.pairs), row.shape.level
    with Loop() as loop, ExitStack() as stack:
        hearing = links.open_clients(HOST, place.target, [f"sub-{each}" for each in names], level)
        stack.callback(links.close_all, hearing)
        sending = links.open_clients(HOST, place.source, [f"pub-{each}" for each in names], level)
        stack.callback(links.close_all, sending)
        links.subscribe_all(hearing, lambda each: [(topic(each), row.qos)], level)
        links.prepare(hearing + sending)
        meter = Meter(place.process, max(0.1, seconds / 4), seconds)
        if not row.rate:
            if row.qos:
                return measure(meter, loop, AckedPairs(loop, sending, hearing, row.shape, row.qos))
            return measure(meter, loop, QuietPairs(loop, sending, hearing, row.shape))
        paced = Paced(loop, sending, hearing, row.rate)
        sample = measure(meter, loop, paced, at_begin=paced.forget)
        add_latency(sample, paced.latencies.tolist(), paced.lateness.tolist())
        return sample


HEADINGS: Final = (
    "load", "", "messages/s", "CPU µs", "× local", "× bridge", "p50 µs", "p99 µs", "added p50", "lost", "double",
)  # fmt: skip


class Result:
    """All runs of one row on one entrant."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.failure = ""

    def median(self, name: str) -> float | None:
        """Of an attribute of `Sample`."""
        return median(value for each in self.samples if (value := getattr(each, name)) is not None)


def table(
    rows: list[Row], rounds: int, seconds: float, core: int | None, told: Callable[[str], None]
) -> tuple[str, dict[str, dict[str, Result]]]:
    """The figures of all rows, as a table, and by row and entrant."""
    found: dict[str, dict[str, Result]] = {}
    entrants = [each for each in ENTRANTS if PEERS[each.partition(",")[0]].missing() is None]
    body: list[list[str]] = []
    for row in rows:
        results = found[row.name] = {each: Result() for each in entrants}
        for _ in range(rounds):
            for entrant, result in results.items():
                if result.failure:
                    continue
                told(f"{row.title}: {entrant}")
                try:
                    result.samples.append(run(row, entrant, core, seconds))
                except (BrokerFailed, LoadError, OSError) as error:
                    result.failure = f"FAILED: {error}"
        body += _lines(row, results)
    return aligned(HEADINGS, body, {"load", ""}), found


def _lines(row: Row, results: dict[str, Result]) -> list[list[str]]:
    lines: list[list[str]] = []
    for place, (entrant, result) in enumerate(results.items()):
        local = results.get(COMPARED.get(entrant, ""))
        bridge = results.get(BRIDGE) if entrant == MESH else None
        by_local, by_bridge = (
            None if other is None else ratio(result.median("cpu_us"), other.median("cpu_us"))
            for other in (local, bridge)
        )
        own, before = result.median("p50_us"), None if local is None else local.median("p50_us")
        lines.append(
            [
                row.title if place == 0 else "",
                result.failure[:80] or entrant,
                number(result.median("rate")),
                number(result.median("cpu_us")),
                "" if by_local is None else f"{by_local:.2f}",
                "" if by_bridge is None else f"{by_bridge:.2f}",
                "" if own is None else number(own),
                "" if own is None else number(result.median("p99_us")),
                "" if own is None or before is None else number(own - before),
                f"{sum(each.lost for each in result.samples):,}",
                f"{sum(each.doubled for each in result.samples):,}",
            ]
        )
    return lines
