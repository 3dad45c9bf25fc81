"""Long runs in fewer points: seconds next to each other become one.

Owns: what a stretch of seconds amounts to.

Promises: no stretch reaches over the end of a stage; counts are added, rates and shares stay those of the whole
stretch, maxima stay maxima. Percentiles are the worst of the stretch: a peak never gets lost.

A run that is short enough stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from loadtest.load.report.result import Second

SUMS: Final = (
    "seconds", "offered", "sent", "received", "bytes_sent", "bytes_received", "foreign", "gaps", "slow_gaps", "copies",
    "connects", "connections_lost", "subscribes",
)  # fmt: skip
MOST: Final = ("p50", "p90", "p99", "max", "late_p99", "generator_busiest", "generator_waited", "broker_memory")
MEANS: Final = ("generator_cpu", "broker_cpu")


def fold(seconds: Sequence[Second], at_most: int) -> list[Second]:
    """As few as `at_most` points, and one more for each stage at the most."""
    if len(seconds) <= at_most:
        return list(seconds)
    each = -(-len(seconds) // at_most)
    folded: list[Second] = []
    for _, same in groupby(seconds, key=lambda second: (second.stage, second.measured)):
        stage = list(same)
        folded += [_merged(stage[at : at + each]) for at in range(0, len(stage), each)]
    return folded


def _merged(parts: list[Second]) -> Second:
    def mean(name: str) -> Any:
        known = [(part.seconds, getattr(part, name)) for part in parts if getattr(part, name) is not None]
        return sum(length * value for length, value in known) / sum(length for length, _ in known) if known else None

    def most(name: str) -> Any:
        return max((found for part in parts if (found := getattr(part, name)) is not None), default=None)

    return replace(
        parts[-1],
        start=parts[0].start,
        **{name: sum(getattr(part, name) for part in parts) for name in SUMS},
        **{name: most(name) for name in MOST},
        **{name: mean(name) for name in MEANS},
    )
