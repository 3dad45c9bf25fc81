"""Brokers that `canopy load` starts itself, and what a scenario needs of a broker.

Owns: a broker process for the time of one run, and what a scenario asks of a broker.

Promises: a broker listens on a free port of 127.0.0.1, publishes its statistics below `$SYS` each second where its
drops can be read there, keeps what it writes in a temporary directory, and has ended when its block is left.

Nothing is installed, and no broker is used that runs already.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from pydantic import ValidationError

from canopy_load.brokers.process import BrokerProcess, free_port
from canopy_load.brokers.registry import FILTERS, QOS, QOS2, ROUTING, SHARED, V5, Peer
from canopy_load.checks.expected import Subscriptions
from canopy_load.errors import Misuse
from canopy_load.scenario.plan import Plan
from canopy_load.scenario.scenario_schema import Group, Scenario

LOOKED_AT: Final = 100  # publishers of each process of which it is found out whether somebody hears them there
MAX_PROCESSES: Final = 8  # more of the generator are not started unasked
STATISTICS: Final = 1  # seconds between two publications of `$SYS`: drops are reconciled by it

Version = Literal["3.1.1", "5.0"]


class VersionConflict(Misuse):
    """The scenario needs a feature that the other version of MQTT lacks; the message names the group and the key."""


@contextmanager
def started(peer: Peer, core: int | None) -> Iterator[BrokerProcess]:
    """Run a fresh process of this broker while the block lasts, pinned to `core` unless that is None.

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
    """Return the features that a broker needs for this scenario, in the words of ``canopy_load.brokers.registry``."""
    found: set[str] = set()
    for group in scenario.groups:
        found |= _group_needs(group)
    if sum(bool(group.publish) for group in scenario.groups) > 1:
        found.add(ROUTING)
    return frozenset(found)


def with_version(scenario: Scenario, version: Version) -> Scenario:
    """Return the same scenario with every group on this version of MQTT.

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
    """Return the number of generator processes that this scenario allows: at most 8, and one for each of `cores`. A
    closed loop with QoS 0 needs a subscriber in the publisher's own process.

    Raises:
        PlanError: the scenario cannot be played.
    """
    plan = Plan(scenario, "0" * 8)
    return next((count for count in range(min(cores, plan.clients, MAX_PROCESSES), 1, -1) if _closes(plan, count)), 1)


def _closes(plan: Plan, processes: int) -> bool:
    """Return True if closed loops with QoS 0 close within each of so many processes, as far as a sample shows."""
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
    if group.publish:
        first = group.publish[0]
        own_topic = group.clients == 1 or "%c" in first.topic
        if len(group.publish) > 1 or first.topics > 1 or not own_topic:
            found.add(ROUTING)
    if group.will or group.cycle or not group.clean_start or any(each.retain for each in group.publish):
        found.add(ROUTING)
    return found
