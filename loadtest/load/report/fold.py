"""Long runs in fewer points: seconds next to each other become one.

Owns: what a stretch of seconds amounts to.

Promises: no stretch reaches over the end of a stage; counts are added, rates and shares stay those of the whole
stretch, maxima stay maxima. Percentiles are those of the stretch where its seconds hold their distributions, and
otherwise the worst of them: a peak never gets lost.

A run that is short enough stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from loadtest.brokers.stats import counted_percentile, merged
from loadtest.load.report.result import Second


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
    first, last = parts[0], parts[-1]
    latencies = merged(part.latencies for part in parts)
    whole = all(part.latencies or part.max is None for part in parts) and bool(latencies)
    seconds = sum(part.seconds for part in parts)

    def mean(values: Iterable[tuple[float, float | None]]) -> float | None:
        known = [(length, value) for length, value in values if value is not None]
        length = sum(length for length, _ in known)
        return sum(length * value for length, value in known) / length if length else None

    return Second(
        start=first.start,
        seconds=seconds,
        stage=first.stage,
        measured=first.measured,
        clients_up=last.clients_up,
        offered=sum(part.offered for part in parts),
        sent=sum(part.sent for part in parts),
        received=sum(part.received for part in parts),
        bytes_sent=sum(part.bytes_sent for part in parts),
        bytes_received=sum(part.bytes_received for part in parts),
        foreign=sum(part.foreign for part in parts),
        gaps=sum(part.gaps for part in parts),
        slow_gaps=sum(part.slow_gaps for part in parts),
        copies=sum(part.copies for part in parts),
        connects=sum(part.connects for part in parts),
        connections_lost=sum(part.connections_lost for part in parts),
        subscribes=sum(part.subscribes for part in parts),
        p50=counted_percentile(latencies, 50) if whole else _most(part.p50 for part in parts),
        p90=counted_percentile(latencies, 90) if whole else _most(part.p90 for part in parts),
        p99=counted_percentile(latencies, 99) if whole else _most(part.p99 for part in parts),
        max=_most(part.max for part in parts),
        latencies=latencies,
        late_p99=_most(part.late_p99 for part in parts),
        generator_cpu=mean((part.seconds, part.generator_cpu) for part in parts) or 0.0,
        generator_busiest=max(part.generator_busiest for part in parts),
        broker_cpu=mean((part.seconds, part.broker_cpu) for part in parts),
        broker_memory=max((part.broker_memory for part in parts if part.broker_memory is not None), default=None),
    )


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
