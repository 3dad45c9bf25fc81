"""Events of several workers with numbers of one counter."""

from __future__ import annotations

import pytest

from broker.record.workers import numbering
from broker.record.workers.numbering import Numbering, Places, Walks
from tests.record.scenes import Tape, messages, without_nulls


def rows(batches: list[object]) -> list[dict[str, object]]:
    return [row for each in batches for row in without_nulls(each.to_pylist())]  # type: ignore[attr-defined]


def test_what_several_did_is_in_the_order_of_its_time_with_numbers_that_go_on() -> None:
    one, two = Tape(run_id="aaaaaaaa"), Tape(run_id="bbbbbbbb")
    for turn in range(3):
        for tape in (one, two):
            one.time = two.time = one.time + 1
            messages(tape, 1, f"{turn}{'one' if tape is one else 'two'}")
    given = rows(Numbering(7, "cccccccc").give([*one.record_batch(), *two.record_batch()], several=True))
    assert [row["topic"] for row in given] == ["0one", "0two", "1one", "1two", "2one", "2two"]
    assert [row["seq"] for row in given] == list(range(8, 14))
    assert {row["run_id"] for row in given} == {"cccccccc"}


def test_a_gap_takes_the_numbers_that_it_names() -> None:
    """So that of all numbers each is in a row, or a gap names it."""
    tape = Tape()
    messages(tape, 1)
    tape.tap.seq += 5
    tape.tap.gap(2, 6, "queue-full")
    messages(tape, 1)
    counter = Numbering(100, "cccccccc")
    given = rows(counter.give(tape.record_batch(), several=False))
    assert [(row["kind"], row["seq"], row.get("from_seq"), row.get("to_seq"), row.get("n")) for row in given] == [
        ("publish", 101, None, None, None),
        ("gap", 107, 102, 106, 5),
        ("publish", 108, None, None, None),
    ]
    (gap,) = rows([counter.gap(3, "crash", 1, 0)])
    assert (gap["seq"], gap["from_seq"], gap["to_seq"], gap["n"]) == (112, 109, 111, 3)
    assert counter.last == 112


def test_much_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "PIECE", 4)
    tape = Tape()
    messages(tape, 10)
    given = Numbering(0, "cccccccc").give(tape.record_batch(3), several=True)
    assert [each.num_rows for each in given] == [4, 4, 2]
    assert [row["seq"] for row in rows(given)] == list(range(1, 11))


class TestWalks:
    """Subscriptions that every worker tells by itself."""

    def test_all_have_told_when_each_has(self) -> None:
        walks = Walks()
        walks.note("a", 50, 3)
        assert walks.all_of(["a", "b"]) is None
        walks.note("b", 20, 4)
        assert walks.all_of(["a", "b"]) == (20, 7)
        # The next one begins anew.
        walks.note("a", 90, 3)
        assert walks.all_of(["a", "b"]) is None
        walks.forget("b")
        assert walks.all_of(["a"]) == (90, 3)
        assert walks.all_of([]) is None

    def test_what_was_told_before_subscriptions_were_lost_does_not_count(self) -> None:
        walks = Walks()
        walks.note("a", 50, 3)
        walks.lost(60)
        walks.note("b", 55, 4)
        assert walks.all_of(["b"]) is None
        walks.note("b", 61, 4)
        assert walks.all_of(["b"]) == (61, 4)


def test_where_a_number_stands_is_never_told_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is remembered in steps of a second, and not for ever."""
    places = Places()
    second = numbering.APART
    for at in range(4):
        places.note(10 + at * 10, 100 + at * 100, at * second // 2)
    assert [places.of(own) for own in (1, 10, 29, 30, 45)] == [100, 100, 100, 300, 300]
    monkeypatch.setattr(numbering, "REMEMBERED", 2)
    places = Places()
    for at in range(4):
        places.note(10 + at * 10, 100 + at * 100, at * second)
    assert [places.of(own) for own in (15, 29, 30, 45)] == [0, 0, 300, 400]
