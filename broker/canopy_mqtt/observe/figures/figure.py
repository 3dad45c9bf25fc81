"""Defines a figure: its name, its meaning, how to read it, and the topics below `$SYS/broker/` that show it.

Reading a figure costs a few attribute lookups: events are counted where they happen, in plain integers. Labels have few
values (causes, reason codes, names from the settings), never a text that a client chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from canopy_mqtt.histogram import Histogram
from canopy_mqtt.observe.figures.merging import Merge, Sample, Value, added

if TYPE_CHECKING:
    from canopy_mqtt.observe.figures.sources import Reading


class Kind(StrEnum):
    COUNTER = "counter"
    """A number that only grows until the broker restarts."""
    GAUGE = "gauge"
    """A number that goes up and down."""
    HISTOGRAM = "histogram"
    """A distribution of durations (`canopy_mqtt.histogram`). No topic shows it."""
    TEXT = "text"
    """A text for people; only `$SYS` has it."""
    INTERVAL = "interval"
    """A number about the time since `$SYS` was last published; only `$SYS` has it."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic, or one for each sample: `{label}` stands for the value of a label.

    If the path lacks a label of the figure, the topic shows the sum over that label.
    """

    path: str
    """The topic below `$SYS/broker/`."""
    show: Callable[[Value], str] = str
    meaning: str = ""
    """Its meaning, if that differs from the figure's `help`."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table."""

    name: str
    """The Prometheus name without the prefix `canopy_`, the unit and the suffix `_total`; unique."""
    kind: Kind
    help: str
    """One sentence, without a full stop."""
    read: Callable[[Reading], Iterable[Sample] | Histogram | None]
    """Returns the present value; nothing if this broker does not have it."""
    unit: str = ""
    """`seconds`, `bytes`, or empty."""
    labels: tuple[str, ...] = ()
    topics: tuple[Topic, ...] = ()
    process: bool = False
    """True for figures of the process: Prometheus knows them by names without `canopy_`."""
    merge: Merge = added
    """Makes one figure of those of several workers. Histograms are added."""
    parts: tuple[str, ...] = ()
    """The names of the figures that it is the sum of, where the sum of several workers' would not be right."""

    @property
    def exported(self) -> bool:
        """True if others than `$SYS` read it."""
        return self.kind in (Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM)

    @property
    def metric(self) -> str:
        """The Prometheus name, without the `_total` of a counter."""
        name = self.name if self.process else f"canopy_{self.name}"
        return f"{name}_{self.unit}" if self.unit else name

    def samples(self, reading: Reading) -> list[Sample]:
        """Return the present samples; a histogram has none."""
        found = self.read(reading)
        return [] if found is None or isinstance(found, Histogram) else list(found)


def one(read: Callable[[Reading], Value | None]) -> Callable[[Reading], Iterable[Sample]]:
    """Make the reader of a figure without labels. None: this broker does not have it."""
    return lambda reading: () if (value := read(reading)) is None else (((), value),)


def each(read: Callable[[Reading], Mapping[str, Value]]) -> Callable[[Reading], Iterable[Sample]]:
    """Make the reader of a figure with one label."""
    return lambda reading: (((label,), value) for label, value in read(reading).items())
