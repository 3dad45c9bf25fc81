"""Places that are taken in turns by address, however many one address asks for."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from canopy_mqtt.security.fair_semaphore import FairSemaphore, QueueFull
from tests.support.runs import examples


async def ask(places: FairSemaphore, hosts: str) -> list[asyncio.Task[None]]:
    """One task for each letter, each of which has asked."""
    tasks = [asyncio.create_task(places.take(host), name=host) for host in hosts]
    await asyncio.sleep(0)
    return tasks


def has_place(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def test_who_is_given_a_place_and_gives_up_in_the_same_moment_gives_it_back() -> None:
    places = FairSemaphore(1, 4)
    tasks = await ask(places, "ab")
    places.give_back()
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert places.taken == 0
    await places.emptied()


class Crowd(RuleBasedStateMachine):
    """Whatever happens in whatever order: no place is lost, and none is given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.places = self.loop.run_until_complete(self._made())
        self.tasks: list[asyncio.Task[None]] = []

    async def _made(self) -> FairSemaphore:
        return FairSemaphore(2, 3)

    def run(self, what: Any) -> Any:
        async def settled() -> Any:
            found = await what
            for _ in range(3):
                await asyncio.sleep(0)
            return found

        return self.loop.run_until_complete(settled())

    @rule(host=st.sampled_from("abc"))
    def asks(self, host: str) -> None:
        self.tasks += self.run(ask(self.places, host))

    @rule(at=st.integers(0, 20))
    def gives_back_or_gives_up(self, at: int) -> None:
        async def change() -> None:
            if self.tasks:
                task = self.tasks.pop(at % len(self.tasks))
                if has_place(task):
                    self.places.give_back()
                else:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

        self.run(change())

    @invariant()
    def adds_up(self) -> None:
        states = Counter("has" if has_place(task) else "waits" for task in self.tasks if not _refused(task))
        assert states["has"] == self.places.taken <= 2
        assert states["waits"] == self.places.waiting <= 3
        assert self.places.waiting == 0 or self.places.taken == 2

    def teardown(self) -> None:
        async def end() -> None:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

        self.loop.run_until_complete(end())
        self.loop.close()


def _refused(task: asyncio.Task[None]) -> bool:
    return task.done() and isinstance(task.exception(), QueueFull)


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(deadline=None, max_examples=examples(50))
