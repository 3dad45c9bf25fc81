"""``filters``: very many wildcard subscriptions in one broker.

Owns: the order of the measurement: the load with none of the filters, on a broker of its own; then, on a fresh one,
subscribe, the same load, unsubscribe, leave.

Promises: the filters are ``device/%c/+/%n/#``, each of one client alone; all are in place while the load runs. The load
is the same with and without: the same clients get the same messages on the same topics. ``hot`` topics are few enough
to be remembered, ``cold`` ones are so many that none is.

The next step begins when the broker is at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from socket import socket
from typing import Final

from benchmarks.network import links
from benchmarks.network.links import Loop
from benchmarks.network.measure import Clocks, Meter, Sample, measure
from benchmarks.runner import Case, Line, NotRun, line_of
from benchmarks.scale.rest import Pulse
from benchmarks.scale.spread import SpreadPairs, every_topic_of, filter_of, frames_of
from loadtest.brokers import frames
from loadtest.brokers.process import HOST, BrokerProcess
from loadtest.brokers.stats import ratio

CLIENTS: Final = 200
PAIRS: Final = 64
HOT, COLD = 16, 4096
"""Topics of each pair: as many as are remembered, and far more."""
PER_PACKET: Final = 64


@dataclass(frozen=True)
class Plan:
    """``clients`` subscribers share the filters equally; ``pairs`` of them are published to."""

    each: int
    clients: int
    pairs: int
    seconds: float


class _Stage:
    """One broker with the clients of the plan connected, for as long as ``stack`` is open."""

    def __init__(self, plan: Plan, process: BrokerProcess, stack: ExitStack) -> None:
        self.plan = plan
        self.process = process
        names = [f"filters-{number}" for number in range(plan.clients)]
        self.subscribers = links.open_clients(HOST, process.port, names)
        stack.callback(links.close_all, self.subscribers)
        self.publishers = links.open_clients(HOST, process.port, [f"pub-{number}" for number in range(plan.pairs)])
        stack.callback(links.close_all, self.publishers)
        pulses = links.open_clients(HOST, process.port, ["pulse"])
        stack.callback(links.close_all, pulses)
        process.settle()
        self.lag_monitor = Pulse(process, pulses[0])

    def load(self, topics: int) -> Sample:
        """The load on ``topics`` topics of each pair."""
        plan = self.plan
        hearing = self.subscribers[: plan.pairs]
        rounds = [frames_of(client, plan.each, topics) for client in range(plan.pairs)]
        with Loop() as loop:
            links.prepare([*hearing, *self.publishers])
            load = SpreadPairs(loop, self.publishers, hearing, rounds)
            sample = measure(Meter(self.process, plan.seconds / 4, plan.seconds), loop, load)
        for sock in hearing:
            sock.settimeout(links.ANSWER_TIMEOUT)
        return sample

    def work(self, count: int, act: Callable[[], None]) -> tuple[Sample, float]:
        """``count`` units of work that ``act`` asks for: until the broker is at rest, and how long it was deaf."""
        done = self.lag_monitor.aftermath(act)
        return Sample(count, done.spent, self.process.resident()), done.deaf


def run(case: Case) -> Iterator[Line]:
    """Measure one size: so many filters in all."""
    if case.size < 2:
        raise NotRun("there must be 2 filters or more")
    clients = min(CLIENTS, case.size)
    plan = Plan(case.size // clients, clients, min(PAIRS, clients), case.seconds)
    kinds = {"publish, few topics": HOT, "publish, very many topics": COLD}
    without: dict[str, Sample] = {}
    with case.broker() as process, ExitStack() as stack:
        stage = _Stage(plan, process, stack)
        links.subscribe_all(stage.subscribers, lambda client: [(every_topic_of(client), 0)])
        for name, topics in kinds.items():
            without[name] = stage.load(topics)
            yield line_of(f"{name}, without the filters", without[name])
    with case.broker() as process, ExitStack() as stack:
        stage = _Stage(plan, process, stack)
        yield _subscribed(stage)
        for name, topics in kinds.items():
            sample = stage.load(topics)
            yield line_of(name, sample, {"CPU × without": ratio(sample.cpu_us, without[name].cpu_us)})
        yield from _dropped(stage)


def _subscribed(stage: _Stage) -> Line:
    plan, process = stage.plan, stage.process
    memory, clocks = process.resident(), Clocks(process)
    links.subscribe_all(stage.subscribers, lambda client: _filters(client, plan.each), per_packet=PER_PACKET)
    answered = clocks.read()
    process.settle()
    spent, resident = replace(answered, broker=clocks.read().broker), process.resident()
    count = plan.each * plan.clients
    each = (resident - memory) / count
    return line_of("SUBSCRIBE", Sample(count, spent, resident), {"B each": each})


def _filters(client: int, each: int) -> list[tuple[str, int]]:
    return [(filter_of(client, number), 0) for number in range(each)]


def _dropped(stage: _Stage) -> Iterator[Line]:
    """Half of the clients unsubscribe, the others leave with their filters in place."""
    plan = stage.plan
    half = plan.clients // 2
    polite, hasty = stage.subscribers[:half], stage.subscribers[half:]
    sample, _ = stage.work(half * plan.each, lambda: _unsubscribe(polite, plan))  # nobody listens meanwhile
    yield line_of("UNSUBSCRIBE of half", sample)
    sample, deaf = stage.work(len(hasty) * plan.each, lambda: links.close_all(hasty))
    yield line_of("the other half leave", sample, {"deaf ms": deaf * 1e3})


def _unsubscribe(socks: Sequence[socket], plan: Plan) -> None:
    for client, sock in enumerate(socks):
        names = [filter_of(client, number) for number in range(plan.each)]
        pieces = [names[at : at + PER_PACKET] for at in range(0, len(names), PER_PACKET)]
        sock.sendall(b"".join(frames.unsubscribe(at, piece) for at, piece in enumerate(pieces, 1)))
        for _ in pieces:
            links.expect(sock, frames.UNSUBACK)
