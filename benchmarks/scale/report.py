"""What a measurement of growth tells: a table, and the same as data for JSON.

Owns: the layout of the table: one line for each phase of each size.

Promises: a size that failed, or was not run, has a line that says why.

The sizes of one broker are what is compared here; there are no ratios between brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.figures import aligned, number
from benchmarks.network.report import DISTURBED
from benchmarks.scale.phases import Outcome, Phase
from loadtest.brokers.stats import ratio

HEADINGS: Final = (
    "size",
    "broker",
    "step",
    "rate/s",
    "CPU µs",
    "CPU ×",
    "RSS MB",
    "B each",
    "p50 µs",
    "p99 µs",
    "deaf ms",
    "lost",
    "broker %",
    "gen %",
    "notes",
)
_LEFT: Final = frozenset({"broker", "step", "notes"})


def notes(phase: Phase) -> list[str]:
    """What a reader must know about the phase's figures."""
    sample, found = phase.sample, list[str]()
    if sample.doubled:
        found.append(f"{sample.doubled:,} doubled")
    if sample.generator_bound:
        found.append("generator-bound")
    if sample.waited_share > DISTURBED:
        found.append(f"cores busy elsewhere {100 * sample.waited_share:.0f} %")
    return found


def cells(outcome: Outcome) -> list[list[str]]:
    """The table's lines of one size on one broker."""
    lines: list[list[str]] = []
    head = [f"{outcome.size:,}", outcome.broker]
    for phase in outcome.phases:
        sample = phase.sample
        without = None if sample.without is None else ratio(sample.cpu_us, sample.without.cpu_us)
        lines.append(
            [
                *head,
                phase.title,
                number(sample.rate),
                number(sample.cpu_us),
                "" if without is None else f"{without:.2f}",
                number(sample.resident / 1e6),
                number(sample.bytes_each),
                number(sample.p50_us),
                number(sample.p99_us),
                number(None if phase.deaf_us is None else phase.deaf_us / 1e3),
                f"{sample.lost:,}",
                f"{100 * sample.broker_share:.0f}",
                f"{100 * sample.generator_share:.0f}",
                "; ".join(notes(phase)),
            ]
        )
        head = ["", ""]
    if outcome.failure:
        lines.append([*head, *[""] * (len(HEADINGS) - 3), outcome.failure])
    return lines


def table(outcomes: Sequence[Outcome]) -> str:
    """The whole table."""
    return aligned(HEADINGS, [line for outcome in outcomes for line in cells(outcome)], _LEFT)
