"""The plotter of the benchmarks: places of labels, and figures."""

from __future__ import annotations

from benchmarks.charts import LABEL, apart, number


def test_labels_stand_apart_and_above_the_scale() -> None:
    assert apart([10.0, 100.0], 150.0) == [10.0, 100.0]
    assert apart([10.0, 11.0, 12.0], 150.0) == [10.0, 10.0 + LABEL, 10.0 + 2 * LABEL]
    assert apart([20.0, 149.0, 150.0], 150.0) == [20.0, 150.0 - LABEL, 150.0]


def test_figures_are_short() -> None:
    assert [number(value) for value in (0.1234, 4.0, 4329.2)] == ["0.123", "4", "4,329"]
