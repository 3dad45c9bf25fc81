"""The report for people: one HTML file.

Owns: what stands on the page, and in which order. Long tables are cut with a line that says so.

Findings that speak against the figures stand above them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from canopy_load.report.report_plots import plots
from canopy_load.report.result import Reconciled, Result
from canopy_load.report.wording import (
    DASH,
    GROUP_HEADINGS,
    LATENCY_HEADINGS,
    THRESHOLD_HEADINGS,
    figures,
    findings,
    group_cells,
    latency_rows,
    number,
    threshold_rows,
)
from canopy_mqtt.pages import Markup, document, element, facts, folded_text, joined, plotted, table, text
from canopy_mqtt.words import counted

WORST: Final = 50
"""Pairs on the page; the worst 1,000 are in `summary.json`."""
ERRORS: Final = 100
GROUPS: Final = 200


def page(result: Result) -> str:
    drawn = plots(result)
    body = joined(
        [
            _header(result),
            element("h2", "Key figures"),
            _figures(result),
            _thresholds(result),
            element("h2", "Plots"),
            element("div", joined(plotted(plot) for plot in drawn), class_="plots"),
            _latencies(result),
            _groups(result),
            _pairs(result),
            _errors(result),
            _reconciliation(result.reconciled),
            element("h2", "Environment"),
            _environment(result),
            element("h2", "Scenario"),
            folded_text("as it was played", result.scenario_text)
            if result.scenario_text
            else _line("Its text was not kept."),
            element("footer", f"canopy load · run {result.run} · this page is one file and fetches nothing."),
        ]
    )
    return document(f"{result.scenario} on {result.broker or result.target}", body, drawn)


def _line(words: str) -> Markup:
    return element("p", words, class_="soft")


def _header(result: Result) -> Markup:
    begun = result.begun[:19].replace("T", " ")
    about = [
        ("target", result.target),
        ("broker", result.broker or "unknown"),
        ("begun", f"{begun} UTC"),
        ("measured", f"{number(result.measured_seconds)} s"),
        ("generator", counted(result.processes, "process", "processes")),
    ]
    notes = joined(element("li", finding.text, class_=finding.tone) for finding in findings(result))
    return element(
        "header",
        element("p", "canopy load", class_="kicker"),
        element("h1", result.scenario),
        _line(result.description) if result.description else Markup(),
        facts(about),
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


def _thresholds(result: Result) -> Markup:
    if not result.thresholds:
        return Markup()
    shown = table(THRESHOLD_HEADINGS, threshold_rows(result), left=THRESHOLD_HEADINGS)
    return joined([element("h2", "Thresholds"), shown])


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
    rest = _line(f"{counted(more, 'further group')}: see summary.json.") if more > 0 else Markup()
    about = element(
        "p", "The whole run; received, lost and latency are those of deliveries to the group.", class_="about"
    )
    return joined([element("h2", "Groups"), shown, rest, about])


def _pairs(result: Result) -> Markup:
    worst = [pair for pair in result.pairs if pair.deliveries.faults]
    heading = element("h2", "Worst pairs")
    if not result.pairs:
        return joined([heading, _line("No pair of a publisher and a subscriber was judged.")])
    if not worst:
        checked = counted(len(result.pairs), "pair")
        return joined(
            [heading, _line(f"None: nothing was missed or doubled between {checked} of publisher and subscriber.")]
        )
    worst.sort(key=lambda pair: -pair.deliveries.faults)
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
    about = f"{len(worst):,} of {counted(len(result.pairs), 'pair')} missed, doubled, reordered or altered something"
    about += f"; the worst {WORST} are shown, up to 1,000 are in summary.json." if len(worst) > WORST else "."
    return joined([heading, shown, element("p", about, class_="about")])


def _errors(result: Result) -> Markup:
    found = sorted(result.errors.items(), key=lambda item: -item[1])
    if not found:
        return joined([element("h2", "Errors"), _line("None.")])
    shown = table(("error", "times"), [[what, number(times)] for what, times in found[:ERRORS]], left=("error",))
    more = len(found) - ERRORS
    rest = _line(f"{counted(more, 'further kind')}: see summary.json.") if more > 0 else Markup()
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
