"""Figures in words: units, dashes, and what outside text is turned into."""

from __future__ import annotations

import pytest

from loadtest.load.report.result import GroupResult, Reconciled
from loadtest.load.report.wording import (
    DASH,
    figures,
    findings,
    group_cells,
    memory,
    micros,
    number,
    percent,
    plain,
    things,
)
from tests.loadtest.load.results import empty_result, full_result


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, DASH),
        (0.0, "0 µs"),
        (999.4, "999 µs"),
        (999.6, "1 ms"),
        (1_234.0, "1.23 ms"),
        (999_700.0, "1 s"),
        (65_400_000.0, "65.4 s"),
        (12_345_000_000.0, "12,345 s"),
    ],
)
def test_times(value: float | None, text: str) -> None:
    assert micros(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, DASH), (0, "0"), (7, "7"), (0.04567, "0.0457"), (4.25, "4.25"), (42.25, "42.2"), (12345.6, "12,346")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(1, 0, DASH), (0, 5, "0 %"), (1, 10**9, "below 0.0001 %"), (20, 120_000, "0.017 %"), (5, 40, "12.5 %")],
)
def test_shares(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


def test_memory_and_plurals() -> None:
    assert memory(61_540_000) == "61.5 MB"
    assert memory(None) == DASH
    assert things(1, "copy", "copies") == "1 copy"
    assert things(2_000, "copy", "copies") == "2,000 copies"


def test_what_cannot_be_seen_is_written_out() -> None:
    assert plain("temperatur/°C") == "temperatur/°C"
    assert plain("a\x1b[2J\u202eb\ud800\x00") == "a\\x1b[2J\\u202eb\\ud800\\x00"
    assert plain("two\nlines\r", keep="\n") == "two\nlines\\r"


def test_absent_figures_are_dashes() -> None:
    values = {each.name: each.value for each in figures(empty_result())}

    for name in ("latency p50", "latency max", "broker CPU a delivery", "broker memory", "generator's own limit"):
        assert values[name] == DASH, name


def test_a_group_that_does_not_subscribe_has_no_losses() -> None:
    cells = group_cells(GroupResult("sensors", 4, publishes=True, subscribes=False, sent=9))

    assert cells[:4] == ["sensors", "4", "publishes", "9"]
    assert cells[4:10] == [DASH] * 6


def test_a_ledger_that_says_nothing_is_no_finding() -> None:
    result = full_result()
    result.reconciled = Reconciled(seen=20, reported=None, agrees=None)

    assert not any("ledger" in each.text for each in findings(result))
    result.reconciled.agrees = False
    assert any("ledger" in each.text for each in findings(result))


def test_there_is_always_something_to_say() -> None:
    result = empty_result()
    result.interrupted = False

    assert [each.text for each in findings(result)] == ["There was nothing to judge: no delivery was due."]
