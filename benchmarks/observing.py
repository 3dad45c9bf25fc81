"""What it costs a broker to be looked at, and what other clients notice of it.

Owns two measurements. `load`: CPU for each delivered message without anything, with `[top]`, and with HTTP besides,
where /metrics is read every second and a page is open. `list`: how long a PING waits while all clients of very many are
listed, again and again, and /metrics is read. Runs of the variants take turns.

    python -m benchmarks.observing [load|list] [--rows one-to-one,pairs] [--clients 100000] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import struct
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

from benchmarks.figures import aligned, number
from benchmarks.network.cli import run_once
from benchmarks.network.measure import Sample
from benchmarks.network.rows import ROWS, Bench, Row
from loadtest.brokers.frames import connect
from loadtest.brokers.process import BrokerProcess, at_work, free_port, raise_file_limit
from loadtest.brokers.registry import PEERS

WATCHED: Final = ("one-to-one", "pairs", "fan-out", "paced-pairs")
PLAIN, TOP, HTTP = "plain", "top", "http"
SPARE: Final = 300
PAGE: Final = 1_000
PING: Final = b"\xc0\x00"
GAP: Final = 0.002
"""Seconds between two PINGs."""


def watch(port: int, ready: Event, enough: Event) -> None:
    """Read /metrics every second, and /events all the time; in a process of its own."""

    def page() -> None:
        while not enough.is_set():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=60) as stream:
                while not enough.is_set() and stream.readline():
                    pass

    threading.Thread(target=page, daemon=True).start()
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            answer.read()
        ready.set()
        if enough.wait(1.0):
            return


def variant(row: Row, name: str) -> Row:
    """A row on a broker that is looked at so much."""
    top = f"top.counters={0 if name == PLAIN else 256}"
    if name != HTTP:
        return replace(row, settings=(*row.settings, top))
    port = free_port()

    def run(bench: Bench) -> Sample:
        context = multiprocessing.get_context("spawn")
        ready, enough = context.Event(), context.Event()
        watcher = context.Process(target=watch, args=(port, ready, enough), daemon=True)
        watcher.start()
        try:
            if not ready.wait(60):
                raise SystemExit("benchmarks.observing: nobody answers over HTTP")
            return row.run(bench)
        finally:
            enough.set()
            watcher.join(10)
            watcher.kill()

    listen = f'http.listen=["http://127.0.0.1:{port}"]'
    return replace(row, settings=(*row.settings, top, listen), run=run)


def load(names: Sequence[str], repeats: int, seconds: float) -> None:
    """CPU for each message, and the ratio to a broker that nobody looks at."""
    lines = []
    with at_work() as cores:
        for name in names:
            found: dict[str, list[float]] = {PLAIN: [], TOP: [], HTTP: []}
            for _ in range(repeats):
                for kind, figures in found.items():
                    sample = run_once(variant(ROWS[name], kind), PEERS["canopy"], cores, seconds)
                    figures.append(sample.cpu_us)
            medians = {kind: statistics.median(figures) for kind, figures in found.items()}
            ratios = [
                statistics.median(one / plain for one, plain in zip(found[kind], found[PLAIN], strict=True))
                for kind in (TOP, HTTP)
            ]
            lines.append([name, *(number(medians[kind]) for kind in found), *(f"{ratio:.3f}" for ratio in ratios)])
            print(f"  {name} done", flush=True)
    headings = ["row", "plain µs", "top µs", "http µs", "top ÷ plain", "http ÷ plain"]
    print(aligned(headings, lines, {"row"}))


def fill(port: int, clients: int) -> None:
    """Leave sessions behind, of clients that are away."""
    for at in range(clients):
        name = f"away-{at:06}".encode()
        body = b"\x00\x04MQTT\x04\x00\x00\x00" + struct.pack(">H", len(name)) + name
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(bytes((0x10, len(body))) + body)
            sock.recv(4)
            sock.sendall(b"\xe0\x00")


def list_all(port: int, enough: Event, told: Connection) -> None:
    """List all clients and read /metrics, again and again; in a process of its own."""
    lists = seen = 0
    while not enough.is_set():
        cursor = ""
        while not enough.is_set():
            url = f"http://127.0.0.1:{port}/api/v5/clients?limit={PAGE}" + (f"&cursor={cursor}" if cursor else "")
            with urllib.request.urlopen(url, timeout=60) as answer:
                page = json.loads(answer.read())
            seen += len(page["data"])
            cursor = page["meta"]["cursor"]
            if cursor is None:
                lists += 1
                break
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            answer.read()
    told.send((lists, seen))


async def pings(port: int, seconds: float) -> list[float]:
    """How long each PING of one client waited within so many seconds, in milliseconds."""
    until = time.perf_counter() + seconds
    return await pings_while(port, lambda: time.perf_counter() < until)


async def pings_while(port: int, wanted: Callable[[], bool], name: str = "pinging") -> list[float]:
    """The same, at least one and as long as more are wanted; sorted."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(connect(name))
    await reader.readexactly(4)
    waits: list[float] = []
    while not waits or wanted():
        begun = time.perf_counter()
        writer.write(PING)
        await reader.readexactly(2)
        waits.append((time.perf_counter() - begun) * 1_000)
        await asyncio.sleep(GAP)
    writer.close()
    return sorted(waits)


def listing(clients: int, seconds: float) -> None:
    """What a PING waits while nobody asks, and while all clients are listed."""
    raise_file_limit(SPARE)
    port, http = free_port(), free_port()
    settings = [f'http.listen=["http://127.0.0.1:{http}"]', "session.max_sessions=5000000"]
    with at_work() as cores, tempfile.TemporaryDirectory(prefix="bench-") as name:
        command = PEERS["canopy"].command(port, Path(name), 0, settings)
        with BrokerProcess(command, port, cores.broker):
            fill(port, clients)
            lines = [_waits("nobody asks", asyncio.run(pings(port, seconds)))]
            context = multiprocessing.get_context("spawn")
            enough = context.Event()
            told, telling = context.Pipe(duplex=False)
            asking = context.Process(target=list_all, args=(http, enough, telling), daemon=True)
            asking.start()
            time.sleep(1.0)
            lines.append(_waits("all are listed", asyncio.run(pings(port, seconds))))
            enough.set()
            lists, seen = told.recv()
            asking.join(10)
    print(aligned(["while", "p50 ms", "p99 ms", "worst ms"], lines, {"while"}))
    print(f"{clients:,} clients, {lists} whole lists, {seen:,} entries in about {seconds:g} s")


def _waits(name: str, waits: list[float]) -> list[str]:
    return [name, number(waits[len(waits) // 2]), number(waits[int(len(waits) * 0.99)]), number(waits[-1])]


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observing", description=__doc__)
    parser.add_argument("what", nargs="?", default="all", choices=("load", "list", "all"))
    parser.add_argument("--rows", default=",".join(WATCHED))
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="one short run, and 2,000 clients")
    flags = parser.parse_args()
    if flags.quick:
        flags.repeats, flags.seconds, flags.clients = 1, 0.3, min(flags.clients, 2_000)
    if flags.what != "list":
        load(flags.rows.split(","), flags.repeats, flags.seconds)
    if flags.what != "load":
        listing(flags.clients, max(flags.seconds * 5, 2.0))


if __name__ == "__main__":
    main()
