"""What a figure is: its name, what it counts, where it is read, and the topics below `$SYS/broker/` that show it.

Reading one costs a few attributes: what happens is counted where it happens, in plain integers. Labels have few values:
causes, reason codes, names from the settings; never anything that a client chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from broker.core.histogram import Histogram

if TYPE_CHECKING:
    from broker.observe.figures.sources import Reading

Value: TypeAlias = int | float | str
Sample: TypeAlias = tuple[tuple[str, ...], Value]
"""The values of the labels, in their order, and what is counted there."""


class Kind(StrEnum):
    """What kind of figure it is."""

    COUNTER = "counter"
    """A number that only grows, until the broker starts again."""
    GAUGE = "gauge"
    """A number that goes up and down."""
    HISTOGRAM = "histogram"
    """How long something took, as `broker.core.histogram` has it. No topic shows it."""
    TEXT = "text"
    """Something for people, for `$SYS` alone."""
    INTERVAL = "interval"
    """About the time since `$SYS` was last published, and so for `$SYS` alone."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic, or one for each sample: `{label}` stands for the value of a label.

    Where a label of the figure is missing in it, it shows the sum over that label.
    """

    path: str
    """Below `$SYS/broker/`."""
    show: Callable[[Value], str] = str
    meaning: str = ""
    """Where it means something else than the figure's `help` says."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table."""

    name: str
    """As Prometheus has it, without `canopy_` before it and the unit and `_total` behind it; unique."""
    kind: Kind
    help: str
    """One sentence, without a full stop."""
    read: Callable[[Reading], Iterable[Sample] | Histogram | None]
    """What there is to be told now; nothing where this broker does not have it."""
    unit: str = ""
    """`seconds`, `bytes`, or nothing."""
    labels: tuple[str, ...] = ()
    topics: tuple[Topic, ...] = ()
    process: bool = False
    """Whether it is about the process: Prometheus knows such figures by names without `canopy_`."""

    @property
    def exported(self) -> bool:
        """Whether others than `$SYS` read it."""
        return self.kind in (Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM)

    @property
    def metric(self) -> str:
        """Its name as Prometheus has it, without the `_total` of a counter."""
        name = self.name if self.process else f"canopy_{self.name}"
        return f"{name}_{self.unit}" if self.unit else name

    def samples(self, reading: Reading) -> list[Sample]:
        """What there is to be told now, but for histograms."""
        found = self.read(reading)
        return [] if found is None or isinstance(found, Histogram) else list(found)


def one(read: Callable[[Reading], Value]) -> Callable[[Reading], Iterable[Sample]]:
    """How a figure without labels is read."""
    return lambda reading: ((((), read(reading))),)
