"""The charts over time.

Promises: what was not measured leaves a chart out and a sentence in its place.
Long runs are drawn in about `POINTS` points, and say so.

Nothing is smoothed: a line goes through what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from canopy_load.report.result import Deliveries, Result, Second
from canopy_mqtt.pages import AMBER, BLUE, GREEN, GREY, RED, VIOLET, Chart, Series, Stage

POINTS: Final = 1200
NAMED_STAGES: Final = 40
"""So many stages get their names into the first chart; more would only cover each other."""

SUMS: Final = (
    "seconds", "offered", "sent", "received", "bytes_sent", "bytes_received", "foreign", "gaps", "slow_gaps", "copies",
    "connects", "connections_lost", "subscribes",
)  # fmt: skip
MAXIMA: Final = ("p50", "p90", "p99", "max", "late_p99", "generator_busiest", "generator_waited", "broker_memory")
MEANS: Final = ("generator_cpu", "broker_cpu")

Figure = Callable[[Second], float | None]
Points = Sequence[Second]


def plots(result: Result) -> list[Chart]:
    seconds = sorted(result.seconds, key=lambda second: second.start)
    folded = fold(seconds, POINTS)
    rates = _rates(folded)
    rates.named = len(result.stages) <= NAMED_STAGES
    rest = [_faults(folded, result.deliveries), _cpu(folded), _memory(folded), _clients(folded)]
    for chart in rest:
        chart.broad = False
    made = [rates, _percentiles(folded), *rest]
    if not seconds:
        return made
    x = [round(each.start + each.seconds / 2, 3) for each in folded]
    for chart in made:
        chart.x, chart.stages, chart.view = x, _stages(result), _extent(seconds, result)
        if len(folded) < len(seconds):
            chart.about += f" A point stands for up to {math.ceil(max(each.seconds for each in folded)):,} seconds."
    return made


def _line(name: str, points: Points, value: Figure, colour: str, **style: bool) -> Series:
    return Series(name, [value(each) for each in points], colour, **style)


def _has(points: Points, value: Figure) -> bool:
    return any(value(each) for each in points)


def _extent(seconds: Sequence[Second], result: Result) -> tuple[float, float]:
    """Return the first view, in seconds: everything but the quiet seconds after the stages, in which the run waits for
    the broker's own figures. Those are drawn, and come into view when a reader zooms out."""
    staged = max((float(stage["start"]) + float(stage["seconds"]) for stage in result.stages), default=0.0)
    busy = [each for each in seconds if each.start < staged or each.sent or each.received or each.gaps] or seconds
    return seconds[0].start, max(each.start + each.seconds for each in busy)


def _stages(result: Result) -> list[Stage]:
    """Measured stages are shaded."""
    found = []
    for each in result.stages:
        start = float(each["start"])
        found.append(Stage(str(each["name"]), start, start + float(each["seconds"]), bool(each.get("measured"))))
    return found


def _rates(points: Points) -> Chart:
    chart = Chart("rates", "Rates", "Messages a second: due by the scenario, sent, and received by all subscribers.")
    if not points:
        chart.absent = "No second of the run was over, so there are no rates over time."
        return chart
    chart.unit = "messages/s"
    chart.series = [
        _line("due", points, lambda each: _rate(each.offered, each), GREY, dashed=True),
        _line("sent", points, lambda each: _rate(each.sent, each), BLUE),
        _line("received", points, lambda each: _rate(each.received, each), GREEN),
    ]
    return chart


def _percentiles(points: Points) -> Chart:
    chart = Chart(
        "percentiles",
        "Latency percentiles",
        "Deliveries, from the intended time of sending. The dotted line is how late the generator itself was: what "
        "lies near it is not the broker's.",
    )
    if not any(each.max is not None for each in points):
        chart.absent = "No latency was measured, so there are no percentiles over time."
        return chart
    lines: list[tuple[str, Figure, str]] = [
        ("max", lambda each: each.max, RED),
        ("p99", lambda each: each.p99, AMBER),
        ("p90", lambda each: each.p90, GREEN),
        ("p50", lambda each: each.p50, BLUE),
        ("generator late, p99", lambda each: each.late_p99, GREY),
    ]
    for name, value, colour in lines:
        if any(value(each) is not None for each in points):
            chart.series.append(_line(name, points, _milliseconds(value), colour, dashed=colour == GREY))
    chart.unit, chart.powers = "ms", True
    return chart


