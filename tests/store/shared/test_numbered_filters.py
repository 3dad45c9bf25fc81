"""Filters with numbers: what matches, as filters come and go."""

from __future__ import annotations

from canopy_mqtt.store.shared.calls import ChangedFilter
from canopy_mqtt.store.shared.numbered_filters import NumberedFilters


def made(*filters: str) -> NumberedFilters:
    """A table of these, with the numbers from 1 on."""
    table = NumberedFilters()
    for number, each in enumerate(filters, 1):
        table.change(ChangedFilter(number, each, False))
    return table


def test_the_filters_that_match_a_topic_are_found_by_their_numbers() -> None:
    table = made("a/b", "a/+", "#", "x/#", "$share/g/a/b")
    assert sorted(table.match("a/b")) == [1, 2, 3]
    assert table.match("$SYS/a") == ()


def test_an_answer_is_what_the_filters_are_now() -> None:
    table = made("a", "+")
    assert sorted(table.match("a")) == [1, 2]
    table.change(ChangedFilter(2, "+", True))
    assert table.match("a") == (1,)
    table.change(ChangedFilter(7, "a/#", False))
    assert sorted(table.match("a")) == [1, 7]
    table.change(ChangedFilter(8, "a", False))
    assert sorted(table.match("a")) == [7, 8]


def test_a_filter_that_is_not_there_can_go() -> None:
    table = made("a")
    table.change(ChangedFilter(9, "b", True))
    assert table.match("a") == (1,)


def test_answers_take_bounded_room() -> None:
    table = made("#")
    table.max_remembered = 3
    for number in range(10):
        assert table.match(f"{number}") == (1,)
        assert len(table._answers) <= 3
