"""Several brokers in turn: who takes part, in which order, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from canopy_load.brokers.process import BrokerFailed, BrokerProcess
from canopy_load.brokers.registry import PEERS, Peer
from canopy_load.compare import started_brokers
from canopy_load.compare.contest import Contest, ContestHooks
from canopy_load.compare.started_brokers import VersionConflict
from canopy_load.engine.job import Job
from canopy_load.report.result import Result
from canopy_load.scenario.scenario_schema import Scenario
from tests.loadtest.compare.compared import result

SCENARIO = Scenario.model_validate(
    {
        "name": "small",
        "stages": [{"name": "steady", "seconds": 0.1}],
        "groups": [
            {"name": "subscribers", "clients": 2, "subscribe": [{"filter": "t/%c"}]},
            {"name": "publishers", "clients": 2, "publish": [{"topic": "t/%c", "in_flight": 4}]},
        ],
    }
)


@pytest.fixture(autouse=True)
def _all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every broker counts as installed: which of them are on this machine is not what is tested here."""
    for name, peer in PEERS.items():
        there = replace(peer, missing=lambda: None, version=f"{name} 1.0".strip)
        monkeypatch.setitem(PEERS, name, there)


class Stage:
    """Starts no started_brokers, and remembers who was on it; plays results from a list, or well ones."""

    def __init__(self, fails: dict[str, str] | None = None) -> None:
        self.turns: list[str] = []
        self.jobs: list[Job] = []
        self.running = 0
        self.told: list[str] = []
        self._fails = fails or {}
        self.results: list[Result | BaseException] = []

    @contextmanager
    def start(self, peer: Peer, core: int | None) -> Iterator[BrokerProcess]:
        """In place of a broker: the bare server, which ends by itself where it is to fail."""
        if peer.name in self._fails:
            raise BrokerFailed(self._fails[peer.name])
        assert self.running == 0
        self.running += 1
        self.turns.append(peer.name)
        try:
            with started_brokers.started(PEERS["relay"], core) as running:
                yield running
        finally:
            self.running -= 1

    async def play(self, job: Job, stop: asyncio.Event | None = None) -> Result:
        """In place of the conductor."""
        del stop
        await asyncio.sleep(0)
        self.jobs.append(job)
        given = self.results.pop(0) if self.results else result()
        if isinstance(given, BaseException):
            raise given
        return given

    def means(self, **other: Any) -> ContestHooks:
        told = self.told.append
        return ContestHooks(**{"turn": told, "note": told, "start": self.start, "play": self.play, **other})


