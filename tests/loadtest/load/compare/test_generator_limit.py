"""The generator's own generator_limit."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from loadtest.brokers.registry import PEERS
from loadtest.load.compare import generator_limit
from loadtest.load.compare.generator_limit import LimitError, OwnLimit, judged, measure
from loadtest.load.compare.started_brokers import needs
from loadtest.load.engine.job import Audience, Job
from loadtest.load.report.result import Deliveries, Result
from tests.loadtest.load.compare.compared import result


def command_line(pid: int) -> str:
    """How a process was started."""
    return Path(f"/proc/{pid}/cmdline").read_text()


async def test_the_generator_plays_against_a_bare_server_of_its_own() -> None:
    seen: list[Job] = []

    async def play(job: Job, audience: Audience, stop: asyncio.Event | None = None) -> Result:
        del audience, stop
        seen.append(job)
        assert job.broker_pid is not None
        command = command_line(job.broker_pid)
        assert "loadtest.brokers.relay" in command
        assert str(job.targets[0].port) in command
        if job.cores:
            assert os.sched_getaffinity(job.broker_pid).isdisjoint(job.cores)
        return result(receive_rate=900_000.0, generator_cpu=0.9)

    before = os.sched_getaffinity(0)
    found = await measure(2.0, play)
    assert found == OwnLimit(900_000.0, 1_000_000.0)
    (job,) = seen
    assert job.processes == 1
    assert [stage.seconds for stage in job.scenario.stages if stage.measured] == [2.0]
    assert os.sched_getaffinity(0) == before
    assert job.broker_pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(job.broker_pid, 0)


def test_the_bare_server_can_do_what_is_played() -> None:
    assert not (needs(generator_limit.scenario(1.0)) & PEERS["relay"].lacks)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (result(receive_rate=0.0), "delivered nothing"),
        (result(generator_cpu=0.0), "delivered nothing"),
        (result(interrupted=True), "interrupted"),
        (result(deliveries=Deliveries(expected=5, lost=2)), "lost 2"),
        (result(deliveries=Deliveries(expected=5, altered=3)), "altered 3"),
    ],
)
def test_no_figure_where_none_can_be_trusted(run: Result, why: str) -> None:
    with pytest.raises(LimitError, match=why):
        judged(run)
