"""The report for people: one HTML file.

Owns: what stands on the page, in which order, and how it is kept to itself.

Promises: plotly.js is in the file and nothing is fetched: a Content-Security-Policy forbids it, and allows no script
but the two whose hashes it names. All text goes through ``markup``; the plots' data is JSON in which no tag can
begin. Long tables are cut with a line that says so.

Findings that speak against the figures stand above them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Final

from plotly.offline import get_plotlyjs

from loadtest.load.report.drawing import Plot
from loadtest.load.report.markup import Markup, element, joined, table, text
from loadtest.load.report.plots import plots
from loadtest.load.report.result import Deliveries, Reconciled, Result
from loadtest.load.report.wording import (
    DASH,
    GROUP_HEADINGS,
    LATENCY_HEADINGS,
    figures,
    findings,
    group_cells,
    latency_rows,
    number,
    things,
)

WORST: Final = 50
"""Pairs on the page; all of them are in `pairs.parquet`."""
ERRORS: Final = 100
GROUPS: Final = 200

_BROAD: Final = frozenset({"rates", "heat", "percentiles", "spectrum"})
"""Plots over the whole width; the others stand two beside each other where there is room."""


def page(result: Result) -> str:
    """The whole page."""
    drawn = plots(result)
    body = joined(
        [
            _header(result),
            element("h2", "Key figures"),
            _figures(result),
            element("h2", "Plots"),
            element("div", joined(_plot(plot) for plot in drawn), class_="plots"),
            _latencies(result),
            _groups(result),
            _pairs(result),
            _errors(result),
            _reconciliation(result.reconciled),
            element("h2", "Environment"),
            _environment(result),
            element("h2", "Scenario"),
            element("pre", result.scenario_text) if result.scenario_text else _line("Its text was not kept."),
            element("footer", f"canopy load · run {result.run} · this page is one file and fetches nothing."),
        ]
    )
    return _document(
        f"{result.scenario} on {result.broker or result.target}", body, [plot for plot in drawn if not plot.absent]
    )


def _document(title: str, body: Markup, drawn: Sequence[Plot]) -> str:
    here = files("loadtest.load.report")
    style = (here / "page.css").read_text(encoding="utf-8")
    # Without a plot, there is no reason to carry five megabytes of plotly.js.
    scripts = [get_plotlyjs(), (here / "page.js").read_text(encoding="utf-8")] if drawn else []
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts]
    allowed = " ".join(hashes) or "'none'"
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta name="referrer" content="no-referrer">',
        '<link rel="icon" href="data:,">',
        element("title", title),
        f"<style>{style}</style>",
    ]
    tail = [
        f'<script type="application/json" id="plots">{_data(drawn)}</script>',
        *(f"<script>{script}</script>" for script in scripts),
    ]
    return "\n".join(["<!DOCTYPE html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", body, *tail,
                      "</body>", "</html>", ""])  # fmt: skip


def _data(drawn: Sequence[Plot]) -> Markup:
    """The plots as JSON; with `<` written as an escape, nothing in it can end the script element."""
    data = [{"key": plot.key, "traces": plot.traces, "layout": plot.layout} for plot in drawn]
    return Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e"))


def _line(words: str) -> Markup:
    return element("p", words, class_="soft")


def _facts(pairs: Sequence[tuple[str, str]]) -> Markup:
    rows = (element("div", element("dt", name), element("dd", value)) for name, value in pairs)
    return element("dl", joined(rows), class_="facts")


def _header(result: Result) -> Markup:
    begun = result.begun[:19].replace("T", " ")
    facts = [
        ("target", result.target),
        ("broker", result.broker or "unknown"),
        ("begun", f"{begun} UTC"),
        ("measured", f"{number(result.measured_seconds)} s"),
        ("driver", f"{result.driver}, {things(result.processes, 'process', 'processes')}"),
    ]
    notes = joined(element("li", finding.text, class_=finding.tone) for finding in findings(result))
    return element(
        "header",
        element("p", "canopy load", class_="kicker"),
        element("h1", result.scenario),
        _line(result.description) if result.description else Markup(),
        _facts(facts),
        element("ul", notes, class_="findings"),
    )


def _figures(result: Result) -> Markup:
    tiles = (
        element(
            "div", element("dt", each.name), element("dd", each.value, element("small", each.note)), class_=each.tone
        )
        for each in figures(result)
    )
    return joined(
        [
            element("dl", joined(tiles), class_="figures"),
            element(
                "p",
                "Sent, received, rates and CPU are of the measured stages; losses and other faults of the whole run, "
                "to all groups that read as fast as they can.",
                class_="about",
            ),
        ]
    )


def _plot(plot: Plot) -> Markup:
    inside = (
        element("p", plot.absent, class_="absent soft")
        if plot.absent
        else joined([element("p", plot.about, class_="about"), element("div", class_="plot", id=f"plot-{plot.key}")])
    )
    wide = " broad" if plot.key in _BROAD else ""
    return element("figure", element("h3", plot.title), inside, class_=plot.key + wide, id=plot.key)


def _latencies(result: Result) -> Markup:
    rows = latency_rows(result)
    shown = table(LATENCY_HEADINGS, rows, left=LATENCY_HEADINGS[:1]) if rows else _line("No latency was measured.")
    return joined([element("h2", "Latencies"), shown])


def _groups(result: Result) -> Markup:
    rows: list[list[str]] = []
    for group in result.groups[:GROUPS]:
        name, *figures_of, notes = group_cells(group)
        rows.append([joined([text(name), element("small", notes)]) if notes else name, *figures_of])
    shown = table(GROUP_HEADINGS[:-1], rows, left=("group", "role")) if rows else _line("There were no groups.")
    more = len(result.groups) - GROUPS
    rest = _line(f"{things(more, 'further group')}: see summary.json.") if more > 0 else Markup()
    about = element(
        "p", "The whole run; received, lost and latency are those of deliveries to the group.", class_="about"
    )
    return joined([element("h2", "Groups"), shown, rest, about])


def _pairs(result: Result) -> Markup:
    worst = [pair for pair in result.pairs if _faulty(pair.deliveries)]
    heading = element("h2", "Worst pairs")
    if not result.pairs:
        return joined([heading, _line("No pair of a publisher and a subscriber was judged.")])
    if not worst:
        checked = things(len(result.pairs), "pair")
        return joined(
            [heading, _line(f"None: nothing was missed or doubled between {checked} of publisher and subscriber.")]
        )
    worst.sort(key=lambda pair: -_faulty(pair.deliveries))
    rows = [
        [pair.publisher, pair.subscriber, pair.group]
        + [
            number(count)
            for count in (
                pair.deliveries.expected,
                pair.deliveries.received,
                pair.deliveries.lost,
                pair.deliveries.duplicates,
                pair.deliveries.reordered,
                pair.deliveries.altered,
            )
        ]
        for pair in worst[:WORST]
    ]
    left = ("publisher", "subscriber", "group")
    shown = table((*left, "due", "received", "lost", "doubled", "reordered", "altered"), rows, left=left)
    about = f"{len(worst):,} of {things(len(result.pairs), 'pair')} missed, doubled, reordered or altered something"
    about += f"; the worst {WORST} are shown, all are in pairs.parquet." if len(worst) > WORST else "."
    return joined([heading, shown, element("p", about, class_="about")])


def _faulty(of: Deliveries) -> int:
    return of.lost + of.duplicates + of.reordered + of.altered


def _errors(result: Result) -> Markup:
    found = sorted(result.errors.items(), key=lambda item: -item[1])
    if not found:
        return joined([element("h2", "Errors"), _line("None.")])
    shown = table(("error", "times"), [[what, number(times)] for what, times in found[:ERRORS]], left=("error",))
    more = len(found) - ERRORS
    rest = _line(f"{things(more, 'further kind')}: see summary.json.") if more > 0 else Markup()
    return joined([element("h2", "Errors"), shown, rest])


def _reconciliation(found: Reconciled | None) -> Markup:
    heading = element("h2", "Beside the broker's own ledger")
    if found is None:
        return joined([heading, _line("Was not compared.")])
    agrees = {True: "yes", False: "no", None: DASH}[found.agrees]
    rows = [
        ["missing deliveries, as seen", number(found.seen)],
        ["drops, as the broker counts them", "it publishes none" if found.reported is None else number(found.reported)],
        *([f"of these: {cause}", number(count)] for cause, count in sorted(found.by_cause.items())),
        ["losses told to subscribers (canopy-lost)", number(found.told)],
        ["agree", agrees],
    ]
    why = _line(found.why) if found.why else Markup()
    return joined([heading, table(("what", "messages"), rows, left=("what",)), why])


def _environment(result: Result) -> Markup:
    found: Mapping[str, str] = result.environment
    if not found:
        return _line("Nothing is known of it.")
    return table(("what", "value"), [[name, value] for name, value in found.items()], left=("what", "value"))
