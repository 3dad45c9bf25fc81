"""Clocks, and the state of the process in which they are read.

Owns: ``Stopwatch`` and its ``Reading``; the garbage collector's settings during a run; what a loop costs by itself.

Promises: wall time and CPU time are read around the same statements. The collector is set as the daemon sets it, and
put back afterwards.

An empty loop's cost is measured and stated, and stays in every figure.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from canopy_mqtt.assembly.daemon import GC_THRESHOLDS
from canopy_mqtt.buildinfo import core_state

EMPTY_TURNS: Final = 200_000


@contextmanager
def as_the_daemon() -> Iterator[None]:
    """The garbage collector as a running broker has it: what is there is frozen, collections are seldom.

    It prints which core is measured, and what measuring costs.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        print(f"core {core_state()}; an empty turn of the measuring loop takes {empty_loop().each_ns:.1f} ns")
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@dataclass(frozen=True)
class Reading:
    """So many operations, and the nanoseconds of wall and CPU time that they took together."""

    operations: int
    wall_ns: int
    cpu_ns: int

    @property
    def each_ns(self) -> float:
        """Wall nanoseconds of one operation."""
        return self.wall_ns / self.operations

    @property
    def each_cpu_ns(self) -> float:
        """CPU nanoseconds of one operation, user and system, all threads."""
        return self.cpu_ns / self.operations

    @property
    def rate(self) -> float:
        """Operations a second, by wall time."""
        return self.operations * 1e9 / max(1, self.wall_ns)


class Stopwatch:
    """Adds up the time spent inside ``with watch:`` blocks."""

    def __init__(self) -> None:
        self.wall_ns = 0
        self.cpu_ns = 0
        self._wall = 0
        self._cpu = 0

    def __enter__(self) -> Stopwatch:
        self._cpu = time.process_time_ns()
        self._wall = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wall = time.perf_counter_ns()
        self.wall_ns += wall - self._wall
        self.cpu_ns += time.process_time_ns() - self._cpu

    def reading(self, operations: int) -> Reading:
        """Return the measured total, for so many operations (at least 1)."""
        return Reading(operations, self.wall_ns, self.cpu_ns)


def empty_loop(turns: int = EMPTY_TURNS) -> Reading:
    """Measure what one turn of the loops in ``loops`` costs with nothing in it."""
    items = list(range(turns))
    watch = Stopwatch()
    with watch:
        for _ in items:
            pass
    return watch.reading(turns)
