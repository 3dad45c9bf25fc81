"""The page without a browser: what it says, what it leaves out, and how large it gets."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from canopy_load.report.report_page import WORST, page
from canopy_load.report.report_plots import POINTS, fold, plots
from canopy_load.report.result import Deliveries, Pair, Result
from tests.loadtest.results import ATTACK, empty_result, full_result


def body_of(result: Result) -> str:
    """What people read: the page without style, data and scripts."""
    return page(result).split("</head>", 1)[1].split("<script", 1)[0]


def figures_of(html: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', html, re.DOTALL)
    assert found
    figures: list[dict[str, Any]] = json.loads(found[1])
    return figures


def test_nothing_from_outside_is_markup() -> None:
    body = body_of(full_result())

    assert "<script" not in body
    assert "<img" not in body
    assert "\x1b" not in body
    assert "\u202e" not in body
    assert body.count("&lt;script&gt;document.title=&#x27;owned&#x27;") >= 6


def test_nothing_is_loaded_and_only_known_scripts_run() -> None:
    html = page(full_result())
    head = html.split("</head>", 1)[0]

    assert re.findall(r'(?:src|href)="([^"]*)"', head + body_of(full_result())) == ["data:,"]
    assert "default-src &#x27;none&#x27;" in head or "default-src 'none'" in head
    assert len(re.findall(r"'sha256-[^']+'", head)) == 1


def test_absent_figures_leave_sentences() -> None:
    body = body_of(empty_result())

    assert body.count('class="absent soft"') == 6
    assert "None" not in body.replace('<p class="soft">None.</p>', "")  # the errors, of which there were none
    assert "No latency was measured" in body
    assert figures_of(page(empty_result())) == []


def test_a_remote_broker_has_no_cpu_but_all_else() -> None:
    result = full_result()
    result.seconds = [replace(each, broker_cpu=None, broker_memory=None) for each in result.seconds]
    result.broker_cpu = result.broker_us = result.broker_memory = None

    found = {plot.key: plot for plot in plots(result)}

    assert [series.name for series in found["cpu"].series] == ["generator", "its busiest process"]
    assert "not known" in found["cpu"].about
    assert found["memory"].absent
    assert not found["rates"].absent


def test_an_hour_stays_small() -> None:
    result = full_result(24)
    minute = result.seconds[2:]
    result.seconds = [
        replace(minute[at % len(minute)], start=float(at), stage="a" if at < 600 else "b", measured=at >= 600)
        for at in range(3_600)
    ]

    html = page(result)

    for figure in figures_of(html):
        assert len(figure["x"]) <= POINTS + 2
    assert "A point stands for up to 3 seconds." in html
    assert len(html) < 1_000_000


def test_the_verdict_stands_above_the_figures_when_the_generator_was_the_limit() -> None:
    result = full_result()
    result.limit, result.verdict = "generator", "Its busiest process used 0.99 of a core."

    body = body_of(result)
    warning = body.index('<li class="bad">The load generator was the limit')

    assert "0.99 of a core" in body[warning : warning + 200]
    assert warning < body.index("Key figures")


def test_the_worst_pairs_come_first_and_the_rest_is_counted() -> None:
    result = full_result()
    result.pairs = [Pair(f"p{at}", "s", "g", Deliveries(expected=99, received=99 - at, lost=at)) for at in range(80)]

    body = body_of(result)

    shown = [int(name) for name in re.findall(r"<td class=\"left\">p(\d+)</td>", body)]
    assert shown == list(range(79, 79 - WORST, -1))
    assert "79 of 80 pairs missed" in body


def test_an_attack_in_the_data_cannot_end_its_script() -> None:
    html = page(full_result())
    data = html.split('id="charts">', 1)[1].split("</script>", 1)[0]

    assert "<" not in data
    json.loads(data)
    assert ATTACK[:9] not in data


def test_folding_keeps_counts_and_peaks() -> None:
    seconds = full_result(60).seconds

    folded = fold(seconds, 10)

    assert len(folded) <= 10 + 3
    for name in ("offered", "sent", "received", "gaps", "slow_gaps", "copies", "connects"):
        assert sum(getattr(each, name) for each in folded) == sum(getattr(each, name) for each in seconds), name
    for name in ("p50", "p99", "max", "late_p99"):
        peak = max(getattr(each, name) or 0 for each in seconds)
        assert max(getattr(each, name) or 0 for each in folded) == peak, name
    assert sum(each.seconds for each in folded) == pytest.approx(sum(each.seconds for each in seconds))
    assert {(each.stage, each.measured) for each in folded} == {(each.stage, each.measured) for each in seconds}
    assert max(each.broker_memory or 0 for each in folded) == max(each.broker_memory or 0 for each in seconds)
