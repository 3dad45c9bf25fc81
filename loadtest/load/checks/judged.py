"""A result held against thresholds.

Owns: which figure of a result each name of ``scenario.thresholds`` means.

Promises: a figure that could not be had (no delivery, so no p99) has missed its threshold; it is not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from loadtest.load.report.result import Deliveries, GroupResult, Latency, Met, Result
from loadtest.load.scenario.thresholds import LATENCIES, Threshold

_OF_DELIVERIES: Final = frozenset(("received", "lost", "duplicates", "reordered", "altered", "unconfirmed", "unjudged"))


def judge(result: Result, thresholds: Sequence[Threshold]) -> list[Met]:
    """What came of each threshold, in their order."""
    made = []
    for each in thresholds:
        found = figure(result, each)
        made.append(Met(each.text, each.figure, found, found is not None and each.holds(found)))
    return made


def figure(result: Result, threshold: Threshold) -> float | None:
    """The figure that a threshold is about; None where there is none."""
    name = threshold.figure
    if threshold.group is not None:
        return _of_group(next((each for each in result.groups if each.name == threshold.group), None), name)
    for prefix, latency in (
        ("connect_", result.connect),
        ("round_trip_", result.round_trip),
        ("", result.latency),
    ):
        if name.startswith(prefix) and name.removeprefix(prefix) in LATENCIES:
            return _of_latency(latency, name.removeprefix(prefix))
    of = result.deliveries
    if name == "rate":
        return result.receive_rate
    if name == "sent_rate":
        return result.send_rate
    if name == "foreign_rate":
        return result.foreign_rate
    if name == "lost_share":
        return of.lost / of.expected if of.expected else None
    if name == "unjudged_share":
        return result.unjudged_share
    if name == "unanswered":
        return float(result.unanswered) if result.requests else None
    if name == "errors":
        return float(sum(result.errors.values()))
    if name in _OF_DELIVERIES:
        return _of_deliveries(of, name)
    return float(sum(getattr(group, name) for group in result.groups))


def _of_group(group: GroupResult | None, name: str) -> float | None:
    if group is None:
        return None
    if name in LATENCIES:
        return _of_latency(group.latency, name)
    return _of_deliveries(group.deliveries, name) if name in _OF_DELIVERIES else float(getattr(group, name))


def _of_deliveries(of: Deliveries, name: str) -> float | None:
    """Where no delivery was due, nobody can say that none was lost."""
    known = name == "unjudged" or of.expected
    return float(getattr(of, name)) if known else None


def _of_latency(latency: Latency, name: str) -> float | None:
    found = getattr(latency, name)
    return None if found is None else float(found)
