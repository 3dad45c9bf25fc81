"""The pool of hashing threads: turns, bounds, and what becomes of those who give up."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from canopy_mqtt.security.passwords.hashing_pool import NICENESS, Busy, HashingPool
from tests.support.waiting import until


class Gate:
    """Work that waits in its thread until it is let through; who was done is listed in order."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.order: list[str] = []

    def work(self, name: str) -> Callable[[], bool]:
        def do() -> bool:
            self.open.wait(30)
            self.order.append(name)
            return True

        return do


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def pool(gate: Gate) -> AsyncIterator[HashingPool]:
    made = HashingPool(1, 4)
    yield made
    gate.open.set()
    await made.close()
    assert made.running == made.waiting == 0


def start(pool: HashingPool, host: str, work: Callable[[], bool]) -> asyncio.Task[bool]:
    return asyncio.get_running_loop().create_task(pool.run(host, work))


async def test_addresses_have_their_turns(pool: HashingPool, gate: Gate) -> None:
    tasks = [start(pool, "a", gate.work("a0"))]
    await until(lambda: pool.running == 1)
    tasks += [start(pool, "a", gate.work(f"a{at}")) for at in (1, 2)]
    await until(lambda: pool.waiting == 2)
    tasks.append(start(pool, "b", gate.work("b1")))
    await until(lambda: pool.waiting == 3)
    gate.open.set()
    assert await asyncio.gather(*tasks) == [True] * 4
    assert gate.order == ["a0", "a1", "b1", "a2"]
    assert pool.done == 4


async def test_a_full_list_takes_from_the_address_with_most(pool: HashingPool, gate: Gate) -> None:
    tasks = [start(pool, "a", gate.work(f"a{at}")) for at in range(5)]
    await until(lambda: pool.waiting == 4)
    with pytest.raises(Busy):
        await pool.run("a", gate.work("one too many"))
    other = start(pool, "b", gate.work("b"))
    with pytest.raises(Busy):
        await tasks[4]
    assert pool.waiting == 4
    gate.open.set()
    assert await asyncio.gather(*tasks[:4], other) == [True] * 5
    assert pool.refused == 2


async def test_who_gives_up_is_not_hashed_for(pool: HashingPool, gate: Gate) -> None:
    first = start(pool, "a", gate.work("a"))
    await until(lambda: pool.running == 1)
    second = start(pool, "b", gate.work("b"))
    await until(lambda: pool.waiting == 1)
    for task in (first, second):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert pool.waiting == 0
    gate.open.set()
    await until(lambda: pool.running == 0)
    assert gate.order == ["a"]


async def test_an_exception_reaches_its_caller_alone(pool: HashingPool, gate: Gate) -> None:
    def broken() -> bool:
        raise RuntimeError("a fault")

    gate.open.set()
    with pytest.raises(RuntimeError, match="a fault"):
        await pool.run("a", broken)
    assert await pool.run("a", gate.work("a"))


async def test_other_bounds(pool: HashingPool, gate: Gate) -> None:
    tasks = [start(pool, "a", gate.work("a")), start(pool, "a", gate.work("b"))]
    await until(lambda: pool.waiting == 1)
    pool.bound(2, 4)
    tasks.append(start(pool, "b", gate.work("c")))
    await until(lambda: pool.running == 2)
    gate.open.set()
    assert await asyncio.gather(*tasks) == [True] * 3


async def test_closing_refuses_those_that_wait(gate: Gate) -> None:
    pool = HashingPool(1, 4)
    first = start(pool, "a", gate.work("a"))
    await until(lambda: pool.running == 1)
    second = start(pool, "b", gate.work("b"))
    await until(lambda: pool.waiting == 1)
    gate.open.set()
    await pool.close()
    assert await first
    with pytest.raises(Busy):
        await second
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("canopy-hashing")]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own here")
async def test_the_event_loop_goes_first(pool: HashingPool, gate: Gate) -> None:
    gate.open.set()
    found: list[int] = []

    def look() -> bool:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return True

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    await pool.run("a", look)
    assert found == [max(before, NICENESS)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
