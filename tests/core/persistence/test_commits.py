"""Who is handed something is told of it in the next turn, and not when he has left."""

from __future__ import annotations

from mypy_extensions import i64

from canopy_mqtt.core.persistence.commits import Commits, Waiter


class Waiting(Waiter):
    """Writes down what it is told, among others."""

    def __init__(self, name: str, told: list[tuple[str, int]], things: int = 1) -> None:
        super().__init__()
        self.name = name
        self.told = told
        self.things = things

    def committed(self, number: i64) -> i64:
        """Nothing is left to wait for."""
        self.told.append((self.name, number))
        return self.things


def test_an_earlier_number_is_not_put_off_by_a_later_one() -> None:
    commits, told = Commits(), list[tuple[str, int]]()
    waiter = Waiting("a", told)
    commits.journal_position = 1
    commits.wait(waiter)
    commits.journal_position = 5
    commits.wait(waiter)
    commits.advance(1)
    assert told == [("a", 1)]


def test_who_is_handed_something_is_told_in_the_next_turn_whatever_is_committed() -> None:
    """Before those who wait for a number."""
    commits, told = Commits(), list[tuple[str, int]]()
    turns: list[str] = []
    commits.wake = lambda: turns.append("turn")
    commits.journal_position = 5
    commits.wait(Waiting("a", told))
    commits.advance(3)
    assert not commits.release()
    commits.hand(Waiting("b", told))
    commits.hand(Waiting("c", told))
    assert told == []
    assert turns == ["turn"] * 3
    assert not commits.release()
    assert told == [("c", 3), ("b", 3)]
    assert commits.waiting == 1
    commits.advance(5)
    assert not commits.release()
    assert told[2:] == [("a", 5)]


def test_one_who_was_handed_something_may_leave_before_he_is_told() -> None:
    commits, told = Commits(), list[tuple[str, int]]()
    commits.wake = lambda: None
    first, second = Waiting("a", told), Waiting("b", told)
    commits.hand(first)
    commits.hand(second)
    commits.leave(second)
    assert not commits.release()
    assert told == [("a", 0)]
    assert commits.waiting == 0