def _faults(points: Points, found: Deliveries) -> Chart:
    """Draw gaps and further copies. Only the end of a run shows which of them are lost or duplicates; the text says."""
    chart = Chart(
        "faults",
        "Gaps and copies",
        "By the second in which they were seen. A bar below zero: messages that had been missing came late. What they "
        f"were: {found.lost:,} lost and {found.unconfirmed:,} unconfirmed (some are seen at the end only); "
        f"{found.duplicates:,} duplicates, {found.redelivered:,} redelivered and {found.overlapping:,} overlapping.",
    )
    if not points:
        chart.absent = "No second of the run was over, so there are no gaps over time."
        return chart
    kinds: list[tuple[str, Figure, str]] = [
        ("gaps", lambda each: each.gaps, RED),
        ("further copies", lambda each: each.copies, VIOLET),
        ("gaps of slow readers", lambda each: each.slow_gaps, GREY),
    ]
    chart.series = [
        _line(name, points, value, colour, bars=True) for name, value, colour in kinds if _has(points, value)
    ]
    chart.unit = "messages"
    if not chart.series:
        chart.absent = "No gap and no further copy was seen in any second."
    return chart


def _cpu(points: Points) -> Chart:
    chart = Chart(
        "cpu",
        "CPU",
        "Cores in use. Where the generator's busiest process comes near 1, the generator is the limit.",
    )
    if not points:
        chart.absent = "No second of the run was over, so there is no CPU over time."
        return chart
    if any(each.broker_cpu is not None for each in points):
        chart.series.append(_line("broker", points, lambda each: each.broker_cpu, GREEN))
    else:
        chart.about += " The broker's is not known: it runs elsewhere, or its process was not found."
    chart.series += [
        _line("generator", points, lambda each: each.generator_cpu, BLUE),
        _line("its busiest process", points, lambda each: each.generator_busiest, GREY, dashed=True),
    ]
    chart.unit = "cores"
    return chart


def _memory(points: Points) -> Chart:
    chart = Chart("memory", "Broker memory", "Resident.", unit="MB")

    def megabytes(each: Second) -> float | None:
        return None if each.broker_memory is None else each.broker_memory / 1e6

    if _has(points, megabytes):
        chart.series = [_line("broker", points, megabytes, GREEN)]
    else:
        chart.absent = "The broker's memory is not known: it runs elsewhere, or its process was not found."
    return chart


def _clients(points: Points) -> Chart:
    chart = Chart("clients", "Clients", "Connected clients, and what they did by the second.")
    if not _has(points, lambda each: each.clients_up):
        chart.absent = "No client was connected at the end of any second."
        return chart
    chart.series = [_line("connected", points, lambda each: each.clients_up, BLUE)]
    more: list[tuple[str, Figure, str]] = [
        ("connects", lambda each: _rate(each.connects, each), GREEN),
        ("SUBSCRIBE", lambda each: _rate(each.subscribes, each), AMBER),
        ("connections lost", lambda each: _rate(each.connections_lost, each), RED),
    ]
    chart.series += [
        _line(f"{name} a second", points, value, colour, right=True)
        for name, value, colour in more
        if _has(points, value)
    ]
    chart.unit, chart.right_unit = "clients", "a second" if len(chart.series) > 1 else ""
    return chart


def _rate(amount: int, second: Second) -> float | None:
    """An amount of a second that may have been shorter or longer, as a rate."""
    return amount / second.seconds if second.seconds > 0 else None


def _milliseconds(value: Figure) -> Figure:
    """The same in milliseconds; at least 1 µs, as a logarithmic axis needs."""

    def converted(second: Second) -> float | None:
        found = value(second)
        return None if found is None else max(found, 1.0) / 1e3

    return converted


def fold(seconds: Sequence[Second], at_most: int) -> list[Second]:
    """As few as `at_most` points, and one more for each stage at the most: of seconds next to each other in a stage
    counts are added, rates stay those of the stretch, and percentiles are the worst, so that no peak gets lost."""
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
        **{name: most(name) for name in MAXIMA},
        **{name: mean(name) for name in MEANS},
    )
