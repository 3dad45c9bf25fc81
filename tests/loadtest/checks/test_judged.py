"""Which figure each name of a threshold means, and what the command ends with."""

from __future__ import annotations

from canopy_load.checks.judged import figure, judge
from canopy_load.cli.common import exit_code
from canopy_load.report.result import Deliveries, GroupResult
from canopy_load.scenario.thresholds import NAMES, OF_A_GROUP, SHARES, TIMES, parse
from tests.loadtest.results import empty_result, full_result

GROUPS = ["sensors", "operators", "sleepers"]


def written(name: str) -> str:
    return f"{name} < {'1s' if name.split('.')[-1] in TIMES else '1%' if name in SHARES else '1'}"


def test_every_name_has_a_figure() -> None:
    result = full_result()
    result.round_trip = result.latency
    result.groups[0].requests, result.groups[0].answered = 10, 7
    names = [*NAMES, *(f"operators.{name}" for name in OF_A_GROUP)]
    assert [name for name in names if figure(result, parse(written(name), GROUPS)) is None] == []


def test_what_is_held_against_it() -> None:
    result = full_result()
    for condition, value, met in (
        ("lost == 0", 20, False),
        ("lost <= 20", 20, True),
        ("sleepers.lost > 100", 400, True),
        ("unsent < 12", 12, False),
        ("connections_lost == 3", 3, True),
        ("errors == 4", 4, True),
        ("lost_share < 1%", 20 / 120_000, True),
        ("connect_p99 < 4ms", 4000, False),
        ("sent == 100000", 100_000, True),
    ):
        (found,) = judge(result, [parse(condition, GROUPS)])
        assert (found.value, found.met) == (value, met), condition


def test_what_could_not_be_measured_is_missed() -> None:
    result = empty_result()
    for condition in ("p99 < 1s", "round_trip_p99 < 1s", "lost == 0", "unanswered == 0", "lost_share < 1%"):
        (found,) = judge(result, [parse(condition, [])])
        assert (found.value, found.met) == (None, False), condition


def test_a_missed_threshold_ends_the_command_with_4_and_what_strict_minds_with_3() -> None:
    result = empty_result()
    result.interrupted = False
    result.groups = [GroupResult("g", 1, publishes=True, subscribes=True, sent=2, connects=1)]
    result.deliveries = Deliveries(expected=2, received=2)
    result.thresholds = judge(result, [parse("received == 2", [])])
    assert exit_code(result, strict=True) == 0
    result.thresholds = judge(result, [parse("received > 2", [])])
    assert exit_code(result, strict=True) == 4
    result.deliveries = Deliveries(expected=2, received=1, lost=1)
    assert exit_code(result, strict=True) == 3
