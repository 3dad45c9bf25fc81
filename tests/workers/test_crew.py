"""Workers that start again: side by side, whatever becomes of the others meanwhile."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.workers import crew as crews
from canopy_mqtt.workers import homes, process, wire
from canopy_mqtt.workers.crew import Crew
from canopy_mqtt.workers.lines import Newcomer
from canopy_mqtt.workers.process import Start, WorkerError, WorkerProcess
from canopy_mqtt.workers.rolling import Roll
from canopy_mqtt.workers.supervisor import Supervisor
from canopy_mqtt.workers.wire import ANY, Arrival, Channel, Source, encoded
from tests.support.waiting import until


class Fake:
    """A process by what is asked of it; a test answers."""

    def __init__(self, name: str, *_: Any) -> None:
        self.name = name
        self.pid = 0
        self.asked: dict[str, tuple[asyncio.Future[list[Any]], tuple[Any, ...]]] = {}
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        mine, self.its = socket.socketpair()
        self.channel = Channel(mine, print, lambda: None, print)

    async def begin(self) -> None:
        started.setdefault(self.name, []).append(self)

    async def ask(self, answer: str, *said: Any) -> list[Any]:
        future, _ = self.asked.setdefault(answer, (asyncio.get_running_loop().create_future(), said))
        await asyncio.wait((future, self.ended), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise WorkerError("ended")
        answered: list[Any] = future.result()
        return answered

    def stop(self) -> None:
        self.end()

    def kill(self) -> None:
        self.end()

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(0)
        self.channel.close()
        self.its.close()

    async def answer(self, answer: str, *found: Any) -> tuple[Any, ...]:
        """Answer what is asked, with its number if it has one, and return what was said."""

        def asked() -> list[str]:
            return [name for name in self.asked if name == answer or name.startswith(f"{answer} ")]

        await until(asked, f"{self.name} is asked for {answer}")
        future, said = self.asked.pop(asked()[0])
        future.set_result(list(found))
        return said


started: dict[str, list[Fake]] = {}


async def newest(name: str, number: int) -> Fake:
    """The process that is the so many-th of its name."""
    await until(lambda: len(started.get(name, [])) == number, f"{name} number {number}")
    return started[name][-1]


@pytest.fixture
async def crew(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Crew]:
    """Three workers that serve."""
    monkeypatch.setattr(crews, "WorkerProcess", Fake)
    monkeypatch.setattr(crews, "LINKING_AGAIN", 1_000.0)
    started.clear()
    made = Crew(Settings(workers={"count": 3}), structlog.get_logger(), False, print, 1_000, lambda *_: None)
    starting = asyncio.create_task(made.start([0]))
    all_of_them = [await newest(f"w{number}", 1) for number in range(3)]
    for answer in ("bound", "open"):
        for each in all_of_them:
            await each.answer(answer)
    for one in range(3):
        for other in {0, 1, 2} - {one}:
            await all_of_them[one].answer(f"linked w{other}")
    await starting
    yield made
    await made.stop()


def end(crew: Crew, worker: int) -> None:
    started[f"w{worker}"][-1].end()
    crew.empty(crew.slots[worker])


async def test_workers_that_are_killed_at_once_start_side_by_side(crew: Crew) -> None:
    for worker in (0, 1):
        end(crew, worker)
    starting = [asyncio.create_task(crew.again(crew.slots[worker])) for worker in (0, 1)]
    both = [await newest("w0", 2), await newest("w1", 2)]
    for answer in ("bound", "open"):
        for each in both:
            await each.answer(answer)
    # Each other, and the one that was there.
    for each, other in zip(both, (1, 0), strict=True):
        await each.answer("linked w2")
        await each.answer(f"linked w{other}")
        await started["w2"][0].answer(f"linked w{1 - other}")
    await asyncio.gather(*starting)
    assert all(slot.line.open for slot in crew.slots)


async def test_a_start_does_not_wait_for_a_worker_that_starts_or_ends(crew: Crew) -> None:
    end(crew, 1)
    hangs = asyncio.create_task(crew.again(crew.slots[1]))
    await newest("w1", 2)
    end(crew, 0)
    again = asyncio.create_task(crew.again(crew.slots[0]))
    first = await newest("w0", 2)
    await first.answer("bound")
    await first.answer("open")
    await until(lambda: "linked w2" in first.asked)
    assert "linked w1" not in first.asked
    started["w2"][0].end()
    await again
    assert crew.slots[0].line.open
    hangs.cancel()


async def test_a_worker_serves_though_others_do_not_link_with_it(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "LINKING_AGAIN", 0.01)
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    end(crew, 1)
    again = asyncio.create_task(crew.again(crew.slots[1]))
    process = await newest("w1", 2)
    await process.answer("bound")
    await process.answer("open")
    await again
    assert crew.slots[1].line.open
    gc.collect()
    assert told == []


async def test_a_stop_waits_for_a_worker_that_ends_for_a_rolling_restart(crew: Crew) -> None:
    process = started["w0"][-1]
    stops: list[str] = []
    process.stop = lambda: stops.append("asked")  # type: ignore[method-assign]
    rolling = asyncio.create_task(Roll(crew, structlog.get_logger()).run(Settings(workers={"count": 3})))
    await until(lambda: stops, "it is to end")
    # As the supervisor does at its own end.
    rolling.cancel()
    stopping = asyncio.create_task(crew.stop())
    await until(lambda: all(started[name][-1].ended.done() for name in ("w1", "w2")), "the others have ended")
    assert not stopping.done()
    process.end()
    await stopping


async def test_a_worker_is_asked_what_it_uses_before_it_serves(crew: Crew) -> None:
    """So it has its parts of all limits before it has a client."""
    end(crew, 1)
    starting = asyncio.create_task(crew.again(crew.slots[1]))
    process = await newest("w1", 2)
    await process.answer("bound")
    await until(lambda: "open" in process.asked)
    got: list[tuple[Any, ...]] = []
    other = Channel(process.its, lambda *said: got.append(said), lambda: None, print)
    await until(lambda: got == [(None, "parts", [], {})])
    other.close()
    process.end()
    with pytest.raises(WorkerError):
        await starting


async def test_a_reload_waits_for_no_start_and_reaches_it_all_the_same(crew: Crew) -> None:
    end(crew, 1)
    again = asyncio.create_task(crew.again(crew.slots[1]))
    starts = await newest("w1", 2)
    said = await starts.answer("bound")
    assert isinstance(said[0], Start)
    assert said[0].settings.mqtt.max_keep_alive == 0
    new = Settings(workers={"count": 3}, mqtt={"max_keep_alive": 77})
    for takes in (False, True):
        reload = asyncio.create_task(crew.reload(takes, new))
        for name in ("w0", "w2"):
            assert (await started[name][0].answer("reloaded", [], []))[2] is takes
        await reload
    await starts.answer("open")
    said = await starts.answer("reloaded", [], [])
    assert (said[2], said[3].mqtt.max_keep_alive) == (True, 77)
    for other in (0, 2):
        await starts.answer(f"linked w{other}")
        await started[f"w{other}"][0].answer("linked w1")
    await again


async def test_a_worker_that_cannot_use_what_came_while_it_started_does_not_serve(crew: Crew) -> None:
    end(crew, 1)
    again = asyncio.create_task(crew.again(crew.slots[1]))
    starts = await newest("w1", 2)
    await starts.answer("bound")
    reload = asyncio.create_task(crew.reload(True, Settings(workers={"count": 3}, mqtt={"max_keep_alive": 77})))
    for name in ("w0", "w2"):
        await started[name][0].answer("reloaded", [], [])
    await reload
    await starts.answer("open")
    await starts.answer("reloaded", ["acl cannot be read"], [])
    with pytest.raises(WorkerError, match="acl cannot be read"):
        await again
    assert starts.ended.done()
    assert not crew.slots[1].line.open


async def test_a_start_that_takes_long_is_told(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "TELL", 0.001)
    told: list[dict[str, str]] = []
    monkeypatch.setattr(crew, "_log", SimpleNamespace(warning=lambda _, **fields: told.append(fields)))
    end(crew, 1)
    again = asyncio.create_task(crew.again(crew.slots[1]))
    for answer in ("bound", "open"):
        before = len(told)
        await until(lambda before=before: len(told) > before)  # type: ignore[misc]
        await (await newest("w1", 2)).answer(answer)
    assert told[0] == {"worker": "w1"}
    again.cancel()


async def test_each_reload_has_answers_of_its_own(crew: Crew) -> None:
    first, second = (asyncio.create_task(crew.reload(False, Settings(workers={"count": 3}))) for _ in range(2))
    for problems in (["the first"], []):
        for name in ("w0", "w1", "w2"):
            await started[name][0].answer("reloaded", problems, [])
    with pytest.raises(SettingsError, match="the first"):
        await first
    assert await second == []


async def test_a_reload_with_another_number_allows_only_what_the_number_in_force_does() -> None:
    supervisor = Supervisor(Settings(workers={"count": 2}), False, print)
    new = Settings(store={"url": "postgresql://localhost/x"})
    assert new.workers.count == 1
    with pytest.raises(SettingsError, match=r"store\.url"):
        await supervisor.reload(new)


async def test_whoever_any_worker_can_serve_goes_to_another_when_one_ends(crew: Crew) -> None:
    supervisor = Supervisor(Settings(workers={"count": 3}), False, print)
    supervisor._crew, supervisor._roll = crew, Roll(crew, supervisor.log)
    slot, other = crew.slots[:2]
    started["w2"][0].end()
    crew.empty(crew.slots[2])
    client, accepted = socket.socketpair()
    accepted.setblocking(False)
    slot.line.add(Newcomer(Arrival(0, ANY, 5, False, None, b"", until=1e9), accepted))
    keeping = asyncio.create_task(supervisor._keep(slot))
    started["w0"][0].end()
    await until(lambda: len(other.line) == 1)
    assert len(slot.line) == 0
    keeping.cancel()
    client.close()


async def test_a_client_that_comes_again_is_passed_to_its_worker_before_its_handshake(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another one would make that, and copy its bytes from then on."""
    monkeypatch.setattr(homes, "APART", -1.0)
    supervisor = Supervisor(Settings(workers={"count": 3}), False, print)
    supervisor._crew = crew
    host = "192.0.2.1"
    for worker in (2, 0):
        line = crew.slots[worker].line
        known = Arrival(0, worker, 5, False, Source("text", host, 1, None), b"", until=1e9)
        unknown = Arrival(0, ANY, 0, False, None, b"", until=1e9)
        supervisor._relayed(known, socket.socket())
        line.taken()
        for _ in range(4):
            supervisor._pass_on(Newcomer(unknown, socket.socket(), host))
            assert len(line) == 1
            line.taken()


