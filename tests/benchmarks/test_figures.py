"""Figures and tables of the benchmarks."""

from __future__ import annotations

from benchmarks.figures import aligned, number


def test_numbers_keep_what_matters() -> None:
    assert [number(value) for value in (None, 0, 0.03456, 1.5, 12.34, 1234567.8)] == [
        "–",
        "0.00",
        "0.0346",
        "1.50",
        "12.3",
        "1,234,568",
    ]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert aligned(("name", "n"), [["a", "1,000"], ["longer", "2"]], {"name"}).splitlines() == [
        "name        n",
        "------  -----",
        "a       1,000",
        "longer      2",
    ]
