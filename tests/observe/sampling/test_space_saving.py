"""Space-Saving: its guarantees, against an exact count."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.observe.sampling.space_saving import MAX_NAME_BYTES, SpaceSaving, shortened

NAMES = [b"n%d" % number for number in range(40)]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 1_000).map(float)),
        # Halving is exact in binary fractions, so that nothing is compared up to rounding alone.
        st.just((b"", 0.5)),
    ),
    max_size=300,
)


@given(STEPS, st.integers(1, 20))
def test_the_guarantees_hold_at_every_step(steps: list[tuple[bytes, float]], most: int) -> None:
    exact: dict[bytes, float] = {}
    counted = SpaceSaving(most)
    for name, weight in steps:
        if name:
            exact[name] = exact.get(name, 0.0) + weight
            counted.add(name, weight, 0.0)
        else:
            exact = {each: value * weight for each, value in exact.items()}
            counted.decay(weight)
        total = sum(exact.values())
        slack = 1e-9 * max(1.0, total)
        there = {counter.name: counter for counter in counted.heaviest(most)}
        assert len(there) == len(counted) == min(most, len(there))
        assert counted.total == pytest.approx(total)
        assert counted.floor() <= total / most + slack
        for name, true in exact.items():
            counter = there.get(name)
            if counter is None:
                assert true <= counted.floor() + slack
            else:
                assert counter.count - counter.error - slack <= true <= counter.count + slack
        assert all(name in there for name, true in exact.items() if true > total / most + slack)


@given(st.lists(st.sampled_from(NAMES), max_size=200))
def test_with_a_counter_for_each_name_the_count_is_exact(names: list[bytes]) -> None:
    counted = SpaceSaving(len(NAMES))
    for name in names:
        counted.add(name, 1.0, 0.0)
    assert {each.name: each.count for each in counted.heaviest(100)} == dict(Counter(names))
    assert all(each.error == 0.0 for each in counted.heaviest(100))


def test_the_heaviest_come_first() -> None:
    counted = SpaceSaving(8)
    for number, name in enumerate(NAMES[:8]):
        counted.add(name, float(number * 7 % 8), 0.0)
    counts = [counter.count for counter in counted.heaviest(5)]
    assert counts == [7.0, 6.0, 5.0, 4.0, 3.0]


def test_ever_new_names_take_no_more_counters_and_hide_nobody_who_is_heavy() -> None:
    """An adversary who publishes each message to a topic of its own, beside one client with a tenth of the traffic."""
    counted = SpaceSaving(50)
    for number in range(20_000):
        counted.add(b"flood/%d" % number if number % 10 else b"real", 1.0, 0.0)
    assert len(counted) == 50
    assert counted._counters.keys() == {counter.name for counter in counted.heaviest(50)}
    first = counted.heaviest(1)[0]
    assert first.name == b"real"
    assert first.count - first.error <= 2_000 <= first.count
    # And nobody takes one of the flood for heavy: all of its count may be error.
    assert all(each.count - each.error <= 1 for each in counted.heaviest(50)[1:])


def test_a_long_name_is_kept_as_its_beginning_and_stays_another_one() -> None:
    one, other = b"x" * 65_535, b"x" * 65_534 + b"y"
    assert shortened(b"x" * MAX_NAME_BYTES) == b"x" * MAX_NAME_BYTES
    assert len(shortened(one)) == MAX_NAME_BYTES
    assert shortened(one) == shortened(bytes(one))
    assert shortened(one) != shortened(other)
    assert shortened(one).startswith(b"x" * 200)
