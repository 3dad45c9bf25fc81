"""Counts durations by upper bound as Prometheus does, with their sum and the maximum.

Owns a fixed number of counts for each histogram.
"""

from __future__ import annotations

from typing import Final

SECONDS: Final[tuple[float, ...]] = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds."""


class Histogram:
    """The distribution of durations in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._worst = 0.0
        self.sum = 0.0
        self.count = 0

    def __reduce__(self) -> tuple[object, ...]:
        """Have pickle take it as it is: of a compiled class, it would take nothing."""
        return Histogram, (), (self._counts, self._worst, self.sum, self.count)

    def __setstate__(self, state: tuple[list[int], float, float, int]) -> None:
        self._counts, self._worst, self.sum, self.count = state

    def add(self, seconds: float) -> None:
        """Count one duration."""
        at = 0
        for bound in SECONDS:
            if seconds <= bound:
                break
            at += 1
        self._counts[at] += 1
        self.count += 1
        self.sum += seconds
        self._worst = max(self._worst, seconds)

    def add_all(self, other: Histogram) -> None:
        """Count all durations of another one."""
        self._counts = [mine + its for mine, its in zip(self._counts, other._counts, strict=True)]
        self.count += other.count
        self.sum += other.sum
        self._worst = max(self._worst, other._worst)

    def take_worst(self) -> float:
        """Return the longest duration since the last call."""
        worst = self._worst
        self._worst = 0.0
        return worst

    def cumulative(self) -> list[tuple[float, int]]:
        """Return for each upper bound the number of durations that do not exceed it; the last bound is infinity."""
        found: list[tuple[float, int]] = []
        total = 0
        for bound, count in zip((*SECONDS, float("inf")), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found
