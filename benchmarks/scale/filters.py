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
from dataclasses import dataclass
from random import Random
from socket import socket
from typing import Final

from benchmarks.clients import opened
from benchmarks.network import links
from benchmarks.network.links import Loop
from benchmarks.network.loads import QuietPairs, Shape
from benchmarks.network.measure import Clocks, Meter, Sample, measure, settled
from benchmarks.runner import Case, Line, NotRun, line_of
from benchmarks.scale.pulse import Pulse
from canopy_load.brokers import frames
from canopy_load.brokers.process import BrokerProcess
from canopy_load.brokers.stats import ratio

CLIENTS: Final = 200
PAIRS: Final = 64
HOT, COLD = 16, 4096
"""Topics of each pair: as many as are remembered, and far more."""
PER_PACKET: Final = 64
SHAPE: Final = Shape()


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
        self.subscribers = opened(stack, process.port, *names)
        self.publishers = opened(stack, process.port, *(f"pub-{number}" for number in range(plan.pairs)))
        pulses = opened(stack, process.port, "pulse")
        process.settle()
        self.lag_monitor = Pulse(process, pulses[0])

    def load(self, topics: int) -> Sample:
        """The load on ``topics`` topics of each pair."""
        plan = self.plan
        hearing = self.subscribers[: plan.pairs]
        rounds = [frames_of(client, plan.each, topics) for client in range(plan.pairs)]
        with Loop() as loop:
            links.prepare([*hearing, *self.publishers])
            load = QuietPairs(loop, self.publishers, hearing, SHAPE, rounds)
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
    kinds = {"publish, few topics": HOT, "publish, very many topics": case.scaled(COLD, HOT)}
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
    return line_of("SUBSCRIBE", settled(process, clocks, clocks.read(), plan.each * plan.clients, memory))


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


def filter_of(client: int, number: int) -> str:
    """Filter ``number`` of a client; all have one length."""
    return f"device/{client:05d}/+/{number:07d}/#"


def every_topic_of(client: int) -> str:
    """The filter that matches all topics of a client."""
    return f"device/{client:05d}/#"


def topic_of(client: int, variant: int, number: int) -> str:
    """A topic that matches filter ``number`` of the client and no other; ``variant`` tells topics of a filter apart."""
    return f"device/{client:05d}/{variant:05d}/{number:07d}/x"


def frames_of(client: int, filters: int, topics: int, shape: Shape = SHAPE) -> list[bytes]:
    """A round of frames over ``topics`` topics (1..16,384) of a client with ``filters`` filters.

    A round has at least ``shape.cycle`` frames and whole bursts; where there are fewer topics, they come again.
    """
    numbers = Random(client).sample(range(filters), min(filters, topics))
    count = max(shape.cycle, -(-topics // shape.burst) * shape.burst)
    built: list[bytes] = []
    for sequence in range(count):
        variant = sequence % topics
        name = topic_of(client, variant, numbers[variant % len(numbers)])
        built.append(frames.publish(name, frames.payload(client, sequence, shape.payload)))
    return built
