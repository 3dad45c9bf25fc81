"""Whose figures a result has: each way in which a run can have been limited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.load.checks.verdict import verdict
from loadtest.load.report.result import GroupResult, Latency, Result
from tests.loadtest.load.results import empty_result


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


@pytest.mark.parametrize(
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
        (result(own=0.4, waited=0.55), "neither"),
        (result(own=0.95, unsent=5000), "generator"),
        (result(own=0.95, late=5000.0), "generator"),
        # Late by itself: the latencies are not the broker's. Late for want of a broker that takes more: they are.
        (result(own=0.5, late=5000.0, high=6000.0), "generator"),
        (result(own=0.1, late=5000.0, high=6000.0), "neither"),
        (result(own=0.5, late=5000.0, high=60_000.0), "neither"),
        (result(own=0.5, late=1500.0, high=1600.0), "neither"),
    ],
)
def test_who_was_the_limit(made: Result, limit: str) -> None:
    assert verdict(made)[0] == limit


def test_other_programs_are_mentioned() -> None:
    assert "Others kept it from its core for 20%" in verdict(result(waited=0.2))[1]
    assert "Others" not in verdict(result(waited=0.01))[1]


def test_a_rate_of_the_generator_is_said_to_be_its_own() -> None:
    assert "its own and not the broker's" in verdict(result(closed=True, own=0.95))[1]
