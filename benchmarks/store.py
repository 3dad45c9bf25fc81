"""The cost of storing what is acknowledged, beside mosquitto; the time that a sync of this disk takes is printed with
it.

Owns: how each broker keeps (``ENTRANTS``), and five rows: connected pairs, sessions that are away, the latency of a
PUBACK, retained messages, and a start with what was kept. Every message is acknowledged before it counts.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from socket import socket
from typing import Final

from benchmarks.clients import opened, publish_all, sessions, stay
from benchmarks.network import links
from benchmarks.network.links import Link, Loop, receive
from benchmarks.network.loads import AckedPairs, ClosedLoop, Shape, Source, publishes, topic
from benchmarks.network.measure import Spent, measure
from benchmarks.network.paced import Clocked
from benchmarks.network.streams import Ledger, PublisherAcks
from benchmarks.runner import Bench, Case, Entrant, Line, NotRun, Row, line_of
from canopy_load.brokers import frames
from canopy_load.brokers.process import BrokerProcess, peak_resident
from canopy_load.brokers.stats import percentile

WIDE: Final = tuple(
    f"{name}=0"
    for name in (
        "queue.session_messages",
        "queue.session_bytes",
        "queue.total_messages",
        "queue.total_bytes",
        "queue.live_messages",
        "queue.live_bytes",
        "limits.max_client_bytes",
        "retained.max_messages",
        "retained.max_bytes",
        "session.max_bytes",
    )
)
"""Bounds of Canopy that a run may meet."""
_SAVING: Final = ("persistence true", "persistence_location FOLDER/", "autosave_on_changes true")
_MANY: Final = ("max_queued_messages 0", "max_queued_bytes 0")

ENTRANTS: Final = {
    each.name: each
    for each in (
        Entrant("canopy", "canopy", WIDE),
        Entrant("canopy-full", "canopy", (*WIDE, "store.path=FOLDER/store")),
        Entrant("canopy-normal", "canopy", (*WIDE, "store.path=FOLDER/store", "store.synchronous=normal")),
        Entrant("mosquitto", "mosquitto", _MANY),
        # All of its database is written after so many changes, while it serves nobody; nothing waits for that.
        Entrant("mosquitto-1800", "mosquitto", (*_MANY, *_SAVING, "autosave_interval 1800")),
        # The nearest it comes to what `full` promises: after each change. Its figures fall with what is kept.
        Entrant("mosquitto-each", "mosquitto", (*_MANY, *_SAVING, "autosave_interval 1")),
    )
}
"""The entrants. mosquitto has no way to acknowledge only what is on disk."""

PAIRS: Final = 50
PAIR_SHAPE: Final = Shape(window=20, burst=20)
AWAY: Final = 8
AWAY_SHAPE: Final = Shape(window=1_024, burst=256)
RATE: Final = 1_000.0
"""Messages a second, where latency is measured."""
TOPICS: Final = 50_000
SESSIONS: Final = 100_000
FILTERS: Final = 10
KEPT: Final = 1_000_000
"""Retained messages, or messages that wait, of a start."""
PATIENCE: Final = 600.0
"""Seconds in which a broker must have started."""
BLOCK: Final = 4096
SYNCS: Final = 300


def sync_times(folder: Path, times: int = SYNCS) -> list[float]:
    """Seconds of so many ``fdatasync`` calls, each after a block was appended to a file, the shortest first."""
    path = folder / "sync-probe"
    found: list[float] = []
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for _ in range(times):
            os.write(file, bytes(BLOCK))
            began = time.perf_counter()
            os.fdatasync(file)
            found.append(time.perf_counter() - began)
    finally:
        os.close(file)
        path.unlink()
    return sorted(found)


def percentiles_ms(seconds: Iterable[float]) -> dict[str, float]:
    """Return the figures of some times, in milliseconds."""
    ordered = sorted(seconds)
    return {name: (percentile(ordered, share) or 0.0) * 1e3 for name, share in _SHARES.items()}


def bytes_on_disk(folder: Path) -> int:
    """Bytes that the files below a folder take, whole blocks."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def sync(case: Case) -> Iterator[Line]:
    """Measure a sync where the stores stand: it varies by the hour."""
    with case.folder() as folder:
        times = sync_times(folder, case.scaled(SYNCS))
    yield Line("", percentiles_ms(times))


