"""Numbers in sentences."""

from __future__ import annotations

import pytest

from canopy_mqtt.words import counted, duration


def test_a_noun_has_the_number_of_its_things() -> None:
    assert [counted(number, "message") for number in (0, 1, 2_000)] == ["0 messages", "1 message", "2,000 messages"]
    assert [counted(number, "query", "queries") for number in (1, 2)] == ["1 query", "2 queries"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.6, "1 s"),
        (59, "59 s"),
        (60, "1 min"),
        (1_521, "25 min 21 s"),
        (3_600, "1 h"),
        (3_661, "1 h 1 min"),
        (3_605, "1 h"),
        (86_399.7, "1 d"),
        (277_200, "3 d 5 h"),
    ],
)
def test_a_time_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text
