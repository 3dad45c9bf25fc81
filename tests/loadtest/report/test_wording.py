"""Figures in words: units, dashes, and what outside text is turned into."""

from __future__ import annotations

from canopy_load.cli.common import exit_code
from canopy_load.report.result import Deliveries, GroupResult, Latency, Reconciled, Result, Second
from canopy_load.report.wording import (
    DASH,
    figures,
    findings,
    micros,
    number,
    percent,
)
from canopy_mqtt.pages import plain
from tests.loadtest.results import empty_result, full_result
from tests.support.runs import for_each


@for_each(
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


@for_each(
    ("value", "text"),
    [(None, DASH), (0, "0"), (7, "7"), (0.04567, "0.0457"), (4.25, "4.25"), (42.25, "42.2"), (12345.6, "12,346")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@for_each(
    ("part", "whole", "text"),
    [(1, 0, DASH), (0, 5, "0 %"), (1, 10**9, "below 0.0001 %"), (20, 120_000, "0.017 %"), (5, 40, "12.5 %")],
)
def test_shares(part: int, whole: int, text: str) -> None:
    assert percent(part, whole) == text


def test_what_cannot_be_seen_is_written_out() -> None:
    assert plain("temperatur/°C") == "temperatur/°C"
    assert plain("a\x1b[2J\u202eb\ud800\x00") == "a\\x1b[2J\\u202eb\\ud800\\x00"
    assert plain("two\nlines\r", keep="\n") == "two\nlines\\r"


def test_a_ledger_that_says_nothing_is_no_finding() -> None:
    result = full_result()
    result.reconciled = Reconciled(seen=20, reported=None, agrees=None)

    assert not any("ledger" in each.text for each in findings(result))
    result.reconciled.agrees = False
    assert any("ledger" in each.text for each in findings(result))


def well(unjudged: int, connections_lost: int, expected: int = 31_480) -> Result:
    """A run in which nothing was seen to go wrong but connections that broke."""
    result = empty_result()
    result.interrupted = False
    result.deliveries = Deliveries(expected=expected, received=expected, unjudged=unjudged)
    result.groups = [
        GroupResult("g", 4, publishes=True, subscribes=True, sent=9, connects=4, connections_lost=connections_lost)
    ]
    return result


def test_a_run_over_a_broker_that_was_restarted_is_not_green() -> None:
    """Nothing was seen to be lost, because nobody could say what was due."""
    result = well(14_245, 614)
    worst, *others = findings(result)
    assert worst.tone == "warn"
    assert worst.text.startswith(
        "31.2 % of the deliveries could not be judged (14,245): connections broke or failed 614 times"
    )
    assert worst.text.endswith("Nothing else was lost, doubled, reordered or altered: 31,480 deliveries checked.")
    assert not any(each.tone == "good" for each in others)
    assert (exit_code(result, strict=True), exit_code(result, strict=False)) == (3, 0)


def test_what_comes_and_goes_as_the_scenario_says_is_told_beside_the_good_news() -> None:
    result = well(14_245, 0)
    (only,) = findings(result)
    assert (only.tone, exit_code(result, strict=True)) == ("good", 0)
    assert only.text.endswith("Another 14,245 (31.2 %) could not be judged: their subscribers came or went.")


def test_a_connection_that_broke_and_what_was_not_sent_stand_beside_the_good_news_and_strict_minds_them() -> None:
    result = well(300, 1)
    headline = next(each for each in findings(result) if each.text.startswith("Nothing was lost"))
    assert (headline.tone, exit_code(result, strict=True), exit_code(result, strict=False)) == ("warn", 3, 0)
    assert headline.text.endswith("But connections broke or failed 1 time.")
    result = well(0, 0)
    result.groups[0].unsent = 143
    headline = next(each for each in findings(result) if each.text.startswith("Nothing was lost"))
    assert (headline.tone, exit_code(result, strict=True)) == ("warn", 3)
    assert headline.text.endswith("But 143 messages that were due could not be sent.")
    result.groups[0].sent = 143 * 99
    assert exit_code(result, strict=True) == 0
    result.groups[0].unsent += 1
    assert exit_code(result, strict=True) == 3


@for_each(
    ("publishes", "subscribes", "headline", "first"),
    [
        (False, False, "4 clients connected; no connection broke.", "connected"),
        (True, False, "4 clients connected and sent 9 messages; no connection broke.", "sent"),
        (
            False,
            True,
            "4 clients connected and received 90 messages of others; no connection broke.",
            "received of others",
        ),
    ],
)
def test_clients_without_deliveries_among_them_are_told_by_what_they_did(
    publishes: bool, subscribes: bool, headline: str, first: str
) -> None:
    """`canopy load conn`, `pub` and `sub`: nothing about losses and latencies that nobody could have measured."""
    result = well(0, 0, expected=0)
    result.groups = [GroupResult("g", 4, publishes=publishes, subscribes=subscribes, sent=9 * publishes, connects=4)]
    result.connect = Latency(count=4, p50=1_000.0)
    result.seconds = [Second(0.0, 1.0, "run", True, foreign=45), Second(1.0, 1.0, "run", True, foreign=45)]
    result.verdict = "Neither was at its limit."

    assert findings(result)[0].text == headline
    assert findings(result)[0].tone == "good"
    shown = {each.name: each for each in figures(result)}
    assert next(iter(shown)) == first
    assert (shown["connected"].value, shown["until CONNACK p50"].value) == ("4", "1 ms")
    assert not {"lost", "latency p50", "broker CPU a delivery"} & shown.keys()

    result.groups[0].connections_lost = 1
    assert not any(each.tone == "good" for each in findings(result))
    assert next(each.note for each in figures(result) if each.name == "connected") == "1 failed or broke"
