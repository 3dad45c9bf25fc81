"""Percentiles of values, and of counts of several parts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from canopy_load.brokers.stats import counted_percentile, merged, percentile

VALUES = st.lists(st.integers(-1000, 1000).map(float), min_size=1)


@given(VALUES, st.floats(0, 1))
def test_a_percentile_is_a_measured_value_with_its_share_below_or_at_it(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9
    assert sum(value < found for value in ordered) <= share * len(ordered) + 1e-9, "the least such value"


def test_counts_of_several_parts_have_the_percentiles_of_all() -> None:
    counts = merged([{10: 98, 20: 1}, {20: 1}])
    assert counts == {10: 98, 20: 2}
    assert [counted_percentile(counts, at) for at in (0, 50, 98, 99, 100)] == [10, 10, 10, 20, 20]
    assert counted_percentile({}, 50) is None
