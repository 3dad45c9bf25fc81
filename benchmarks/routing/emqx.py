"""The rows of EMQX 4.3's trie (emqx pull request 4628).

Owns: two loads, 10 clients × 10,000 and 8,000 clients × 10 filters ``device/{id}/+/{num}/#``, each with memory,
look-up, insert, delete and the count of look-ups.

Promises: the node trie stands beside the author's figures without compaction, the compacted one beside those with it.

An uncached look-up reads no remembered hash: the topics are new strings each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.routing import loads, memory
from benchmarks.routing.loops import Table, match_all
from benchmarks.routing.row import (
    MEGABYTES,
    NANOSECONDS,
    PROBES,
    Bar,
    Case,
    Measured,
    Sample,
    at_most,
    nanoseconds,
)
from broker.core.topics.trie import COMPACT, NODES

SOURCE: Final = "EMQX"
LOOKUPS: Final = 100_000
TOPIC_LEVELS: Final = 5  # of device/{id}/foo/{num}/bar
MOST_PROBES: Final = TOPIC_LEVELS * 2 + 2
LOOKUP_NS: Final = 3_000.0
BYTES: Final = {NODES: Bar(29.0, False), COMPACT: Bar(20.0, False)}

MEMORY_DIFFERS: Final = "the index with its filters' strings, as their tables hold them; no subscriber in either"
LOOKUP_DIFFERS: Final = "theirs under load from many processes; ours alone in one, topics in arbitrary order"
INSERT_DIFFERS: Final = "theirs in a transaction over a cluster's tables; ours trie and subscription in one process"


def _load(case: Case, clients: int, each: int) -> loads.Load:
    return loads.emqx(*_counts(case, clients, each), most=case.scaled(LOOKUPS))


def _counts(case: Case, clients: int, each: int) -> tuple[int, int]:
    """The larger of both counts is the one that a quick run divides."""
    return (clients, case.scaled(each)) if each > clients else (case.scaled(clients), each)


def _filled(case: Case, clients: int, each: int) -> Table:
    table = Table(case.layout, _load(case, clients, each))
    table.fill()
    return table


def _memory(case: Case, clients: int, each: int) -> Sample:
    found = memory.measure(case.layout, *_counts(case, clients, each))
    details = {"index alone MB": found.index / 1e6, "with a subscription each MB": found.with_subscriptions / 1e6}
    return Sample(found.with_strings / 1e6, None, details)


def _lookup(case: Case, clients: int, each: int) -> Sample:
    return nanoseconds(match_all(_filled(case, clients, each), case.scaled(LOOKUPS)))


def _insert(case: Case, clients: int, each: int) -> Sample:
    return nanoseconds(Table(case.layout, _load(case, clients, each)).fill())


def _delete(case: Case, clients: int, each: int) -> Sample:
    table = _filled(case, clients, each)
    return nanoseconds(table.empty(range(len(table.subscriptions))))


def _probes(case: Case, clients: int, each: int) -> Sample:
    """The most look-ups that any topic takes; every topic is asked for by itself."""
    table = _filled(case, clients, each)
    table.check()
    trie = table.trie
    most = total = 0
    for topic in table.load.topics:
        before = trie.probes
        trie.match(topic)
        most = max(most, trie.probes - before)
        total += trie.probes - before
    return Sample(float(most), None, {"on average": total / len(table.load.topics)})


def _pair(without: str, compacted: str) -> dict[str, str]:
    return {NODES: without, COMPACT: compacted}


def _rows(name: str, title: str, clients: int, each: int, theirs: dict[str, dict[str, str]]) -> tuple[Measured, ...]:
    def run(measured: Callable[[Case, int, int], Sample]) -> Callable[[Case], Sample]:
        return lambda case: measured(case, clients, each)

    return (
        Measured(
            f"{name}-memory",
            f"{title}: memory",
            SOURCE,
            MEGABYTES,
            run(_memory),
            MEMORY_DIFFERS,
            theirs["memory"],
            BYTES if clients * each == 100_000 else {},
        ),
        Measured(
            f"{name}-lookup",
            f"{title}: look-up",
            SOURCE,
            NANOSECONDS,
            run(_lookup),
            LOOKUP_DIFFERS,
            theirs["lookup"],
            at_most(LOOKUP_NS),
        ),
        Measured(
            f"{name}-insert", f"{title}: insert", SOURCE, NANOSECONDS, run(_insert), INSERT_DIFFERS, theirs["insert"]
        ),
        Measured(f"{name}-delete", f"{title}: delete", SOURCE, NANOSECONDS, run(_delete), INSERT_DIFFERS),
        Measured(
            f"{name}-probes",
            f"{title}: look-ups a match, at most",
            SOURCE,
            PROBES,
            run(_probes),
            "nodes: nodes visited; compacted: probes of a table",
            _pair("", "levels × 2 + 2"),
            {COMPACT: Bar(MOST_PROBES, False)},
        ),
    )


ROWS: Final = (
    *_rows(
        "emqx-100k",
        "100,000 filters (10 × 10,000)",
        10,
        10_000,
        {
            "memory": _pair("29 MB", "14 MB"),
            "lookup": _pair("20 ns", "126 ns"),
            "insert": _pair("3.4 ms", "500 ns"),
        },
    ),
    *_rows(
        "emqx-80k",
        "80,000 filters (8,000 × 10)",
        8_000,
        10,
        {
            "memory": _pair("46 MB", "23 MB"),
            "lookup": _pair("10 ms", "44 ms"),
            "insert": _pair("1.3 s", "282 ms"),
        },
    ),
)