def pairs(case: Case) -> Iterator[Line]:
    """Publishers and subscribers, all connected, sessions that stay: what is acknowledged at once need not be kept."""
    with case.broker() as process, Loop() as loop, ExitStack() as stack:
        hearing, sending = (stay(process.port, [f"{kind}{at:04}" for at in range(PAIRS)]) for kind in "sp")
        stack.callback(links.close_all, [*hearing, *sending])
        links.subscribe_all(hearing, lambda number: [(topic(number), 1)])
        links.prepare([*hearing, *sending])
        load = AckedPairs(loop, sending, hearing, PAIR_SHAPE, 1)
        yield line_of("", measure(case.meter(process), loop, load))


class ToAway(ClosedLoop):
    """Publisher ``n`` to a session that is away, at QoS 1; a message leaves the window with its PUBACK."""

    def __init__(self, loop: Loop, publishers: Sequence[socket], shape: Shape) -> None:
        super().__init__()
        for number, publisher in enumerate(publishers):
            reader: Callable[[], None] = partial(self._read, publisher, number, PublisherAcks())
            link = Link(loop, publisher, reader)
            self.sources.append(Source(link, publishes(number, shape, 1), shape))
        self._buffer = loop.buffer

    def _read(self, sock: socket, number: int, acks: PublisherAcks) -> None:
        size = receive(sock, self._buffer)
        if size and (done := acks.feed(self._buffer[:size])):
            self.ledger.delivered += done
            self.sources[number].back(done)


def away(case: Case) -> Iterator[Line]:
    """One publisher for each session that is away."""
    with case.folder() as folder, case.broker(folder=folder) as process, Loop() as loop, ExitStack() as stack:
        sessions(process.port, [f"s{at}" for at in range(AWAY)], lambda number: [(topic(number), 1)])
        sending = opened(stack, process.port, *(f"p{at}" for at in range(AWAY)))
        links.prepare(sending)
        process.settle()
        empty = bytes_on_disk(folder)
        load = ToAway(loop, sending, AWAY_SHAPE)
        sample = measure(case.meter(process), loop, load)
        process.end()
        kept = (bytes_on_disk(folder) - empty) / load.ledger.delivered
        # Below a byte a message it is something else that has grown.
        yield line_of("", sample, {"messages": load.ledger.delivered, "B on disk": kept if kept > 1 else None})


class PacedAcks(Clocked):
    """Publishers at QoS 1 that send by the clock, in turn, each to a topic of its own; how long each message waited for
    its PUBACK since it was due, in seconds."""

    def __init__(self, loop: Loop, socks: Sequence[socket], rate: float) -> None:
        super().__init__(1.0 / rate)
        self.ledger = Ledger()
        self.waits = array("d")
        self._publishers = [_Publisher(self, loop, sock, number) for number, sock in enumerate(socks)]
        self._turn = 0

    def missing(self) -> int:
        """Without their PUBACK."""
        return sum(len(each.due) for each in self._publishers)

    def forget(self) -> None:
        """Drop the times measured so far: the measured interval begins."""
        del self.waits[:]

    def _send(self) -> None:
        self._publishers[self._turn].send(self._next)
        self._turn = (self._turn + 1) % len(self._publishers)


class _Publisher:
    """One of them. `due`: when what is not acknowledged yet was due."""

    def __init__(self, load: PacedAcks, loop: Loop, sock: socket, number: int) -> None:
        self.due: list[float] = []
        self._load = load
        self._frame = frames.publish(topic(number), frames.payload(number, 0, 64), 1, 1)
        self._acks = PublisherAcks()
        self._sock = sock
        self._buffer = loop.buffer
        self._link = Link(loop, sock, self._read)

    def send(self, due: float) -> None:
        self.due.append(due)
        self._link.send(self._frame)

    def _read(self) -> None:
        size = receive(self._sock, self._buffer)
        done = self._acks.feed(self._buffer[:size]) if size else 0
        now = time.monotonic()
        self._load.waits.extend(now - due for due in self.due[:done])
        del self.due[:done]
        self._load.ledger.delivered += done


