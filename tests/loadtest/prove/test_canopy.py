"""Canopy keeps what it promises: in this process with many short plans, and as a daemon that is killed."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from canopy_load.brokers.process import BrokerFailed, BrokerProcess
from canopy_load.engine.job import Target
from canopy_load.prove import brokers
from canopy_load.prove.brokers import DRIVERS, started
from canopy_load.prove.judge import judge
from canopy_load.prove.plan import CLIENT_FAULTS, Fault, make
from canopy_load.prove.play import Proof, play
from canopy_mqtt import Broker, Settings
from tests.loadtest.prove.proving import RATE, JumpingLoop, broken
from tests.support.runs import LONG

KNOWN = {"mosquitto": {"will too early", "lost", "lost to a group"}}
"""What docs/prove.md says has been found, by broker."""


@pytest.mark.parametrize("seed", range(40 if LONG else 2))
def test_nothing_is_broken_by_faults_of_clients(seed: int) -> None:
    async def main() -> Proof:
        async with Broker(Settings(listen=["mqtt://127.0.0.1:0"])) as broker:
            return await play(make(seed, 2, CLIENT_FAULTS, RATE), [Target("127.0.0.1", broker.ports[0])])

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        judgement = judge(runner.run(main()))

    assert broken(judgement) == set()
    assert judgement.code == 0
    assert judgement.proof.notes == {}


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(DRIVERS))
async def test_a_broker_that_is_killed_stopped_and_restarted_keeps_its_promises(name: str) -> None:
    driver = DRIVERS[name]
    if driver.missing is not None:
        pytest.skip(driver.missing)
    plan = make(1, 3, (Fault.KILL, Fault.STOP, Fault.RESTART), RATE)
    async with started(driver) as broker:
        proof = await play(plan, [broker.target], broker=broker)
    judgement = judge(proof, driver.durability)

    assert [fault for _, _, fault in proof.outages if fault is Fault.KILL]
    assert broken(judgement) <= KNOWN.get(name, set())


async def test_a_broker_that_ends_by_itself_is_no_fault_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    made = noted(monkeypatch)

    async with started(DRIVERS["canopy"]) as broker:
        pid = made[0].pid
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(BrokerFailed, match="the broker ended with code -9"):
            broker.check()
        with pytest.raises(BrokerFailed, match="the broker ended with code -9"):
            await broker.inflict(Fault.KILL)


async def test_a_restart_that_needs_a_kill_is_no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(DRIVERS["canopy"]) as broker:
        monkeypatch.setattr(brokers, "PATIENCE", 0.0)
        await broker.inflict(Fault.STOP)
        with pytest.raises(BrokerFailed, match="had not ended"):
            await broker.inflict(Fault.RESTART)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[BrokerProcess]:
    """Return a list to which every process of a broker is added."""
    made: list[BrokerProcess] = []
    begin = BrokerProcess.__init__

    def init(self: BrokerProcess, *given: object) -> None:
        begin(self, *given)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(BrokerProcess, "__init__", init)
    return made


async def test_a_broker_has_ended_when_its_block_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is stopped, and does not hear SIGTERM."""
    made = noted(monkeypatch)
    async with started(DRIVERS["canopy"]) as broker:
        pid = made[0].pid
        await broker.inflict(Fault.STOP)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
