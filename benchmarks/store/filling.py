"""How long a broker takes to start on a store that holds much: until it serves, from the start of its process.

The store is filled through its own journal, as a broker would.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.figures import aligned
from benchmarks.store.disk import bytes_on_disk
from benchmarks.store.entrants import ENTRANTS
from broker.core.principal import Principal
from broker.core.queues.delivery import Delivery
from broker.core.queues.message import Message
from broker.core.topics.subscription import Subscriber, Subscription
from broker.store import Store
from broker.store.sqlite import SqliteStore
from loadtest.brokers.process import BrokerProcess, free_port

NAME: Final = "start"

SESSIONS: Final = 100_000
SUBSCRIPTIONS: Final = 10
RETAINED: Final = 1_000_000
QUEUED: Final = 1_000_000

AT_ONCE: Final = 1_000
"""Notes between two commits, about."""

LONGEST_START: Final = 600.0


async def _fill(store: Store, sessions: int, retained: int, queued: int) -> None:
    """Sessions of clients that are away, each with its subscriptions, retained messages, and messages that wait."""
    await store.open(time.monotonic)
    await store.load()
    journal, now = store.journal, time.monotonic()
    for number in range(sessions):
        client_id = f"device-{number:07}"
        journal.session_kept(client_id, Principal("fleet"), 604_800, now)
        for each in range(SUBSCRIPTIONS):
            journal.subscribed(client_id, Subscription(Subscriber(), f"site/{number}/command/{each}", 1), False)
        if number % (AT_ONCE // SUBSCRIPTIONS) == 0:
            await store.flush()
    for number in range(retained):
        topic = f"site/{number % 1_000}/device/{number}/state".encode()
        journal.retained_set(Message(topic, b"x" * 64, 1, True, b"", 0.0, ""))
        if number % AT_ONCE == 0:
            await store.flush()
    for number in range(queued):
        message = Message(b"site/command", b"x" * 64, 1, False, b"", 0.0, "")
        journal.queued(f"device-{number % sessions:07}", Delivery(message, 1, False, (), None))
        if number % AT_ONCE == 0:
            await store.flush()
    await store.close()


def table(scale: float, parent: Path, core: int | None) -> str:
    """Sizes, and what a start took."""
    body: list[list[str]] = []
    durable = next(one for one in ENTRANTS if one.name == "canopy, full")
    for sessions, retained, queued in (
        (SESSIONS, 0, 0),
        (0, RETAINED, 0),
        (SESSIONS, RETAINED, 0),
        (SESSIONS, 0, QUEUED),
    ):
        sizes = [int(size * scale) for size in (sessions, retained, queued)]
        with tempfile.TemporaryDirectory(prefix="canopy-store-", dir=parent) as name:
            directory = Path(name)
            asyncio.run(_fill(SqliteStore(directory, synchronous="off"), *sizes))
            size = bytes_on_disk(directory)
            port = free_port()
            began = time.perf_counter()
            with BrokerProcess(durable.begin(port, directory), port, core, LONGEST_START) as broker:
                seconds = time.perf_counter() - began
                broker.settle()
                body.append(
                    [
                        *(f"{each:,}" for each in (sizes[0], sizes[0] * SUBSCRIPTIONS, sizes[1], sizes[2])),
                        f"{size / 1e6:,.0f}",
                        f"{seconds:.1f}",
                        f"{broker.resident() / 1e6:,.0f}",
                    ]
                )
    headings = ("sessions", "subscriptions", "retained", "queued", "MB on disk", "serves after s", "memory MB")
    return aligned(headings, body, set())
