"""Measures the cost of a message that the program publishes and subscribes to itself.

Only the listener's socket is open, and no client connects to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import uvloop

from benchmarks.runner import Bench, Case, Entrant, Line, Row
from canopy_mqtt import Broker, Settings, Subscription

MESSAGES: Final = 500_000
PAYLOAD: Final = bytes(64)


async def _read(messages: Subscription, count: int) -> None:
    left = count
    async for _ in messages:
        left -= 1
        if not left:
            break


async def _measure(filters: tuple[str, ...], topic: Callable[[int], str], count: int) -> tuple[float, float]:
    """Seconds and CPU seconds."""
    async with Broker(Settings(listen=("mqtt://127.0.0.1:0",))) as broker:
        open_ones = [await broker.subscribe(topic_filter).__aenter__() for topic_filter in filters]
        readers = [asyncio.create_task(_read(messages, count)) for messages in open_ones]
        began, cpu = time.perf_counter(), time.process_time()
        for number in range(count):
            await broker.publish(topic(number), PAYLOAD)
        await asyncio.gather(*readers)
        return time.perf_counter() - began, time.process_time() - cpu


def _run(filters: tuple[str, ...], topic: Callable[[int], str], case: Case) -> Iterator[Line]:
    count = case.scaled(MESSAGES) // len(filters)
    seconds, cpu = uvloop.run(_measure(filters, topic, count))
    yield Line(
        "", {"messages/s": count / seconds, "deliveries/s": count * len(filters) / seconds, "CPU µs": cpu / count * 1e6}
    )


def _row(title: str, filters: tuple[str, ...], topic: Callable[[int], str]) -> Row:
    return Row(title, partial(_run, filters, topic), ("in-process",))


BENCH: Final = Bench(
    "inprocess",
    "What a message costs that the program publishes and subscribes to itself.",
    {
        "one": _row("one topic", ("t",), lambda _: "t"),
        "many": _row("1,000 topics, one filter", ("a/+/b",), lambda number: f"a/{number % 1_000}/b"),
        "ten": _row("10 subscriptions to all", ("t",) * 10, lambda _: "t"),
        "new": _row("each topic is new", ("a/#",), lambda number: f"a/{number}"),
    },
    {"in-process": Entrant("in-process")},
    repeats=1,
)