@pytest.mark.parametrize(("most", "count"), [(416, 16), (64, 64), (65_536, 2)])
async def test_lines_have_no_more_room_than_there_is(most: int, count: int) -> None:
    made = Crew(Settings(workers={"count": count}), structlog.get_logger(), False, print, most, lambda *_: None)
    lines = [slot.line for slot in made.slots]
    assert sum(line._part for line in lines) + lines[0]._room.left <= most
    assert all(line._part for line in lines)


@pytest.fixture
async def forked(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[WorkerProcess, socket.socket]]:
    """A worker whose process does nothing, and its side of the conversation."""
    nothing = await asyncio.create_subprocess_exec("sleep", "1000")
    sides: list[socket.socket] = []

    class Forks:
        async def fork(self, sock: socket.socket, _: socket.socket) -> tuple[int, asyncio.Future[int]]:
            sides.append(sock.dup())
            return nothing.pid, asyncio.ensure_future(nothing.wait())

    monkeypatch.setattr(process, "nursery", Forks)
    monkeypatch.setattr(process, "PING", 0.0)
    monkeypatch.setattr(process, "STARTING", 0.5)
    worker = WorkerProcess("w0", structlog.get_logger(), False, print, print, {})
    await worker.begin()
    yield worker, sides[0]
    if nothing.returncode is None:
        nothing.kill()
    sides[0].close()
    await worker.ended


