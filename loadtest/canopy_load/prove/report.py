"""A summary for people on a terminal, and as JUnit XML.

Owns: these two texts. Promises: made from a ``Summary`` and nothing else; the same findings, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from canopy_load.prove.summary import SEED, UNTIL, Case, Line, Summary
from canopy_load.report.junit import JUnitCase, suite
from canopy_mqtt.words import counted

SHOWN: Final = 3
"""Findings of each promise that are shown in full on the terminal; the JSON has them all."""
BUSY: Final = 0.1
"""The share of a run for which tool or broker waited for a core, from which on the machine was busy: a broker that gets
half of a core takes twice as long for all that is judged by a time."""


def text(summary: Summary) -> str:
    """Return the lines that close a run."""
    lines = [f"{'verdict':<11} {'checked':>8} {'unjudged':>8} {'broken':>7} {'not promised':>12}  promise"]
    for each in summary.promises:
        lines.append(
            f"{each.state:<11} {each.checked:>8,} {each.unjudged:>8,} {len(each.findings):>7,} "
            f"{each.not_promised:>12,}  {each.statement}"
        )
        if each.doubtful:
            lines.append(f"{'':50} {each.doubtful:,} besides, in doubt")
    for each in summary.broken:
        lines += ["", *_broken(summary, each)]
    lines += ["", *_figures(summary)]
    lines += [f"{what}: {those}" for what, those in faults_told(summary).items()]
    lines += [f"refused ({count:,} times): {what}" for what, count in sorted(summary.refused.items())]
    lines += [f"note ({count:,} times): {what}" for what, count in sorted(summary.notes.items())]
    lines += [f"not judged under {fault}: {why}" for fault, why in summary.settings.unmade.items()]
    if summary.foreign:
        lines.append(
            f"note: {counted(summary.foreign, 'message')} of others came to the subscriber of #, and were left out"
        )
    if summary.starved > BUSY * summary.seconds:
        lines.append(
            f"note: this machine was busy: for {summary.starved / summary.seconds:.0%} of the time tool or broker "
            "waited for a core. What is broken above may be late only: play it again where nothing else runs"
        )
    lines += [f"could not judge: {each}" for each in dict.fromkeys(summary.obstacles) if summary.code != 2]
    lines += [f"verdict: {summary.verdict}", f"again: {summary.settings.again}"]
    return "\n".join(lines)


def _broken(summary: Summary, line: Line) -> Iterable[str]:
    yield f"BROKEN: {line.statement}"
    yield f"  {', '.join(f'{kind}: {number:,}' for kind, number in line.by_kind.items())}"
    for each in line.findings[:SHOWN]:
        yield from (f"  {one}" for one in shown(each))
        yield f"    replay: {replayed(summary, each)}"
    if len(line.findings) > SHOWN:
        yield f"  and {len(line.findings) - SHOWN:,} more (in the JSON)"


def shown(case: Case) -> list[str]:
    """Return a finding as lines: what, the operations, their packets."""
    lines = [f"{case.client}: {case.what} {case.statement}", *(f"  {each}" for each in case.operations)]
    if case.packets:
        lines += ["  packets:", *(f"  {each}" for each in case.packets)]
    return lines


def replayed(summary: Summary, case: Case) -> str:
    """Return the command that plays the plan until a finding, and shows the packets of its clients."""
    command = summary.settings.replay
    return command.replace(SEED, str(case.seed)).replace(UNTIL, str(case.until))


def figures(summary: Summary) -> dict[str, str]:
    """Return the figures of a run, by what they are."""
    counts = summary.counts
    made = {name: f"{counts[name]:,}" for name in ("published", "acknowledged", "delivered", "connections")}
    made |= {
        "to subscriptions with QoS 0": f"{counts['came']:,} of {counts['due']:,}",
        "wills due": f"{counts['wills']:,}",
        "rounds": f"{summary.rounds:,}",
        "seconds": f"{summary.seconds:,.1f}",
    }
    made |= {f"longest wait for {name}": _milliseconds(seconds) for name, seconds in sorted(summary.waits.items())}
    return made | {
        "this tool was late by at most": _milliseconds(summary.late),
        "tool or broker waited for a core for": f"{summary.starved:.1f} s",
    }


def faults_told(summary: Summary) -> dict[str, str]:
    """Return which faults happened, how often, and which did not."""
    happened = ", ".join(f"{name} {times:,}" for name, times in summary.played.items() if times)
    made = {"faults that happened": happened or "none"}
    if summary.turnless:
        missing = ", ".join(summary.turnless)
        early = summary.interrupted or summary.failures
        if not early and summary.rounds < len(summary.seeds) * summary.rounds_for_all:
            missing += f"; --rounds {summary.rounds_for_all} plays each"
        made[f"no turn in {counted(summary.rounds, 'round')}"] = missing
    return made


def felt(summary: Summary) -> list[tuple[str, int, str]]:
    """Return for each kind of fault how often it was, and the longest time that it was felt."""
    kinds = dict.fromkeys(each.fault for each in summary.faults)
    made = []
    for kind in kinds:
        those = [each for each in summary.faults if each.fault == kind]
        names = sorted({name for each in those for name in each.felt})
        longest = ((name, max(each.felt.get(name, 0.0) for each in those)) for name in names)
        made.append((kind, len(those), ", ".join(f"{name} {_milliseconds(seconds)}" for name, seconds in longest)))
    return made


def _figures(summary: Summary) -> Iterable[str]:
    yield ", ".join(f"{name}: {value}" for name, value in figures(summary).items())
    for kind, number, after in felt(summary):
        yield f"after {kind} ({number:,} times), at the longest: {after or 'nobody had waited'}"
    if says := summary.settings.promised.says:
        yield f"of a kill the broker says: {says}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"


def junit(summary: Summary) -> str:
    """Return a test suite with a case for each promise; one that could not be judged is skipped. What stands in the way
    of all of them is an error in a case of its own."""
    obstacles = summary.failures or ([] if summary.broken else summary.obstacles)
    cases = [JUnitCase("it could be judged", "error", each, "not judged") for each in obstacles[:1]]
    for each in summary.promises:
        found = "\n".join(line for finding in each.findings[:SHOWN] for line in shown(finding))
        cases.append(
            JUnitCase(each.statement, "failure", counted(len(each.findings), "finding"), "broken", found)
            if each.state == "broken"
            else JUnitCase(each.statement, "skipped" if each.state == "not judged" else "")
        )
    name = f"canopy prove {summary.settings.broker}"
    return suite(name, "canopy.prove", summary.seconds, faults_told(summary), cases)
