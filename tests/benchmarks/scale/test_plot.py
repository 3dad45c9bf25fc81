"""The picture of growth: which lines it draws, and that it is one."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.scale.plot import LABEL, PANELS, WITHOUT, Panel, apart, ceiling, draw, lines, number, size_name

COST = Panel("filters", "hot", "cpu_us", "Publish", "µs")


def outcome(broker: str, size: int, **phases: float | None) -> dict[str, Any]:
    found = [{"name": name.replace("_", "-"), "sample": {"cpu_us": value}} for name, value in phases.items()]
    return {"broker": broker, "size": size, "phases": found}


def test_one_broker_has_a_line_with_and_a_line_without() -> None:
    outcomes = [
        outcome("canopy", 100, hot=2.0, hot_without=1.0),
        outcome("canopy", 10, hot=1.0, hot_without=1.0),
        outcome("canopy", 1000),
    ]
    without, with_ = lines({"brokers": {"canopy": "1"}, "outcomes": outcomes}, COST)
    assert (without.colour, without.points) == (WITHOUT, ((10, 1.0), (100, 1.0)))
    assert with_.points == ((10, 1.0), (100, 2.0))  # the size that failed leaves a gap


def test_several_brokers_have_a_line_each() -> None:
    outcomes = [outcome("canopy", 10, hot=1.0, hot_without=1.0), outcome("mosquitto", 10, hot=5.0, hot_without=4.0)]
    drawn = lines({"brokers": {"canopy": "1", "mosquitto": "2", "nats": "3"}, "outcomes": outcomes}, COST)
    assert [(line.name, line.points) for line in drawn] == [("canopy", ((10, 1.0),)), ("mosquitto", ((10, 5.0),))]


@pytest.mark.parametrize(("value", "top"), [(0.31, 0.5), (1.0, 1.0), (7.2, 8.0), (99.0, 100.0), (4329.0, 5000.0)])
def test_a_scale_ends_at_a_round_number(value: float, top: float) -> None:
    assert ceiling(value) == pytest.approx(top)


def test_labels_stand_apart_and_above_the_scale() -> None:
    assert apart([10.0, 100.0], 150.0) == [10.0, 100.0]
    assert apart([10.0, 11.0, 12.0], 150.0) == [10.0, 10.0 + LABEL, 10.0 + 2 * LABEL]
    assert apart([20.0, 149.0, 150.0], 150.0) == [20.0, 150.0 - LABEL, 150.0]


def test_figures_and_sizes_are_short() -> None:
    assert [number(value) for value in (0.1234, 4.0, 4329.2)] == ["0.123", "4", "4,329"]
    assert [size_name(size) for size in (500, 1000, 17_800, 2_000_000)] == ["500", "1k", "17.8k", "2M"]


def test_the_picture_is_well_formed_and_has_every_panel() -> None:
    sample = {"cpu_us": 1.5, "bytes_each": 300.0, "broker_share": 0.0, "p99_us": None}
    files = []
    for what in ("filters", "clients"):
        phases = [{"name": panel.phase, "sample": sample} for panel in PANELS if panel.what == what]
        outcomes = [{"broker": "a<b", "size": size, "phases": phases} for size in (10, 100)]
        files.append({"what": what, "brokers": {"a<b": "1"}, "outcomes": outcomes})
    picture = ElementTree.fromstring(draw(files))
    written = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    for panel in PANELS:
        assert (panel.title in written) == (panel.figure != "p99_us" or panel.title == "Paced pairs beside them")
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}polyline"))) >= len(PANELS) - 1
