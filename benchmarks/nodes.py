"""Measures what a message costs that crosses from one node of a cluster to another, beside one that does not.

Owns two rows, ``bursts`` and ``lone``: 100 pairs in bursts and 500 pairs paced, at QoS 0 and 1. Each has three steps:
one broker alone; two linked nodes with all clients at one of them (local); and the publishers at one node with the
subscribers at the other (crossing). The CPU is that of all brokers of a step together, and they share a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from socket import socket
from typing import Final

from benchmarks.clients import BEGIN, opened, wait_linked
from benchmarks.network import links
from benchmarks.network.links import Loop
from benchmarks.network.loads import AckedPairs, QuietPairs, Shape, topic
from benchmarks.network.measure import Meter, Sample, measure
from benchmarks.network.paced import Paced
from benchmarks.runner import Bench, Case, Line, Row, line_of, peers
from canopy_load.brokers.process import BrokerProcess, raise_file_limit

PAIRS: Final = 100
LONE: Final = 500
RATE: Final = 5_000.0
"""Lone messages a second, of all pairs together."""
BURSTS: Final = Shape(window=32, burst=16)
NEVER_BUSY: Final = "limits.max_loop_lag=0"
"""The setting with which a broker refuses no client on a machine that is busy with other things."""

Load = Callable[[Meter, Loop, Sequence[socket], Sequence[socket], int, float], Sample]
"""Runs a load of a QoS between these publishers and subscribers, paced at a rate if it is."""


class Together:
    """Several brokers that are measured as one; clients connect to the first."""

    def __init__(self, *brokers: BrokerProcess) -> None:
        self._brokers = brokers
        self.port: int = brokers[0].port
        self.pid: int = brokers[0].pid

    def cpu(self) -> int:
        """Return the nanoseconds of user and system time that all have used."""
        return sum(broker.cpu() for broker in self._brokers)

    def resident(self) -> int:
        """Return the bytes of resident memory of all."""
        return sum(broker.resident() for broker in self._brokers)

    def settle(self) -> None:
        """Wait until each of them is idle."""
        for broker in self._brokers:
            broker.settle()


def _bursts(
    meter: Meter, loop: Loop, sending: Sequence[socket], hearing: Sequence[socket], qos: int, rate: float
) -> Sample:
    del rate
    pairs = list(sending), list(hearing)
    return measure(meter, loop, AckedPairs(loop, *pairs, BURSTS, qos) if qos else QuietPairs(loop, *pairs, BURSTS))


def _lone(
    meter: Meter, loop: Loop, sending: Sequence[socket], hearing: Sequence[socket], qos: int, rate: float
) -> Sample:
    del qos
    return measure(meter, loop, Paced(loop, list(sending), list(hearing), rate))


def settings(folder: Path, own: str, names: Sequence[str] = ("a", "b")) -> list[str]:
    """Return the settings of a node of a cluster of these, linked by Unix sockets in a folder."""
    nodes = ", ".join(f'{{name = "{name}", address = "mqtt+unix://{folder}/{name}.sock"}}' for name in names)
    listen = f"mqtt+unix://{folder}/{own}.sock"
    return [
        NEVER_BUSY,
        "cluster.name=bench",
        f"cluster.node={own}",
        f"cluster.listen={listen}",
        f"cluster.nodes=[{nodes}]",
    ]


def _step(case: Case, load: Load, pairs: int, qos: int, at: Sequence[BrokerProcess]) -> Sample:
    """Measure a load whose publishers are at the first of these brokers, and its subscribers at the last."""
    with Loop() as loop, ExitStack() as stack:
        hearing = opened(stack, at[-1].port, *(f"sub-{number}" for number in range(pairs)))
        sending = opened(stack, at[0].port, *(f"pub-{number}" for number in range(pairs)))
        links.subscribe_all(hearing, lambda number: [(topic(number), qos), (BEGIN, 0)])
        wait_linked(sending[0], hearing)
        links.prepare([*hearing, *sending])
        meter = case.meter(Together(*dict.fromkeys(at)))
        return load(meter, loop, sending, hearing, qos, RATE / case.divide)


def steps(load: Load, pairs: int, levels: Sequence[int], case: Case) -> Iterator[Line]:
    """Measure a load on one broker, at one node of two, and from one node to the other. `levels`: of QoS."""
    pairs = case.scaled(pairs)
    raise_file_limit(2 * pairs + 100)
    for qos in levels:
        with case.broker(NEVER_BUSY) as alone:
            one = _step(case, load, pairs, qos, [alone])
        yield line_of(f"QoS {qos}, one broker", one)
        for name in ("local", "crossing"):
            with (
                case.folder() as folder,
                case.broker(*settings(folder, "a"), folder=folder) as first,
                case.broker(*settings(folder, "b"), folder=folder) as second,
            ):
                sample = _step(case, load, pairs, qos, [first, second] if name == "crossing" else [first])
            sample.without = one
            yield line_of(f"QoS {qos}, {name}", sample, beside="one broker")


BENCH: Final = Bench(
    "nodes",
    "What a message costs that crosses from one node of a cluster to another.",
    {
        "bursts": Row("100 pairs in bursts", partial(steps, _bursts, PAIRS, (0, 1))),
        "lone": Row("500 pairs paced at 5,000 msg/s", partial(steps, _lone, LONE, (0,))),
    },
    peers("canopy"),
)
