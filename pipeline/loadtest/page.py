"""The page of the job: the account, latencies by percentile and as a histogram, losses over time, the worst pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from canopy_pages import AMBER, BLUE, GREEN, GREY, POWERS, RED, Page, Plot, bars, line
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
    if shown.histogram:
        made.plot(_percentiles(shown.histogram))
        made.plot(_histogram(shown.histogram))
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


def _percentiles(histogram: Sequence[tuple[int, int]]) -> Plot:
    total = sum(count for _, count in histogram)
    passed, one_in, latencies = 0, list[float](), list[float]()
    for us, count in histogram:
        # Of so many deliveries, one took as long or longer.
        one_in.append(total / (total - passed))
        latencies.append(us)
        passed += count
    powers = range(math.ceil(math.log10(max(one_in))) + 1)
    names = ["min", "90 %", "99 %", *(f"99.{'9' * (power - 2)} %" for power in powers if power > 2)]
    ticks = {"tickvals": [10**power for power in powers], "ticktext": names[: len(powers)]}
    return Plot(
        "spectrum",
        "Latency by percentile",
        "To the right, one in ten, a hundred, a thousand … took longer.",
        [line("deliveries", one_in, latencies, BLUE, line={"shape": "hv"})],
        {"xaxis": {**POWERS, **ticks}, "yaxis": {"title": {"text": "µs"}, **POWERS}},
        broad=False,
    )


def _histogram(histogram: Sequence[tuple[int, int]]) -> Plot:
    found: dict[int, int] = {}
    for us, count in histogram:
        at = math.floor(math.log10(max(us, 1)) * BARS)
        found[at] = found.get(at, 0) + count
    middles = [10 ** ((at + 0.5) / BARS) for at in sorted(found)]
    widths = [10 ** ((at + 1) / BARS) - 10 ** (at / BARS) for at in sorted(found)]
    return Plot(
        "latencies",
        "Deliveries by latency",
        f"{BARS} bars for each power of ten.",
        [bars("deliveries", middles, [found[at] for at in sorted(found)], BLUE, width=widths)],
        {"xaxis": {"title": {"text": "µs"}, **POWERS}, "yaxis": {"title": {"text": "deliveries"}}},
        broad=False,
    )


def _course(seconds: Sequence[dict[str, Any]]) -> list[Plot]:
    at = [row["second"] for row in seconds]
    xaxis = {"title": {"text": "second"}, "matches": "time"}
    times = [
        line(f"{name} µs", at, [row[name] for row in seconds], colour)
        for name, colour in (("p50", GREEN), ("p99", AMBER), ("max", GREY))
    ]
    plots = []
    # Axes without a bar would say less than the tiles above do.
    if any(row["missing"] for row in seconds):
        plots.append(
            Plot(
                "missing",
                "Missing deliveries",
                "By the second for which messages were meant. Missing: lost, unconfirmed, or sent while a subscriber "
                "came or went.",
                [bars("missing", at, [row["missing"] for row in seconds], RED)],
                {"xaxis": xaxis, "yaxis": {"title": {"text": "deliveries"}}},
                broad=False,
            )
        )
    plots.append(
        Plot(
            "course",
            "Latency over time",
            "By the second for which messages were meant.",
            times,
            {"xaxis": xaxis, "yaxis": {"title": {"text": "µs"}, **POWERS}},
            broad=not plots,
        )
    )
    return plots
