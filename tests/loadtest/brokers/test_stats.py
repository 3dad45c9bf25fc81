"""Percentiles and ratios, and what each says of nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_load.brokers.stats import counted_percentile, median, merged, percentile, ratio
from tests.support.runs import for_each

VALUES = st.lists(st.integers(-1000, 1000).map(float), min_size=1)


@given(VALUES, st.floats(0, 1))
def test_a_percentile_is_a_measured_value_with_its_share_below_or_at_it(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9
    assert sum(value < found for value in ordered) <= share * len(ordered) + 1e-9, "the least such value"


def test_nothing_has_no_statistics() -> None:
    assert median([]) is None
    assert percentile([], 0.5) is None


@for_each("share", [-0.1, 1.1])
def test_a_share_outside_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        percentile([1.0], share)


def test_ratio_of_what_is_missing_is_missing() -> None:
    assert ratio(1.0, 4.0) == 0.25
    assert ratio(None, 4.0) is None
    assert ratio(1.0, None) is None
    assert ratio(1.0, 0.0) is None


def test_counts_of_several_parts_have_the_percentiles_of_all() -> None:
    counts = merged([{10: 98, 20: 1}, {20: 1}])
    assert counts == {10: 98, 20: 2}
    assert [counted_percentile(counts, at) for at in (0, 50, 98, 99, 100)] == [10, 10, 10, 20, 20]
    assert counted_percentile({}, 50) is None
