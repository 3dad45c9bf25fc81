"""``clients``: very many connected clients, nearly all of them silent.

Owns: the order of the measurement, all on one broker: paced pairs alone, connect the others, keep them alive, the same
paced pairs beside them, all of the others leave.

Promises: the pairs stay connected throughout, so that memory for each client is that of the idle ones alone. The pings
go on while the pairs are measured beside the crowd, and are in their CPU.

What the kernel holds for a connection is not counted: it is in nobody's resident memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from benchmarks.network import links
from benchmarks.network.links import Loop
from benchmarks.network.loads import topic
from benchmarks.network.measure import Clocks, Meter, Sample, add_latency, measure
from benchmarks.network.paced import Paced
from benchmarks.runner import Case, Line, NotRun, line_of
from benchmarks.scale.crowd import Crowd, open_crowd, why_not
from benchmarks.scale.rest import Pulse
from loadtest.brokers.process import HOST
from loadtest.brokers.stats import ratio

KEEP_ALIVE: Final = 60
"""Seconds, of each idle client."""
PAIRS: Final = 1_000
RATE: Final = 10_000.0
"""Messages a second of all pairs together."""


def run(case: Case) -> Iterator[Line]:
    """Measure one size: so many idle clients."""
    pairs, rate = case.scaled(PAIRS), RATE / case.divide
    reason = why_not(case.size + 2 * pairs) if case.size > 0 else "there must be 1 client or more"
    if reason is not None:
        raise NotRun(reason)
    with case.broker() as process, ExitStack() as stack:
        # Both loops before the sockets: a loop made after a thousand of them cannot pace as finely.
        alone, beside = stack.enter_context(Loop()), stack.enter_context(Loop())
        port, meter = process.port, Meter(process, case.seconds / 4, case.seconds)
        subscribers = links.open_clients(HOST, port, [f"sub-{number}" for number in range(pairs)])
        stack.callback(links.close_all, subscribers)
        publishers = links.open_clients(HOST, port, [f"pub-{number}" for number in range(pairs)])
        stack.callback(links.close_all, publishers)
        pulses = links.open_clients(HOST, port, ["pulse"])
        stack.callback(links.close_all, pulses)
        links.subscribe_all(subscribers, lambda number: [(topic(number), 0)])
        links.prepare([*subscribers, *publishers])

        load = Paced(alone, publishers, subscribers, rate)
        without = _paced(meter, alone, load)
        yield line_of("pairs, no idle clients", without)

        process.settle()
        memory, clocks = process.resident(), Clocks(process)
        idle = open_crowd(port, case.size, KEEP_ALIVE)
        stack.callback(links.close_all, idle)
        answered = clocks.read()
        process.settle()
        resident, spent = process.resident(), replace(answered, broker=clocks.read().broker)
        each = (resident - memory) / case.size
        yield line_of("connect", Sample(case.size, spent, resident), {"B each": each})

        crowd = Crowd(beside, idle, KEEP_ALIVE)
        yield line_of("keep alive", measure(meter, beside, crowd))

        load = Paced(beside, publishers, subscribers, rate)
        crowd.start()
        sample = _paced(meter, beside, load, crowd)
        times = ratio(sample.cpu_us, without.cpu_us)
        yield line_of("pairs beside them", sample, {"CPU × without": times})

        done = Pulse(process, pulses[0]).aftermath(lambda: links.close_all(idle))
        sample = Sample(len(idle), done.spent, process.resident())
        yield line_of("leave", sample, {"deaf ms": done.deaf * 1e3})


def _paced(meter: Meter, loop: Loop, load: Paced, crowd: Crowd | None = None) -> Sample:
    sample = measure(meter, loop, load, None if crowd is None else crowd.tick, at_begin=load.forget)
    add_latency(sample, load.latencies.tolist(), load.lateness.tolist())
    return sample
