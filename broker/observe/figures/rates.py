"""Load averages over 1, 5 and 15 minutes, as mosquitto computes them: per minute, with an exponential moving average.

Owns the averages. `note` is called once for each interval of `$SYS`; the figures are those of that time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

MINUTES: Final = {"1min": 1, "5min": 5, "15min": 15}


class LoadAverages:
    """Of any totals that only grow."""

    def __init__(self) -> None:
        self._at = -1.0
        self._totals: dict[str, int] = {}
        self._averages: dict[tuple[str, str], float] = {}

    def note(self, totals: Mapping[str, int], now: float) -> None:
        """These are the totals at `now`, in seconds."""
        elapsed = now - self._at
        if self._at >= 0.0 and elapsed <= 0.0:
            return
        for name, total in totals.items():
            # Before the first interval is over, nothing is known of how fast anything goes.
            pace = 0.0 if self._at < 0.0 else (total - self._totals.get(name, 0)) * 60.0 / elapsed
            for span, minutes in MINUTES.items():
                before = self._averages.get((name, span), 0.0)
                weight = 0.0 if self._at < 0.0 else math.exp(-elapsed / (60.0 * minutes))
                self._averages[name, span] = pace + weight * (before - pace)
        self._totals = dict(totals)
        self._at = now

    def averages(self) -> dict[tuple[str, str], float]:
        """By name of the total and span; empty before the first note."""
        return self._averages
