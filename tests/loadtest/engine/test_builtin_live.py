"""Every built-in scenario, small, against Canopy and against mosquitto: on a healthy broker nothing is lost, doubled,
altered or out of order, nothing goes wrong in words, and everybody who is to hear something does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from canopy_load.brokers.process import HOST, BrokerProcess, free_port
from canopy_load.brokers.registry import PEERS
from canopy_load.engine.conductor import play
from canopy_load.engine.job import Job, Target
from canopy_load.report.result import Deliveries, GroupResult, Result
from canopy_load.scenario.library import builtin, load
from canopy_load.scenario.scenario_schema import Scenario

pytestmark = pytest.mark.long

SETTINGS = {"canopy": ["sys.interval=0.1"]}
"""Canopy publishes its ledger, so that it is held against what was seen."""


@dataclass(frozen=True)
class Small:
    """What makes a scenario small enough for a test."""

    scale: float
    sets: tuple[str, ...] = ()
    coming_and_going: bool = False
    """Clients leave and come back, so that not everything can be judged."""


SMALL = {
    "churn": Small(0.06),
    "connect-storm": Small(
        0.01,
        ("groups.subscribers.clients=3", "groups.publishers.clients=3", "groups.flappers.cycle={up=0.1, down=0.05}"),
    ),
    "fanin": Small(0.04),
    "fanout": Small(0.01),
    "idle-peers": Small(0.01, ("groups.publishers.publish.0.rate=50",)),
    "mixed-fleet": Small(
        0.04,
        (
            "groups.sensors.publish.0.rate=10",
            "groups.sensors.publish.2.rate=1",
            "groups.loggers.publish.0.rate=20",
            "groups.roamers.publish.0.rate=10",
            "groups.roamers.cycle={up=0.3, down=0.1, goodbye='cut'}",
            "groups.operators.publish.0.topics=20",
            "groups.operators.publish.1.topics=2",
            "groups.operators.publish.1.rate=20",
        ),
        coming_and_going=True,
    ),
    "omb-conn": Small(0.0001),
    "omb-fanin": Small(0.0002, ("groups.publishers.publish.0.rate=20",)),
    "omb-fanout": Small(0.01),
    "omb-p2p": Small(0.0002, ("groups.publishers.publish.0.rate=20",)),
    "slow-readers": Small(0.2, ("groups.publisher.publish.0.rate=100", "groups.frozen.reading.freeze_after=0.1")),
    "unicast": Small(0.03),
    "wildcards": Small(0.03, ("groups.sensors.publish.0.total_rate=10000", "groups.planners.subscribe.0.filters=10")),
}
NAMES = [name for name, _ in builtin()]

DEAF = {"idle", "crowd", "flappers"}
"""Groups that subscribe to what nobody publishes."""


Played = dict[str, tuple[Job, Result | BaseException]]


@pytest.fixture(scope="module", params=["canopy", "mosquitto"])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """What came of all scenarios on one process of the broker, side by side: mostly they wait."""
    peer = PEERS[request.param]
    if reason := peer.missing():
        pytest.skip(reason)
    port = free_port()
    command = peer.command(port, tmp_path_factory.mktemp(peer.name), settings=SETTINGS.get(peer.name, ()))
    with BrokerProcess(command, port, None) as running:
        jobs = {name: Job(*small(name), [Target(HOST, port)], broker_pid=running.pid) for name in NAMES}
        results = asyncio.run(_play_all(list(jobs.values())))
    return {name: (job, result) for (name, job), result in zip(jobs.items(), results, strict=True)}


async def _play_all(jobs: list[Job]) -> list[Result | BaseException]:
    return await asyncio.gather(*(play(job) for job in jobs), return_exceptions=True)


def small(name: str) -> tuple[Scenario, str]:
    """The scenario, cut down to half a second and a few clients."""
    changes = SMALL[name]
    stages = [
        f"stages.{stage.name}.seconds={0.5 if stage.name in ('steady', 'online') else 0.1}"
        for stage in load(name)[0].stages
    ]
    return load(name, [*stages, *changes.sets], changes.scale)


def test_every_builtin_scenario_is_played() -> None:
    assert sorted(SMALL) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_builtin_scenario_on_a_healthy_broker(name: str, played: Played) -> None:
    job, result = played[name]
    if isinstance(result, BaseException):
        raise result
    scenario = job.scenario

    assert result.errors == {}
    assert not result.interrupted
    assert result.scenario == name
    assert result.scenario_text == job.scenario_text
    _everybody_was_there(scenario, result)
    _nothing_went_wrong(result.deliveries, judged=not SMALL[name].coming_and_going)
    for group in result.groups:
        _nothing_went_wrong(group.deliveries, judged=not SMALL[name].coming_and_going)
    # A closed loop's window may have been full for as short a time as is measured here.
    if any(group.publish for group in scenario.groups) and not result.closed_loop:
        assert result.sent > 0
        assert result.received > 0
        assert result.latency.count > 0
    assert result.reconciled is None or result.reconciled.agrees is not False
    assert result.closed_loop == (name in ("unicast", "fanout", "fanin"))


def _everybody_was_there(scenario: Scenario, result: Result) -> None:
    found: dict[str, GroupResult] = {group.name: group for group in result.groups}
    assert list(found) == [group.name for group in scenario.groups]
    for group in scenario.groups:
        seen = found[group.name]
        wanted = max(1, round(group.clients * scenario.scale)) if group.scaled else group.clients
        assert seen.clients == wanted
        assert seen.connects >= wanted
        assert seen.connects == wanted or group.cycle is not None
        assert seen.connects_failed == seen.connections_lost == seen.subscribes_refused == seen.refused == 0
        assert seen.publishes == bool(group.publish)
        assert (seen.sent > 0) == bool(group.publish)
        assert seen.frozen == (group.reading is not None)
        assert (seen.deliveries.received > 0) == (bool(group.subscribe) and group.name not in DEAF)


def _nothing_went_wrong(deliveries: Deliveries, judged: bool) -> None:
    assert deliveries.expected == deliveries.received + deliveries.lost + deliveries.unconfirmed
    faults = (deliveries.lost, deliveries.duplicates, deliveries.reordered, deliveries.altered)
    assert faults == (0, 0, 0, 0), deliveries
    assert deliveries.told_lost == 0
    if judged:
        assert (deliveries.unjudged, deliveries.unconfirmed, deliveries.redelivered) == (0, 0, 0), deliveries
