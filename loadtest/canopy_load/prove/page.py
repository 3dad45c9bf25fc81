"""The reports of proofs as pages: of one run, and the table of several brokers.

Owns: ``page`` and ``league``. Promises: made from `Summary`s and nothing else; all text from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from canopy_load.prove.report import faults_told, felt, figures, replayed, shown
from canopy_load.prove.summary import WITH_PACKETS, Line, Summary
from canopy_mqtt.pages import AMBER, BLUE, GREEN, RED, VIOLET, Chart, Page, Series, Stage

COMMAND: Final = "canopy prove"
NOTE: Final = (
    "unjudged: the history does not decide it, or the broker refused the feature. "
    "not promised: broken where the broker does not promise it."
)


def page(summary: Summary) -> str:
    """Return the page of a run."""
    about = f"{summary.rounds:,} rounds in {summary.seconds:,.0f} s, begun at {summary.begun} UTC."
    made = Page(f"What {summary.settings.broker} loses", about, COMMAND)
    made.paragraph(f"Verdict: {summary.verdict}", {0: "good", 1: "bad"}.get(summary.code, "warn"))
    for each in dict.fromkeys((*summary.failures, *summary.obstacles)):
        made.paragraph(each, "warn")
    made.figures(figures(summary))
    made.heading("Faults over operations")
    for chart in charts(summary):
        made.plot(chart)
    for what, those in faults_told(summary).items():
        made.paragraph(f"{what}: {those}", "warn" if summary.turnless and "no turn" in what else "")
    if summary.faults:
        made.table(("fault", "times", "longest time after it until answers came again"), felt(summary))
    made.heading("Verdicts")
    made.table(
        ("verdict", "checked", "broken", "unjudged", "not promised", "in doubt", "promise"),
        [
            (
                each.state,
                each.checked,
                len(each.findings),
                each.unjudged,
                each.not_promised,
                each.doubtful,
                each.statement,
            )
            for each in summary.promises
        ],
    )
    made.paragraph(NOTE, "note")
    for line in summary.broken:
        _findings(made, summary, line)
    if summary.settings.unmade:
        made.heading("Not judged")
        made.table(("fault that could not be made here", "why"), sorted(summary.settings.unmade.items()))
    if summary.refused:
        made.heading("Refused")
        made.table(("the broker refused", "times"), sorted(summary.refused.items()))
    if summary.notes or summary.absent:
        made.heading("Notes")
        notes = [(what, count) for what, count in sorted(summary.notes.items())]
        notes += [(f"{name} could not connect at the end: {why}", 1) for name, why in summary.absent.items()]
        made.table(("what", "times"), notes)
    made.heading("Settings")
    made.table(("what", "value"), _settings(summary))
    return made.html()


def _settings(summary: Summary) -> list[tuple[str, str]]:
    settings, promised = summary.settings, summary.settings.promised
    return [
        ("broker", settings.broker),
        ("canopy prove", summary.version),
        ("targets", ", ".join(summary.targets)),
        ("seeds", ", ".join(map(str, summary.seeds))),
        ("runs", ", ".join(summary.identifiers)),
        *settings.options.items(),
        ("of a kill the broker says", promised.says or "nothing"),
        ("it promises to answer after a fault within", f"{promised.recovery:g} s" if promised.recovery else "no time"),
        ("again", settings.again),
    ]


def _findings(made: Page, summary: Summary, line: Line) -> None:
    made.heading(f"Broken: {line.statement}")
    made.paragraph(", ".join(f"{kind}: {number:,}" for kind, number in line.by_kind.items()))
    for each in line.findings[:WITH_PACKETS]:
        made.folded(f"{each.client}: {each.what}", "\n".join((*shown(each), "", replayed(summary, each))))
    if len(line.findings) > WITH_PACKETS:
        made.paragraph(f"{WITH_PACKETS} of {len(line.findings):,} findings are shown; the JSON has all.", "note")


def charts(summary: Summary) -> list[Chart]:
    """Return the charts over time."""
    seconds = summary.timeline
    x = [float(at) for at in range(len(seconds))]
    stages = [Stage(each.fault, each.began, max(each.ended, each.began + 0.05), shaded=True) for each in summary.faults]
    operations = Chart(
        "operations",
        "Operations",
        "Messages in each second; the broker's faults are shaded.",
        x,
        [
            Series("delivered", [each.delivered for each in seconds], BLUE, right=True),
            Series("published", [each.published for each in seconds], GREEN),
            Series("acknowledged", [each.acknowledged for each in seconds], VIOLET),
        ],
        unit="messages/s",
        right_unit="messages/s",
        stages=stages,
        named=len(stages) <= 40,
    )
    waits = Chart(
        "waits",
        "Waits",
        "The longest wait for an answer that came in each second, counted from the end of the last fault.",
        x,
        [Series("longest wait", [1e3 * each.wait for each in seconds], AMBER)],
        unit="ms",
        stages=stages,
        broad=False,
    )
    losses = Chart(
        "losses",
        "Losses",
        "What did not come, at the second in which it was asked for.",
        x,
        [Series("lost", [each.lost for each in seconds], RED, bars=True)],
        unit="messages",
        stages=stages,
        broad=False,
    )
    return [operations, waits, losses]


def cells(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Return a row for each promise, with the verdict on each broker: its state, and how often it was checked, could
    not be judged, and was broken where it is not promised."""
    rows = []
    names = dict.fromkeys(each.promise for summary in summaries for each in summary.promises)
    for name in names:
        found = [next((each for each in one.promises if each.promise == name), None) for one in summaries]
        statement = next(each.statement for each in found if each is not None)
        rows.append((statement, *(_cell(each) for each in found)))
    return rows


def _cell(line: Line | None) -> str:
    if line is None:
        return "not judged"
    said = f"BROKEN {len(line.findings):,}" if line.findings else line.state
    figures = [(line.checked, "checked"), (line.unjudged, "unjudged"), (line.not_promised, "not promised")]
    return f"{said} ({', '.join(f'{number:,} {what}' for number, what in figures if number) or 'never checked'})"


def league(summaries: Sequence[Summary]) -> str:
    """Return the page that compares brokers."""
    made = Page("What brokers lose", "A row for each promise, a column for each broker.", f"{COMMAND} compare")
    made.table(("promise", *_names(summaries)), cells(summaries))
    made.paragraph(NOTE, "note")
    made.heading("Runs")
    made.table(
        ("broker", "verdict", "rounds", "begun (UTC)", "command"),
        [(each.settings.broker, each.verdict, each.rounds, each.begun, each.settings.again) for each in summaries],
    )
    for each in summaries:
        if each.refused:
            made.heading(f"Refused by {each.settings.broker}")
            made.table(("what", "times"), sorted(each.refused.items()))
    return made.html()


def league_text(summaries: Sequence[Summary]) -> str:
    """Return the same for a terminal: a block for each promise."""
    names = _names(summaries)
    width = max(len(name) for name in names)
    lines = []
    for statement, *said in cells(summaries):
        lines.append(statement)
        lines += [f"  {name:<{width}}  {each}" for name, each in zip(names, said, strict=True)]
    lines.append("")
    lines += [f"{name:<{width}}  {each.verdict}" for name, each in zip(names, summaries, strict=True)]
    return "\n".join(lines)


def _names(summaries: Sequence[Summary]) -> list[str]:
    """Return the names of brokers; those that several have with a number."""
    plain = [each.settings.broker for each in summaries]
    return [
        name if plain.count(name) == 1 else f"{name} ({plain[: at + 1].count(name)})" for at, name in enumerate(plain)
    ]
