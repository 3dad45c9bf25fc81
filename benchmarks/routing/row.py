"""What a row of the benchmark is.

Owns: ``Measured``, the ``Bar`` it has to reach, the ``Case`` it is run in, and the ``Sample`` that one run gives.

Promises: a bar is judged on the median of the runs, by wall time, as it is printed beside it.

On smaller counts than the author's no bar is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.routing.measure import Reading
from broker.core.topics.trie import COMPACT, NODES

LAYOUTS: Final = (NODES, COMPACT)

RATE: Final = "routes/s"
CHANGES: Final = "ops/s"
NANOSECONDS: Final = "ns"
MILLISECONDS: Final = "ms"
MEGABYTES: Final = "MB"
PROBES: Final = "probes"
TIMES: Final = "×"


@dataclass(frozen=True)
class Case:
    """One run of a row: the layout of the trie, and by how much the counts are divided (quick: 10)."""

    layout: str
    divide: int = 1

    def scaled(self, count: int) -> int:
        """An author's count for this run."""
        return max(4, count // self.divide)


@dataclass(frozen=True)
class Sample:
    """What one run gave: the value in the row's unit, CPU ns of one operation, and whatever else there is to say."""

    value: float
    cpu_ns: float | None = None
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Bar:
    """What the value has to be: at least, or at most, this."""

    limit: float
    at_least: bool

    def reached(self, value: float) -> bool:
        """Whether this value is good enough."""
        return value >= self.limit if self.at_least else value <= self.limit

    def text(self, unit: str) -> str:
        """``≥ 3,100 routes/s``."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:,.10g} {unit}"


def at_least(limit: float) -> dict[str, Bar]:
    """The same lower bound for both layouts."""
    return dict.fromkeys(LAYOUTS, Bar(limit, True))


def at_most(limit: float) -> dict[str, Bar]:
    """The same upper bound for both layouts."""
    return dict.fromkeys(LAYOUTS, Bar(limit, False))


def reported(text: str) -> dict[str, str]:
    """One figure of the author's beside both layouts."""
    return dict.fromkeys(LAYOUTS, text)


@dataclass(frozen=True)
class Measured:
    """One row; ``author`` and ``bars`` are by layout, ``differs`` says in one line why the figures are no race."""

    name: str
    title: str
    source: str
    unit: str
    run: Callable[[Case], Sample]
    differs: str
    author: Mapping[str, str] = field(default_factory=dict)
    bars: Mapping[str, Bar] = field(default_factory=dict)


def rate(reading: Reading) -> Sample:
    """Operations a second."""
    return Sample(reading.rate, reading.each_cpu_ns)


def nanoseconds(reading: Reading) -> Sample:
    """Wall nanoseconds of one operation."""
    return Sample(reading.each_ns, reading.each_cpu_ns)


def milliseconds(reading: Reading) -> Sample:
    """Wall milliseconds of one operation."""
    return Sample(reading.each_ns / 1e6, reading.each_cpu_ns)
