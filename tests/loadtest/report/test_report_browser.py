"""The report's page in a real browser: it draws every plot, stays silent, and fetches nothing."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from canopy_load.report.report_files import write
from tests.loadtest.report.browser import Opened, opened
from tests.loadtest.results import ATTACK, empty_result, full_result
from tests.support.runs import for_each

LINES = {"rates": 3, "percentiles": 5, "cpu": 3, "memory": 1, "clients": 3}
"""Plots of lines, and how many each has in the full result."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """The full result; the attack stands in its name as well, and so in the title."""
    result = full_result()
    result.scenario = "scenario </title>" + ATTACK
    folder = tmp_path_factory.mktemp("page")
    return opened(write(result, folder / "out") / "report.html", folder)


def test_every_plot_is_drawn(page: Opened) -> None:
    assert set(page.figures) == {*LINES, "faults"}
    for key, classes in page.figures.items():
        assert classes["drawn"] == 1, f"{key} was not drawn"
    for key, lines in LINES.items():
        assert page.figures[key]["u-series"] == lines + 1, key  # the axis is in the legend too
    assert page.figures["faults"]["u-series"] == 3


def test_it_is_silent_and_fetches_nothing(page: Opened) -> None:
    assert page.console == []
    assert page.fetched == []


def test_text_from_outside_stays_text(page: Opened) -> None:
    """The attack stands in scenario, broker, a stage, an error, a cause, a pair, and the environment."""
    assert page.title.startswith("scenario </title></script><script>document.title='owned'</script>")
    assert page.elements["script"] == 2
    assert page.elements["img"] == 0
    assert page.text.count("document.title='owned'") >= 7
    assert page.figures["rates"]["stage-name"] == 2  # the names of both stages, the attacker's among them


@pytest.mark.long
def test_a_page_of_nothing_opens(tmp_path: Path) -> None:
    empty = opened(write(empty_result(), tmp_path / "out") / "report.html", tmp_path)

    assert empty.console == []
    assert empty.fetched == []
    assert all(classes["absent"] == 1 for classes in empty.figures.values())
    assert "The run was interrupted" in empty.text


@pytest.mark.long
def test_names_of_short_stages_do_not_cover_each_other_on_a_phone(tmp_path: Path) -> None:
    result = full_result(60)
    names = ["warm-up", "steady-state", "peak", "evening of the fleet"]
    starts = [0.0, 4.0, 10.0, 11.0, 60.0]
    result.stages = [
        {"name": name, "start": start, "seconds": end - start, "measured": True}
        for name, start, end in zip(names, starts, starts[1:], strict=False)
    ]
    dom = opened(write(result, tmp_path / "out") / "report.html", tmp_path, width=375).dom
    boxes = re.findall(r'<span class="stage-name" title="([^"]*)" style="left: ([\d.]+)px; width: ([\d.]+)px;', dom)

    assert [name for name, _, _ in boxes] == names
    for (name, at, width), (_, after, _) in itertools.pairwise(boxes):
        assert float(at) + float(width) <= float(after) + 0.01, f"{name!r} reaches into the next stage"


@for_each("content", ["<img src='http://example.invalid/x.png'>", "<script>nonsense()</script>"])
def test_the_browser_tells_on_a_bad_page(tmp_path: Path, content: str) -> None:
    """Without this, an empty list above would prove nothing."""
    bad = tmp_path / "bad.html"
    bad.write_text(f"<!DOCTYPE html><title>bad</title>{content}")

    found = opened(bad, tmp_path)

    assert found.fetched == ["http://example.invalid/x.png"] if "img" in content else "nonsense" in found.console[0]
