"""The page of the job: the account, latencies by percentile and as a histogram, losses over time, the worst pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from canopy_pages import AMBER, GREEN, GREY, RED, Chart, Page, Series
from pipeline.loadtest.tables import COUNTS

if TYPE_CHECKING:
    from pipeline.loadtest.outcome import Outcome

COLUMNS: Final = ("lost", "duplicates", "reordered", "altered", "unconfirmed", "unjudged")
BARS: Final = 20
"""Bars of the histogram for each factor of ten."""
SHOWN: Final = 50
"""Figures that differ, on the page."""


@dataclass(frozen=True)
class Shown:
    """Rows for the page, few already: microseconds with counts, one row a second, the worst pairs."""

    histogram: Sequence[tuple[int, int]]
    seconds: Sequence[dict[str, Any]]
    worst: Sequence[dict[str, Any]]


def page(outcome: Outcome, shown: Shown) -> Page:
    """The whole page."""
    made = Page("Load run", f"The account of {', '.join(outcome.runs)}, from the rows of its messages.")
    tone = {None: "note", True: "good", False: "bad"}[outcome.agrees]
    made.paragraph(_sentence(outcome.verdict()), tone)
    if not outcome.coverage.complete:
        outcome.coverage.show(made)
    if outcome.unsent:
        made.paragraph(f"{outcome.unsent:,} deliveries are of messages that nobody sent.", "bad")
    if outcome.differing:
        made.heading("Where the two differ")
        rows = [[each["name"], each["here"], each["there"]] for each in outcome.differing[:SHOWN]]
        made.table(["figure", "here", "load tester"], rows, "summary.json")
    made.figures({name.replace("_", " "): outcome.deliveries[name] for name in COUNTS})
    made.heading("Latency")
    rows = [
        [what, *(times.get(name) for name in ("count", "min", "mean", "p50", "p90", "p99", "p999", "max"))]
        for what, times in (("from the intended time", outcome.latency), ("from the sending", outcome.from_sent))
    ]
    made.table(["µs", "count", "min", "mean", "p50", "p90", "p99", "p99.9", "max"], rows)
    if shown.seconds:
        for plot in _course(shown.seconds):
            made.plot(plot)
    made.heading("Groups")
    made.table(
        ["group", "sent", "expected", "received", *COLUMNS, "p50 µs", "p99 µs"],
        [
            [
                group["name"],
                group["sent"],
                *(group["deliveries"][name] for name in ("expected", "received", *COLUMNS)),
                group["latency"]["p50"],
                group["latency"]["p99"],
            ]
            for group in outcome.groups
        ],
    )
    made.heading("Worst pairs")
    made.table(
        ["publisher", "subscriber", "group", "expected", "received", *COLUMNS],
        [
            [pair[name] for name in ("publisher", "subscriber", "group", "expected", "received", *COLUMNS)]
            for pair in shown.worst
        ],
        "the table pairs",
    )
    return made


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _course(seconds: Sequence[dict[str, Any]]) -> list[Chart]:
    at = [row["second"] for row in seconds]
    times = [
        Series(name, [row[name] for row in seconds], colour)
        for name, colour in (("p50", GREEN), ("p99", AMBER), ("max", GREY))
    ]
    missing = [Series("missing", [row["missing"] for row in seconds], RED, bars=True)]
    about = "By the second for which messages were meant."
    plots = [Chart("course", "Latency over time", about, at, times, "µs", powers=True)]
    # Axes without a bar would say less than the tiles above do.
    if any(row["missing"] for row in seconds):
        about += " Missing: lost, unconfirmed, or sent while a subscriber came or went."
        plots.append(Chart("missing", "Missing deliveries", about, at, missing, "deliveries"))
    return plots
