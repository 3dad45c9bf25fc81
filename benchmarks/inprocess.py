"""What a message costs that the program publishes and subscribes to itself: `make bench-inprocess`.

Prints messages a second and CPU for each, for one subscription, for ten that share none of the topics, and for topics
that were never seen before. No socket is open but the listener's, to which nobody connects.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import uvloop
from rich.console import Console
from rich.table import Table

from canopy import Broker, Settings, Subscription


@dataclass(frozen=True)
class Row:
    """One kind of load: the filters that are subscribed to, and the topic of each message."""

    name: str
    filters: tuple[str, ...]
    topic: Callable[[int], str]


ROWS = (
    Row("one topic", ("t",), lambda _: "t"),
    Row("1,000 topics, one filter", ("a/+/b",), lambda number: f"a/{number % 1_000}/b"),
    Row("10 subscriptions to all", ("t",) * 10, lambda _: "t"),
    Row("each topic is new", ("a/#",), lambda number: f"a/{number}"),
)


async def _read(messages: Subscription, count: int) -> int:
    size = 0
    left = count
    async for message in messages:
        size += len(message.payload)
        left -= 1
        if not left:
            break
    return size


async def _measure(row: Row, count: int, payload: bytes) -> tuple[float, float]:
    """Seconds and CPU seconds."""
    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        open_ones = [await broker.subscribe(topic_filter).__aenter__() for topic_filter in row.filters]
        readers = [asyncio.create_task(_read(messages, count)) for messages in open_ones]
        began, cpu = time.perf_counter(), time.process_time()
        for number in range(count):
            await broker.publish(row.topic(number), payload)
        await asyncio.gather(*readers)
        return time.perf_counter() - began, time.process_time() - cpu


def main() -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=64, help="bytes of a payload")
    options = parser.parse_args()
    table = Table("in process", "messages a second", "deliveries a second", "CPU of a message, µs")
    for row in ROWS:
        count = options.messages // len(row.filters)
        seconds, cpu = uvloop.run(_measure(row, count, bytes(options.size)))
        table.add_row(
            row.name,
            f"{count / seconds:,.0f}",
            f"{count * len(row.filters) / seconds:,.0f}",
            f"{cpu / count * 1e6:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
