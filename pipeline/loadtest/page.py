"""The page of the job: the account, latencies by percentile and as a histogram, losses over time, the worst pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pipeline.loadtest.tables import COUNTS
from pipeline.pages import Page

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

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
        made.plot(_percentiles(shown.histogram), "To the right, one in ten, a hundred, a thousand … took longer.")
        made.plot(_histogram(shown.histogram))
    if shown.seconds:
        made.heading("Second by second")
        made.plot(
            _course(shown.seconds),
            "By the second for which messages were meant. Missing: lost, unconfirmed, or sent while a subscriber was "
            "coming or going.",
        )
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


def _percentiles(histogram: Sequence[tuple[int, int]]) -> Figure:
    from plotly.graph_objects import Figure, Scatter

    total = sum(count for _, count in histogram)
    passed, one_in, latencies = 0, [], []
    for us, count in histogram:
        # Of so many deliveries, one took as long or longer.
        one_in.append(total / (total - passed))
        latencies.append(us)
        passed += count
    figure = Figure(Scatter(x=one_in, y=latencies, mode="lines", line={"shape": "hv", "color": "#1f6f5c"}))
    powers = range(math.ceil(math.log10(max(one_in))) + 1)
    names = ["min", "90 %", "99 %", *(f"99.{'9' * (power - 2)} %" for power in powers if power > 2)]
    figure.update_xaxes(type="log", tickvals=[10**power for power in powers], ticktext=names[: len(powers)])
    figure.update_yaxes(type="log", title="µs")
    return figure.update_layout(title="Latency by percentile")


def _histogram(histogram: Sequence[tuple[int, int]]) -> Figure:
    from plotly.graph_objects import Bar, Figure

    bars: dict[int, int] = {}
    for us, count in histogram:
        at = math.floor(math.log10(max(us, 1)) * BARS)
        bars[at] = bars.get(at, 0) + count
    middles = [10 ** ((at + 0.5) / BARS) for at in sorted(bars)]
    widths = [10 ** ((at + 1) / BARS) - 10 ** (at / BARS) for at in sorted(bars)]
    figure = Figure(Bar(x=middles, y=[bars[at] for at in sorted(bars)], width=widths, marker={"color": "#1f6f5c"}))
    figure.update_xaxes(type="log", title="µs")
    figure.update_yaxes(title="deliveries")
    return figure.update_layout(title="Deliveries by latency", bargap=0)


def _course(seconds: Sequence[dict[str, Any]]) -> Figure:
    from plotly.graph_objects import Bar, Scatter
    from plotly.subplots import make_subplots

    at = [row["second"] for row in seconds]
    figure: Figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    figure.add_trace(Bar(x=at, y=[row["missing"] for row in seconds], name="missing", marker_color="#b3261e"), 1, 1)
    for name, colour in (("p50", "#6cc3ad"), ("p99", "#1f6f5c"), ("max", "#9aa7b4")):
        line = Scatter(x=at, y=[row[name] for row in seconds], name=f"{name} µs", line={"color": colour})
        figure.add_trace(line, 2, 1)
    figure.update_yaxes(title="deliveries", row=1, col=1)
    figure.update_yaxes(title="µs", type="log", row=2, col=1)
    figure.update_xaxes(title="second", row=2, col=1)
    return figure.update_layout(title="Missing deliveries and latency", height=520)
