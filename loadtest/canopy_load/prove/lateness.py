"""How late the tool is, and how long the tool and the broker wait for a core: what makes a finding worthless.

Owns: `Lateness`. Promises: what cannot be read (another machine's processes, one that has ended) counts as no wait.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Final

from canopy_load.brokers.process import waited

STEP: Final = 0.05
"""Seconds between two looks at the clock."""
LOOKS: Final = 10
"""Looks at the clock between two looks at the processes."""

Read = Callable[[int], list[tuple[int, int]]]


def run_delays(pid: int) -> list[tuple[int, int]]:
    """Return the identifier of each thread of a process with its run delay in nanoseconds."""
    try:
        threads = [int(each) for each in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
    return [(each, waited(each)) for each in threads]


class Lateness:
    """How late the event loop of the tool was: in seconds, at the most, in all and since `lately` was set to 0.
    `excused`: it was held up on purpose, while nothing was expected. `processes` returns the identifiers of processes
    whose waits for a core are measured, too."""

    def __init__(self, processes: Callable[[], Iterable[int]] = lambda: (), read: Read = run_delays) -> None:
        self.most = 0.0
        self.lately = 0.0
        self.excused = False
        self._processes = processes
        self._read = read
        self._threads: dict[int, int] = {}
        """The run delay of each thread, in nanoseconds."""
        self._times: list[float] = []
        self._waited: list[float] = []
        """The seconds in all until each of these times for which a thread waited, the one that waited most."""

    async def measure(self) -> None:
        """Measure until this is cancelled."""
        loop = asyncio.get_running_loop()
        looks = 0
        while True:
            due = loop.time() + STEP
            await asyncio.sleep(STEP)
            late = 0.0 if self.excused else loop.time() - due
            if self.excused:
                # Whoever waited for a core meanwhile held up nobody.
                self._threads.clear()
            self.excused = False
            self.most = max(self.most, late)
            self.lately = max(self.lately, late)
            if looks % LOOKS == 0:
                self.look(loop.time())
            looks += 1

    def waited(self, begin: float, end: float) -> float:
        """Return the seconds between two times for which a process waited for a core."""
        if not self._times:
            return 0.0
        first = max(bisect_right(self._times, begin) - 1, 0)
        after = min(bisect_left(self._times, end), len(self._times) - 1)
        return self._waited[after] - self._waited[first]

    def look(self, at: float) -> None:
        """Look at the processes."""
        found = {name: delay for pid in self._processes() for name, delay in self._read(pid)}
        # A thread that is new has its whole delay from before it was seen.
        most = max((delay - self._threads[name] for name, delay in found.items() if name in self._threads), default=0)
        self._threads = found
        self.noted(at, most / 1e9)

    def noted(self, at: float, seconds: float) -> None:
        """Note that a thread has waited so long since the last look."""
        self._times.append(at)
        self._waited.append((self._waited[-1] if self._waited else 0.0) + seconds)
