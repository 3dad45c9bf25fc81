"""The heap of times: order, replacing and taking back, and that it grows with what waits only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.deadlines import Deadlines


def test_things_need_no_order() -> None:
    """Things with the same time come in the order in which they were set, whatever they are."""
    deadlines = Deadlines()
    things: list[object] = [object(), "x", 3, ("y",), frozenset(), 2.5]
    for thing in things:
        deadlines.set(thing, 1.0)
    assert len(deadlines) == len(things)
    for thing in things:
        assert deadlines.pop_due(1.0) is thing


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 9))))
def test_against_a_dictionary(steps: list[tuple[int, int | None, int]]) -> None:
    """Setting, cancelling and popping in any order do what a dictionary of times would."""
    deadlines = Deadlines()
    model: dict[int, float] = {}
    for thing, when, now in steps:
        if when is None:
            deadlines.cancel(thing)
            model.pop(thing, None)
        else:
            deadlines.set(thing, float(when))
            model[thing] = float(when)
        assert len(deadlines) == len(model)
        assert deadlines.next_due() == min(model.values(), default=-1.0)
        if now < 4:
            popped = deadlines.pop_due(float(now))
            if popped is None:
                assert all(time > now for time in model.values())
            else:
                assert isinstance(popped, int)
                earliest = min(model.values())
                assert model.pop(popped) == earliest <= now
    out: list[float] = []
    while (thing_due := deadlines.pop_due(10.0)) is not None:
        assert isinstance(thing_due, int)
        out.append(model.pop(thing_due))
    assert out == sorted(out)
    assert model == {}


def test_changes_leave_nothing_behind() -> None:
    """A thing that is set ten thousand times, and others that come and go, do not make the heap grow."""
    deadlines = Deadlines()
    deadlines.set("stays", 1e9)
    for number in range(10_000):
        deadlines.set("a", float(number))
        deadlines.set(number, 1e8)
        deadlines.cancel(number)
        assert len(deadlines._heap.items) == len(deadlines)
    assert len(deadlines) == 2
