"""Medians, percentiles and ratios of measured values, or of counts of them; of nothing each is None."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence


def median(values: Iterable[float]) -> float | None:
    """The median, or None of nothing."""
    known = list(values)
    return statistics.median(known) if known else None


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of values already sorted: one that was measured, never an interpolation."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a percentile's share lies in 0..1, not {share}")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """``ours`` divided by ``theirs``, or None where either is missing or theirs is 0."""
    return None if ours is None or not theirs else ours / theirs


def merged(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Add up counts by value."""
    total: Counter[int] = Counter()
    for part in parts:
        total.update(part)
    return total


def counted_percentile(counts: Mapping[int, int], percent: float) -> float | None:
    """The nearest-rank percentile, from 0 to 100, of counts by value; None of nothing."""
    wanted = sum(counts.values()) * percent / 100
    passed = 0
    for value in sorted(counts):
        passed += counts[value]
        if passed >= wanted:
            return float(value)
    return None
