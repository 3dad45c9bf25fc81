"""A result held against thresholds.

Owns: which figure of a result each name of ``scenario.thresholds`` means.

Promises: a figure that could not be had (no delivery, so no p99) has missed its threshold; it is not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from canopy_load.report.result import GroupResult, Result, ThresholdResult
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
        return _of_either(group, name)
    for prefix, latency in (("connect_", result.connect), ("round_trip_", result.round_trip)):
        if name.startswith(prefix) and name.removeprefix(prefix) in LATENCIES:
            return _of(latency, name.removeprefix(prefix))
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
        return _of_either(result, name)
    return float(sum(getattr(group, name) for group in result.groups))


def _of_either(whose: Result | GroupResult, name: str) -> float | None:
    if name in LATENCIES:
        return _of(whose.latency, name)
    if name in _OF_DELIVERIES:
        # If no delivery was due, none can have been lost.
        known = name == "unjudged" or whose.deliveries.expected
        return _of(whose.deliveries, name) if known else None
    return _of(whose, name)


def _of(whose: object, name: str) -> float | None:
    found = getattr(whose, name)
    return None if found is None else float(found)
