"""Canopy keeps what it promises: in this process with many short plans, and as a daemon that is killed."""

from __future__ import annotations

import os

import pytest

from canopy_load.engine.job import Target
from canopy_load.prove.brokers.driver import find
from canopy_load.prove.brokers.started import started
from canopy_load.prove.faults import CLIENT_FAULTS, Fault
from canopy_load.prove.judge import judge
from canopy_load.prove.plan import make
from canopy_load.prove.play import play
from canopy_mqtt import Broker, Settings
from tests.loadtest.prove.proving import RATE, broken, jumping, reported
from tests.support.runs import LONG

KNOWN = {"mosquitto": {"will too early", "lost", "lost to a group"}}
"""What docs/prove.md says has been found, by broker."""


@pytest.mark.parametrize("seed", range(40 if LONG else 2))
@jumping
async def test_nothing_is_broken_by_faults_of_clients(seed: int) -> None:
    async with Broker(Settings(listen=["mqtt://127.0.0.1:0"])) as broker:
        proof = await play(make(seed, 2, CLIENT_FAULTS, RATE), [Target("127.0.0.1", broker.ports[0])])
    judgement = judge(proof)

    assert broken(judgement) == set()
    assert reported(judgement).code == 0
    assert judgement.proof.notes == {}


@pytest.mark.long
@pytest.mark.parametrize("name", ["canopy", "mosquitto"])
async def test_a_broker_that_is_killed_stopped_and_restarted_keeps_its_promises(name: str) -> None:
    driver = find(name)
    if driver.missing is not None:
        pytest.skip(driver.missing)
    plan = make(1, 3, (Fault.KILL, Fault.STOP, Fault.RESTART), RATE)
    async with started(driver) as broker:
        proof = await play(plan, broker.targets, broker=broker, processes=lambda: [os.getpid(), *broker.processes])
    judgement = judge(proof, driver.durability)

    assert [fault for _, _, fault in proof.outages if fault is Fault.KILL]
    assert broken(judgement) <= KNOWN.get(name, set())