def latency(case: Case) -> Iterator[Line]:
    """From the time a publish to a session that is away was due to its PUBACK."""
    with case.broker() as process, Loop() as loop, ExitStack() as stack:
        sessions(process.port, ["away"], lambda _: [(topic(0), 1)])
        sending = opened(stack, process.port, "publisher")
        links.prepare(sending)
        load = PacedAcks(loop, sending, RATE)
        measure(case.meter(process), loop, load, at_begin=load.forget)
        yield Line("", percentiles_ms(load.waits))


def retained(case: Case) -> Iterator[Line]:
    """Every topic is set for the first time, and then once more."""
    topics = case.scaled(TOPICS)
    with case.broker() as process, ExitStack() as stack:
        sending = opened(stack, process.port, "publisher")
        found: dict[str, float] = {"topics": topics}
        for heading in ("first/s", "again/s"):
            messages = ((f"retained/{at % 100:02}/{at:06}", bytes(64)) for at in range(topics))
            began = time.perf_counter()
            publish_all(sending[0], messages, 1_000, retain=True)
            found[heading] = topics / (time.perf_counter() - began)
        yield Line("", found)


def start(case: Case) -> Iterator[Line]:
    """A process that begins with what another kept, until it has answered a CONNECT."""
    if not any("store.path" in each for each in case.entrant.settings):
        raise NotRun(f"{case.entrant.name} has no store")
    clients, kept = case.size, KEPT * case.size // SESSIONS
    for step, retains, waiting in (("sessions", 0, 0), ("with retained", kept, 0), ("with queued", 0, kept)):
        with case.folder() as folder:
            with case.broker(folder=folder) as process:
                _fill(process, clients, retains, waiting)
                process.settle()
            size = bytes_on_disk(folder)
            began = time.monotonic()
            with case.broker(folder=folder, patience=PATIENCE) as process:
                spent = Spent(time.monotonic() - began, process.cpu() / 1e9, 0.0)
                peak = peak_resident(process.pid) / 1e6
                found = {"serves after s": spent.wall, "CPU s": spent.broker, "peak MB": peak, "MB on disk": size / 1e6}
                yield Line(f"{step}, {retains or waiting:,}", found)


def _fill(process: BrokerProcess, clients: int, retains: int, waiting: int) -> None:
    """Sessions of clients that are away with their filters; retained messages; messages that wait, evenly."""
    each = [f"site/{{0}}/command/{number}" for number in range(FILTERS)]
    sessions(process.port, [f"device-{at}" for at in range(clients)], lambda at: [(f.format(at), 1) for f in each])
    with ExitStack() as stack:
        sending = opened(stack, process.port, "publisher")
        states = ((f"site/{at % 1_000}/device/{at}/state", bytes(64)) for at in range(retains))
        publish_all(sending[0], states, retain=True)
        commands = ((f"site/{at % clients}/command/0", bytes(64)) for at in count())
        publish_all(sending[0], (next(commands) for _ in range(waiting)))


_SHARES: Final = {"p50 ms": 0.5, "p99 ms": 0.99, "worst ms": 1.0}
_ALL: Final = tuple(ENTRANTS)

BENCH: Final = Bench(
    "store",
    "What it costs to keep what is acknowledged.",
    {
        "sync": Row(f"fdatasync of {BLOCK:,} B appended", sync, ("canopy",)),
        "pairs": Row(f"{PAIRS} pairs, QoS 1, sessions that stay, {PAIR_SHAPE.window} in flight each", pairs, _ALL),
        "away": Row(f"QoS 1 to {AWAY} sessions that are away, {AWAY_SHAPE.window:,} in flight each", away, _ALL),
        "latency": Row(f"PUBACK at {RATE:,.0f} messages/s to a session that is away", latency, _ALL),
        "retained": Row("retained messages set, QoS 1", retained, _ALL),
        "start": Row(f"start, {FILTERS} filters a session", start, ("canopy-full",), sizes=(SESSIONS,)),
    },
    ENTRANTS,
)
