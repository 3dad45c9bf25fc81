"""What the benchmark tells: a table for people, and the same as data.

Owns: medians and spread over the runs, the words about bars, the layout of both tables. A line under a row has its
details: figures that belong to it and have no bar.

Promises: a bar that was missed says so in capitals, a row that failed says why, and the data holds every run.

No bar is judged of a quick run, whose counts are not the author's, or of a row that did not run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.figures import number
from benchmarks.routing.growth import Point
from benchmarks.routing.row import Row, Sample
from loadtest.brokers.stats import median

HEADINGS: Final = ("row", "layout", "ours", "min–max", "CPU ns", "author", "bar", "reached", "what differs")
GROWTH: Final = {
    "filters": {
        "count": "filters",
        "insert_ns": "insert ns",
        "match_ns": "match ns",
        "remove_ns": "remove ns",
        "bytes": "B each",
        "bytes_index": "without strings",
    },
    "subscribers": {"count": "subscribers", "add_ns": "add ns", "discard_ns": "discard ns", "deliver_ns": "deliver ns"},
}
INDENT: Final = "    "
_RIGHT: Final = frozenset({"ours", "min–max", "CPU ns"})


@dataclass
class Result:
    """All runs of one row with one layout; ``failure`` says why there is none, or why there are fewer."""

    row: Row
    layout: str
    judged: bool = True
    samples: list[Sample] = field(default_factory=list)
    failure: str | None = None

    @property
    def value(self) -> float | None:
        """The median of the runs, in the row's unit."""
        return median(sample.value for sample in self.samples)

    @property
    def cpu_ns(self) -> float | None:
        """The median of CPU ns for each operation."""
        return median(sample.cpu_ns for sample in self.samples if sample.cpu_ns is not None)

    @property
    def details(self) -> dict[str, float]:
        """The medians of what else there is to say."""
        if not self.samples:
            return {}
        return {name: median(each.details[name] for each in self.samples) or 0.0 for name in self.samples[0].details}

    @property
    def reached(self) -> bool | None:
        """Whether the bar was reached; None where there is none, or nothing to judge it by."""
        bar = self.row.bars.get(self.layout)
        if bar is None or self.value is None or self.failure or not self.judged:
            return None
        return bar.reached(self.value)

    def verdict(self) -> str:
        """``yes``, ``NO``, ``not judged``, or nothing where there is no bar."""
        if self.row.bars.get(self.layout) is None:
            return ""
        if self.reached is None:
            return "not judged"
        return "yes" if self.reached else "NO"

    def as_dict(self) -> dict[str, object]:
        """Everything, for JSON."""
        bar = self.row.bars.get(self.layout)
        return {
            "name": self.row.name,
            "title": self.row.title,
            "source": self.row.source,
            "layout": self.layout,
            "unit": self.row.unit,
            "median": self.value,
            "runs": [sample.value for sample in self.samples],
            "cpu_ns": self.cpu_ns,
            "details": self.details,
            "author": self.row.author.get(self.layout) or None,
            "bar": None if bar is None else bar.text(self.row.unit),
            "reached": self.reached,
            "differs": self.row.differs,
            "failure": self.failure,
        }


def cells(result: Result, first: bool = True) -> list[str]:
    """The table's line of one result; the title stands in a row's first line only."""
    row = result.row
    values = [sample.value for sample in result.samples]
    bar = row.bars.get(result.layout)
    differs = row.differs if first else ""
    return [
        row.title if first else "",
        result.layout,
        f"{number(result.value)} {row.unit}",
        f"{number(min(values))}–{number(max(values))}" if values else "–",
        number(result.cpu_ns),
        row.author.get(result.layout) or "–",
        "–" if bar is None else bar.text(row.unit),
        result.verdict() or "–",
        f"FAILED: {result.failure}" if result.failure else differs,
    ]


def table(results: Sequence[Result]) -> str:
    """The whole table under its authors' names; columns as wide as their widest cell."""
    body: list[list[str]] = []
    titles: dict[int, str] = {}
    for at, result in enumerate(results):
        before = results[at - 1] if at else None
        if before is None or before.row.source != result.row.source:
            titles[at] = result.row.source
        body.append(cells(result, before is None or before.row is not result.row))
    widths = [max(len(line[at]) for line in [list(HEADINGS), *body]) for at in range(len(HEADINGS) - 1)] + [0]
    lines = [_line(HEADINGS, widths), "  ".join("-" * width for width in widths if width)]
    for at, line in enumerate(body):
        if at in titles:
            lines.append(f"{titles[at]}:")
        lines.append(_line(line, widths))
        details = results[at].details.items()
        if details:
            lines.append(INDENT + ", ".join(f"{name} {number(value)}" for name, value in details))
    return "\n".join(lines)


def _line(line: Sequence[str], widths: Sequence[int]) -> str:
    aligned = (
        text.rjust(width) if heading in _RIGHT else text.ljust(width)
        for text, width, heading in zip(line, widths, HEADINGS, strict=True)
    )
    return "  ".join(aligned).rstrip()


def bars(results: Sequence[Result]) -> str:
    """One line: how many bars were reached, and which were not."""
    reached = sum(result.reached is True for result in results)
    missed = [f"{result.row.name} ({result.layout})" for result in results if result.reached is False]
    unjudged = sum(result.verdict() == "not judged" for result in results)
    parts = [f"{reached} bars reached", f"{len(missed)} missed" + (f": {', '.join(missed)}" if missed else "")]
    if unjudged:
        parts.append(f"{unjudged} not judged")
    return "; ".join(parts) + "."


def growth_table(found: Mapping[str, Mapping[str, Sequence[Point]]]) -> str:
    """Both series of ``growth.measure``, one line for each layout and count."""
    lines: list[str] = []
    for series, headings in GROWTH.items():
        lines += ["", "layout   " + "".join(heading.rjust(17) for heading in headings.values())]
        for layout, points in found[series].items():
            lines += [layout.ljust(9) + "".join(number(point[name]).rjust(17) for name in headings) for point in points]
    return "\n".join(lines)
