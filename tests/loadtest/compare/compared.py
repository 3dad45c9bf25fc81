"""Results as runs of a comparison have them, made by hand."""

from __future__ import annotations

from typing import Any

from canopy_load.brokers.registry import PEERS
from canopy_load.compare.comparison import Comparison, Entrant
from canopy_load.report.result import Deliveries, Latency, Result


def result(**given: Any) -> Result:
    """A run in which all was well, but for what is given."""
    fields: dict[str, Any] = {
        "run": "0badcafe",
        "scenario": "unicast",
        "description": "",
        "scenario_text": "",
        "target": "mqtt://127.0.0.1:1",
        "broker": "",
        "begun": "2025-01-01T00:00:00+00:00",
        "interrupted": False,
        "environment": {},
        "processes": 1,
        "stages": [],
        "measured_seconds": 1.0,
        "receive_rate": 1000.0,
        "broker_us": 10.0,
        "broker_memory": 50_000_000,
        "generator_cpu": 0.5,
        "deliveries": Deliveries(expected=1000, received=1000),
        "latency": Latency(count=1000, p50=100.0, p99=300.0),
        "limit": "broker",
    }
    return Result(**{**fields, **given})


def comparison(runs: dict[str, list[Result]], **given: Any) -> Comparison:
    """A comparison of known brokers with these runs."""
    entrants = [Entrant(name, PEERS[name], f"{name} 1.0", results) for name, results in runs.items()]
    fields: dict[str, Any] = {
        "name": "unicast",
        "description": "Pairs.",
        "scenario_text": 'name = "unicast"\n',
        "entrants": entrants,
        "rounds": max(map(len, runs.values())),
        "cores": "not pinned (one core)",
        "begun": "2025-01-01T00:00:00+00:00",
        "environment": {"cpu": "a fast one"},
    }
    return Comparison(**{**fields, **given})
