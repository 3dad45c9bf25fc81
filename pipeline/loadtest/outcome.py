"""`Outcome`: what a run of the load tester is found to have been, which is `summary.json`, and what is said of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.record.coverage import Coverage


@dataclass
class Outcome:
    """What was found; `summary.json` has the same names. Counts are those of docs/load.md, times microseconds."""

    runs: list[str]
    sent: int = 0
    """Messages sent in measured stages."""
    received: int = 0
    """Messages that came in measured stages, each once for each subscriber."""
    rows_sent: int = 0
    rows_received: int = 0
    deliveries: dict[str, int] = field(default_factory=dict)
    """To all subscribers that read as fast as they can, in the whole run."""
    latency: dict[str, float | None] = field(default_factory=dict)
    """From the intended time, of what was meant to be sent in measured stages, to the same subscribers."""
    from_sent: dict[str, float | None] = field(default_factory=dict)
    """The same deliveries from the time at which they were really sent: without the generator's own lateness."""
    groups: list[dict[str, Any]] = field(default_factory=list)
    pairs: int = 0
    strays: int = 0
    """Messages that came to subscribers who should not have heard them."""
    unsent: int = 0
    """Deliveries of messages that are not among those that were sent."""
    compared: int = 0
    """Figures that were held against the load tester's report; 0: there was none."""
    differing: list[dict[str, Any]] = field(default_factory=list)
    pairs_differing: int = 0
    coverage: Coverage = field(default_factory=Coverage)
    """Files that were left out."""

    @property
    def agrees(self) -> bool | None:
        """Whether the load tester says the same; None where its report is not there."""
        if not self.compared:
            return None
        return not self.differing and not self.pairs_differing

    @property
    def fine(self) -> bool:
        """Whether the exit code is 0."""
        return self.agrees is not False and not self.unsent

    def summary(self) -> dict[str, Any]:
        """For `summary.json`."""
        return {**asdict(self), "agrees": self.agrees, "coverage": self.coverage.summary()}

    def line(self) -> str:
        """For the terminal."""
        counts = self.deliveries
        text = (
            f"{self.rows_sent:,} sent, {counts['expected']:,} deliveries expected, {counts['received']:,} received, "
            f"{counts['lost']:,} lost, {counts['duplicates']:,} duplicates, {counts['reordered']:,} reordered, "
            f"{counts['altered']:,} altered"
        )
        if self.latency.get("p99") is not None:
            text += f"; p50 {self.latency['p50']:,.0f} µs, p99 {self.latency['p99']:,.0f} µs"
        if self.unsent:
            text += f"; {self.unsent:,} deliveries of messages that nobody sent"
        return f"{text}; {self.verdict()}"

    def verdict(self) -> str:
        """Whether the load tester's report says the same, in words."""
        if self.agrees is None:
            return "no report of the load tester beside the records to compare with"
        if self.agrees:
            return f"the load tester's report says the same ({self.compared:,} figures, {self.pairs:,} pairs)"
        said = [f"{each['name']} {_plain(each['here'])} here, {_plain(each['there'])} there" for each in self.differing]
        more = f" and {len(said) - 5} more" if len(said) > 5 else ""
        pairs = f"{self.pairs_differing:,} pairs differ" if self.pairs_differing else ""
        return "the load tester's report DISAGREES: " + "; ".join(filter(None, (", ".join(said[:5]) + more, pairs)))


def _plain(value: float | None) -> str:
    return "none" if value is None else f"{value:,.10g}"