def end(pid: int) -> None:
    """Kill a process and wait until it is dead; its remains stay for its parent."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def played(stage: Stage, *names: str, rounds: int = 2, **given: Any) -> Contest:
    """Return a contest of these brokers that was run on a stage."""
    contest = Contest(SCENARIO, "text", names, rounds)
    await contest.run(stage.means(), **given)
    return contest


async def test_brokers_take_turns_on_fresh_processes() -> None:
    stage = Stage()
    before = os.sched_getaffinity(0)
    contest = await played(stage, "canopy", "mosquitto")
    assert stage.turns == ["canopy", "mosquitto"] * 2
    assert stage.told == [f"round {number} of 2: {name}" for number in (1, 2) for name in ("canopy", "mosquitto")]
    assert len({job.broker_pid for job in stage.jobs}) == 4
    assert len({job.targets[0].port for job in stage.jobs}) == 4
    assert all(job.scenario == SCENARIO and job.scenario_text == "text" for job in stage.jobs)
    assert contest.comparison.whole
    assert [entrant.version for entrant in contest.comparison.entrants] == ["canopy 1.0", "mosquitto 1.0"]
    assert os.sched_getaffinity(0) == before


async def test_the_generator_keeps_to_other_cores_than_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    asked: list[Any] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: asked.append((pid, set(cores))))
    stage = Stage()
    contest = await played(stage, "canopy", rounds=1)
    assert contest.cores.broker == 0
    assert (stage.jobs[0].cores, stage.jobs[0].processes) == ((1, 2), 2)
    assert asked == [(0, {1, 2}), (0, {0, 1, 2})]
    await played(stage, "canopy", rounds=1, processes=5)
    assert stage.jobs[1].processes == 5


async def test_the_same_broker_twice_shows_the_noise() -> None:
    stage = Stage()
    contest = await played(stage, "canopy", "canopy", "mosquitto", rounds=1)
    assert [entrant.label for entrant in contest.comparison.entrants] == ["canopy", "canopy (2)", "mosquitto"]
    assert stage.turns == ["canopy", "canopy", "mosquitto"]


async def test_who_is_not_installed_is_told_and_the_others_play(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "mosquitto is not installed (Debian: apt-get install mosquitto)"
    monkeypatch.setitem(PEERS, "mosquitto", replace(PEERS["mosquitto"], missing=lambda: why))
    stage = Stage()
    contest = await played(stage, "mosquitto", "canopy")
    assert stage.told[0] == f"mosquitto: {why}"
    assert stage.turns == ["canopy", "canopy"]
    assert not contest.comparison.whole
    assert contest.comparison.first is contest.comparison.entrants[1]


async def test_who_fails_is_not_asked_again_and_the_others_go_on() -> None:
    stage = Stage({"mosquitto": "no CONNACK after 20 s"})
    contest = await played(stage, "mosquitto", "canopy")
    assert stage.turns == ["canopy", "canopy"]
    assert contest.comparison.entrants[0].failure == "failed in round 1: no CONNACK after 20 s"
    assert stage.told.count("mosquitto: failed in round 1: no CONNACK after 20 s") == 1


async def test_a_run_in_which_the_broker_died_is_no_run() -> None:
    stage = Stage()

    async def play(job: Job, stop: asyncio.Event | None = None) -> Result:
        del stop
        assert job.broker_pid is not None
        end(job.broker_pid)
        return result()

    contest = Contest(SCENARIO, "", ["canopy"], rounds=2)
    await contest.run(stage.means(play=play))
    (entrant,) = contest.comparison.entrants
    assert entrant.results == []
    assert "failed in round 1: the broker ended with code -9" in (entrant.failure or "")
    assert stage.turns == ["canopy"]


async def test_an_interrupted_run_is_the_last() -> None:
    stage = Stage()
    stage.results = [result(), result(interrupted=True)]
    contest = await played(stage, "canopy", "mosquitto")
    assert stage.turns == ["canopy", "mosquitto"]
    assert contest.comparison.interrupted
    assert [len(entrant.results) for entrant in contest.comparison.entrants] == [1, 1]


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt])
async def test_an_interruption_ends_the_broker_and_keeps_what_there_is(kind: type[BaseException]) -> None:
    stage = Stage()
    stage.results = [result(), kind()]
    contest = Contest(SCENARIO, "", ["canopy", "mosquitto"], rounds=2)
    before = os.sched_getaffinity(0)
    with pytest.raises(kind):
        await contest.run(stage.means())
    assert stage.running == 0
    for job in stage.jobs:
        assert job.broker_pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(job.broker_pid, 0)
    assert contest.comparison.interrupted
    assert [len(entrant.results) for entrant in contest.comparison.entrants] == [1, 0]
    assert os.sched_getaffinity(0) == before


def test_all_speak_3_1_1_where_one_speaks_no_other() -> None:
    contest = Contest(SCENARIO, "text", ["canopy", "amqtt"], rounds=1)
    assert {group.version for group in contest.scenario.groups} == {"3.1.1"}
    (remark,) = contest.comparison.remarks
    assert remark.startswith("every client speaks MQTT 3.1.1, for amqtt speaks no other")
    written = Scenario.model_validate(tomllib.loads(contest.comparison.scenario_text))
    assert written == contest.scenario
    assert not any(entrant.failure for entrant in contest.comparison.entrants)
    assert Contest(SCENARIO, "text", ["canopy", "mosquitto"], rounds=1).scenario == SCENARIO


def test_who_lacks_what_the_scenario_needs_is_left_out() -> None:
    groups = [group.model_copy(update={"session_expiry": 60}) for group in SCENARIO.groups]
    scenario = SCENARIO.model_copy(update={"groups": groups})
    contest = Contest(scenario, "", ["canopy", "amqtt"], rounds=1)
    assert contest.scenario == scenario
    assert contest.comparison.entrants[0].failure is None
    assert contest.comparison.entrants[1].failure == "left out: amqtt has no MQTT 5.0, and the scenario needs it"
    assert "groups.subscribers.session_expiry" in contest.comparison.remarks[0]


def test_the_version_can_be_asked_for() -> None:
    older = Contest(SCENARIO, "", ["canopy"], rounds=1, mqtt="3.1.1")
    assert {group.version for group in older.scenario.groups} == {"3.1.1"}
    newer = Contest(SCENARIO, "", ["canopy", "aedes"], rounds=1, mqtt="5.0")
    assert newer.comparison.entrants[1].failure == "left out: aedes has no MQTT 5.0, and the scenario needs it"
    groups = [group.model_copy(update={"session_expiry": 60}) for group in SCENARIO.groups]
    with pytest.raises(VersionConflict, match=r"groups\.subscribers\.session_expiry"):
        Contest(SCENARIO.model_copy(update={"groups": groups}), "", ["canopy"], rounds=1, mqtt="3.1.1")