async def test_a_worker_that_hangs_while_it_starts_is_killed(
    forked: tuple[WorkerProcess, socket.socket],
) -> None:
    with pytest.raises(WorkerError, match="worker w0 ended by signal 9"):
        await forked[0].ask("bound")


async def test_a_supervisor_that_stood_still_kills_no_worker_that_answers(
    forked: tuple[WorkerProcess, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, its = forked
    kills: list[str] = []
    monkeypatch.setattr(worker, "kill", lambda: kills.append("killed"))
    its.setblocking(False)
    asked: list[str] = []

    def answer(_: None, what: str) -> None:
        asked.append(what)
        other.send("pong")
        monkeypatch.setattr(process, "PING", 1_000.0)
        late = time.monotonic() + (0.6 if len(asked) == 1 else 0.0)
        while time.monotonic() < late:
            pass

    other = Channel(its, answer, lambda: None, print)
    await until(lambda: asked and worker._answers["pong"].done())
    for _ in range(5):
        await asyncio.sleep(0)
    assert kills == []
    other.close()


async def test_what_an_ended_worker_had_taken_counts_however_late_it_is_read(
    forked: tuple[WorkerProcess, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next process would get these connections, too."""
    worker, its = forked
    taken: list[None] = []
    worker._heard = {"taken": lambda: taken.append(None)}
    monkeypatch.setattr(process, "LAST_WORDS", 0.0)
    asyncio.get_running_loop().remove_reader(worker.channel._sock.fileno())
    monkeypatch.setattr(wire, "READ", 16)
    monkeypatch.setattr(wire, "READS", 1)
    its.send(encoded("taken") * 200)
    worker.kill()
    await worker.ended
    assert len(taken) == 200


async def test_a_connection_that_a_worker_passes_on_has_the_time_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is counted under its client's address; without a time limit it waits for a while."""
    passed: list[Newcomer] = []
    monkeypatch.setattr(Supervisor, "_pass_on", lambda _, newcomer: passed.append(newcomer))
    arrival = Arrival(0, 1, 5, False, Source("text", "192.0.2.1", 1, None), b"", until=5.0)
    with socket.socket() as sock:
        for limit in (10.0, 0.0):
            Supervisor(Settings(workers={"count": 2}, limits={"connect_timeout": limit}), False, print)._relayed(
                arrival, sock
            )
    first, second = passed
    assert (first.arrival.until, first.host) == (5.0, "192.0.2.1")
    assert second.arrival.until > asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("name", "value"), [("max_connect_rate", 9.0), ("path", "/other"), ("origins", ("http://a",)), ("mount", "site/")]
)
def test_what_the_supervisor_does_at_a_listener_takes_a_restart(name: str, value: Any) -> None:
    """What workers do there does not: they have it after a rolling restart."""
    table = {"url": "ws://127.0.0.1:0", "name": "main"}
    supervisor = Supervisor(Settings(workers={"count": 2}, listener=[table]), False, print)
    supervisor._crew = cast(Any, SimpleNamespace(gate=SimpleNamespace(counts=True)))
    made, lines = supervisor._as_they_are(Settings(workers={"count": 2}, listener=[table | {name: value}]))
    assert lines == ([] if name == "mount" else [f'listener "main": another {name} takes a restart'])
    assert (getattr(made.listeners[0], name) == value) == (name == "mount")


def test_no_limit_on_connections_begins_with_a_reload() -> None:
    """Those that are there were not counted."""
    supervisor = Supervisor(Settings(workers={"count": 2}), False, print)
    for counts in (False, True):
        supervisor._crew = cast(Any, SimpleNamespace(gate=SimpleNamespace(counts=counts)))
        new = Settings(workers={"count": 2}, limits={"max_connections": 7, "max_topic_levels": 3})
        made, lines = supervisor._as_they_are(new)
        assert (made.limits.max_connections, made.limits.max_topic_levels) == (7 if counts else 0, 3)
        assert len(lines) == (not counts)
