"""The plan of a proof: which clients there are, what each does and when, and which faults happen. A pure function of
the seed.

Owns: ``make``, and the kinds of clients and steps.

Promises: the same seed and options make the same plan. A plan names clients, topics and times of its own; the prefix of
a run and the address of a broker come later.

A plan has rounds. In each, clients publish for some seconds, while clients and broker meet faults. Then comes a quiet
phase, in which every client whose session lasts comes back and everything is published again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from canopy_mqtt.core.codec.packets import V5, V311

LOAD_SECONDS: Final = 3.0
"""The length of a round before its quiet phase."""
WILL_DELAY: Final = 1
"""Seconds of the wills that have a delay."""
MIN_HOLD: Final = 0.3
MAX_HOLD: Final = 1.5
"""Seconds for which a client, or the broker, is frozen."""


class Fault(StrEnum):
    """What may go wrong: of clients the first four, of a broker that was started for it the others."""

    CUT = "cut"
    FREEZE = "freeze"
    ROAM = "roam"
    TAKEOVER = "takeover"
    KILL = "kill"
    STOP = "stop"
    RESTART = "restart"


CLIENT_FAULTS: Final = (Fault.CUT, Fault.FREEZE, Fault.ROAM, Fault.TAKEOVER)
BROKER_FAULTS: Final = (Fault.KILL, Fault.STOP, Fault.RESTART)


class Act(StrEnum):
    """The acts of a client. CUT: it loses its connection and comes back at once; VANISH: it stays away; LEAVE: it says
    goodbye and stays away; ROAM: it says goodbye and comes back at once, at another node if there is one."""

    CONNECT = "connect"
    LEAVE = "leave"
    VANISH = "vanish"
    CUT = "cut"
    FREEZE = "freeze"
    THAW = "thaw"
    ROAM = "roam"
    TAKEOVER = "takeover"
    PUBLISH = "publish"
    LOOK = "look"


@dataclass(frozen=True)
class WillPlan:
    topic: str
    qos: int
    delay: int = 0
    """Seconds."""


@dataclass(frozen=True)
class Output:
    """What a client publishes to one topic."""

    topic: str
    qos: int
    retain: bool = False


@dataclass(frozen=True)
class ClientPlan:
    """One client identifier. `kind` says for people what is special about it."""

    name: str
    kind: str
    version: int = V5
    clean: bool = False
    """True: Clean Start, and the session ends with its connection."""
    filters: tuple[tuple[str, int], ...] = ()
    """Topic filters, each with the QoS that is asked for."""
    outputs: tuple[Output, ...] = ()
    will: WillPlan | None = None
    from_start: bool = True
    """True if it connects before anything is published."""


@dataclass(frozen=True)
class Step:
    """What a client does, `at` seconds after the round has begun; `output` of PUBLISH is the number of the output."""

    at: float
    client: str
    act: Act
    output: int = 0


@dataclass(frozen=True)
class BrokerFault:
    """A fault of the broker, `at` seconds after the round has begun. `seconds`: how long it lasts."""

    at: float
    fault: Fault
    seconds: float


@dataclass(frozen=True)
class Round:
    steps: tuple[Step, ...]
    """In the order of time."""
    fault: BrokerFault | None = None
    late: tuple[str, ...] = ()
    """Clients that come for the first time in this round."""


@dataclass(frozen=True)
class Plan:
    seed: int
    clients: dict[str, ClientPlan]
    rounds: tuple[Round, ...]
    faults: tuple[Fault, ...]


@dataclass
class _Cast:
    """The clients of a plan by what they are for."""

    clients: dict[str, ClientPlan] = field(default_factory=dict)

    def add(self, client: ClientPlan) -> None:
        self.clients[client.name] = client

    def of(self, *kinds: str) -> list[ClientPlan]:
        return [each for each in self.clients.values() if each.kind in kinds]


def make(seed: int, rounds: int, faults: Iterable[Fault] = CLIENT_FAULTS, rate: float = 60.0) -> Plan:
    """Return the plan of a seed. `rate`: messages a second that all publishers together send, about."""
    random = Random(seed)
    chosen = tuple(each for each in Fault if each in set(faults))
    cast = _cast(random, rounds)
    of_broker: list[Fault | None] = [each for each in chosen if each in BROKER_FAULTS]
    random.shuffle(of_broker)
    # Now and then the broker is left in peace, so that what a fault would excuse is judged, too.
    of_broker.append(None)
    made = []
    for number in range(rounds):
        late = tuple(each.name for each in cast.of("late") if each.name.endswith(f"-{number}"))
        steps = sorted(_steps(random, cast, chosen, rate, late), key=lambda step: step.at)
        what = of_broker[number % len(of_broker)]
        at, seconds = random.uniform(0.2, 0.8) * LOAD_SECONDS, random.uniform(MIN_HOLD, MAX_HOLD)
        made.append(Round(tuple(steps), None if what is None else BrokerFault(at, what, seconds), late))
    return Plan(seed, cast.clients, tuple(made), chosen)


def _cast(random: Random, rounds: int) -> _Cast:
    cast = _Cast()
    topics = [f"t/{number}" for number in range(4)]

    def outputs(qualities: Iterable[int]) -> tuple[Output, ...]:
        return tuple(Output(random.choice(topics), qos) for qos in qualities)

    for number, (version, clean) in enumerate(((V5, False), (V311, False), (V5, True), (V311, True))):
        cast.add(ClientPlan(f"publisher-{number}", "publisher", version, clean, (), outputs((1, 2, 1, 2, 0))))
    for number in range(2):
        retained = tuple(Output(f"r/{number}/{each}", 1 + each % 2, retain=True) for each in range(3))
        cast.add(ClientPlan(f"retainer-{number}", "retainer", (V5, V311)[number], False, (), retained))

    both = (V5, V311)
    for number, version in enumerate(both):
        cast.add(ClientPlan(f"connected-{number}", "connected", version, False, (("t/#", 2),)))
        cast.add(ClientPlan(f"cut-{number}", "cut", version, False, (("t/+", 2), (topics[number], 1))))
        cast.add(ClientPlan(f"away-{number}", "away", version, False, (("t/#", 1 + number),)))
        cast.add(ClientPlan(f"clean-{number}", "clean", version, True, (("t/#", 2),)))
        cast.add(ClientPlan(f"frozen-{number}", "frozen", version, False, (("t/#", 2),)))
        cast.add(ClientPlan(f"taken-over-{number}", "taken over", version, False, (("t/#", 2),), outputs((1, 2))))
    cast.add(ClientPlan("all-0", "#", V5, False, (("#", 2),)))
    for number in range(rounds):
        version = random.choice(both)
        cast.add(ClientPlan(f"late-{number}", "late", version, False, (("t/#", 2),), from_start=False))
    for number in range(3):
        # QoS 1 and 2 in one group: what a member gets is bounded by what it was granted.
        cast.add(ClientPlan(f"durable-member-{number}", "member", V5, False, (("$share/durable/t/#", 2),)))
        cast.add(ClientPlan(f"clean-member-{number}", "member", V5, True, (("$share/clean/t/#", 1 + number % 2),)))
    for number in range(6):
        delay = WILL_DELAY if number > 3 else 0
        will = WillPlan(f"w/{number}", 1 + number % 2, delay)
        cast.add(ClientPlan(f"mortal-{number}", "mortal", V5 if delay else both[number % 2], not delay, will=will))
    cast.add(ClientPlan("heir-0", "heir", V5, False, (("w/#", 2),)))
    cast.add(ClientPlan("looker-0", "looker", V311, True, (("r/#", 2),), from_start=False))
    return cast


def _steps(
    random: Random, cast: _Cast, faults: tuple[Fault, ...], rate: float, late: tuple[str, ...]
) -> Iterator[Step]:
    yield from _published(random, cast, rate)
    for name in late:
        yield Step(_some_time(random), name, Act.CONNECT)
    for each in cast.of("away"):
        yield Step(random.uniform(0.0, 0.2) * LOAD_SECONDS, each.name, random.choice((Act.LEAVE, Act.VANISH)))
    yield from _members(random, cast)
    yield Step(_some_time(random), "looker-0", Act.LOOK)
    for each in cast.of("mortal"):
        yield from _mortal(random, each)
    if Fault.CUT in faults:
        for each in (*cast.of("cut"), *cast.of("clean"), random.choice(cast.of("publisher", "retainer"))):
            yield Step(_some_time(random), each.name, Act.CUT)
            yield Step(_some_time(random), each.name, Act.CUT)
    if Fault.ROAM in faults:
        for each in (random.choice(cast.of("cut")), random.choice(cast.of("publisher"))):
            yield Step(_some_time(random), each.name, Act.ROAM)
    if Fault.TAKEOVER in faults:
        for each in cast.of("taken over"):
            for _ in range(2):
                at = _some_time(random)
                # What is on its way is taken over, too.
                yield from (Step(at, each.name, Act.PUBLISH, output) for output in range(len(each.outputs)))
                yield Step(at, each.name, Act.TAKEOVER)
    if Fault.FREEZE in faults:
        for each in cast.of("frozen"):
            at = random.uniform(0.0, 0.5) * LOAD_SECONDS
            yield Step(at, each.name, Act.FREEZE)
            yield Step(at + random.uniform(MIN_HOLD, MAX_HOLD), each.name, Act.THAW)


def _some_time(random: Random) -> float:
    return random.uniform(0.1, 0.9) * LOAD_SECONDS


def _published(random: Random, cast: _Cast, rate: float) -> Iterator[Step]:
    """Yield the messages of a round; they come in bursts, so that several are on their way at once."""
    publishers = cast.of("publisher", "retainer", "taken over")
    at = 0.0
    while True:
        burst = random.randint(1, 6)
        at += random.expovariate(rate / burst)
        if at >= LOAD_SECONDS:
            return
        client = random.choice(publishers)
        for _ in range(burst):
            yield Step(at, client.name, Act.PUBLISH, random.randrange(len(client.outputs)))


def _members(random: Random, cast: _Cast) -> Iterator[Step]:
    """Let members of share groups come and go; now and then nobody of a group is there for a while."""
    for prefix in ("durable", "clean"):
        members = [each for each in cast.of("member") if each.name.startswith(prefix)]
        everybody = random.random() < 0.5
        for each in members if everybody else random.sample(members, 2):
            at = random.uniform(0.1, 0.4) * LOAD_SECONDS
            yield Step(at, each.name, random.choice((Act.LEAVE, Act.VANISH)))
            yield Step(at + random.uniform(0.1, 0.5) * LOAD_SECONDS, each.name, Act.CONNECT)


def _mortal(random: Random, client: ClientPlan) -> Iterator[Step]:
    """Let a client with a will be cut off, or say goodbye; one with a delayed will may come back in time."""
    at = random.uniform(0.1, 0.3) * LOAD_SECONDS
    yield Step(at, client.name, random.choice((Act.VANISH, Act.VANISH, Act.LEAVE)))
    early = client.will is not None and client.will.delay and random.random() < 0.5
    back = at + random.uniform(0.1, 0.4) * WILL_DELAY if early else at + WILL_DELAY + random.uniform(1.1, 1.5)
    yield Step(back, client.name, Act.CONNECT)
