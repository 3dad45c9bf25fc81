"""The picture of growth: which lines it draws, and that it is one."""

from __future__ import annotations

from typing import Any

from benchmarks.charts import FAINT
from benchmarks.scale.plot import Panel, lines

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
    assert (without.colour, without.points) == (FAINT, ((10, 1.0), (100, 1.0)))
    assert with_.points == ((10, 1.0), (100, 2.0))  # the size that failed leaves a gap


def test_several_brokers_have_a_line_each() -> None:
    outcomes = [outcome("canopy", 10, hot=1.0, hot_without=1.0), outcome("mosquitto", 10, hot=5.0, hot_without=4.0)]
    drawn = lines({"brokers": {"canopy": "1", "mosquitto": "2", "nats": "3"}, "outcomes": outcomes}, COST)
    assert [(line.name, line.points) for line in drawn] == [("canopy", ((10, 1.0),)), ("mosquitto", ((10, 5.0),))]
