"""Measures the lag of the event loop, and calls once a second what checks the broker.

Owns the lag that the core reads (`QueueTotals.lag`), and the histogram of all of them. Times in seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.histogram import Histogram

TICK: Final = 0.25
"""Seconds between two ticks, each of which measures the lag of the event loop."""

LOOK: Final = 1.0
"""Seconds between two checks."""


class LagMonitor:
    """Ticks four times a second, tells the core how late the tick was, and checks the broker once a second."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        totals: QueueTotals,
        look: Callable[[float], bool],
        suspended: Callable[[], float],
    ) -> None:
        """`look` is called once a second, and again with the next tick when it returns True; `suspended` with each
        tick: it returns by how many seconds it has put the loop's clock forward."""
        self._suspended = suspended
        self._loop = loop
        self._totals = totals
        self._look = look
        self._look_at = 0.0
        self.lags = Histogram()
        self._peak = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        now = self._loop.time()
        self._look_at = now + LOOK
        self._arm(now)

    def close(self) -> None:
        """Stop the ticks; the lag is unknown from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._totals.tick_due = 0.0
        self._totals.lag = 0.0

    def take_worst(self, now: float) -> float:
        """Return the worst lag since this was last called, the present one included."""
        return max(self.lags.take_worst(), self._totals.lag_at(now))

    def take_peak(self, now: float) -> float:
        """Return the worst lag since this was last called, counted apart from `take_worst`: for samples of the page."""
        peak, self._peak = self._peak, 0.0
        return max(peak, self._totals.lag_at(now))

    def _arm(self, now: float) -> None:
        self._totals.tick_due = now + TICK
        self._timer = self._loop.call_at(now + TICK, self._tick)

    def _tick(self) -> None:
        self._totals.tick_due += self._suspended()
        now = self._loop.time()
        # A timer may come a little early.
        lag = max(0.0, now - self._totals.tick_due)
        self._totals.lag = lag
        self.lags.add(lag)
        self._peak = max(self._peak, lag)
        self._arm(now)
        if now >= self._look_at:
            # First: a look that raises is not the last.
            self._look_at = now + LOOK
            if self._look(now):
                self._look_at = now
