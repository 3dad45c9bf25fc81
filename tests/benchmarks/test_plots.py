"""The pictures: which lines they draw, and that the documentation's are those of its figures."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any
from xml.etree import ElementTree

import pytest

NAMES = ["network", "scale", "growth"]


@pytest.fixture(scope="module")
def plots() -> Any:
    """The module, which is not imported in processes that only collect these tests: matplotlib takes its time."""
    pytest.importorskip("matplotlib")
    return import_module("benchmarks.plots")


@pytest.fixture
def cost(plots: Any) -> Any:
    return plots.Panel("filters", "hot", "CPU µs", "Publish", "hot, without")


def result(broker: str, size: int, **steps: float | None) -> dict[str, Any]:
    found = {name.replace("_", ", "): {"CPU µs": value} for name, value in steps.items()}
    return {"row": "filters", "broker": broker, "size": size, "steps": found}


def test_one_broker_has_a_line_with_and_a_line_without(plots: Any, cost: Any) -> None:
    results = [
        result("canopy", 100, hot=2.0, hot_without=1.0),
        result("canopy", 10, hot=1.0, hot_without=1.0),
        result("canopy", 1000),  # a size that failed leaves a gap
    ]
    assert plots.lines(results, cost) == {"with": [(10, 1.0), (100, 2.0)], "without": [(10, 1.0), (100, 1.0)]}


def test_several_brokers_have_a_line_each(plots: Any, cost: Any) -> None:
    results = [result("canopy", 10, hot=1.0), result("mosquitto", 10, hot=5.0), result("nats", 10)]
    assert plots.lines(results, cost) == {"canopy": [(10, 1.0)], "mosquitto": [(10, 5.0)]}


def test_counts_and_figures_are_short(plots: Any) -> None:
    counts = (10, 500, 1_000, 17_800, 100_000, 2_000_000, 0.1234)
    assert [plots.short(count) for count in counts] == ["10", "500", "1k", "17.8k", "100k", "2M", "0.123"]


@pytest.mark.parametrize("name", NAMES)
def test_the_pictures_of_the_documentation_show_its_figures(plots: Any, name: str) -> None:
    data = json.loads((plots.DOCS / "figures" / f"{name}.json").read_text(encoding="utf-8"))
    drawn = "".join(ElementTree.fromstring(plots.picture(name, [data])).itertext()).split()
    stored = "".join(ElementTree.parse(plots.DOCS / plots.PICTURES[name]).getroot().itertext()).split()
    assert drawn == stored


def test_each_broker_has_its_version_and_each_row_its_factor(plots: Any) -> None:
    results = [
        {"title": "pairs", "broker": broker, "steps": {"": {"CPU µs": cpu}}}
        for broker, cpu in (("mosquitto", 5.0), ("relay", 2.0))
    ]
    says = {"mosquitto": "mosquitto version 2.0.11", "relay": "copies bytes, parses nothing (Python)"}
    text = plots.picture("network", [{"brokers": says, "results": results}])
    assert "mosquitto 2.0.11" in text
    assert "0.4×" in text


def test_every_picture_is_looked_at(plots: Any) -> None:
    assert sorted(plots.PICTURES) == sorted(NAMES)


def test_what_cannot_be_drawn_is_told_in_one_line(plots: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert plots.main(["scale", "/nowhere/at/all.json"]) == 2
    assert plots.main(["unicorn"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
