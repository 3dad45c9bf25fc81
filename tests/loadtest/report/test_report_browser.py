"""The report's page in a real browser: it draws every plot, stays silent, and fetches nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from canopy_load.report.report_files import write
from tests.loadtest.report.browser import Opened, opened
from tests.loadtest.results import ATTACK, full_result
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


@for_each("content", ["<img src='http://example.invalid/x.png'>", "<script>nonsense()</script>"])
def test_the_browser_tells_on_a_bad_page(tmp_path: Path, content: str) -> None:
    """Without this, an empty list above would prove nothing."""
    bad = tmp_path / "bad.html"
    bad.write_text(f"<!DOCTYPE html><title>bad</title>{content}")

    found = opened(bad, tmp_path)

    assert found.fetched == ["http://example.invalid/x.png"] if "img" in content else "nonsense" in found.console[0]
