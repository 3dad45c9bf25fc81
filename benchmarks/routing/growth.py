"""How each cost grows: with the number of filters, and with the subscribers of one filter.

Owns: two series for each layout. One fills a trie with 1,000 to 1,000,000 filters ``device/{id}/+/{num}/#``, a hundred
for each device, and measures insert, look-up, delete and bytes. The other has 10 to 100,000 subscribers at one filter,
and measures one coming, one leaving, and one delivery of a message to all.

Promises: the calls are those of the rows, and the layouts take turns. Look-ups and deletes come in an arbitrary order,
and anybody may leave.

Each point is the median of its runs, and nothing is smoothed.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from benchmarks.routing import loads, memory
from benchmarks.routing.loops import Table, match_all
from benchmarks.routing.rabbitmq import flat
from benchmarks.routing.stage import BURST, Stage
from loadtest.brokers.stats import median

FILTERS: Final = (1_000, 10_000, 100_000, 1_000_000)
SUBSCRIBERS: Final = (10, 100, 1_000, 10_000, 100_000)
EACH: Final = 100
"""Filters of one device."""
LEAST: Final = 20_000
"""Operations that a figure is made from, at least, where there are so many."""
LOOKUPS: Final = 100_000
ROUNDS: Final = 20_000
DELIVERIES: Final = 300_000

Point = dict[str, float]


def filters_point(layout: str, load: loads.Load) -> Point:
    """Nanoseconds of insert, match and remove with all of a load's filters in the trie, one run."""
    count = len(load.filters)
    inserting = matching = removing = 0.0
    copies = max(1, LEAST // count)
    for _ in range(copies):
        table = Table(layout, load)
        inserting += table.fill().each_ns
        matching += match_all(table, min(count, LOOKUPS)).each_ns
        order = list(range(count))
        random.Random(loads.SEED).shuffle(order)
        removing += table.empty(order).each_ns
    return {"insert_ns": inserting / copies, "match_ns": matching / copies, "remove_ns": removing / copies}


def memory_point(layout: str, count: int) -> Point:
    """Resident bytes for each filter: the index with its strings, and without."""
    found = memory.measure(layout, count // EACH, EACH)
    return {"bytes": found.with_strings / count, "bytes_index": found.index / count}


def subscribers_point(layout: str, count: int) -> Point:
    """Nanoseconds of one coming, one leaving, and one delivery with ``count`` subscribers of a filter, one run."""
    adding, discarding = flat(layout, count, ROUNDS, True)
    stage = Stage(layout, count)
    stage.send(1)
    routing, _ = stage.send(max(1, DELIVERIES // (count * BURST)))
    return {"add_ns": adding, "discard_ns": discarding, "deliver_ns": routing.each_ns}


def medians(points: Sequence[Point]) -> Point:
    """The median of each figure."""
    return {name: median(point[name] for point in points) or 0.0 for name in points[0]}


def measure(
    layouts: Sequence[str], repeats: int, divide: int, progress: Callable[[str], None]
) -> dict[str, dict[str, list[Point]]]:
    """Both series, by layout: a point has ``count`` and its figures. All counts are divided by ``divide``.

    Raises:
        WrongRoute, MemoryFailed: as in the rows.
    """
    found: dict[str, dict[str, list[Point]]] = {
        "filters": {layout: [] for layout in layouts},
        "subscribers": {layout: [] for layout in layouts},
    }
    for count in (max(EACH, count // divide) for count in FILTERS):
        load = loads.emqx(count // EACH, EACH, LOOKUPS)
        runs = _in_turn(layouts, repeats, partial(filters_point, load=load), f"{count:,} filters", progress)
        for layout, points in runs.items():
            point = {"count": float(count), **medians(points), **memory_point(layout, count)}
            found["filters"][layout].append(point)
    for count in (max(4, count // divide) for count in SUBSCRIBERS):
        runs = _in_turn(layouts, repeats, partial(subscribers_point, count=count), f"{count:,} subscribers", progress)
        for layout, points in runs.items():
            found["subscribers"][layout].append({"count": float(count), **medians(points)})
    return found


def _in_turn(
    layouts: Sequence[str], repeats: int, run: Callable[[str], Point], what: str, progress: Callable[[str], None]
) -> dict[str, list[Point]]:
    """The runs of each layout, one after the other, so that a busy machine is busy for both."""
    points: dict[str, list[Point]] = {layout: [] for layout in layouts}
    for turn in range(repeats):
        for layout in layouts:
            progress(f"growth: {what}, {layout}, run {turn + 1} of {repeats}")
            gc.collect()
            points[layout].append(run(layout))
    return points
