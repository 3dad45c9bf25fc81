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
from benchmarks.routing.row import (
    CHANGES,
    MILLISECONDS,
    RATE,
    TIMES,
    Case,
    Measured,
    Sample,
    at_least,
    at_most,
    milliseconds,
    rate,
    reported,
)
from benchmarks.routing.stage import Stage

SOURCE: Final = "RabbitMQ"
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


def _insert(load: Callable[[int], Load], count: int) -> Callable[[Case], Sample]:
    return lambda case: rate(Table(case.layout, load(case.scaled(count))).fill())


def _delete(load: Callable[[int], Load], count: int) -> Callable[[Case], Sample]:
    def run(case: Case) -> Sample:
        table = Table(case.layout, load(case.scaled(count)))
        table.fill()
        order = list(range(len(table.subscriptions)))
        random.Random(loads.SEED).shuffle(order)
        return rate(table.empty(order))

    return run


def _filled(case: Case, load: Load) -> Table:
    table = Table(case.layout, load)
    table.fill()
    return table


def _match(load: Callable[[int], Load], count: int) -> Callable[[Case], Sample]:
    return lambda case: rate(match_all(_filled(case, load(case.scaled(count))), case.scaled(ROUTES)))


def _cached(case: Case) -> Sample:
    return rate(route_all(_filled(case, loads.unicast(case.scaled(10_000))), case.scaled(ROUTES)))


def _fan_out(case: Case) -> Sample:
    return rate(visit_all(_filled(case, loads.same_key(case.scaled(10_000))), case.scaled(VISITS)))


def _broadcast(case: Case) -> Sample:
    return milliseconds(visit_all(_filled(case, loads.broadcast(case.scaled(10_000))), case.scaled(VISITS)))


def _deliver(case: Case) -> Sample:
    stage = Stage(case.layout, case.scaled(10_000))
    stage.send(1)
    routing, taking = stage.send(1)
    peers = len(stage.outboxes)
    details = {"ns each": routing.each_ns, "writer's part ns each": taking.each_ns}
    return Sample(routing.rate / peers, routing.each_cpu_ns * peers, details)


def flat(layout: str, crowd: int, rounds: int, shuffled: bool) -> tuple[float, float]:
    """Nanoseconds of one insert and of one delete, while a filter has some ``crowd`` subscribers.

    They leave a few at a time and come back: those who came first go first or, ``shuffled``, anybody does. Medians over
    these turns. Small crowds are measured at several filters, so that the clock is read seldom enough.
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


def _flat(deleting: bool) -> Callable[[Case], Sample]:
    def run(case: Case) -> Sample:
        crowds = [case.scaled(crowd) for crowd in CROWDS]
        rounds = case.scaled(FLAT_ROUNDS)
        costs = [flat(case.layout, crowd, rounds, False)[deleting] for crowd in crowds]
        details = {f"ns at {crowd:,}": cost for crowd, cost in zip(crowds, costs, strict=True)}
        details["ns there, anybody"] = flat(case.layout, crowds[-1], rounds, True)[deleting]
        return Sample(costs[-1] / costs[0], None, details)

    return run


ROWS: Final = (
    Measured(
        "churn-insert",
        "insert, 8K bindings, 4 filters a client",
        SOURCE,
        CHANGES,
        _insert(loads.churn, 8_000),
        THROUGH_RAFT,
        reported("810 → 1,120"),
    ),
    Measured(
        "device-insert",
        "insert, 20K bindings of devices",
        SOURCE,
        CHANGES,
        _insert(loads.devices, 20_000),
        THROUGH_RAFT,
        reported("420 → 650"),
    ),
    Measured(
        "same-key-insert",
        "insert, 10K with the same filter",
        SOURCE,
        CHANGES,
        _insert(loads.same_key, 10_000),
        THROUGH_RAFT,
        reported("290 → 415"),
    ),
    Measured(
        "same-key-delete",
        "delete, 10K with the same filter",
        SOURCE,
        CHANGES,
        _delete(loads.same_key, 10_000),
        THROUGH_RAFT,
    ),
    Measured(
        "unicast",
        "unicast, 10K exact + 10K broadcast/#, uncached",
        SOURCE,
        RATE,
        _match(loads.unicast, 10_000),
        IN_ETS,
        reported("250K → 460K"),
        at_least(460_000),
    ),
    Measured(
        "unicast-cached",
        "the same, through the match cache",
        SOURCE,
        RATE,
        _cached,
        "theirs has no cache in front of its tables; other hardware",
        reported("250K → 460K"),
    ),
    Measured(
        "same-key-fan-out",
        "fan-out, 10K with the same filter, each visited",
        SOURCE,
        RATE,
        _fan_out,
        IN_ETS,
        reported("1,170 → 3,100"),
        at_least(3_100),
    ),
    Measured(
        "same-key-deliver",
        "the same, each into an outbox",
        SOURCE,
        RATE,
        _deliver,
        "more than theirs: Router.publish into 10K bounded queues; compiled, so as cheap as our visit",
        reported("1,170 → 3,100"),
    ),
    Measured(
        "broadcast",
        "broadcast, 10K by broadcast/#, each visited",
        SOURCE,
        MILLISECONDS,
        _broadcast,
        IN_ETS,
        reported("0.9 → 0.6"),
    ),
    Measured("exact", "10K exact filters", SOURCE, RATE, _match(loads.exact, 10_000), UNREPORTED),
    Measured("plus", "10K filters that end with +", SOURCE, RATE, _match(loads.plus, 10_000), UNREPORTED),
    Measured("hash", "10K filters that end with #", SOURCE, RATE, _match(loads.hashes, 10_000), UNREPORTED),
    Measured("mixed", "10K filters of all three kinds, 3 match", SOURCE, RATE, _match(loads.mixed, 10_000), UNREPORTED),
    Measured(
        "many-wildcards",
        "64 mixtures of six levels and +, 64 match",
        SOURCE,
        RATE,
        lambda case: rate(match_all(_filled(case, loads.many_wildcards()), case.scaled(ROUTES // 10))),
        UNREPORTED,
    ),
    Measured(
        "flat-insert",
        "insert at 100,000 subscribers by one at 100",
        SOURCE,
        TIMES,
        _flat(False),
        "v3 read and wrote all bindings of a filter for each new one; v4 does not; no figure",
        {},
        at_most(FLAT),
    ),
    Measured(
        "flat-delete",
        "delete at 100,000 subscribers by one at 100",
        SOURCE,
        TIMES,
        _flat(True),
        "the same; where anybody may leave, and not the first, their memory is cold: see the last figure",
        {},
        at_most(FLAT),
    ),
)
