"""A judgement for people, as JSON, and as JUnit XML.

Owns: these three texts. Promises: made from a ``Judgement`` and nothing else; the same findings, in the same order, in
all of them.
"""

from __future__ import annotations

import json
from typing import Any, Final
from xml.etree import ElementTree

from canopy_load.prove.judge import Judgement, Ruling, told
from canopy_load.report.exports import xml_text
from canopy_mqtt.version import __version__
from canopy_mqtt.words import counted

SHOWN: Final = 3
"""Findings of each promise that are shown in full on the terminal; the JSON has them all."""


def text(judgement: Judgement, repeat: str) -> str:
    """Return the lines that close a run. `repeat`: the command that plays the same plan."""
    proof = judgement.proof
    lines = [f"{'verdict':<11} {'checked':>8} {'unjudged':>8} {'broken':>7}  promise"]
    for each in judgement.rulings:
        lines.append(
            f"{each.state:<11} {each.checked:>8,} {each.unjudged:>8,} {len(each.findings):>7,}  {each.statement}"
        )
        if each.not_promised:
            lines.append(f"{'':37} {each.not_promised:,} besides in a kill, which it does not promise to keep")
        if each.doubtful:
            lines.append(f"{'':37} {each.doubtful:,} besides, in doubt")
    for each in judgement.broken:
        lines += [
            "",
            f"BROKEN: {each.statement}",
            f"  {', '.join(f'{kind}: {n:,}' for kind, n in each.by_kind.items())}",
        ]
        for finding in each.findings[:SHOWN]:
            lines.append(f"  {finding.client}: {finding.what} {finding.statement}")
            lines += [f"    {line}" for line in _operations(judgement, finding.operations)]
        if len(each.findings) > SHOWN:
            lines.append(f"  and {len(each.findings) - SHOWN:,} more (in the JSON)")
    counts = judgement.counts
    waits = ", ".join(f"{name} {seconds * 1e3:,.0f} ms" for name, seconds in sorted(judgement.waits.items()))
    figures = [f"{counts[name]:,} {name}" for name in ("published", "acknowledged", "delivered")]
    figures += [f"{counts['wills']:,} wills due", counted(counts["connections"], "connection")]
    lines += [
        "",
        f"{', '.join(figures)}; {counted(proof.rounds, 'round')} in {proof.seconds:,.1f} s",
        f"longest waits, faults included: {waits}; this tool itself was late by {proof.late * 1e3:,.0f} ms at most",
    ]
    if judgement.durability.says:
        lines.append(f"of a kill the broker says: {judgement.durability.says}")
    lines += [f"note ({count:,} times): {what}" for what, count in sorted(proof.notes.items())]
    if proof.foreign:
        lines.append(
            f"note: {counted(proof.foreign, 'message')} of others came to the subscriber of #, and were left out"
        )
    lines += [f"verdict: {verdict(judgement)}", f"again: {repeat}"]
    return "\n".join(lines)


def verdict(judgement: Judgement) -> str:
    """Return the verdict in a line."""
    if judgement.broken or judgement.proof.failure:
        failed = [f"the broker failed: {judgement.proof.failure}"] if judgement.proof.failure else []
        return "; ".join([*failed, f"{counted(len(judgement.broken), 'promise')} broken"])
    if judgement.obstacle:
        return f"could not judge: {judgement.obstacle}"
    kept = sum(each.state == "kept" for each in judgement.rulings)
    open_ = len(judgement.rulings) - kept
    return f"nothing that was promised was broken; {kept} promises were checked, {open_} could not be"


def as_json(judgement: Judgement, broker: str, repeat: str) -> str:
    """Return the whole judgement, with the operations of each finding."""
    proof = judgement.proof
    made: dict[str, Any] = {
        "canopy": __version__,
        "verdict": verdict(judgement),
        "code": judgement.code,
        "broker": broker,
        "targets": proof.targets,
        "seed": proof.plan.seed,
        "faults": [str(each) for each in proof.plan.faults],
        "again": repeat,
        "run": proof.identifier,
        "rounds": proof.rounds,
        "seconds": proof.seconds,
        "interrupted": proof.interrupted,
        "absent": proof.absent,
        "failure": proof.failure,
        "late": {"most": proof.late, "at_the_end": proof.late_at_end},
        "durability": {"window": judgement.durability.window, "says": judgement.durability.says},
        "outages": [{"from": began, "to": ended, "fault": str(fault)} for began, ended, fault in proof.outages],
        "counts": judgement.counts,
        "longest_waits": judgement.waits,
        "notes": proof.notes,
        "foreign": proof.foreign,
        "promises": [_ruling(judgement, each) for each in judgement.rulings],
    }
    return json.dumps(made, indent=1) + "\n"


def _ruling(judgement: Judgement, ruling: Ruling) -> dict[str, Any]:
    return {
        "promise": ruling.promise,
        "statement": ruling.statement,
        "state": ruling.state,
        "checked": ruling.checked,
        "unjudged": ruling.unjudged,
        "not_promised": ruling.not_promised,
        "doubtful": ruling.doubtful,
        "by_kind": dict(ruling.by_kind),
        "findings": [
            {
                "client": finding.client,
                "what": finding.what,
                "statement": finding.statement,
                "operations": _operations(judgement, finding.operations),
            }
            for finding in ruling.findings
        ],
    }


def junit(judgement: Judgement, broker: str) -> str:
    """Return a test suite with a case for each promise; one that could not be judged is skipped. What stands in the way
    of all of them is an error in a case of its own."""
    proof = judgement.proof
    states = [each.state for each in judgement.rulings]
    obstacle = proof.failure or ("" if judgement.broken else judgement.obstacle)
    suite = ElementTree.Element(
        "testsuite",
        name=xml_text(f"canopy prove {broker}"),
        tests=str(len(states) + bool(obstacle)),
        failures=str(states.count("broken")),
        errors=str(int(bool(obstacle))),
        skipped=str(states.count("not judged")),
        time=f"{proof.seconds:.3f}",
    )
    if obstacle:
        case = ElementTree.SubElement(suite, "testcase", classname="canopy.prove", name="it could be judged", time="0")
        ElementTree.SubElement(case, "error", message=xml_text(obstacle), type="not judged")
    for each in judgement.rulings:
        case = ElementTree.SubElement(
            suite, "testcase", classname="canopy.prove", name=xml_text(each.statement), time="0"
        )
        if each.state == "not judged":
            ElementTree.SubElement(case, "skipped")
        elif each.state == "broken":
            shown = [
                "\n".join((f"{finding.client}: {finding.what}", *_operations(judgement, finding.operations)))
                for finding in each.findings[:SHOWN]
            ]
            failure = ElementTree.SubElement(
                case, "failure", message=xml_text(counted(len(each.findings), "finding")), type="broken"
            )
            failure.text = xml_text("\n".join(shown))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _operations(judgement: Judgement, numbers: tuple[int, ...]) -> list[str]:
    events = judgement.proof.history.events
    origin = events[0].began if events and hasattr(events[0], "began") else 0.0
    return [told(events[number], origin) for number in numbers]
