"""The hybrid logical clock: writes in an order that all nodes agree on, also with clocks that are wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.mesh.retained.clock import COUNT_BITS, HybridClock, Stamp

AHEAD = 60.0


class Wall:
    """A wall clock that a test sets (s)."""

    def __init__(self, time: float = 1_000_000.0) -> None:
        self.time = time

    def __call__(self) -> float:
        return self.time


def made(wall: Wall, node: str = "a") -> HybridClock:
    return HybridClock(node, wall, AHEAD)


def stamp_at(seconds: float, node: str = "z") -> Stamp:
    return int(seconds * 1_000) << COUNT_BITS, node


@given(steps=st.lists(st.floats(-50.0, 50.0)))
def test_one_node_s_stamps_rise_whatever_its_clock_does_within_the_bound(steps: list[float]) -> None:
    wall = Wall()
    clock = made(wall)
    last = clock.tick(None)
    for step in steps:
        wall.time += step
        stamp = clock.tick(last)
        assert stamp > last
        last = stamp


def test_what_is_written_after_another_write_was_heard_of_is_later() -> None:
    clock = made(Wall(1_000.0), "a")
    other = stamp_at(1_050.0)
    assert clock.tick(None) < other
    assert clock.take_over(other)
    assert clock.tick(None) > other


def test_a_stamp_too_far_ahead_is_not_taken_over() -> None:
    clock = made(Wall(1_000.0))
    assert not clock.take_over(stamp_at(1_000.0 + AHEAD + 1.0))
    assert clock.tick(None) < stamp_at(1_001.0)
    assert clock.take_over(stamp_at(1_000.0 + AHEAD - 1.0))


def test_a_clock_that_was_set_back_goes_on_from_the_present_and_keeps_each_topic_in_order() -> None:
    wall = Wall(1_000_000.0)
    clock = made(wall)
    written = clock.tick(None)
    wall.time = 10_000.0
    assert clock.tick(None) < stamp_at(10_001.0)
    assert clock.tick(written) > written


def test_a_correction_is_never_higher_than_what_it_corrects() -> None:
    """Also where the topic's own stamp is too far ahead: two nodes would else correct each other for ever."""
    clock = made(Wall(1_000.0))
    wrong = stamp_at(90_000.0)
    assert clock.correct(None) < wrong
    assert clock.correct(stamp_at(90_000.0, "y")) < wrong
    mine = clock.tick(None)
    assert mine < clock.correct(mine) < wrong


def test_a_node_whose_clock_is_far_behind_goes_by_the_others() -> None:
    clock = made(Wall(10.0))
    clock.heard("b", 1_800_000_000_000)
    assert clock.take_over(stamp_at(1_800_000_000.0))
    assert clock.tick(None)[0] >> COUNT_BITS >= 1_800_000_000_000
    clock.forget("b")
    assert clock.shift == 0


def test_most_clocks_are_right() -> None:
    """A node does not follow one that is ahead of all, nor one that is behind or whose message came late."""
    clock = made(Wall(1_000_000.0))
    clock.heard("b", 1_000_000_500)
    clock.heard("c", 1_900_000_000)
    assert clock.shift == 0
    clock.heard("d", 10)
    clock.heard("e", 20)
    assert clock.shift == 0


def test_clocks_that_differ_by_less_are_left_alone() -> None:
    clock = made(Wall(1_000_000.0))
    clock.heard("b", 1_000_030_000)
    assert clock.shift == 0


def test_a_clock_that_is_wrong_is_news_once() -> None:
    clock = made(Wall(1_000_000.0))
    # 60 s is what may be.
    assert [clock.heard("b", 1_000_000_000 + ahead) for ahead in (60_000, 60_001, 90_000)] == [0.0, 60.001, 0.0]
    # It is set right, and then wrong the other way.
    assert [clock.heard("b", 1_000_000_000 - behind) for behind in (500, 61_000, 61_000)] == [0.0, -61.0, 0.0]
    clock.forget("b")
    assert clock.heard("b", 1_000_061_000) == 61.0
