"""``clients``: very many connected clients, nearly all of them silent.

Owns: the order of the measurement, all on one broker: paced pairs alone, connect the others, keep them alive, the same
paced pairs beside them, all of the others leave.

Promises: the pairs stay connected throughout, so that memory for each client is that of the idle ones alone. The pings
go on while the pairs are measured beside the crowd, and are in their CPU.

What the kernel holds for a connection is not counted: it is in nobody's resident memory.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from socket import socket

from benchmarks.network import links
from benchmarks.network.links import Loop
from benchmarks.network.loads import topic
from benchmarks.network.measure import Clocks, Meter, Sample, Spent, add_latency, measure
from benchmarks.network.paced import Paced
from benchmarks.scale.crowd import Crowd, open_crowd, why_not
from benchmarks.scale.phases import Outcome, Phase, Start
from benchmarks.scale.rest import Pulse
from loadtest.brokers.process import HOST, BrokerProcess


@dataclass(frozen=True)
class ClientPlan:
    """``clients`` idle ones with a keep alive in seconds, beside ``pairs`` that send ``rate`` messages a second in all.

    ``seconds`` is the measured time of each step, after a quarter of that as warm-up.
    """

    clients: int
    keep_alive: int = 60
    pairs: int = 1000
    rate: float = 10_000.0
    seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.clients < 1 or not 1 <= self.pairs <= 10_000 or not 1 <= self.keep_alive <= 65_535:
            raise ValueError("there must be 1 client or more, 1 to 10,000 pairs, a keep alive of 1 to 65,535 seconds")

    def why_not(self) -> str | None:
        """Why this system cannot hold as many connections, or None."""
        return why_not(self.clients + 2 * self.pairs)


def run(outcome: Outcome, plan: ClientPlan, start: Start) -> None:
    """Measure one size; phases are added to the outcome as they are done."""
    with start() as process, ExitStack() as stack:
        # Both loops before the sockets: a loop made after a thousand of them cannot pace as finely.
        alone, beside = stack.enter_context(Loop()), stack.enter_context(Loop())
        port, meter = process.port, Meter(process, plan.seconds / 4, plan.seconds)
        subscribers = links.open_clients(HOST, port, [f"sub-{number}" for number in range(plan.pairs)])
        stack.callback(links.close_all, subscribers)
        publishers = links.open_clients(HOST, port, [f"pub-{number}" for number in range(plan.pairs)])
        stack.callback(links.close_all, publishers)
        pulses = links.open_clients(HOST, port, ["pulse"])
        stack.callback(links.close_all, pulses)
        links.subscribe_all(subscribers, lambda number: [(topic(number), 0)])
        links.prepare([*subscribers, *publishers])

        load = Paced(alone, publishers, subscribers, plan.rate)
        title = f"{plan.pairs:,} pairs at {plan.rate:,.0f} msg/s, no idle clients"
        outcome.phases.append(Phase("paced-without", title, "message", _paced(meter, alone, load)))

        process.settle()
        memory, clocks = process.resident(), Clocks(process)
        idle = open_crowd(port, plan.clients, plan.keep_alive)
        stack.callback(links.close_all, idle)
        answered = clocks.read()
        process.settle()
        outcome.phases.append(_connected(process, plan, memory, replace(answered, broker=clocks.read().broker)))

        crowd = Crowd(beside, idle, plan.keep_alive)
        title = f"pings, keep alive {plan.keep_alive} s"
        outcome.phases.append(Phase("keep-alive", title, "ping", measure(meter, beside, crowd)))

        load = Paced(beside, publishers, subscribers, plan.rate)
        crowd.start()
        sample = replace(_paced(meter, beside, load, crowd), without=outcome.sample("paced-without"))
        title = f"{plan.pairs:,} pairs at {plan.rate:,.0f} msg/s beside them"
        outcome.phases.append(Phase("paced", title, "message", sample))
        outcome.phases.append(_left(process, idle, Pulse(process, pulses[0])))


def _paced(meter: Meter, loop: Loop, load: Paced, crowd: Crowd | None = None) -> Sample:
    sample = measure(meter, loop, load, None if crowd is None else crowd.tick, at_begin=load.forget)
    add_latency(sample, load.latencies.tolist(), load.lateness.tolist())
    return sample


def _connected(process: BrokerProcess, plan: ClientPlan, memory: int, spent: Spent) -> Phase:
    resident = process.resident()
    sample = Sample(plan.clients, spent, resident, bytes_each=(resident - memory) / plan.clients)
    return Phase("connect", "connect, 64 at a time", "client", sample)


def _left(process: BrokerProcess, idle: list[socket], pulse: Pulse) -> Phase:
    done = pulse.aftermath(lambda: links.close_all(idle))
    sample = Sample(len(idle), done.spent, process.resident())
    return Phase("leave", "all idle clients leave", "client", sample, done.deaf * 1e6)
