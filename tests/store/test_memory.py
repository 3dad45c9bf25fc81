"""What the store in memory has alone, and the two clocks that all stores turn times over with."""

from __future__ import annotations

import pytest

from broker.core.principal import Principal
from broker.core.queues.delivery import Delivery
from broker.core.queues.message import Message
from broker.store import MemoryStore
from broker.store.base import BELIEVED, Times
from tests.store.observed import at_once
from tests.store.places import Clock


def test_a_wall_clock_that_is_set_moves_what_comes_later_only() -> None:
    wall, clock = Clock(0.0), Clock(100.0)
    times = Times(wall)
    times.start(clock)
    before = times.lasting(110.0)
    wall.now = 1_000_000.0
    assert before == 10.0
    assert times.lasting(110.0) == 1_000_010.0
    assert times.left(1_000_010.0) == 10.0


def test_a_retained_message_is_that_of_the_deliveries() -> None:
    """Payloads stand once."""
    store = MemoryStore()
    at_once(store.open(Clock(1.0)))
    shared = Message(b"a", b"1", 1, True, b"", 0.0, "p")
    store.journal.session_kept("c", Principal("u"), 300, 0.0)
    store.journal.queued("c", Delivery(shared, 1, False, (), None))
    store.journal.retained_set(shared)
    saved = at_once(store.load())
    assert saved.sessions[0].deliveries[0].message is saved.retained[0]


class TestWrongClock:
    """A wall clock that is wrong by decades, as where no battery keeps it."""

    TRUE = 1_800_000_000.0

    def of_2026(self) -> tuple[float, float]:
        """What a broker notes, at the true time."""
        times = Times(Clock(self.TRUE))
        times.start(Clock(5.0))
        note = times.note()
        assert note is not None
        return note

    @pytest.mark.parametrize("wrong", [0.0, 2 * TRUE])
    def test_at_a_start_no_time_has_passed(self, wrong: float) -> None:
        times = Times(Clock(wrong))
        times.start(Clock(1.0), self.of_2026())
        assert times.left(self.TRUE + 60.0) == 60.0
        assert times.jumped == wrong - self.TRUE

    @pytest.mark.parametrize("wrong", [0.0, 2 * TRUE])
    def test_that_is_put_right_while_a_broker_runs(self, wrong: float) -> None:
        wall, clock = Clock(wrong), Clock(1.0)
        times = Times(wall)
        times.start(clock, self.of_2026())
        clock.now += 10.0
        wall.now = self.TRUE + 10.0
        assert times.lasting(clock.now) == self.TRUE + 10.0
        # The next broker begins with a clock that is right, and half a minute was between them.
        after = Times(Clock(self.TRUE + 40.0))
        after.start(Clock(2.0), times.note())
        assert after.left(self.TRUE + 60.0) == 20.0

    def test_of_the_first_broker_of_all(self) -> None:
        wall, clock = Clock(0.0), Clock(1.0)
        times = Times(wall)
        times.start(clock)
        ends = times.lasting(clock.now + 60.0)
        wall.now = self.TRUE
        assert times.left(ends) == 60.0
        after = Times(Clock(self.TRUE + 30.0))
        after.start(Clock(2.0), times.note())
        assert after.left(ends) == 30.0

    def test_half_a_year_is_believed(self) -> None:
        times = Times(Clock(self.TRUE + BELIEVED / 2))
        times.start(Clock(1.0), self.of_2026())
        assert times.left(self.TRUE + 60.0) == 60.0 - BELIEVED / 2
        assert times.jumped == 0.0

    def test_it_is_noted_each_hour_and_when_it_jumped(self) -> None:
        wall, clock = Clock(self.TRUE), Clock(1.0)
        times = Times(wall)
        times.start(clock, self.of_2026())
        assert times.note() is None
        wall.now += 3_600.0
        clock.now += 3_600.0
        assert times.note() == (wall.now, 0.0)
        wall.now = 7.0
        assert times.note() == (7.0, self.TRUE + 3_600.0 - 7.0)
        assert times.note() is None
