"""How each cost of routing grows: with the number of filters, and with the subscribers of one filter.

Owns two rows for each layout of the trie. ``filters`` fills a trie with 1,000 to 1,000,000 filters
``device/{id}/+/{num}/#``, a hundred for each device, and measures insert, look-up, delete and bytes. ``subscribers``
has 10 to 100,000 subscribers at one filter, and measures one coming, one leaving, and one delivery of a message to all.
The calls are those of `benchmarks.routing`; look-ups and deletes come in an arbitrary order, and any may leave.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Final

from benchmarks.routing import footprint, loads
from benchmarks.routing.loops import Table, match_all
from benchmarks.routing.measure import as_the_daemon
from benchmarks.routing.rabbitmq import flat
from benchmarks.routing.row import LAYOUTS
from benchmarks.routing.stage import BURST, Stage
from benchmarks.runner import Bench, Case, Entrant, Line, Row

EACH: Final = 100
"""Filters of one device."""
LEAST: Final = 20_000
"""Operations that a figure is made from, at least, where there are so many."""
LOOKUPS: Final = 100_000
ROUNDS: Final = 20_000
DELIVERIES: Final = 300_000


def filters(case: Case) -> Iterator[Line]:
    """Measure the nanoseconds of insert, match and remove with all filters in the trie, and resident bytes of each
    filter."""
    gc.collect()
    layout, count = case.entrant.name, max(EACH, case.size)
    load = loads.emqx(count // EACH, EACH, LOOKUPS)
    inserting = matching = removing = 0.0
    copies = max(1, case.scaled(LEAST) // count)
    for _ in range(copies):
        table = Table(layout, load)
        inserting += table.fill().each_ns
        matching += match_all(table, min(count, LOOKUPS)).each_ns
        order = list(range(count))
        random.Random(loads.SEED).shuffle(order)
        removing += table.empty(order).each_ns
    found = footprint.measure(layout, count // EACH, EACH)
    yield Line(
        "",
        {
            "insert ns": inserting / copies,
            "match ns": matching / copies,
            "remove ns": removing / copies,
            "B each": found.with_strings / count,
            "without strings": found.index / count,
        },
    )


def subscribers(case: Case) -> Iterator[Line]:
    """Measure the nanoseconds of one subscriber's arrival, of its departure, and of one delivery."""
    gc.collect()
    layout, count = case.entrant.name, max(4, case.size)
    adding, discarding = flat(layout, count, case.scaled(ROUNDS), True)
    stage = Stage(layout, count)
    stage.send(1)
    routing, _ = stage.send(max(1, case.scaled(DELIVERIES) // (count * BURST)))
    yield Line("", {"add ns": adding, "discard ns": discarding, "deliver ns": routing.each_ns})


BENCH: Final = Bench(
    "growth",
    "How the costs of routing grow.",
    {
        "filters": Row("filters in the trie", filters, LAYOUTS, sizes=(1_000, 10_000, 100_000, 1_000_000)),
        "subscribers": Row("subscribers of a filter", subscribers, LAYOUTS, sizes=(10, 100, 1_000, 10_000, 100_000)),
    },
    {layout: Entrant(layout) for layout in LAYOUTS},
    around=as_the_daemon,
)
