"""The rows of RabbitMQ's topic routing v4 (rabbitmq-server pull request 15619), for MQTT.

Owns: those rows, with the author's figures. His are for an AMQP topic exchange; ``loads`` says how they are translated.

Promises: the author's counts. Inserting and deleting is timed over all of a row's subscriptions, routing over at least
``ROUTES`` routes, or ``VISITS`` where each has thousands of destinations.

It is no race: his inserts go through Raft, ours change one process's memory.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from typing import Final

from benchmarks.routing import loads
from benchmarks.routing.loads import Load
from benchmarks.routing.loops import Table, delete_all, entries_of, insert_all, match_all, route_all, visit_all
from benchmarks.routing.measure import Stopwatch
from benchmarks.routing.row import CHANGES, CPU, MILLISECONDS, OURS, RATE, TIMES, Run, Scaled, milliseconds, rate, row
from benchmarks.routing.stage import Stage
from benchmarks.runner import Row

ROUTES: Final = 100_000
VISITS: Final = 200
FLAT_ROUNDS: Final = 20_000
"""Subscribers that come and go at each size of the crowd, in all."""
FLAT_BATCH: Final = 500
"""And at once, at most."""
FLAT: Final = 2.0
"""How much dearer the 100,000th subscriber may be than the 100th: a cost that grows with them would be 1,000 times."""
CROWDS: Final = (100, 1_000, 10_000, 100_000)

THROUGH_RAFT: Final = "theirs go through Raft and its log; ours change one process's memory; other hardware"
IN_ETS: Final = "theirs read tables that all processes share; ours one process's own objects; other hardware"
UNREPORTED: Final = "their row, without a figure that we know of"


def _filled(layout: str, load: Load) -> Table:
    table = Table(layout, load)
    table.fill()
    return table


def _insert(load: Callable[[int], Load], count: int) -> Run:
    return lambda layout, scaled: rate(Table(layout, load(scaled(count))).fill())


def _delete(layout: str, scaled: Scaled) -> dict[str, float | None]:
    table = _filled(layout, loads.same_key(scaled(10_000)))
    order = list(range(len(table.subscriptions)))
    random.Random(loads.SEED).shuffle(order)
    return rate(table.empty(order))


def _match(load: Callable[[int], Load], routes: int = ROUTES) -> Run:
    return lambda layout, scaled: rate(match_all(_filled(layout, load(scaled(10_000))), scaled(routes)))


def _cached(layout: str, scaled: Scaled) -> dict[str, float | None]:
    return rate(route_all(_filled(layout, loads.unicast(scaled(10_000))), scaled(ROUTES)))


def _fan_out(layout: str, scaled: Scaled) -> dict[str, float | None]:
    return rate(visit_all(_filled(layout, loads.same_key(scaled(10_000))), scaled(VISITS)))


def _broadcast(layout: str, scaled: Scaled) -> dict[str, float | None]:
    return milliseconds(visit_all(_filled(layout, loads.broadcast(scaled(10_000))), scaled(VISITS)))


def _deliver(layout: str, scaled: Scaled) -> dict[str, float | None]:
    stage = Stage(layout, scaled(10_000))
    stage.send(1)
    routing, taking = stage.send(1)
    peers = len(stage.send_buffers)
    figures = {OURS: routing.rate / peers, CPU: routing.each_cpu_ns * peers}
    return {**figures, "ns each": routing.each_ns, "writer's part ns each": taking.each_ns}


def flat(layout: str, crowd: int, rounds: int, shuffled: bool) -> tuple[float, float]:
    """Nanoseconds of one insert and of one delete, while a filter has some ``crowd`` subscribers.

    They leave a few at a time and come back: the first to come is the first to leave or, ``shuffled``, any of them.
    Medians over these turns. Small crowds are measured at several filters, so that the clock is read seldom enough.
    """
    table = Table(layout, loads.same_key(crowd, max(1, FLAT_BATCH // crowd)))
    table.fill()
    members = table.subscriptions
    if shuffled:
        random.Random(loads.SEED).shuffle(members)
    batch = min(FLAT_BATCH, len(members) // 2)
    inserting: list[float] = []
    deleting: list[float] = []
    for turn in range(max(1, rounds // batch)):
        leaving = [members[(turn * batch + at) % len(members)] for at in range(batch)]
        names = loads.fresh([member.topic_filter for member in leaving])
        going, coming = Stopwatch(), Stopwatch()
        delete_all(table.trie, entries_of(leaving), leaving, going)
        insert_all(table.trie, names, leaving, coming)
        deleting.append(going.reading(batch).each_ns)
        inserting.append(coming.reading(batch).each_ns)
    table.check()
    return statistics.median(inserting), statistics.median(deleting)


def _flat(deleting: bool) -> Run:
    def run(layout: str, scaled: Scaled) -> dict[str, float | None]:
        crowds = [scaled(crowd) for crowd in CROWDS]
        rounds = scaled(FLAT_ROUNDS)
        costs = [flat(layout, crowd, rounds, False)[deleting] for crowd in crowds]
        details = {f"ns at {crowd:,}": cost for crowd, cost in zip(crowds, costs, strict=True)}
        anybody = flat(layout, crowds[-1], rounds, True)[deleting]
        return {OURS: costs[-1] / costs[0], **details, "ns there, anybody": anybody}

    return run


def _row(title: str, unit: str, run: Run, differs: str = UNREPORTED, theirs: str = "", **bars: float) -> Row:
    return row("RabbitMQ", title, unit, run, differs, theirs, **bars)


ROWS: Final[dict[str, Row]] = {
    "churn-insert": _row(
        "insert, 8K bindings, 4 filters a client", CHANGES, _insert(loads.churn, 8_000), THROUGH_RAFT, "810 → 1,120"
    ),
    "device-insert": _row(
        "insert, 20K bindings of devices", CHANGES, _insert(loads.devices, 20_000), THROUGH_RAFT, "420 → 650"
    ),
    "same-key-insert": _row(
        "insert, 10K with the same filter", CHANGES, _insert(loads.same_key, 10_000), THROUGH_RAFT, "290 → 415"
    ),
    "same-key-delete": _row("delete, 10K with the same filter", CHANGES, _delete, THROUGH_RAFT),
    "unicast": _row(
        "unicast, 10K exact + 10K broadcast/#, uncached",
        RATE,
        _match(loads.unicast),
        IN_ETS,
        "250K → 460K",
        least=460_000,
    ),
    "unicast-cached": _row(
        "the same, through the match cache",
        RATE,
        _cached,
        "theirs has no cache in front of its tables; other hardware",
        "250K → 460K",
    ),
    "same-key-fan-out": _row(
        "fan-out, 10K with the same filter, each visited", RATE, _fan_out, IN_ETS, "1,170 → 3,100", least=3_100
    ),
    "same-key-deliver": _row(
        "the same, each into a send buffer",
        RATE,
        _deliver,
        "more than theirs: Router.publish into 10K bounded queues; compiled, so as cheap as our visit",
        "1,170 → 3,100",
    ),
    "broadcast": _row("broadcast, 10K by broadcast/#, each visited", MILLISECONDS, _broadcast, IN_ETS, "0.9 → 0.6"),
    "exact": _row("10K exact filters", RATE, _match(loads.exact)),
    "plus": _row("10K filters that end with +", RATE, _match(loads.plus)),
    "hash": _row("10K filters that end with #", RATE, _match(loads.hashes)),
    "mixed": _row("10K filters of all three kinds, 3 match", RATE, _match(loads.mixed)),
    "many-wildcards": _row(
        "64 mixtures of six levels and +, 64 match", RATE, _match(lambda _: loads.many_wildcards(), ROUTES // 10)
    ),
    "flat-insert": _row(
        "insert at 100,000 subscribers by one at 100",
        TIMES,
        _flat(False),
        "v3 read and wrote all bindings of a filter for each new one; v4 does not; no figure",
        most=FLAT,
    ),
    "flat-delete": _row(
        "delete at 100,000 subscribers by one at 100",
        TIMES,
        _flat(True),
        "the same; where anybody may leave, and not the first, their memory is cold: see the last figure",
        most=FLAT,
    ),
}
