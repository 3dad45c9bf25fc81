"""A result held against thresholds.

Owns: which figure of a result each name of ``scenario.thresholds`` means.

Promises: a figure that could not be had (no delivery, so no p99) has missed its threshold; it is not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from canopy_load.report.result import Deliveries, GroupResult, Latency, Result, ThresholdResult
from canopy_load.scenario.thresholds import LATENCIES, Threshold

_OF_DELIVERIES: Final = frozenset(("received", "lost", "duplicates", "reordered", "altered", "unconfirmed", "unjudged"))


def judge(result: Result, thresholds: Sequence[Threshold]) -> list[ThresholdResult]:
    """Judge each threshold by the result, in their order."""
    made = []
    for each in thresholds:
        found = figure(result, each)
        made.append(ThresholdResult(each.text, each.figure, found, found is not None and each.holds(found)))
    return made


def figure(result: Result, threshold: Threshold) -> float | None:
    """Return the figure that a threshold is about; None if there is none."""
    name = threshold.figure
    if threshold.group is not None:
        (group,) = (each for each in result.groups if each.name == threshold.group)
        return _of(group, name)
    for prefix, latency in (("connect_", result.connect), ("round_trip_", result.round_trip)):
        if name.startswith(prefix) and name.removeprefix(prefix) in LATENCIES:
            return _of_latency(latency, name.removeprefix(prefix))
    of = result.deliveries
    alone: dict[str, float | None] = {
        "rate": result.receive_rate,
        "sent_rate": result.send_rate,
        "foreign_rate": result.foreign_rate,
        "lost_share": of.lost / of.expected if of.expected else None,
        "unjudged_share": result.unjudged_share,
        "unanswered": float(result.unanswered) if result.requests else None,
        "errors": float(sum(result.errors.values())),
    }
    if name in alone:
        return alone[name]
    if name in LATENCIES or name in _OF_DELIVERIES:
        return _of(result, name)
    return float(sum(getattr(group, name) for group in result.groups))


def _of(whose: Result | GroupResult, name: str) -> float | None:
    if name in LATENCIES:
        return _of_latency(whose.latency, name)
    return _of_deliveries(whose.deliveries, name) if name in _OF_DELIVERIES else float(getattr(whose, name))


def _of_deliveries(of: Deliveries, name: str) -> float | None:
    """Return a figure of deliveries; None if no delivery was due, so that none can have been lost."""
    known = name == "unjudged" or of.expected
    return float(getattr(of, name)) if known else None


def _of_latency(latency: Latency, name: str) -> float | None:
    found = getattr(latency, name)
    return None if found is None else float(found)
