"""The steps of a round: what each client does, and when.

Owns: `Act`, `Step`, and ``steps``. Promises: the same random numbers make the same steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from canopy_load.prove.faults import MAX_HOLD, MIN_HOLD, Fault
from canopy_load.prove.roles import WILL_DELAY, Cast, ClientPlan

LOAD_SECONDS: Final = 3.0
"""The length of a stretch of load. A round has one before its quiet phase, and more where its faults last longer."""
PAIR_LEAVES: Final = 0.05
PAIR_RETURNS: Final = 0.8
"""When the two members of a share group leave, and when the second comes back, in parts of the stretch: the first comes
in the quiet phase. Between them a broker has surely seen that nobody is there."""
CROWD_MESSAGES: Final = 12
"""Messages of a round to the crowd."""


class Act(StrEnum):
    """The acts of a client. CUT: it loses its connection and comes back at once; VANISH: it stays away; LEAVE: it says
    goodbye and stays away; ROAM: it says goodbye and comes back at once, at another node if there is one; HUSH: it
    sends nothing more, and waits for the broker to end the connection."""

    CONNECT = "connect"
    LEAVE = "leave"
    VANISH = "vanish"
    CUT = "cut"
    FREEZE = "freeze"
    THAW = "thaw"
    ROAM = "roam"
    TAKEOVER = "takeover"
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    HUSH = "hush"
    LOOK = "look"


@dataclass(frozen=True)
class Step:
    """What a client does, `at` seconds after the round has begun; `output` of PUBLISH is the number of the output."""

    at: float
    client: str
    act: Act
    output: int = 0


def steps(random: Random, cast: Cast, faults: Collection[Fault], rate: float, late: Collection[str]) -> Iterator[Step]:
    """Yield the steps of a round, in no order. `late`: the clients that come for the first time."""
    yield from _published(random, cast, rate)
    for name in late:
        yield Step(_some_time(random), name, Act.CONNECT)
    crowd = cast.of("crowd")
    for each in (*cast.of("away", "brief"), *random.sample(crowd, len(crowd) // 2)):
        yield Step(random.uniform(0.0, 0.2) * LOAD_SECONDS, each.name, random.choice((Act.LEAVE, Act.VANISH)))
    yield from _members(random, cast)
    for each in cast.of("pair"):
        yield Step(PAIR_LEAVES * LOAD_SECONDS, each.name, Act.LEAVE)
    for each in cast.of("pair")[-1:]:
        yield Step(PAIR_RETURNS * LOAD_SECONDS, each.name, Act.CONNECT)
    for _ in range(2):
        yield Step(_some_time(random), "looker-0", Act.LOOK)
    for each in cast.of("mortal"):
        yield from _mortal(random, each)
    for each in cast.of("keep alive"):
        yield Step(random.uniform(0.0, 0.2) * LOAD_SECONDS, each.name, Act.HUSH)
    for each in cast.of("unsubscribes"):
        at = random.uniform(0.1, 0.5) * LOAD_SECONDS
        yield Step(at, each.name, Act.UNSUBSCRIBE)
        yield Step(at + random.uniform(0.1, 0.4) * LOAD_SECONDS, each.name, Act.SUBSCRIBE)
    yield from _faults(random, cast, faults)


def _faults(random: Random, cast: Cast, faults: Collection[Fault]) -> Iterator[Step]:
    """Yield the faults of clients."""
    if Fault.CUT in faults:
        for each in (*cast.of("cut", "clean", "QoS 0"), random.choice(cast.of("publisher", "retainer"))):
            yield Step(_some_time(random), each.name, Act.CUT)
            yield Step(_some_time(random), each.name, Act.CUT)
    if Fault.ROAM in faults:
        for each in (*cast.of("roaming"), random.choice(cast.of("cut")), random.choice(cast.of("publisher"))):
            yield Step(_some_time(random), each.name, Act.ROAM)
        for _ in range(4):
            yield Step(_some_time(random), "lone-member-0", Act.ROAM)
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


def _published(random: Random, cast: Cast, rate: float) -> Iterator[Step]:
    """Yield the messages of a round; they come in bursts, so that several are on their way at once."""
    publishers = cast.of("publisher", "retainer", "taken over", "No Local")
    at = 0.0
    while True:
        burst = random.randint(1, 6)
        at += random.expovariate(rate / burst)
        if at >= LOAD_SECONDS:
            break
        client = random.choice(publishers)
        for _ in range(burst):
            yield Step(at, client.name, Act.PUBLISH, random.randrange(len(client.outputs)))
    for each in cast.of("herald"):
        for number in range(CROWD_MESSAGES):
            yield Step(_some_time(random), each.name, Act.PUBLISH, number % len(each.outputs))


def _members(random: Random, cast: Cast) -> Iterator[Step]:
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
