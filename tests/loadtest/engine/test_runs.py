"""What a run owes to the one who waits for it: processes that agree on their seconds, signals that are heard, and bad
input that is refused before anything has happened."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from canopy_load.engine.clients.client_pool import ClientPool
from canopy_load.engine.clients.connection import clock
from canopy_load.engine.job import Job, Target
from canopy_load.engine.process_messages import Assignment, Connect, Finish, Interval, ProcessOutcome, Start, Stop
from canopy_load.engine.schedule import NEVER
from canopy_load.engine.worker import Worker
from canopy_load.report import report_files
from tests.loadtest.playing import reader, scenario, sender, stage


class Ear:
    """A line that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def send(self, message: object) -> None:
        self.said.append(message)

    def seconds(self) -> list[tuple[str, int, int]]:
        return [(each.stage, each.begin, each.end) for each in self.said if isinstance(each, Interval)]


async def test_processes_that_are_stopped_have_the_same_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientPool, "connect", lambda *_: None)
    what = scenario(sender(), reader(), stages=[stage(60)])
    ears = [Ear(), Ear()]
    both = Job(what, "", [Target("127.0.0.1", 1)], processes=2)
    workers = [
        Worker(ear, Assignment(both, "00000001", number, None, 0))  # type: ignore[arg-type]
        for number, ear in enumerate(ears)
    ]
    runs = [asyncio.create_task(worker.run()) for worker in workers]
    now = clock()
    for worker in workers:
        worker.order(Connect(now))
        worker.order(Start(now + 1000))
    end = now + 500_000
    workers[0].order(Stop(end))
    await asyncio.sleep(0)  # the other process hears of it later
    workers[1].order(Stop(end))
    while not all(worker._over for worker in workers):  # noqa: ASYNC110 - a worker tells nobody but the conductor
        await asyncio.sleep(0.001)
    for worker in workers:
        worker.order(Finish())
    await asyncio.gather(*runs)
    first, second = (ear.seconds()[:-1] for ear in ears)
    assert first == second == [("connect", now, now + 1000), ("go", now + 1000, end)]
    assert all(isinstance(ear.said[-1], ProcessOutcome) for ear in ears)


async def test_nothing_is_sent_that_is_due_after_the_end() -> None:
    """Where the loop is late for the end, it may look at what is due first."""
    assigned = Assignment(Job(scenario(sender()), "", [Target("127.0.0.1", 1)]), "00000001", 0, None, 0)
    one = Worker(Ear(), assigned)  # type: ignore[arg-type]
    looked: list[float] = []

    class SendScheduler:
        def run(self, now: float) -> float:
            looked.append(now)
            return NEVER

    one._pool.scheduler = SendScheduler()  # type: ignore[assignment]
    end = clock() - 1000
    one.order(Stop(end))
    one._due()
    assert looked == []
    while not one._over:  # noqa: ASYNC110 - a worker tells nobody but the conductor
        await asyncio.sleep(0.001)
    assert looked == [end]
    one.hang_up()
    await one.run()
    for timer in [*one._timers, one._looking]:
        assert timer is not None
        timer.cancel()


def test_a_port_that_is_none_is_not_another() -> None:
    with pytest.raises(ValueError, match="port 0"):
        Target.parse("mqtt://127.0.0.1:0")
    assert Target.parse("mqtt://[::1]") == Target("::1", 1883)


def test_a_folder_that_cannot_be_written_to_is_known_before_the_run(tmp_path: Path) -> None:
    report_files.check(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == [], "and it leaves nothing"
    (tmp_path / "file").write_text("")
    with pytest.raises(report_files.ReportError, match="cannot be written"):
        report_files.check(tmp_path / "file" / "a")
    with pytest.raises(report_files.ReportError, match="cannot be written"):
        report_files.check(Path("/proc/nothing/a"))
