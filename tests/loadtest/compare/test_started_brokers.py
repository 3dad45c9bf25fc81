"""Brokers that are started for a comparison, and what a scenario needs of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from canopy_load.brokers.process import Cores
from canopy_load.brokers.registry import FILTERS, PEERS, QOS, QOS2, ROUTING, SHARED, V5
from canopy_load.cli.common import default_processes
from canopy_load.compare.started_brokers import (
    most_processes,
    needs,
    with_version,
)
from canopy_load.scenario import library
from canopy_load.scenario.scenario_schema import Scenario
from tests.support.runs import for_each

PUBLISH = {"topic": "t/%c", "rate": 1}


def scenario(*groups: dict[str, Any], **given: Any) -> Scenario:
    """A scenario with these groups, which get a name and a client each where they have none."""
    named = [{"name": f"g{number}", "clients": 1, **group} for number, group in enumerate(groups)]
    return Scenario.model_validate(
        {"name": "s", "stages": [{"name": "steady", "seconds": 1}], "groups": named, **given}
    )


def test_statistics_are_on_where_drops_can_be_read_there(tmp_path: Path) -> None:
    assert "sys.interval=1" in PEERS["canopy"].command(4711, tmp_path, statistics=1)
    assert "sys.interval=0" in PEERS["canopy"].command(4711, tmp_path)
    PEERS["mosquitto"].command(4711, tmp_path, statistics=1)
    assert "sys_interval 1\n" in (tmp_path / "mosquitto.conf").read_text()
    PEERS["mosquitto"].command(4711, tmp_path)
    assert "sys_interval 0\n" in (tmp_path / "mosquitto.conf").read_text()


def test_cores_are_shared_out_where_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5, 2, 7})
    assert Cores.choose() == Cores(2, (5, 7))
    assert str(Cores.choose()) == "broker on core 2, generator on cores 5, 7"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert Cores.choose() == Cores(None, ())
    assert str(Cores.choose()) == "not pinned (one core)"


@for_each(
    ("group", "needed"),
    [
        ({"publish": [PUBLISH]}, set()),
        ({"subscribe": [{"filter": "t/%c"}]}, set()),
        ({"version": "5.0"}, {V5}),
        ({"subscribe": [{"filter": "t/+"}]}, {FILTERS}),
        ({"subscribe": [{"filter": "#", "qos": 1}]}, {FILTERS, QOS}),
        ({"subscribe": [{"filter": "$share/a/t"}]}, {SHARED}),
        ({"churn": {"filter": "c/%n", "rate": 1, "qos": 2}}, {FILTERS, QOS, QOS2}),
        ({"publish": [{**PUBLISH, "qos": 2}]}, {QOS, QOS2}),
        ({"publish": [{**PUBLISH, "retain": True}]}, {ROUTING}),
        ({"publish": [{**PUBLISH, "topic": "t/%n", "topics": 2}]}, {ROUTING}),
        ({"clients": 2, "publish": [{**PUBLISH, "topic": "t"}]}, {ROUTING}),
        ({"clients": 2, "publish": [{**PUBLISH, "topic": "t/%{c%2}"}]}, {ROUTING}),
        ({"clients": 1, "publish": [{**PUBLISH, "topic": "t"}]}, set()),
        ({"publish": [PUBLISH, PUBLISH]}, {ROUTING}),
        ({"will": {"topic": "w", "qos": 1}}, {ROUTING, QOS}),
        ({"cycle": {"up": 1}}, {ROUTING}),
        ({"clean_start": False}, {ROUTING}),
    ],
)
def test_what_a_scenario_needs_of_a_broker(group: dict[str, Any], needed: set[str]) -> None:
    assert needs(scenario({"version": "3.1.1", **group})) == needed


def test_a_scenario_is_rewritten_for_the_other_version() -> None:
    asked = scenario(
        {"publish": [{**PUBLISH, "payload": {"sizes": {"64": 9, "1024": 1}}}]},
        {"subscribe": [{"filter": "t/+"}], "reading": {"rate": 5}},
        scale=0.5,
    )
    older = with_version(asked, "3.1.1")
    assert [group.version for group in older.groups] == ["3.1.1", "3.1.1"]
    assert with_version(older, "5.0") == asked
    assert older.scale == 0.5


def test_closed_loops_say_how_many_processes_there_may_be() -> None:
    loop = {"topic": "t/%c", "in_flight": 4}
    publishers = {"clients": 9, "publish": [loop]}
    pairs = scenario(publishers, {"clients": 9, "subscribe": [{"filter": "t/%c"}]})
    assert most_processes(pairs, 5) == 5
    assert most_processes(pairs, 0) == 1
    fan_in = scenario(publishers, {"clients": 1, "subscribe": [{"filter": "t/+"}]})
    assert most_processes(fan_in, 5) == 1
    some = scenario(publishers, {"clients": 3, "subscribe": [{"filter": "t/+"}]})
    assert most_processes(some, 5) == 3
    acknowledged = scenario({"clients": 9, "publish": [{**loop, "qos": 1}]})
    assert most_processes(acknowledged, 5) == 5
    assert most_processes(scenario({"clients": 2}, scale=0.5), 5) == 1


def test_nothing_is_pinned_where_the_system_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has neither call."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sched_setaffinity")
    assert Cores.choose() == Cores(None, ())
    with Cores.choose().kept():
        pass
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert default_processes(library.load("idle-peers")[0]) == 7
