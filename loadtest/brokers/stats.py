"""Medians, percentiles and ratios of measured values, of which there may be none: then each is None."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


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
