"""Figures, tables and axes of the benchmarks."""

from __future__ import annotations

import pytest

from benchmarks.figures import aligned, ceiling, number, short_count


def test_numbers_keep_what_matters() -> None:
    assert [number(value) for value in (None, 0, 0.03456, 1.5, 12.34, 1234567.8)] == [
        "–",
        "0.00",
        "0.0346",
        "1.50",
        "12.3",
        "1,234,568",
    ]


@pytest.mark.parametrize(
    ("value", "end"),
    [(0.31, 0.4), (1.0, 1.0), (1.01, 2.0), (7.2, 8.0), (9.5, 10.0), (650.0, 800.0), (3400.0, 4000.0), (4329.0, 5000.0)],
)
def test_an_axis_ends_at_a_round_number(value: float, end: float) -> None:
    assert ceiling(value) == pytest.approx(end)


def test_counts_are_short() -> None:
    counts = (10, 500, 1_000, 17_800, 100_000, 2_000_000)
    assert [short_count(count) for count in counts] == ["10", "500", "1k", "17.8k", "100k", "2M"]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert aligned(("name", "n"), [["a", "1,000"], ["longer", "2"]], {"name"}).splitlines() == [
        "name        n",
        "------  -----",
        "a       1,000",
        "longer      2",
    ]
