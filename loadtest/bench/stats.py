"""The few statistics the bench needs, exact rather than bucketed.

Owns: medians and percentiles of measured values.

Promises: a percentile is one of the values that were measured (nearest rank), never an interpolation.

Refuses: to be fast on billions of values: it sorts. A run of the bench holds some 10^5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def median(values: Iterable[float]) -> float | None:
    """The median (mean of the two middle values for an even count), or None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of values already sorted; ``share`` in 0..1, None of nothing."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a percentile's share lies in 0..1, not {share}")
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """``ours`` divided by ``theirs``, or None where either is missing or theirs is nothing."""
    if ours is None or not theirs:
        return None
    return ours / theirs
