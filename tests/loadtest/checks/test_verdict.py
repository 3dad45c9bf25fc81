"""Whose figures a result has: each way in which a run can have been limited."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_load.checks.verdict import verdict
from canopy_load.report.result import GroupResult, Latency, Result
from canopy_load.report.wording import findings
from tests.loadtest.results import empty_result
from tests.support.runs import examples, for_each


def result(
    own: float = 0.3,
    broker: float | None = 0.3,
    waited: float = 0.0,
    closed: bool = False,
    unsent: int = 0,
    late: float | None = 100.0,
    high: float | None = 1000.0,
    sent: int = 10_000,
) -> Result:
    return replace(
        empty_result(),
        interrupted=False,
        measured_seconds=1.0,
        sent=sent,
        received=sent,
        latency=Latency(p99=high),
        late=Latency(p99=late),
        closed_loop=closed,
        generator_busiest=own,
        generator_waited=waited,
        broker_cpu=broker,
        groups=[GroupResult("g", 1, True, True, unsent=unsent)],
    )


@for_each(
    ("made", "limit"),
    [
        (result(), "neither"),
        (result(broker=None), "unknown"),
        (result(sent=0), "unknown"),
        (result(broker=0.95), "broker"),
        (result(broker=0.5, unsent=5000), "broker"),
        (result(broker=None, unsent=5000), "unknown"),
        (result(unsent=50), "neither"),
        # A closed loop: whoever has no time left.
        (result(closed=True, own=0.95), "generator"),
        (result(closed=True, own=0.95, broker=None), "generator"),
        (result(closed=True, own=0.95, broker=0.99), "broker"),
        (result(closed=True, own=0.65, broker=0.2), "generator"),
        (result(closed=True, own=0.65, broker=0.5), "neither"),
        (result(closed=True, own=0.5, broker=0.55, waited=0.45), "generator"),
        # An open loop that was in time was not held up, however busy the machine.
        (result(own=0.95), "neither"),
        (result(own=0.65, waited=0.3), "neither"),
        (result(own=0.95, unsent=5000), "generator"),
        (result(own=0.95, late=5000.0), "generator"),
        # Late by itself, or without a core for half of the time: the latencies are not the broker's.
        (result(own=0.5, late=5000.0, high=6000.0), "generator"),
        (result(own=0.1, late=5000.0, high=6000.0), "generator"),
        (result(own=0.4, waited=0.55), "generator"),
        (result(own=0.4, waited=0.55, broker=0.99), "generator"),
        (result(own=0.4, waited=0.55, closed=True, late=None), "generator"),
        (result(own=0.5, late=5000.0, high=60_000.0), "neither"),
        (result(own=0.5, late=1050.0, high=1600.0), "neither"),
        (result(own=0.5, late=50_000.0, high=None), "neither"),
    ],
)
def test_who_was_the_limit(made: Result, limit: str) -> None:
    assert verdict(made)[0] == limit


def grade(made: Result) -> str:
    """How the verdict looks: good, warn or bad."""
    made.limit, made.verdict = verdict(made)
    tones = {each.tone for each in findings(made) if made.verdict in each.text}
    return "bad" if "bad" in tones else "warn" if "warn" in tones else "good"


GRADES = ("good", "warn", "bad")


@for_each(
    ("made", "tone", "measure"),
    [
        (result(), "good", "0%"),
        (result(late=4_000.0, high=60_000.0), "good", "5%"),
        (result(late=8_000.0, high=60_000.0), "warn", "12%"),
        (result(waited=0.2), "warn", "20%"),
        (result(waited=0.2, broker=0.95), "warn", "20%"),
        (result(waited=0.2, closed=True, late=None), "warn", "20%"),
        (result(late=40_000.0, high=60_000.0), "bad", "65%"),
        # Two brokers beside each other, on one busy machine: the one of the longer lateness and wait looked clean.
        (result(own=0.3, late=21_900.0, high=51_500.0, waited=0.65), "bad", "65%"),
        (result(own=0.3, late=13_600.0, high=26_200.0, waited=0.57), "bad", "57%"),
    ],
)
def test_there_is_a_grade_between_and_each_verdict_says_the_measure(made: Result, tone: str, measure: str) -> None:
    assert grade(made) == tone
    said = verdict(made)[1]
    assert f"Disturbance: {measure}." in said
    assert f"kept it from its core for {made.generator_waited:.0%} of the time" in said
    if made.late.p99 is None:
        assert "lateness was not measured" in said
    else:
        assert f"late by {made.late.p99 / 1000:.3g} ms" in said


RUN = st.tuples(
    st.floats(0, 1), st.one_of(st.none(), st.floats(0, 1)), st.booleans(), st.sampled_from([0, 50, 5000]),
    st.floats(0, 1), st.floats(0, 50_000), st.floats(100, 200_000),
)  # fmt: skip


@given(RUN, st.floats(0, 1), st.floats(0, 50_000), st.booleans())
@settings(max_examples=examples(500), deadline=None)
def test_a_run_that_was_disturbed_more_never_looks_cleaner(
    run: tuple[float, float | None, bool, int, float, float, float], waits: float, later: float, included: bool
) -> None:
    """Whether the latency includes the further lateness, as in a run, or stays the same."""
    own, broker, closed, unsent, waited, late, above = run
    less = result(own, broker, waited, closed, unsent, late, late + above)
    more = result(own, broker, min(1.0, waited + waits), closed, unsent, late + later, late + above + later * included)
    assert more.disturbed >= less.disturbed - 1e-9
    assert GRADES.index(grade(more)) >= GRADES.index(grade(less)) or more.disturbed < less.disturbed


@given(RUN, st.floats(-1e-6, 1e-6), st.floats(-0.5, 0.5))
@settings(max_examples=examples(300), deadline=None)
def test_the_measure_has_no_steps(
    run: tuple[float, float | None, bool, int, float, float, float], waits: float, later: float
) -> None:
    own, broker, closed, unsent, waited, late, above = run
    one = result(own, broker, waited, closed, unsent, late, late + above)
    near = result(own, broker, min(max(0.0, waited + waits), 1.0), closed, unsent, max(0.0, late + later), late + above)
    assert abs(one.disturbed - near.disturbed) < 0.02
