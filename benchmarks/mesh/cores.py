"""Workers on several cores beside one process, and beside other brokers that use several cores where they are there.

Nothing is pinned: the load generator takes what it needs of the same cores, for each entrant alike.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from benchmarks.figures import aligned, number
from benchmarks.mesh import nodes
from benchmarks.mesh.crossing import ROWS, Place, Result, Row, put
from benchmarks.mesh.nodes import Together
from benchmarks.network.links import LoadError
from loadtest.brokers.process import HOST, START_TIMEOUT, BrokerFailed, BrokerProcess, free_port
from loadtest.brokers.registry import PEERS, Order
from loadtest.brokers.stats import ratio

LOADS: Final = ("pairs", "pairs-qos1", "single-qos1", "paced")
WORKERS: Final = 2
BESIDE: Final = ("mosquitto", "flashmq", "nats")
HEADINGS: Final = ("load", "", "messages/s", "× 1 process", "CPU µs", "cores used", "generator %", "p99 µs", "lost")


def _entrants() -> dict[str, tuple[str, int]]:
    """By title: the peer, and on how many cores it works."""
    found = {"canopy, 1 process": ("canopy", 1)}
    if PEERS["canopy"].missing() is None:
        found[f"canopy, {WORKERS} workers"] = ("canopy", WORKERS)
    for name in BESIDE:
        if PEERS[name].missing() is None:
            found[name] = (name, 1 if name == "mosquitto" else WORKERS)
    return found


def begin(stack: ExitStack, name: str, threads: int) -> Place:
    """Start one, and wait until all its workers take clients."""
    port, http = free_port(), free_port()
    command = PEERS[name].begin(Order(port, nodes.folder(stack), threads=threads))
    workers = name == "canopy" and threads > 1
    if workers:
        command += ["--set", f'http.listen=["http://{HOST}:{http}"]', "--set", "top.enabled=false"]
    # Workers start beside each other, and after the process that starts them.
    process = stack.enter_context(BrokerProcess(command, port, None, START_TIMEOUT * (threads + 1)))
    if workers:
        nodes.await_that("all workers are one", lambda: _one(http, threads))
    return Place(Together([process]), port, port)


def _one(http: int, threads: int) -> bool:
    for number_ in range(threads):
        url = f"http://{HOST}:{http}/api/v5/mesh?worker=w{number_}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                others = json.loads(answer.read())["nodes"]
        except OSError:
            return False
        if sum(each["state"] == "connected" for each in others) != threads - 1:
            return False
    return True


def table(rounds: int, seconds: float, told: Callable[[str], None]) -> str:
    """The figures of all loads."""
    body: list[list[str]] = []
    for row in (ROWS[name] for name in LOADS):
        results = {title: Result() for title in _entrants()}
        for _ in range(rounds):
            for title, (name, threads) in _entrants().items():
                result = results[title]
                if result.failure:
                    continue
                told(f"{row.title}: {title}")
                try:
                    with nodes.scene() as stack:
                        result.samples.append(put(row, begin(stack, name, threads), seconds))
                except (BrokerFailed, LoadError, OSError) as error:
                    result.failure = f"FAILED: {error}"
        body += _lines(row, results)
    return aligned(HEADINGS, body, {"load", ""})


def _lines(row: Row, results: dict[str, Result]) -> list[list[str]]:
    first = next(iter(results.values()))
    lines: list[list[str]] = []
    for place, (title, result) in enumerate(results.items()):
        by_first = ratio(result.median("rate"), first.median("rate")) if place else None
        generator, late = result.median("generator_share"), result.median("p99_us")
        lines.append(
            [
                row.title if place == 0 else "",
                result.failure[:80] or title,
                number(result.median("rate")),
                "" if by_first is None else f"{by_first:.2f}",
                number(result.median("cpu_us")),
                number(result.median("broker_share")),
                "–" if generator is None else f"{100 * generator:.0f}",
                "" if late is None else number(late),
                f"{sum(each.lost for each in result.samples):,}",
            ]
        )
    return lines
