"""The memory of an index: resident bytes of a process that does nothing else.

Owns: ``python -m benchmarks.routing.memory LAYOUT CLIENTS EACH COPIES``, which builds the index and prints what the
process grew by, and ``measure``, which starts it.

Promises: a fresh process for each figure. It reads ``/proc/self/statm`` between the steps, the garbage collected: after
the filters' strings, after the index over them, and after one subscription at each filter. So the index alone, the
strings that it refers to, and the subscriptions are known apart. Small indexes are built several times over
(``COPIES``) and the growth divided: the allocator hands out memory in pieces too large to see one of them.

The allocator is not looked into: what the process holds is what the operator pays for.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.routing.loops import make_session
from broker.core.topics.subscription import Subscription
from broker.core.topics.trie import create
from broker.core.topics.trie_base import Trie

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
LEAST: Final = 100_000
"""Filters below which an index is built more than once."""
PATIENCE: Final = 300.0  # seconds for one process


class MemoryFailed(Exception):
    """The process that should have measured did not."""


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
        """And one subscription at each filter, whose session is somebody else's."""
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

    Raises:
        MemoryFailed: that process failed, or took longer than five minutes.
    """
    count = clients * each
    copies = max(1, LEAST // count)
    safe = ["-P"] if sys.flags.safe_path else []
    command = [sys.executable, *safe, "-m", "benchmarks.routing.memory", layout, str(clients), str(each), str(copies)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MemoryFailed(f"the measuring process: {error}") from error
    if done.returncode:
        raise MemoryFailed(f"the measuring process ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    before, strings, index, subscriptions = json.loads(done.stdout)
    return Footprint(
        count,
        (strings - before) // copies,
        (index - strings) // copies,
        (subscriptions - index) // copies,
    )


if __name__ == "__main__":
    print(json.dumps(grow(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
