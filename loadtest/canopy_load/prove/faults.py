"""The faults that a proof knows, and which of them a plan lets happen when, to which nodes and for how long.

Owns: ``Fault``, its groups, ``choose``, and how many rounds it needs for all (``rounds_for``).

Promises: the same random numbers and options make the same faults. Two faults of one round touch different things (the
process, the network, the clients' way, the store, the clock), or it has only one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

MIN_HOLD: Final = 0.3
MAX_HOLD: Final = 1.5
"""Seconds for which a client is frozen, or something else lasts that has nothing to do with a time-out."""
MIN_TIMES: Final = 0.5
MAX_TIMES: Final = 3.0
"""How many time-outs of the broker a node is stopped or cut off for."""
LATENCIES: Final = (0.02, 0.1, 0.5)
"""Seconds by which packets of clients come later, in each direction."""
CLOCK_STEPS: Final = (-300.0, -5.0, 5.0, 300.0)
"""Seconds by which the clock of a node is set."""
MAX_START: Final = 5.0
"""Seconds within which a start with another number of workers is killed."""
MAX_NODES: Final = 9
MAX_TIMEOUT: Final = 600.0
"""Seconds that the time-out of a broker may be."""
SECOND: Final = 0.25
"""The share of rounds with two faults at once."""


class Fault(StrEnum):
    """What may go wrong."""

    CUT = "cut"
    FREEZE = "freeze"
    ROAM = "roam"
    TAKEOVER = "takeover"
    KILL = "kill"
    KILL_ALL = "kill-all"
    STOP = "stop"
    RESTART = "restart"
    SCALE = "scale"
    KILL_WORKER = "kill-worker"
    WORKERS = "workers"
    VERSION = "version"
    ISOLATE = "isolate"
    PAIR = "pair"
    HALVES = "halves"
    ONE_WAY = "one-way"
    LATENCY = "latency"
    SEVER = "sever"
    STORE_PAUSED = "store-paused"
    STORE_FULL = "store-full"
    STORE_READ_ONLY = "store-read-only"
    STORE_RESTART = "store-restart"
    CLOCK = "clock"


CLIENT_FAULTS: Final = (Fault.CUT, Fault.FREEZE, Fault.ROAM, Fault.TAKEOVER)
PARTITIONS: Final = (Fault.ISOLATE, Fault.PAIR, Fault.HALVES, Fault.ONE_WAY)
DISK_FAULTS: Final = (Fault.STORE_PAUSED, Fault.STORE_FULL, Fault.STORE_READ_ONLY)
BROKER_FAULTS: Final = tuple(each for each in Fault if each not in CLIENT_FAULTS)
"""Those of a broker that was started for the proof."""
LEAST_NODES: Final = {
    Fault.KILL_ALL: 2, Fault.SCALE: 2, Fault.ISOLATE: 2, Fault.PAIR: 3, Fault.HALVES: 4, Fault.ONE_WAY: 2,
}  # fmt: skip
"""How many nodes a fault needs; with fewer, one of the others is the same."""
STARTS: Final = (
    Fault.KILL,
    Fault.KILL_ALL,
    Fault.RESTART,
    Fault.SCALE,
    Fault.KILL_WORKER,
    Fault.WORKERS,
    Fault.VERSION,
)
TOUCHES: Final = {
    **dict.fromkeys((*STARTS, Fault.STOP), "process"),
    **dict.fromkeys(PARTITIONS, "network"),
    **dict.fromkeys((Fault.LATENCY, Fault.SEVER), "clients"),
    **dict.fromkeys((*DISK_FAULTS, Fault.STORE_RESTART), "store"),
    Fault.CLOCK: "clock",
}
"""What of a node a fault touches."""
REFUSES: Final = (Fault.STORE_FULL, Fault.STORE_READ_ONLY)
"""A broker may refuse to start, as STARTS ask of it, on a disk on which it cannot write."""


@dataclass(frozen=True)
class BrokerFault:
    """A fault of the broker, `at` seconds after the round has begun; it lasts for `seconds`."""

    at: float
    fault: Fault
    seconds: float
    nodes: tuple[int, ...] = (0,)
    """The numbers, from 0, of the nodes to which it happens. PAIR: the two that do not reach each other; ONE_WAY: the
    second does not hear the first; ISOLATE and HALVES: those that no other node reaches."""
    amount: float = 0.0
    """LATENCY: seconds in each direction. CLOCK: the step, in seconds. KILL_WORKER: which one, as a share of all.
    WORKERS: the share of MAX_START after which each start but the last is killed."""

    def __str__(self) -> str:
        return f"{self.fault} of node {' and '.join(str(each + 1) for each in self.nodes)}"

    @property
    def ends(self) -> float:
        return self.at + self.seconds

    def loses(self, sender: int, receiver: int) -> bool:
        """Return True if nothing passes from one node to another meanwhile."""
        inside = (sender in self.nodes) + (receiver in self.nodes)
        if self.fault is Fault.ONE_WAY:
            return (sender, receiver) == self.nodes
        if self.fault in PARTITIONS:
            return inside == (2 if self.fault is Fault.PAIR else 1)
        return TOUCHES[self.fault] == "process" and inside > 0


def rounds_for(faults: Iterable[Fault]) -> int:
    """Return the number of rounds in which each fault of a broker has its turn, and one round has none."""
    return 1 + len(set(BROKER_FAULTS).intersection(faults))


def choose(
    random: Random, rounds: int, faults: Sequence[Fault], load: float, nodes: int = 1, timeout: float = 1.0
) -> list[tuple[BrokerFault, ...]]:
    """Return the faults of each round, each in its turn, and now and then none, so that what a fault would excuse is
    judged, too.

    `load`: seconds of load, in which a fault begins. `timeout`: seconds after which nodes or clients of this broker
    give each other up.
    """
    turns: list[Fault | None] = [each for each in faults if each in BROKER_FAULTS]
    random.shuffle(turns)
    # The first round has a fault, because it may be the only one. Of several short plans some have a round without.
    turns.insert(random.randint(1, len(turns)) if turns else 0, None)
    made = []
    for number in range(rounds):
        first = turns[number % len(turns)]
        here = [] if first is None else [_drawn(random, first, load, nodes, timeout)]
        others = [each for each in turns if each is not None and first and _beside(first, each)]
        if others and random.random() < SECOND:
            here.append(_drawn(random, random.choice(others), load, nodes, timeout))
        made.append(tuple(here))
    return made


def _beside(one: Fault, other: Fault) -> bool:
    """Return True if two faults may happen at the same time."""
    if {one, other}.intersection(STARTS) and {one, other}.intersection(REFUSES):
        return False
    return TOUCHES[one] != TOUCHES[other]


def _drawn(random: Random, fault: Fault, load: float, nodes: int, timeout: float) -> BrokerFault:
    """Return a fault at a random time, of random nodes."""
    at = random.uniform(0.2, 0.8) * load
    touched = tuple(random.sample(range(nodes), _how_many(fault, nodes)))
    short, long = random.uniform(MIN_HOLD, MAX_HOLD), random.uniform(MIN_TIMES, MAX_TIMES) * timeout
    amount = random.choice(LATENCIES) if fault is Fault.LATENCY else 0.0
    if fault is Fault.CLOCK:
        amount = random.choice(CLOCK_STEPS)
    if fault in (Fault.KILL_WORKER, Fault.WORKERS):
        amount = random.random()
    if fault is Fault.STOP or fault in PARTITIONS or fault in DISK_FAULTS:
        return BrokerFault(at, fault, long, touched)
    # Other nodes may take over from one that is down for long; where there are none, clients only wait.
    away = fault in (Fault.KILL, Fault.SCALE, Fault.STORE_RESTART)
    return BrokerFault(at, fault, random.choice((short, long)) if away and nodes > 1 else short, touched, amount)


def _how_many(fault: Fault, nodes: int) -> int:
    if fault in (Fault.PAIR, Fault.ONE_WAY):
        return 2
    if fault is Fault.KILL_ALL:
        return nodes
    return math.floor(nodes / 2) if fault is Fault.HALVES else 1
