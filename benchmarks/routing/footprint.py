"""The memory of an index: resident bytes of a process that does nothing else.

Promises: a fresh process for each figure. It reads ``/proc/self/statm`` between the steps, the garbage collected: after
the filters' strings, after the index over them, and after one subscription at each filter. So the index alone, the
strings that it refers to, and the subscriptions are known apart. Small indexes are built several times over and the
growth divided: the allocator hands out memory in pieces too large to see one of them.

The allocator is not looked into: what the process holds is what the operator pays for.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.routing.loops import make_session
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.core.topics.trie import Trie, create

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
LEAST: Final = 100_000
"""Filters below which an index is built more than once."""


@dataclass(frozen=True)
class Footprint:
    """Resident bytes that each part of one index added."""

    filters: int
    strings: int
    index: int
    subscriptions: int

    @property
    def with_strings(self) -> int:
        """The index and the spelling of its filters, which it cannot be without."""
        return self.index + self.strings

    @property
    def with_subscriptions(self) -> int:
        """Bytes with one subscription at each filter as well; the memory of its session is not counted."""
        return self.with_strings + self.subscriptions


def resident() -> int:
    """Resident bytes of this process, after a collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def grow(layout: str, clients: int, each: int, copies: int) -> list[int]:
    """Resident bytes before, and after the strings, the indexes, and the subscriptions."""
    count = clients * each
    session = make_session("everybody")
    names: list[list[str]] = [[""] * count for _ in range(copies)]
    tries: list[Trie] = [create(layout) for _ in range(copies)]
    gc.collect()
    gc.freeze()
    readings = [resident()]
    for batch in names:
        for at in range(count):
            batch[at] = f"device/{at // each}/+/{at % each}/#"
    readings.append(resident())
    for trie, batch in zip(tries, names, strict=True):
        for name in batch:
            trie.insert(name)
    readings.append(resident())
    for trie, batch in zip(tries, names, strict=True):
        for name in batch:
            trie.insert(name).add(Subscription(session, name))
    readings.append(resident())
    assert all(len(trie) == count for trie in tries)
    return readings


def measure(layout: str, clients: int, each: int) -> Footprint:
    """The footprint of ``clients`` × ``each`` filters ``device/{id}/+/{num}/#``, from a process of its own.

    What goes wrong in that process is raised here.
    """
    count = clients * each
    copies = max(1, LEAST // count)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        before, strings, index, subscriptions = pool.submit(grow, layout, clients, each, copies).result()
    return Footprint(
        count,
        (strings - before) // copies,
        (index - strings) // copies,
        (subscriptions - index) // copies,
    )
