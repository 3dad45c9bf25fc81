"""The rows of EMQX 4.3's trie (emqx pull request 4628).

Two loads, 10 clients × 10,000 and 8,000 clients × 10 filters ``device/{id}/+/{num}/#``, each with memory, look-up,
insert, delete and the count of look-ups. The node trie stands beside the author's figures without compaction, the
compacted one beside those with it. An uncached look-up reads no remembered hash: the topics are new strings each time.
"""

from __future__ import annotations

from typing import Final

from benchmarks.routing import footprint, loads
from benchmarks.routing.loops import Table, match_all
from benchmarks.routing.row import MEGABYTES, NANOSECONDS, OURS, PROBES, Scaled, nanoseconds, row
from benchmarks.runner import Row
from canopy_mqtt.core.topics.trie import COMPACT, NODES

LOOKUPS: Final = 100_000
TOPIC_LEVELS: Final = 5  # of device/{id}/foo/{num}/bar
MAX_PROBES: Final = TOPIC_LEVELS * 2 + 2
LOOKUP_NS: Final = 3_000.0
MEGABYTES_BAR: Final = {NODES: 29.0, COMPACT: 20.0}

MEMORY_DIFFERS: Final = "the index with its filters' strings, as their tables hold them; no subscriber in either"
LOOKUP_DIFFERS: Final = "theirs under load from many processes; ours alone in one, topics in arbitrary order"
INSERT_DIFFERS: Final = "theirs in a transaction over a cluster's tables; ours trie and subscription in one process"
PROBES_DIFFER: Final = "nodes: nodes visited; compacted: probes of a table"


class _Load:
    """Clients with so many filters each: the larger of both counts is the one that a quick run divides."""

    def __init__(self, clients: int, each: int) -> None:
        self.clients = clients
        self.each = each

    def counts(self, scaled: Scaled) -> tuple[int, int]:
        if self.each > self.clients:
            return self.clients, scaled(self.each)
        return scaled(self.clients), self.each

    def table(self, layout: str, scaled: Scaled, filled: bool = True) -> Table:
        table = Table(layout, loads.emqx(*self.counts(scaled), most=scaled(LOOKUPS)))
        if filled:
            table.fill()
        return table

    def memory(self, layout: str, scaled: Scaled) -> dict[str, float | None]:
        found = footprint.measure(layout, *self.counts(scaled))
        subscribed = found.with_subscriptions / 1e6
        return {
            OURS: found.with_strings / 1e6,
            "index alone MB": found.index / 1e6,
            "with a subscription each MB": subscribed,
        }

    def lookup(self, layout: str, scaled: Scaled) -> dict[str, float | None]:
        return nanoseconds(match_all(self.table(layout, scaled), scaled(LOOKUPS)))

    def insert(self, layout: str, scaled: Scaled) -> dict[str, float | None]:
        return nanoseconds(self.table(layout, scaled, filled=False).fill())

    def delete(self, layout: str, scaled: Scaled) -> dict[str, float | None]:
        table = self.table(layout, scaled)
        return nanoseconds(table.empty(range(len(table.subscriptions))))

    def probes(self, layout: str, scaled: Scaled) -> dict[str, float | None]:
        """The most look-ups that any topic takes; every topic is asked for by itself."""
        table = self.table(layout, scaled)
        table.check()
        trie = table.trie
        found = []
        for topic in table.load.topics:
            before = trie.probes
            trie.match(topic)
            found.append(trie.probes - before)
        return {OURS: float(max(found)), "on average": sum(found) / len(found)}


def _rows(
    name: str, title: str, load: _Load, theirs: dict[str, tuple[str, str]], most: dict[str, float] | None = None
) -> dict[str, Row]:
    memory_, lookup, insert = (dict(zip((NODES, COMPACT), theirs[key], strict=True)) for key in theirs)
    rows = {
        "memory": row("EMQX", f"{title}: memory", MEGABYTES, load.memory, MEMORY_DIFFERS, memory_, most=most),
        "lookup": row("EMQX", f"{title}: look-up", NANOSECONDS, load.lookup, LOOKUP_DIFFERS, lookup, most=LOOKUP_NS),
        "insert": row("EMQX", f"{title}: insert", NANOSECONDS, load.insert, INSERT_DIFFERS, insert),
        "delete": row("EMQX", f"{title}: delete", NANOSECONDS, load.delete, INSERT_DIFFERS),
        "probes": row(
            "EMQX",
            f"{title}: look-ups a match, at most",
            PROBES,
            load.probes,
            PROBES_DIFFER,
            {COMPACT: "levels × 2 + 2"},
            most={COMPACT: MAX_PROBES},
        ),
    }
    return {f"{name}-{kind}": each for kind, each in rows.items()}


ROWS: Final[dict[str, Row]] = {
    **_rows(
        "emqx-100k",
        "100,000 filters (10 × 10,000)",
        _Load(10, 10_000),
        {"memory": ("29 MB", "14 MB"), "lookup": ("20 ns", "126 ns"), "insert": ("3.4 ms", "500 ns")},
        MEGABYTES_BAR,
    ),
    **_rows(
        "emqx-80k",
        "80,000 filters (8,000 × 10)",
        _Load(8_000, 10),
        {"memory": ("46 MB", "23 MB"), "lookup": ("10 ms", "44 ms"), "insert": ("1.3 s", "282 ms")},
    ),
}
