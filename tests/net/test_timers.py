"""The wheel, with a loop whose clock the test turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from canopy_mqtt.net.timers import CHECKS, RESOLUTION, TimerWheel, WheelItem


class Loop:
    """As much of an event loop as the wheel needs: a clock, and one timer."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[tuple[float, Callable[..., Any]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., Any]) -> Loop:
        self.due.append((self.now + delay, callback))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.due and self.due[0][0] <= end:
            self.now, callback = self.due.pop(0)
            callback()
        self.now = end


class Item(WheelItem):
    """Notes when it was looked at, and wants to be looked at again after `again` seconds (0.0: not)."""

    def __init__(self, again: float = 0.0) -> None:
        super().__init__()
        self.again = again
        self.seen: list[float] = []

    def check(self, now: float) -> float:
        self.seen.append(now)
        return now + self.again if self.again else 0.0


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def wheel(loop: Loop) -> TimerWheel:
    return TimerWheel(cast(asyncio.AbstractEventLoop, loop))


@pytest.mark.parametrize("delay", [0.0, 0.01, RESOLUTION, 1.0, 7.77])
def test_never_early_and_hardly_late(loop: Loop, wheel: TimerWheel, delay: float) -> None:
    item = Item()
    when = loop.now + delay
    wheel.add(item, when)
    loop.pass_time(20.0)
    assert len(item.seen) == 1
    assert when <= item.seen[0] <= when + 2 * RESOLUTION + 1e-6
    assert item.check_at == 0.0


def test_no_timer_while_nothing_is_due(loop: Loop, wheel: TimerWheel) -> None:
    assert not loop.due
    item = Item()
    wheel.add(item, loop.now + 1.0)
    assert len(loop.due) == 1
    wheel.add(Item(), loop.now + 2.0)
    assert len(loop.due) == 1
    loop.pass_time(3.0)
    assert not loop.due
    assert len(wheel) == 0


def test_the_earlier_time_counts(loop: Loop, wheel: TimerWheel) -> None:
    item = Item()
    start = loop.now
    wheel.add(item, start + 5.0)
    wheel.add(item, start + 1.0)
    wheel.add(item, start + 9.0)
    assert len(wheel) == 1
    loop.pass_time(20.0)
    assert len(item.seen) == 1
    assert item.seen[0] < start + 2.0


def test_one_that_wants_to_be_looked_at_again_is(loop: Loop, wheel: TimerWheel) -> None:
    item = Item(again=1.0)
    wheel.add(item, loop.now + 1.0)
    loop.pass_time(5.5)
    assert len(item.seen) == 4 or len(item.seen) == 5
    wheel.remove(item)
    seen = len(item.seen)
    loop.pass_time(5.0)
    assert len(item.seen) == seen
    assert not loop.due


def test_removed_by_the_look_of_another(loop: Loop, wheel: TimerWheel) -> None:
    class Remover(Item):
        def __init__(self) -> None:
            super().__init__()
            self.other: Item | None = None

        def check(self, now: float) -> float:
            assert self.other is not None
            wheel.remove(self.other)
            return super().check(now)

    first, second = Remover(), Remover()
    first.other, second.other = second, first
    wheel.add(first, loop.now + 1.0)
    wheel.add(second, loop.now + 1.0)
    loop.pass_time(3.0)
    assert len(first.seen) + len(second.seen) == 1


def test_closed(loop: Loop, wheel: TimerWheel) -> None:
    wheel.add(Item(), loop.now + 1.0)
    wheel.close()
    assert not loop.due
    assert len(wheel) == 0


class Failing(Item):
    """Raises whenever it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Exception] = []

    def check(self, now: float) -> float:
        super().check(now)
        raise RuntimeError("a fault")

    def check_failed(self, error: Exception) -> None:
        self.errors.append(error)


def test_one_that_raises_stops_nobody_else(loop: Loop, wheel: TimerWheel) -> None:
    failing = [Failing() for _ in range(3)]
    others = [Item(again=1.0) for _ in range(10)]
    for item in (*others[:5], *failing, *others[5:]):
        wheel.add(item, loop.now + 1.0)
    late = Item()
    wheel.add(late, loop.now + 3.0)
    loop.pass_time(5.5)
    assert all(len(item.seen) >= 4 for item in others)
    assert [len(item.errors) for item in failing] == [1, 1, 1]
    assert len(late.seen) == 1


def test_very_many_at_once_have_their_turns(loop: Loop, wheel: TimerWheel) -> None:
    """Not in one call of the event loop; but all of them, and none late."""
    items = [Item() for _ in range(10 * CHECKS)]
    when = loop.now + 1.0
    for item in items:
        wheel.add(item, when)
    most = 0
    while loop.due:
        before = sum(len(item.seen) for item in items)
        loop.now, turn = loop.due.pop(0)
        turn()
        most = max(most, sum(len(item.seen) for item in items) - before)
    assert most == CHECKS
    assert all(len(item.seen) == 1 and item.seen[0] <= when + 2 * RESOLUTION for item in items)
    assert len(wheel) == 0


def test_a_time_that_has_passed_is_not_forgotten(loop: Loop, wheel: TimerWheel) -> None:
    wheel.add(Item(), loop.now + 5.0)
    loop.pass_time(2.0)
    late = Item()
    wheel.add(late, loop.now - 1.5)
    loop.pass_time(2 * RESOLUTION)
    assert len(late.seen) == 1
