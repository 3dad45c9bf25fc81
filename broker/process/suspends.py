"""Has the event loop's clock count the time in which the machine was suspended, as that of a laptop that sleeps.

Owns the clock of a loop that belongs to the process alone. The kernel's clock that event loops use (`CLOCK_MONOTONIC`)
stands still meanwhile; `CLOCK_BOOTTIME` does not (man 2 clock_gettime, and what mosquitto keeps time by). Promises:
between two looks the loop's clock is the kernel's, at no cost; a look that finds a suspend moves it on, never back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from broker.store.times import uptime

SHORTEST: Final = 1.0
"""Seconds of suspension that are counted: shorter ones add up until they are as long."""


def slept() -> float:
    """Seconds for which the machine has been suspended since it was started; 0.0 where the platform does not count."""
    return uptime() - time.monotonic()


class Suspends:
    """Those that one event loop has seen."""

    def __init__(self, loop: asyncio.AbstractEventLoop, slept: Callable[[], float] = slept) -> None:
        """`loop`: one whose clock nobody has read yet; `slept`: see the function of this name."""
        self._loop = loop
        self._clock: Callable[[], float] = loop.time
        self._slept = slept
        self._counted = slept()
        self._added = 0.0

    def look(self) -> float:
        """Seconds of suspension that the loop's clock counts from now on, and did not before; 0.0: none."""
        passed = self._slept() - self._counted
        if passed < SHORTEST:
            return 0.0
        self._counted += passed
        self._added += passed
        self._loop.time = self._time  # type: ignore[method-assign]
        return passed

    def _time(self) -> float:
        return self._clock() + self._added
