"""Questions between processes: answered, or known to be not, in bounded time."""

from __future__ import annotations

import asyncio
import socket
import stat
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from canopy_mqtt.workers import asking
from canopy_mqtt.workers.asking import SUPERVISOR, Answering, Away, Siblings
from tests.support.waiting import until

Start = Callable[..., Awaitable[Answering]]


@pytest.fixture
async def start(tmp_path: Path, stack: AsyncExitStack) -> Start:
    async def started(name: str, broke: Callable[[str, Exception], None], **answers: Any) -> Answering:
        made = Answering(tmp_path, name, answers, broke)
        await made.start()
        stack.push_async_callback(made.stop)
        return made

    return started


def never(place: str, error: Exception) -> None:
    raise AssertionError(place) from error


async def test_an_answer_comes_whole(start: Start, tmp_path: Path) -> None:
    async def double(text: str) -> str:
        return text * 2

    await start("w1", never, double=double)
    assert await Siblings(tmp_path, 0, 2, never).ask("w1", "double", "x" * 500_000) == "x" * 1_000_000


async def test_who_is_not_there_is_away(tmp_path: Path) -> None:
    with pytest.raises(Away, match="w1"):
        await Siblings(tmp_path, 0, 2, never).ask("w1", "anything")


async def test_an_answer_that_fails_is_a_fault_there_and_none_here(start: Start, tmp_path: Path) -> None:
    async def fail() -> None:
        raise ValueError("broken")

    faults: list[str] = []
    await start("w1", lambda _, error: faults.append(str(error)), fail=fail)
    with pytest.raises(Away):
        await Siblings(tmp_path, 0, 2, never).ask("w1", "fail")
    assert faults == ["broken"]


async def test_who_hangs_is_waited_for_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(tmp_path / "w1.ask"))
        hung.listen()
        siblings = Siblings(tmp_path, 0, 2, never)
        with pytest.raises(Away):
            await siblings.ask("w1", "anything", patience=0.01)
        # Not asked again: this patience would not end.
        with pytest.raises(Away):
            await asyncio.wait_for(siblings.ask("w1", "anything", patience=3_600.0), 30.0)


async def test_nothing_is_done_for_a_question_whose_time_is_over(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still finds what it was asked meanwhile."""
    done: list[str] = []

    async def do(what: str) -> None:
        done.append(what)

    await start("w1", never, do=do)
    siblings = Siblings(tmp_path, 0, 2, never)
    now = time.monotonic()
    with monkeypatch.context() as patch:
        # Each look at the clock is a minute later.
        clock = count(now, 60.0)
        patch.setattr(asking, "time", SimpleNamespace(monotonic=lambda: next(clock)))
        with pytest.raises(Away):
            await siblings.ask("w1", "do", "late")
    await siblings.ask("w1", "do", "now")
    assert done == ["now"]


async def test_who_needed_longer_than_most_may_is_asked_again_at_once(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor serves while a reload takes long."""
    monkeypatch.setattr(asking, "PATIENCE", 0.01)

    async def wait(forever: bool) -> str:
        await asyncio.sleep(3_600.0 * forever)
        return "here"

    await start(SUPERVISOR, never, wait=wait)
    siblings = Siblings(tmp_path, 0, 2, never)
    with pytest.raises(Away):
        await siblings.ask(SUPERVISOR, "wait", True, patience=0.02)
    assert await siblings.ask(SUPERVISOR, "wait", False, patience=60.0) == "here"


async def test_who_hung_is_asked_again_later(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "SILENT", 0.0)
    wake = asyncio.Event()

    async def wait() -> str:
        await wake.wait()
        return "here"

    await start("w1", never, wait=wait)
    siblings = Siblings(tmp_path, 0, 2, never)
    with pytest.raises(Away):
        await siblings.ask("w1", "wait", patience=0.01)
    wake.set()
    assert await siblings.ask("w1", "wait") == "here"


async def test_a_socket_whose_file_was_removed_is_opened_again(start: Start, tmp_path: Path) -> None:
    async def yes() -> bool:
        return True

    answering = await start("w1", never, yes=yes)
    (tmp_path / "w1.ask").unlink()
    await answering.renew()
    assert await Siblings(tmp_path, 0, 2, never).ask("w1", "yes")
    assert stat.S_ISSOCK((tmp_path / "w1.ask").stat().st_mode)


async def test_to_stop_amid_a_question_is_no_fault(start: Start, tmp_path: Path) -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    answering = await start("w1", never)
    _, writer = await asyncio.open_unix_connection(tmp_path / "w1.ask")
    await until(lambda: answering._tasks, "the question begins")
    await answering.stop()
    await asyncio.sleep(0)
    writer.close()
    assert faults == []
