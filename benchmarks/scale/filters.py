"""``filters``: very many wildcard subscriptions in one broker.

Owns: the order of the measurement: the load with none of the filters, on a broker of its own; then, on a fresh one,
subscribe, the same load, unsubscribe, leave.

Promises: the filters are ``device/%c/+/%n/#``, each of one client alone; all are in place while the load runs. The load
is the same with and without: the same clients get the same messages on the same topics. ``hot`` topics are few enough
to be remembered, ``cold`` ones are so many that none is.

The next step begins when the broker is at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from socket import socket

from benchmarks.network import links
from benchmarks.network.links import Loop
from benchmarks.network.measure import Clocks, Meter, Sample, measure
from benchmarks.scale.phases import Outcome, Phase, Start
from benchmarks.scale.rest import Pulse
from benchmarks.scale.spread import SpreadPairs, every_topic_of, filter_of, frames_of
from loadtest.brokers import frames
from loadtest.brokers.process import HOST, BrokerProcess


@dataclass(frozen=True)
class FilterPlan:
    """``clients`` subscribers share the filters equally; ``pairs`` of them are published to, each on so many topics.

    ``seconds`` is the measured time of each load, after a quarter of that as warm-up.
    """

    filters: int
    clients: int = 200
    pairs: int = 64
    hot_topics: int = 16
    cold_topics: int = 4096
    seconds: float = 2.0
    per_packet: int = 64

    def __post_init__(self) -> None:
        if not 2 <= self.clients <= self.filters or not 1 <= self.pairs <= self.clients:
            raise ValueError("there must be 2 clients or more, a filter for each, and no more pairs than clients")

    @property
    def each(self) -> int:
        """Filters of one client."""
        return self.filters // self.clients

    @property
    def packed(self) -> int:
        """Filters in a full packet."""
        return min(self.per_packet, self.each)


class _Stage:
    """One broker with the clients of the plan connected, for as long as ``stack`` is open."""

    def __init__(self, plan: FilterPlan, process: BrokerProcess, stack: ExitStack) -> None:
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


def run(outcome: Outcome, plan: FilterPlan, start: Start) -> None:
    """Measure one size; phases are added to the outcome as they are done."""
    hot, cold = plan.pairs * plan.hot_topics, plan.pairs * plan.cold_topics
    with start() as process, ExitStack() as stack:
        stage = _Stage(plan, process, stack)
        links.subscribe_all(stage.subscribers, lambda client: [(every_topic_of(client), 0)])
        for name, topics, count in (("hot", plan.hot_topics, hot), ("cold", plan.cold_topics, cold)):
            title = f"publish to {count:,} topics, none of the filters"
            outcome.phases.append(Phase(f"{name}-without", title, "message", stage.load(topics)))
    with start() as process, ExitStack() as stack:
        stage = _Stage(plan, process, stack)
        outcome.phases.append(_subscribed(stage))
        for name, topics, count in (("hot", plan.hot_topics, hot), ("cold", plan.cold_topics, cold)):
            sample = replace(stage.load(topics), without=outcome.sample(f"{name}-without"))
            outcome.phases.append(Phase(name, f"publish to {count:,} topics", "message", sample))
        outcome.phases.extend(_dropped(stage))


def _subscribed(stage: _Stage) -> Phase:
    plan, process = stage.plan, stage.process
    memory, clocks = process.resident(), Clocks(process)
    links.subscribe_all(stage.subscribers, lambda client: _filters(client, plan.each), per_packet=plan.per_packet)
    answered = clocks.read()
    process.settle()
    spent, resident = replace(answered, broker=clocks.read().broker), process.resident()
    count = plan.each * plan.clients
    sample = Sample(count, spent, resident, bytes_each=(resident - memory) / count)
    return Phase("subscribe", f"SUBSCRIBE, {plan.packed} in a packet", "filter", sample)


def _filters(client: int, each: int) -> list[tuple[str, int]]:
    return [(filter_of(client, number), 0) for number in range(each)]


def _dropped(stage: _Stage) -> list[Phase]:
    """Half of the clients unsubscribe, the others leave with their filters in place."""
    plan = stage.plan
    half = plan.clients // 2
    polite, hasty = stage.subscribers[:half], stage.subscribers[half:]
    sample, _ = stage.work(half * plan.each, lambda: _unsubscribe(polite, plan))  # nobody listens meanwhile
    phases = [Phase("unsubscribe", f"UNSUBSCRIBE of half, {plan.packed} in a packet", "filter", sample)]
    sample, deaf = stage.work(len(hasty) * plan.each, lambda: links.close_all(hasty))
    phases.append(Phase("leave", "clients with the other half leave", "filter", sample, deaf * 1e6))
    return phases


def _unsubscribe(socks: Sequence[socket], plan: FilterPlan) -> None:
    for client, sock in enumerate(socks):
        names = [filter_of(client, number) for number in range(plan.each)]
        pieces = [names[at : at + plan.per_packet] for at in range(0, len(names), plan.per_packet)]
        sock.sendall(b"".join(frames.unsubscribe(at, piece) for at, piece in enumerate(pieces, 1)))
        for _ in pieces:
            links.expect(sock, frames.UNSUBACK)
