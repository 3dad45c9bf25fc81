"""Brokers that `canopy load` starts itself, and what a scenario needs of a broker.

Owns: the processor cores of the broker and of the generator, a broker process for the time of one run, and what a
scenario asks of a broker.

Promises: a broker listens on a free port of 127.0.0.1, publishes its statistics below `$SYS` each second where its
drops can be read there, keeps what it writes in a temporary directory, and has ended when its block is left.

Nothing is installed, and no broker is used that runs already.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from loadtest.brokers.cores import allowed_cores
from loadtest.brokers.process import BrokerProcess, free_port
from loadtest.brokers.registry import FILTERS, QOS, QOS2, ROUTING, SHARED, V5, Peer
from loadtest.load.checks.expected import Subscriptions
from loadtest.load.errors import Misuse
from loadtest.load.scenario.plan import Plan
from loadtest.load.scenario.schema import Group, Scenario

LOOKED_AT: Final = 100  # publishers of each process of which it is found out whether somebody hears them there
MOST_PROCESSES: Final = 8  # more of the generator are not started unasked
STATISTICS: Final = 1  # seconds between two publications of `$SYS`: drops are reconciled by it

Version = Literal["3.1.1", "5.0"]


class VersionConflict(Misuse):
    """The scenario says what the other version of MQTT cannot; the message names the group and the key."""


@dataclass(frozen=True)
class Cores:
    """Which processor cores run what. Nothing is pinned where there is but one core to be had."""

    broker: int | None
    generator: tuple[int, ...]

    @classmethod
    def choose(cls) -> Cores:
        """The first core this process may run on for the broker, all others for the generator."""
        allowed = allowed_cores()
        return cls(allowed[0], tuple(allowed[1:])) if len(allowed) > 1 else cls(None, ())

    @contextmanager
    def kept(self) -> Iterator[None]:
        """This process away from the broker's core, while the block lasts."""
        before = allowed_cores()
        try:
            if self.generator:
                os.sched_setaffinity(0, self.generator)
            yield
        finally:
            if before:
                os.sched_setaffinity(0, before)

    def __str__(self) -> str:
        if self.broker is None:
            return "not pinned (one core)"
        several = "cores" if len(self.generator) > 1 else "core"
        return f"broker on core {self.broker}, generator on {several} {', '.join(map(str, self.generator))}"


@contextmanager
def started(peer: Peer, core: int | None) -> Iterator[BrokerProcess]:
    """A fresh process of this broker for as long as the block lasts, pinned to `core` unless that is None.

    To start (until it answers CONNECT) and to end it blocks: up to 20 s and 5 s.

    Raises:
        BrokerFailed: it did not start; the message holds the end of what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="canopy-load-") as name:
        port = free_port()
        command = peer.command(port, Path(name), statistics=STATISTICS)
        with BrokerProcess(command, port, core) as process:
            yield process


def needs(scenario: Scenario) -> frozenset[str]:
    """What a broker must be able to do for this scenario, in the words of ``loadtest.brokers.registry``."""
    found: set[str] = set()
    for group in scenario.groups:
        found |= _group_needs(group)
    if sum(bool(group.publish) for group in scenario.groups) > 1:
        found.add(ROUTING)
    return frozenset(found)


def with_version(scenario: Scenario, version: Version) -> Scenario:
    """The same scenario with every group on this version of MQTT.

    Raises:
        VersionConflict: a group uses what this version does not have.
    """
    groups: list[Group] = []
    for group in scenario.groups:
        try:
            groups.append(Group.model_validate({**group.model_dump(), "version": version}))
        except ValidationError as error:
            why = "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors())
            raise VersionConflict(f"groups.{group.name}.{why}") from None
    return scenario.model_copy(update={"groups": groups})


def most_processes(scenario: Scenario, cores: int) -> int:
    """How many processes of the generator this scenario bears, at most 8 and one for each of so many cores. A closed
    loop with QoS 0 needs a subscriber in the publisher's own process.

    Raises:
        PlanError: the scenario cannot be played.
    """
    plan = Plan(scenario, "0" * 8)
    return next((count for count in range(min(cores, plan.clients, MOST_PROCESSES), 1, -1) if _closes(plan, count)), 1)


def _closes(plan: Plan, processes: int) -> bool:
    """Whether closed loops with QoS 0 close within each of so many processes, as far as a look at some shows."""
    loops = [entry for entry in plan.entries if entry.publish and entry.publish.in_flight and not entry.publish.qos]
    if not loops:
        return True
    for index in range(processes):
        everybody = ((group, number) for group, count in enumerate(plan.counts) for number in range(count))
        here = [(group, number) for group, number in everybody if plan.process(group, number, processes) == index]
        heard = Subscriptions(plan, here)
        for entry in loops:
            publishers = [number for group, number in here if group == entry.group][:LOOKED_AT]
            for number in publishers:
                if not heard.hear(plan.topic(entry.stream(number, 0)), plan.client(entry.group, number)):
                    return False
    return True


def _group_needs(group: Group) -> set[str]:
    found: set[str] = set()
    if group.version == "5.0":
        found.add(V5)
    qualities = [each.qos for each in group.publish] + [each.qos for each in group.subscribe]
    qualities += [group.will.qos] if group.will else []
    qualities += [group.churn.qos] if group.churn else []
    if any(qualities):
        found.add(QOS)
    if 2 in qualities:
        found.add(QOS2)
    if group.churn or any("#" in each.filter or "+" in each.filter for each in group.subscribe):
        found.add(FILTERS)
    if any(each.filter.startswith("$share/") for each in group.subscribe):
        found.add(SHARED)
    one_topic_each = len(group.publish) == 1 and group.publish[0].topics == 1 and _own_topic(group)
    if group.publish and not one_topic_each:
        found.add(ROUTING)
    if group.will or group.cycle or not group.clean_start or any(each.retain for each in group.publish):
        found.add(ROUTING)
    return found


def _own_topic(group: Group) -> bool:
    """Whether no other client of the group publishes to a client's topic."""
    return group.clients == 1 or "%c" in group.publish[0].topic
