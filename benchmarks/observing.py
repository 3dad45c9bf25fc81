"""What it costs a broker to be looked at, and what other clients notice of it.

Owns: rows of `benchmarks.network` on a broker that nobody looks at, with `[top]`, and with HTTP besides, where /metrics
is read every second and a page is open; and ``list``: how long a PING waits while all of very many clients are listed
again and again, and /metrics is read.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from socket import socket
from typing import Final

from benchmarks.clients import sessions
from benchmarks.network import links
from benchmarks.network.measure import Meter
from benchmarks.network.rows import ROWS
from benchmarks.network.rows import Bench as Load
from benchmarks.runner import HOST, Bench, Case, Entrant, Line, Row, line_of
from loadtest.brokers import frames
from loadtest.brokers.process import free_port
from loadtest.brokers.stats import percentile

WATCHED: Final = ("one-to-one", "pairs", "fan-out", "paced-pairs")
PAGE: Final = 1_000
GAP: Final = 0.002
"""Seconds between two PINGs."""


def _get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=60) as answer:
        found: bytes = answer.read()
        return found


def watch(port: int, enough: Event, told: Connection) -> None:
    """Read /metrics every second, and /events all the time; in a process of its own."""

    def page() -> None:
        while not enough.is_set():
            with urllib.request.urlopen(f"http://{HOST}:{port}/events", timeout=60) as stream:
                while not enough.is_set() and stream.readline():
                    pass

    threading.Thread(target=page, daemon=True).start()
    while True:
        _get(port, "/metrics")
        told.send(None)
        if enough.wait(1.0):
            return


def list_all(port: int, enough: Event, told: Connection) -> None:
    """List all clients and read /metrics, again and again; in a process of its own."""
    cursor = ""
    while not enough.is_set():
        page = json.loads(_get(port, f"/api/v5/clients?limit={PAGE}{cursor}"))
        cursor = f"&cursor={page['meta']['cursor']}" if page["meta"]["cursor"] is not None else ""
        if not cursor:
            _get(port, "/metrics")
            told.send(None)


@contextmanager
def beside(work: Callable[[int, Event, Connection], None], port: int) -> Iterator[Connection]:
    """The work in a process of its own, once it has told for the first time."""
    context = multiprocessing.get_context("spawn")
    enough = context.Event()
    told, telling = context.Pipe(duplex=False)
    child = context.Process(target=work, args=(port, enough, telling), daemon=True)
    child.start()
    try:
        if not told.poll(60):
            raise links.LoadError("nothing answers over HTTP")
        yield told
    finally:
        enough.set()
        child.join(10)
        child.kill()


def watched(name: str, case: Case) -> Iterator[Line]:
    """A row of the network's on a broker that is looked at as the entrant says."""
    row, http = ROWS[name], free_port()
    settings = [each.replace("PORT", str(http)) for each in case.entrant.settings]
    with case.broker(*settings) as process:
        load = Load(Meter(process, max(0.1, case.seconds / 4), case.seconds), case.divide)
        if len(settings) == 1:
            yield line_of("", row.run(load))
            return
        with beside(watch, http):
            yield line_of("", row.run(load))


def listing(case: Case) -> Iterator[Line]:
    """What a PING waits while nobody asks, and while all clients are listed."""
    http = free_port()
    with case.broker(_HTTP.replace("PORT", str(http))) as process:
        sessions(process.port, [f"away-{at}" for at in range(case.size)], lambda at: [(f"away/{at}", 0)])
        pinging = links.open_clients(HOST, process.port, ["pinging"])
        yield _waits("nobody asks", pinging[0], case.seconds)
        with beside(list_all, http) as told:
            line = _waits("all are listed", pinging[0], case.seconds)
            lists = 0
            while told.poll():
                told.recv()
                lists += 1
            yield Line(line.step, line.figures, (f"{lists} whole lists",))
        links.close_all(pinging)


def _waits(step: str, sock: socket, seconds: float) -> Line:
    until, waits = time.monotonic() + seconds, list[float]()
    while not waits or time.monotonic() < until:
        begun = time.perf_counter()
        sock.sendall(frames.PINGREQ)
        links.expect(sock, frames.PINGRESP[0])
        waits.append((time.perf_counter() - begun) * 1e3)
        time.sleep(GAP)
    waits.sort()
    return Line(step, {"p50 ms": percentile(waits, 0.5), "p99 ms": percentile(waits, 0.99), "worst ms": waits[-1]})


_HTTP: Final = f'http.listen=["http://{HOST}:PORT"]'
_ENTRANTS: Final = {
    each.name: each
    for each in (
        Entrant("plain", "canopy", ("top.counters=0",)),
        Entrant("top", "canopy", ("top.counters=256",)),
        Entrant("http", "canopy", ("top.counters=256", _HTTP)),
        Entrant("canopy", "canopy"),
    )
}

BENCH: Final = Bench(
    "observing",
    "What it costs a broker to be looked at.",
    {
        **{
            name: Row(ROWS[name].title, partial(watched, name), ("plain", "top", "http"), against="CPU µs")
            for name in WATCHED
        },
        "list": Row("PING beside lists of all clients", listing, ("canopy",), sizes=(100_000,)),
    },
    _ENTRANTS,
)
