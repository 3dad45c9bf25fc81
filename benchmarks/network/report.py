"""What the bench tells: a table of plain text, and the same as data for JSON.

Owns: medians over repeats, ratios between brokers, and the layout of the table.

Promises: nothing is left out of the table that would change its reading: losses, doubles, and who was the limit. The
data holds every run, not only the medians.

Runs are not averaged: a median of few noisy runs is steadier than their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.figures import aligned, number
from benchmarks.network.measure import Sample
from benchmarks.network.rows import Row
from canopy_load.brokers.stats import median, ratio

HEADINGS: Final = (
    "row",
    "broker",
    "rate/s",
    "CPU µs",
    "CPU ×",
    "rate ×",
    "RSS MB",
    "B each",
    "p50 µs",
    "p99 µs",
    "lost",
    "double",
    "broker %",
    "gen %",
    "notes",
)
DISTURBED: Final = 0.05  # share of wall time waited for a core above which the table says so
_LEFT: Final = frozenset({"row", "broker", "notes"})


@dataclass
class Result:
    """All runs of one row on one broker; ``failure`` says why there is none, or why there are fewer.

    ``beside_what`` is what the runs beside them were of."""

    broker: str
    samples: list[Sample] = field(default_factory=list)
    failure: str | None = None
    beside_what: str = "without"

    def median(self, name: str) -> float | None:
        """The median of a ``Sample`` attribute over the runs that have it."""
        values = [getattr(sample, name) for sample in self.samples]
        return median(float(value) for value in values if value is not None)

    def beside(self, name: str) -> float | None:
        """The median of an attribute with the row's extra load, relative to the same broker without it."""
        pairs = [(sample, sample.without) for sample in self.samples if sample.without is not None]
        ratios = [ratio(getattr(sample, name), getattr(without, name)) for sample, without in pairs]
        return median(value for value in ratios if value is not None)

    def _missed(self) -> list[str]:
        """What is to be said of clients that did not read."""
        found: list[str] = []
        missed = [sample.missed for sample in self.samples if sample.missed is not None]
        if missed:
            clients = sum(each.clients for each in missed)
            found.append(f"{clients // len(missed):,} frozen missed {sum(each.messages for each in missed):,}")
            cut = sum(each.cut for each in missed)
            if cut:
                found.append(f"{cut:,} of {clients:,} frozen disconnected")
            if not all(each.full for each in missed):
                found.append("the queues of the frozen were not full")
        return found

    def notes(self) -> list[str]:
        """What a reader must know about these figures."""
        found: list[str] = []
        cpu, rate, late = self.beside("cpu_us"), self.beside("rate"), self.beside("p99_us")
        if cpu is not None and rate is not None:
            latency = "" if late is None else f", p99 {late:.2f}×"
            found.append(f"CPU {cpu:.2f}×, rate {rate:.2f}×{latency} of {self.beside_what}")
        found += self._missed()
        if self.samples and 2 * sum(sample.generator_bound for sample in self.samples) > len(self.samples):
            found.append("generator-bound")
        waited = self.median("waited_share")
        if waited is not None and waited > DISTURBED:
            found.append(f"cores busy elsewhere {100 * waited:.0f} %")
        skipped = sum(sample.skipped for sample in self.samples)
        if skipped:
            found.append(f"{skipped} SUBSCRIBE skipped: the broker fell behind")
        if self.failure:
            found.append(self.failure)
        return found

    def as_dict(self) -> dict[str, object]:
        """Medians, notes and every run, for JSON."""
        names = (
            "rate",
            "cpu_us",
            "resident",
            "bytes_each",
            "p50_us",
            "p99_us",
            "broker_share",
            "generator_share",
            "waited_share",
        )
        return {
            "medians": {name: self.median(name) for name in names},
            "lost": sum(sample.lost for sample in self.samples),
            "doubled": sum(sample.doubled for sample in self.samples),
            "cpu_of_without": self.beside("cpu_us"),
            "rate_of_without": self.beside("rate"),
            "p99_of_without": self.beside("p99_us"),
            "notes": self.notes(),
            "samples": [sample.as_dict() for sample in self.samples],
        }


@dataclass
class RowResult:
    """One row on all brokers, in the order they were asked for: the first is compared with the second."""

    row: Row
    results: list[Result]

    def ratio(self, name: str) -> float | None:
        """The first broker's median by the second's."""
        if len(self.results) < 2:
            return None
        return ratio(self.results[0].median(name), self.results[1].median(name))

    def as_dict(self) -> dict[str, object]:
        """The row for JSON."""
        names = ("cpu_us", "rate", "p99_us", "bytes_each")
        return {
            "name": self.row.name,
            "title": self.row.title,
            "unit": self.row.unit,
            "ratios": {name: self.ratio(name) for name in names},
            "brokers": {result.broker: result.as_dict() for result in self.results},
        }


def cells(result: RowResult) -> list[list[str]]:
    """The table's lines of one row, one for each broker."""
    lines: list[list[str]] = []
    for position, each in enumerate(result.results):
        compared = position == 0
        resident = each.median("resident")
        broker, generator = each.median("broker_share"), each.median("generator_share")
        cpu, rate = (result.ratio("cpu_us"), result.ratio("rate")) if compared else (None, None)
        lines.append(
            [
                result.row.title if position == 0 else "",
                each.broker,
                number(each.median("rate")),
                number(each.median("cpu_us")),
                "" if cpu is None else f"{cpu:.2f}",
                "" if rate is None else f"{rate:.2f}",
                number(None if resident is None else resident / 1e6),
                number(each.median("bytes_each")),
                number(each.median("p50_us")),
                number(each.median("p99_us")),
                f"{sum(sample.lost for sample in each.samples):,}",
                f"{sum(sample.doubled for sample in each.samples):,}",
                "–" if broker is None else f"{100 * broker:.0f}",
                "–" if generator is None else f"{100 * generator:.0f}",
                "; ".join(each.notes()),
            ]
        )
    return lines


def table(results: Sequence[RowResult]) -> str:
    """The whole table; columns as wide as their widest cell, figures to the right."""
    return aligned(HEADINGS, [line for result in results for line in cells(result)], _LEFT)
