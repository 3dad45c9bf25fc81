"""Counts by upper bound, the sum, and the worst."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.histogram import SECONDS, Histogram


@given(st.lists(st.floats(0.0, 100.0)))
def test_each_bound_has_those_that_took_no_longer(times: list[float]) -> None:
    made = Histogram()
    for each in times:
        made.add(each)
    assert made.cumulative() == [
        (bound, sum(1 for each in times if each <= bound)) for bound in (*SECONDS, float("inf"))
    ]
    assert made.count == len(times)
    assert made.sum == pytest.approx(sum(times))


def test_the_worst_is_forgotten_when_it_was_taken() -> None:
    made = Histogram()
    made.add(0.5)
    made.add(0.25)
    assert (made.take_worst(), made.take_worst()) == (0.5, 0.0)


def test_what_another_process_has_counted_is_added() -> None:
    """Also where both classes are compiled, of which pickle takes nothing by itself."""
    made, other = Histogram(), Histogram()
    made.add(0.002)
    other.add(3.0)
    made.add_all(pickle.loads(pickle.dumps(other)))
    assert (made.count, made.sum, made.take_worst()) == (2, 3.002, 3.0)
    assert dict(made.cumulative())[5.0] == 2
