"""The plan of a proof: which clients there are, what each does and when, and which faults happen. A pure function of
the seed.

Owns: ``make``, and ``up_to``, the beginning of a plan. ``roles`` has the clients, ``steps`` what they do.

Promises: the same seed and options make the same plan. A plan names clients, topics and times of its own; the prefix of
a run and the address of a broker come later. The steps of all rounds together are numbered from 0.

A plan has rounds. In each, clients publish for some seconds, while clients and broker meet faults. Then comes a quiet
phase, in which every client whose session lasts comes back and everything is published again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil
from random import Random
from typing import Final

from canopy_load.prove.faults import CLIENT_FAULTS, BrokerFault, Fault, choose
from canopy_load.prove.roles import ClientPlan, cast
from canopy_load.prove.steps import LOAD_SECONDS, Act, Step, steps

HEADSTART: Final = 0.1
"""Seconds before a fault in which a message for the crowd is published."""
ROAMERS: Final = 0.5
"""The share of clients that roam among nodes."""


@dataclass(frozen=True)
class Round:
    steps: tuple[Step, ...]
    """In the order of time."""
    seconds: float = LOAD_SECONDS
    """How long there is load; all faults end within it."""
    faults: tuple[BrokerFault, ...] = ()
    """Those of the broker, in the order of time."""
    late: tuple[str, ...] = ()
    """Clients that come for the first time in this round."""


@dataclass(frozen=True)
class Plan:
    seed: int
    clients: dict[str, ClientPlan]
    rounds: tuple[Round, ...]
    faults: tuple[Fault, ...]


def make(
    seed: int,
    rounds: int,
    faults: Iterable[Fault] = CLIENT_FAULTS,
    rate: float = 60.0,
    nodes: int = 1,
    timeout: float = 1.0,
    crowd: int = 0,
    max_qos: int = 2,
    sessions_stay: bool = False,
) -> Plan:
    """Return the plan of a seed. `rate`: messages a second that all publishers together send, about; `nodes` and
    `timeout` (seconds): of a broker that was started for it; `crowd`: the number of durable sessions besides;
    `max_qos`: of messages and subscriptions; `sessions_stay`: see `Driver`."""
    random = Random(seed)
    chosen = tuple(each for each in Fault if each in set(faults))
    people = cast(random, rounds, crowd)
    if nodes > 1:
        people.clients = {
            name: each
            if each.kind == "pair"
            else replace(each, node=random.randrange(nodes), roams=random.random() < ROAMERS)
            for name, each in people.clients.items()
        }
    if sessions_stay:
        people.clients = _at_home(people.clients)
    people.clients = {name: each.at_most(max_qos) for name, each in people.clients.items()}
    made = []
    for number, of_broker in enumerate(choose(random, rounds, chosen, LOAD_SECONDS, nodes, timeout)):
        late = tuple(each.name for each in people.of("late") if each.name.endswith(f"-{number}"))
        stretches = max(1, ceil(max((each.ends for each in of_broker), default=0.0) / LOAD_SECONDS))
        taken = [
            replace(step, at=step.at + stretch * LOAD_SECONDS)
            for stretch in range(stretches)
            for step in steps(random, people, chosen, rate, () if stretch else late)
        ]
        # The broker is to be busy with the crowd when it goes wrong.
        taken += [
            Step(
                each.at - random.uniform(0.0, HEADSTART),
                herald.name,
                Act.PUBLISH,
                random.randrange(len(herald.outputs)),
            )
            for each in of_broker
            for herald in people.of("herald")
        ]
        taken.sort(key=lambda step: step.at)
        of_broker = tuple(sorted(of_broker, key=lambda fault: fault.at))
        made.append(Round(tuple(taken), stretches * LOAD_SECONDS, of_broker, late))
    return Plan(seed, people.clients, tuple(made), chosen)


def _at_home(clients: dict[str, ClientPlan]) -> dict[str, ClientPlan]:
    """Return the clients, of which the members of share groups, and all that have a session, never leave their node;
    all members of a group are at one."""
    homes: dict[str, int] = {}
    made = {}
    for name, each in clients.items():
        node = homes.setdefault(each.filters[0].topic_filter, each.node) if each.kind == "member" else each.node
        stays = each.kind == "member" or not each.clean or each.kind == "brief"
        made[name] = replace(each, node=node, roams=each.roams and not stays, stays=stays)
    return made


def last_of_round(plan: Plan, step: int) -> int:
    """Return the number of the last step of the round that a step is in."""
    last = -1
    for each in plan.rounds:
        last += len(each.steps)
        if step <= last:
            break
    return last


def up_to(plan: Plan, step: int) -> Plan:
    """Return the plan until a step, which is the last one, without the faults that its round would have after it."""
    made: list[Round] = []
    for each in plan.rounds:
        taken = each.steps[: step + 1]
        if not taken:
            break
        whole = len(taken) == len(each.steps)
        faults = tuple(one for one in each.faults if whole or one.at <= taken[-1].at)
        seconds = each.seconds if whole else max([taken[-1].at, *(one.ends for one in faults)])
        made.append(replace(each, steps=taken, faults=faults, seconds=seconds))
        step -= len(taken)
    return replace(plan, rounds=tuple(made))
