"""How long a node takes to join that lacks all retained messages, and for how long the event loops stand.

How long a loop stands is seen from outside: a client of each node sends a PING every two milliseconds, and the longest
wait for an answer is longer than the longest call by less than that, and by what the process waits for its core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from benchmarks.figures import aligned, number
from benchmarks.mesh import nodes
from benchmarks.mesh.nodes import Node
from benchmarks.network.links import LoadError
from benchmarks.observing import pings_while
from benchmarks.store.clients import Client, Publisher, drive, publishes
from benchmarks.store.entrants import WIDE
from loadtest.brokers.stats import percentile

RETAINED: Final = 100_000
WINDOW: Final = 1_000
BATCH: Final = 20_000
"""Messages whose frames are made at once."""


def fill(node: Node, count: int) -> None:
    """Have it retain so many messages."""
    client = Client(node.port, "filling", clean=True)
    try:
        topics = [f"retained/{each % 100:02}/{each:06}/state" for each in range(count)]
        for at in range(0, count, BATCH):
            part = topics[at : at + BATCH]
            drive([Publisher(client, publishes(part, len(part), retain=True), WINDOW)])
    finally:
        client.close()


async def _join(first: Node, second: Node) -> list[list[float]]:
    """What PINGs waited at each until both have all, in milliseconds."""
    done = False

    async def watch() -> None:
        nonlocal done
        began = time.perf_counter()
        try:
            while not all(
                await asyncio.gather(*(asyncio.to_thread(nodes.connected, each, 1) for each in (first, second)))
            ):
                await asyncio.sleep(0.02)
                if time.perf_counter() - began > nodes.PATIENCE:
                    raise LoadError("the nodes do not become the same")
        finally:
            done = True

    asking = [
        asyncio.create_task(pings_while(each.port, lambda: not done, f"pinging-{each.name}"))
        for each in (first, second)
    ]
    await watch()
    return [await each for each in asking]


def table(count: int, core: int | None, told: Callable[[str], None]) -> str:
    """One join, from the start of the process that joins."""
    told(f"a node joins one with {count:,} retained messages")
    with nodes.scene() as stack:
        first = nodes.start_node(stack, "n0", [], core, WIDE)
        fill(first, count)
        first.process.settle()
        cpu, began = first.process.cpu(), time.perf_counter()
        second = nodes.start_node(stack, "n1", [first], core, WIDE)
        started = time.perf_counter() - began
        waits = asyncio.run(_join(first, second))
        seconds = time.perf_counter() - began
        first.process.settle()
        second.process.settle()
        body = [
            [
                name,
                f"{seconds:.2f}" if at else "",
                f"{started:.2f}" if at else "",
                f"{spent / 1e9:.2f}",
                number(spent / 1e3 / count),
                number(percentile(waits[at], 0.5)),
                number(percentile(waits[at], 0.99)),
                number(waits[at][-1]),
            ]
            for at, (name, spent) in enumerate(
                (("the node that has them", first.process.cpu() - cpu), ("the node that joins", second.process.cpu()))
            )
        ]
    headings = (
        f"{count:,} retained",
        "in step after s",
        "serves after s",
        "CPU s",
        "CPU µs a message",
        "PING p50 ms",
        "p99 ms",
        "worst ms",
    )
    return aligned(headings, body, {headings[0]})
