"""The plots over time.

Owns: which plots there are and what each shows.

Promises: what was not measured leaves a plot out and a sentence in its place. Long runs are drawn in about `POINTS`
points, and say so.

Nothing is smoothed: a line goes through what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from canopy_pages import AMBER, BLUE, GREEN, GREY, POWERS, RED, SHADE, VIOLET, Data, Plot, label
from loadtest.load.report.drawing import counts, course, each_second, milliseconds
from loadtest.load.report.fold import fold
from loadtest.load.report.result import Deliveries, Result, Second

POINTS: Final = 1200
NAMED_STAGES: Final = 40
"""So many stages get their names into the plots; more would only cover each other."""


def plots(result: Result) -> list[Plot]:
    """All plots of a run, in the order of the page."""
    seconds = sorted(result.seconds, key=lambda second: second.start)
    points = fold(seconds, POINTS)
    over_time = [_rates(points), _percentiles(points)]
    rest = [_faults(points, result.deliveries), _cpu(points), _memory(points), _clients(points)]
    for plot in rest:
        plot.broad = False
    _mark_stages(over_time + rest, result)
    folded = len(points) < len(seconds)
    for plot in over_time + rest:
        if plot.absent:
            continue
        plot.layout["xaxis"] = {"ticksuffix": " s", "matches": "time", "range": _extent(seconds, result)}
        if folded:
            plot.about += f" A point stands for up to {math.ceil(max(each.seconds for each in points)):,} seconds."
    return [*over_time, *rest]


def _extent(seconds: Sequence[Second], result: Result) -> list[float]:
    """What is in view at first: everything but the quiet seconds after the stages, in which the broker's own figures
    are waited for. They are drawn, and come into view when one zooms out."""
    staged = max((float(stage["start"]) + float(stage["seconds"]) for stage in result.stages), default=0.0)
    busy = [each for each in seconds if each.start < staged or each.sent or each.received or each.gaps] or seconds
    return [seconds[0].start, max(each.start + each.seconds for each in busy)]


def _rates(points: Sequence[Second]) -> Plot:
    plot = Plot("rates", "Rates", "Messages a second: due by the scenario, sent, and received by all subscribers.")
    if not points:
        plot.absent = "No second of the run was over, so there are no rates over time."
        return plot
    plot.traces = [
        course("due", points, lambda each: each_second(each.offered, each), GREY, dash="dot"),
        course("sent", points, lambda each: each_second(each.sent, each), BLUE),
        course("received", points, lambda each: each_second(each.received, each), GREEN),
    ]
    plot.layout = {"yaxis": {"title": {"text": "messages/s"}, "rangemode": "tozero"}}
    return plot


def _percentiles(points: Sequence[Second]) -> Plot:
    plot = Plot(
        "percentiles",
        "Latency percentiles",
        "Deliveries, from the intended time of sending. The dotted line is how late the generator itself was: what "
        "lies near it is not the broker's.",
    )
    if not any(each.max is not None for each in points):
        plot.absent = "No latency was measured, so there are no percentiles over time."
        return plot
    lines: list[tuple[str, Callable[[Second], float | None], str, str]] = [
        ("max", lambda each: each.max, RED, "solid"),
        ("p99", lambda each: each.p99, AMBER, "solid"),
        ("p90", lambda each: each.p90, GREEN, "solid"),
        ("p50", lambda each: each.p50, BLUE, "solid"),
        ("generator late, p99", lambda each: each.late_p99, GREY, "dot"),
    ]
    for name, value, colour, dash in lines:
        if any(value(each) is not None for each in points):
            plot.traces.append(course(name, points, milliseconds(value), colour, dash))
    plot.layout = {"yaxis": {"title": {"text": "ms"}, **POWERS}}
    return plot


def _faults(points: Sequence[Second], found: Deliveries) -> Plot:
    """What they are is known only when the run is over: which were lost or duplicates, the text says."""
    plot = Plot(
        "faults",
        "Gaps and copies",
        "By the second in which they were seen. A bar below zero: messages that had been missing came late. What they "
        f"were: {found.lost:,} lost and {found.unconfirmed:,} unconfirmed (some are seen at the end only); "
        f"{found.duplicates:,} duplicates, {found.redelivered:,} redelivered and {found.overlapping:,} overlapping.",
    )
    if not points:
        plot.absent = "No second of the run was over, so there are no gaps over time."
    elif not any(each.gaps or each.slow_gaps or each.copies for each in points):
        plot.absent = "No gap and no further copy was seen in any second."
    else:
        plot.traces = [
            counts("gaps", points, lambda each: each.gaps, RED),
            counts("further copies", points, lambda each: each.copies, VIOLET),
        ]
        if any(each.slow_gaps for each in points):
            plot.traces.append(counts("gaps of slow readers", points, lambda each: each.slow_gaps, GREY))
        plot.layout = {"yaxis": {"title": {"text": "messages"}}}
    return plot


def _cpu(points: Sequence[Second]) -> Plot:
    plot = Plot(
        "cpu",
        "CPU",
        "Cores in use. Where the generator's busiest process comes near 1, the generator is the limit.",
    )
    if not points:
        plot.absent = "No second of the run was over, so there is no CPU over time."
        return plot
    if any(each.broker_cpu is not None for each in points):
        plot.traces.append(course("broker", points, lambda each: each.broker_cpu, GREEN))
    else:
        plot.about += " The broker's is not known: it runs elsewhere, or its process was not found."
    plot.traces += [
        course("generator", points, lambda each: each.generator_cpu, BLUE),
        course("its busiest process", points, lambda each: each.generator_busiest, GREY, dash="dot"),
    ]
    plot.layout = {"yaxis": {"title": {"text": "cores"}, "rangemode": "tozero"}}
    return plot


def _memory(points: Sequence[Second]) -> Plot:
    plot = Plot("memory", "Broker memory", "Resident.")
    if not any(each.broker_memory is not None for each in points):
        plot.absent = "The broker's memory is not known: it runs elsewhere, or its process was not found."
        return plot
    plot.traces = [
        course("broker", points, lambda each: None if each.broker_memory is None else each.broker_memory / 1e6, GREEN)
    ]
    plot.layout = {"yaxis": {"title": {"text": "MB"}, "rangemode": "tozero"}, "showlegend": False}
    return plot


def _clients(points: Sequence[Second]) -> Plot:
    plot = Plot("clients", "Clients", "Connected clients, and what they did by the second.")
    if not any(each.clients_up for each in points):
        plot.absent = "No client was connected at the end of any second."
        return plot
    plot.traces = [course("connected", points, lambda each: each.clients_up, BLUE)]
    more: list[tuple[str, Callable[[Second], int], str]] = [
        ("connects", lambda each: each.connects, GREEN),
        ("SUBSCRIBE", lambda each: each.subscribes, AMBER),
        ("connections lost", lambda each: each.connections_lost, RED),
    ]
    for name, value, colour in more:
        if any(value(each) for each in points):
            trace = course(f"{name} a second", points, _rate_of(value), colour)
            plot.traces.append({**trace, "yaxis": "y2"})
    plot.layout = {"yaxis": {"title": {"text": "clients"}, "rangemode": "tozero"}}
    if len(plot.traces) > 1:
        plot.layout["yaxis2"] = {
            "title": {"text": "a second"}, "overlaying": "y", "rangemode": "tozero",
        }  # fmt: skip
    return plot


def _mark_stages(drawn: Sequence[Plot], result: Result) -> None:
    """Measured stages are shaded in every plot over time; the first also bears the names."""
    shapes: list[Data] = []
    names: list[Data] = []
    for stage in result.stages:
        begin, end = float(stage["start"]), float(stage["start"]) + float(stage["seconds"])
        if stage.get("measured"):
            shapes.append({"type": "rect", "x0": begin, "x1": end, "fillcolor": SHADE})
        shapes.append({"type": "line", "x0": begin, "line": {"color": GREY}})
        names.append({"text": label(str(stage["name"]), 18), "x": begin})
    for plot in drawn:
        plot.layout["shapes"] = shapes
        if plot.key == "rates" and len(names) <= NAMED_STAGES:
            plot.layout["annotations"] = names


def _rate_of(value: Callable[[Second], int]) -> Callable[[Second], float | None]:
    return lambda second: each_second(value(second), second)
