"""Who waits for a commit is told of it: not before, in order, in bounded turns, and not when he has left."""

from __future__ import annotations

import pytest
from mypy_extensions import i64

from canopy_mqtt.core.persistence.commits import RELEASE_TURN, Commits, Waiter


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


def test_nothing_is_pending_until_a_note_was_told() -> None:
    commits = Commits()
    assert not commits.pending()
    commits.journal_position += 1
    assert commits.pending()
    commits.advance(1)
    assert not commits.pending()


def test_an_earlier_number_is_not_put_off_by_a_later_one() -> None:
    commits, told = Commits(), list[tuple[str, int]]()
    waiter = Waiting("a", told)
    commits.journal_position = 1
    commits.wait(waiter)
    commits.journal_position = 5
    commits.wait(waiter)
    commits.advance(1)
    assert told == [("a", 1)]


def test_an_advance_that_says_nothing_new_releases_nobody() -> None:
    commits, told = Commits(), list[tuple[str, int]]()
    commits.journal_position = 4
    commits.advance(4)
    commits.journal_position = 5
    commits.wait(Waiting("a", told))
    commits.advance(4)
    commits.advance(3)
    assert told == []
    assert commits.committed == 4


def test_a_waiter_may_wait_again_when_it_is_told() -> None:
    told: list[tuple[str, int]] = []
    commits = Commits()

    class Again(Waiting):
        """Has something else that was told later."""

        def committed(self, number: i64) -> i64:
            if number < 2:
                commits.wait_for(self, 2)
            return super().committed(number)

    commits.journal_position = 1
    commits.wait(Again("a", told))
    commits.journal_position = 2
    commits.advance(1)
    assert (told, commits.waiting) == ([("a", 1)], 1)
    commits.advance(2)
    assert (told, commits.waiting) == ([("a", 1), ("a", 2)], 0)


def test_a_thousand_are_released_in_turns_and_each_once() -> None:
    commits, told = Commits(), list[tuple[str, int]]()
    woken: list[int] = []
    commits.wake = lambda: woken.append(commits.waiting)
    commits.journal_position = 1
    for number in range(1000):
        commits.wait(Waiting(f"{number}", told, 12))
    commits.advance(1)
    assert woken == [1000]
    assert told == []
    turns = 1
    while commits.release():
        turns += 1
        assert len(told) - 1 <= turns * RELEASE_TURN // 12
    assert turns >= 1000 * 12 // RELEASE_TURN
    assert told == [(f"{number}", 1) for number in range(1000)]


def test_those_who_come_and_go_between_two_turns_harm_nobody() -> None:
    commits, told = Commits(), list[tuple[str, int]]()
    commits.wake = lambda: None
    commits.journal_position = 1
    waiters = [Waiting(f"{number}", told, RELEASE_TURN) for number in range(4)]
    for waiter in waiters:
        commits.wait(waiter)
    commits.advance(1)
    assert commits.release()
    commits.journal_position = 2
    commits.wait(Waiting("late", told))
    for gone in waiters[1:3]:
        commits.leave(gone)
    while commits.release():
        pass
    assert told == [("0", 1), ("3", 1)]
    assert commits.waiting == 1
    commits.advance(2)
    while commits.release():
        pass
    assert told[2:] == [("late", 2)]


def test_what_one_raises_does_not_keep_the_others_back() -> None:
    told: list[tuple[str, int]] = []
    commits = Commits()
    commits.wake = lambda: None

    class Broken(Waiting):
        """Has a fault."""

        def committed(self, number: i64) -> i64:
            raise KeyError(number)

    commits.journal_position = 1
    for waiter in (Waiting("a", told), Broken("b", told), Waiting("c", told)):
        commits.wait(waiter)
    commits.advance(1)
    with pytest.raises(KeyError):
        commits.release()
    assert not commits.release()
    assert told == [("a", 1), ("c", 1)]


def test_a_store_that_fails_refuses_where_the_settings_say_so_or_when_it_is_full() -> None:
    commits = Commits()
    assert not commits.refuses(True)
    commits.fail()
    assert commits.refuses(True)
    assert not commits.refuses(False)
    commits.full = True
    assert commits.refuses(False)
    commits.recover()
    assert not commits.refuses(True)


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


def test_what_is_handed_in_while_a_turn_is_under_way_waits_for_its_place_in_it() -> None:
    """Each is told once, and nobody is passed over, where one who is told hands in another."""

    class Handing(Waiting):
        def committed(self, number: i64) -> i64:
            if commits.journal_position < 4:
                commits.journal_position += 1
                commits.hand(Waiting(f"handed {commits.journal_position}", told))
            return super().committed(number)

    commits, told = Commits(), list[tuple[str, int]]()
    commits.wake = lambda: None
    commits.journal_position = 2
    commits.wait(Handing("a", told))
    commits.wait(Handing("b", told))
    commits.advance(2)
    while commits.release():
        pass
    assert sorted(name for name, _ in told) == ["a", "b", "handed 3", "handed 4"]
    assert commits.waiting == 0
