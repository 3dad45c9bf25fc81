"""One value against its bounds."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.observe.alarms.observer import Bounds, Hysteresis

BOUNDS = Bounds(raise_at=10.0, clear_below=8.0, raise_after=3.0, clear_after=5.0)


def changes(values: Sequence[float], bounds: Bounds = BOUNDS) -> list[tuple[int, bool]]:
    """At which of the looks, one a second, it was raised (True) or cleared."""
    state = Hysteresis()
    return [(now, state.raised) for now, value in enumerate(values) if state.look(value, bounds, float(now))]


def test_raised_when_it_has_lasted_and_cleared_when_that_has() -> None:
    assert changes([10, 11, 12, 13, 7, 7, 7, 7, 7, 7, 7]) == [(3, True), (9, False)]


def test_a_moment_below_begins_anew() -> None:
    assert changes([10, 10, 10, 9.9, 10, 10, 10, 10]) == [(7, True)]


def test_between_the_bounds_nothing_changes() -> None:
    assert changes([9] * 20) == []
    assert changes([10] * 4 + [9] * 20) == [(3, True)]


def test_at_once() -> None:
    assert changes([0, 1, 0, 1], Bounds(1.0, 1.0, 0.0, 0.0)) == [(1, True), (2, False), (3, True)]


@given(
    st.lists(st.tuples(st.floats(0.001, 10.0), st.floats(0.0, 20.0)), max_size=200),
    st.floats(0.0, 20.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 20.0),
    st.floats(0.0, 20.0),
)
def test_it_changes_after_so_long_and_never_before(
    looks: list[tuple[float, float]], raise_at: float, ratio: float, raise_after: float, clear_after: float
) -> None:
    """Against the definition: every look within the time before a change said so, and it began that long ago."""
    bounds = Bounds(raise_at, raise_at * ratio, raise_after, clear_after)
    state = Hysteresis()
    now = 0.0
    seen: list[tuple[float, float]] = []
    last_change = -1.0
    for step, value in looks:
        now += step
        before = state.raised
        changed = state.look(value, bounds, now)
        seen.append((now, value))
        assert changed == (state.raised != before)
        wait = bounds.clear_after if before else bounds.raise_after
        # How long it has said so without a break, since the last change.
        said = []
        for at, each in reversed(seen):
            if at <= last_change or not (each < bounds.clear_below if before else each >= bounds.raise_at):
                break
            said.append(at)
        assert changed == (bool(said) and now - said[-1] >= wait)
        if changed:
            last_change = now
