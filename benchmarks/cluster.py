"""What durable messages cost on three nodes that share their sessions in one database, and how long a fail-over takes.

Owns: the cluster that is measured (``Cluster``), and five rows: connected clients in bursts, clients that are away, a
fleet of devices that publish now and then, clients that reconnect at once after ``kill -9`` of their node, and the
queue of one that does. All messages have QoS 1, and all subscribers a durable session.

The nodes, the database and the generator share this machine. The database writes to the disk as PostgreSQL does by
default. The CPU is that of the three nodes, and that of all processes of the database.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import IPPROTO_TCP, TCP_NODELAY, create_connection, socket
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.clients import opened, publish_all, sessions, stay
from benchmarks.network import links
from benchmarks.network.links import Link, LoadError, Loop, receive
from benchmarks.network.loads import AckedPairs, Shape, topic
from benchmarks.network.measure import Load, measure
from benchmarks.nodes import Together, settings
from benchmarks.runner import Bench, Case, Line, NotRun, Row, line_of, peers
from benchmarks.store import PacedAcks, ToAway, percentiles_ms
from canopy_load.brokers import frames
from canopy_load.brokers.database import Database, database_missing
from canopy_load.brokers.process import HOST, BrokerProcess, cpu_time, free_port, raise_file_limit

NODES: Final = ("a", "b", "c")
PAIRS: Final = 100
PAIR_SHAPE: Final = Shape(window=32, burst=16)
AWAY: Final = 12
AWAY_SHAPE: Final = Shape(window=1_024, burst=256)
DEVICES: Final = 1_000
"""Each publishes one message a second."""
RECEIVERS: Final = 10
CLIENTS: Final = 1_000
WAITING: Final = 1_000
"""Messages that wait for a client."""
MOVED: Final = 20
"""Clients with such a queue."""
LIMIT: Final = 30.0
"""Seconds for all that come back."""


class Cluster(Together):
    """Three nodes and their database, measured as one broker. Its memory is that of the nodes."""

    def __init__(self, nodes: Sequence[BrokerProcess], database: Database) -> None:
        super().__init__(*nodes)
        self.nodes = nodes
        self.spent: list[tuple[int, int]] = []
        """Nanoseconds of CPU of the nodes and of the database, each time that `cpu` was asked."""
        self._database = database

    def node(self, number: int) -> BrokerProcess:
        """Return the node of a client."""
        return self.nodes[number % len(self.nodes)]

    def cpu(self) -> int:
        """Return the nanoseconds of user and system time of all."""
        self.spent.append((super().cpu(), _cpu(self._database.pids())))
        return sum(self.spent[-1])


def _cpu(pids: Sequence[int]) -> int:
    """Return the nanoseconds of CPU of a server's processes, with those that have ended."""
    if not pids:
        return 0
    fields = Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()
    ended = sum(map(int, fields[13:15])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    for pid in pids:
        with suppress(OSError):
            # One that has ended since counts when the first one has heard of it.
            ended += cpu_time(pid)
    return ended


@contextmanager
def cluster(case: Case) -> Iterator[Cluster]:
    """Start three nodes with a database of their own."""
    if why := database_missing():
        raise NotRun(why)
    with ExitStack() as stack:
        # PostgreSQL is another user where this one is root, and so must be able to come to its folder.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="bench-")))
        database = Database(folder, free_port(), "fsync=on", "shared_buffers=128MB")
        database.make()
        stack.callback(database.stop)
        nodes = [
            stack.enter_context(case.broker(*settings(folder, name, NODES), f"store.url={database.url}"))
            for name in NODES
        ]
        yield Cluster(nodes, database)


def _measured(case: Case, at: Cluster, loop: Loop, load: Load, begin: Callable[[], None] | None = None) -> Line:
    """Run a load, and tell the CPU of the nodes and of the database apart."""

    def begins() -> None:
        at.spent.clear()
        if begin is not None:
            begin()

    sample = measure(case.meter(at), loop, load, at_begin=begins)
    (nodes, database), (nodes_then, database_then) = at.spent[0], at.spent[-1]
    parts = {
        "nodes µs": (nodes_then - nodes) / sample.units / 1e3,
        "database µs": (database_then - database) / sample.units / 1e3,
    }
    return line_of("", sample, parts)


def durable(case: Case) -> Iterator[Line]:
    """Each publisher is at one node, and its subscriber at the next."""
    with cluster(case) as at, Loop() as loop, ExitStack() as stack:
        count = case.scaled(PAIRS)
        hearing = _each(count, lambda number: stay(at.node(number + 1).port, [f"s{number:04}"]))
        sending = _each(count, lambda number: opened(stack, at.node(number).port, f"p{number:04}"))
        stack.callback(links.close_all, hearing)
        links.subscribe_all(hearing, lambda number: [(topic(number), 1)])
        links.prepare([*hearing, *sending])
        yield _measured(case, at, loop, AckedPairs(loop, sending, hearing, PAIR_SHAPE, 1))


def away(case: Case) -> Iterator[Line]:
    """Publishers at all nodes, each to a session that is away."""
    with cluster(case) as at, Loop() as loop, ExitStack() as stack:
        sessions(at.port, [f"s{number}" for number in range(AWAY)], lambda number: [(topic(number), 1)])
        sending = _each(AWAY, lambda number: opened(stack, at.node(number).port, f"p{number}"))
        links.prepare(sending)
        at.settle()
        yield _measured(case, at, loop, ToAway(loop, sending, AWAY_SHAPE))


class Answering:
    """A subscriber that acknowledges what comes."""

    def __init__(self, loop: Loop, sock: socket) -> None:
        self._buffer = loop.buffer
        self._sock = sock
        self._carry = b""
        self._link = Link(loop, sock, self._read)

    def _read(self) -> None:
        size = receive(self._sock, self._buffer)
        data = self._carry + bytes(self._buffer[:size])
        answers, end = puback_all(data)
        self._carry = data[end:]
        if answers:
            self._link.send(answers)


def puback_all(data: bytes) -> tuple[bytes, int]:
    """Return the PUBACKs for the whole PUBLISH packets of QoS 1 in some bytes, and where the last packet ends."""
    answers, offset = bytearray(), 0
    while offset + 5 <= len(data):
        size = frames.packet_size(data, offset)
        if not size or offset + size > len(data):
            break
        if data[offset] & 0xF6 != frames.PUBLISH | 0x02:
            raise LoadError(f"the broker sent {frames.packet_name(data[offset])} where a PUBLISH of QoS 1 was expected")
        at = offset + 1 + frames.read_variable_byte_integer(data, offset + 1)[1]
        at += 2 + int.from_bytes(data[at : at + 2], "big")
        answers += bytes((frames.PUBACK, 2)) + data[at : at + 2]
        offset += size
    return bytes(answers), offset


def devices(case: Case) -> Iterator[Line]:
    """Each device publishes one message a second to one of a few connected clients."""
    count = case.scaled(DEVICES, RECEIVERS)
    raise_file_limit(count + 200)
    with Loop() as loop, cluster(case) as at, ExitStack() as stack:
        each = count // RECEIVERS
        hearing = _each(RECEIVERS, lambda number: stay(at.node(number + 1).port, [f"s{number}"]))
        stack.callback(links.close_all, hearing)
        links.subscribe_all(hearing, lambda n: [(topic(number), 1) for number in range(n * each, (n + 1) * each)])
        sending = _each(count, lambda number: opened(stack, at.node(number).port, f"p{number:04}"))
        links.prepare([*hearing, *sending])
        for sock in hearing:
            Answering(loop, sock)
        load = PacedAcks(loop, sending, float(count))
        line = _measured(case, at, loop, load, load.forget)
        yield Line("", {**line.figures, **percentiles_ms(load.waits)}, line.notes)


def reconnect(case: Case) -> Iterator[Line]:
    """All clients of a node that is killed connect to the others at once: from CONNECT to CONNACK."""
    count = case.scaled(CLIENTS)
    raise_file_limit(2 * count + 200)
    with cluster(case) as at, ExitStack() as stack:
        names = [f"s{number:04}" for number in range(count)]
        stack.callback(links.close_all, stay(at.port, names))
        _kill(at.nodes[0])
        begun: dict[int, float] = {}
        socks: dict[int, socket] = {}
        waiting = select.poll()
        for number, name in enumerate(names):
            sock, began = _returning(stack, at.nodes[1 + number % 2], name)
            begun[sock.fileno()] = began
            socks[sock.fileno()] = sock
            waiting.register(sock, select.POLLIN)
        waits = []
        while begun:
            answered = waiting.poll(LIMIT * 1e3)
            if not answered:
                raise LoadError(f"{len(begun)} clients had no CONNACK within {LIMIT:g} s")
            now = time.monotonic()
            for number, _ in answered:
                packet = links.expect(socks[number], frames.CONNACK)
                if packet[2:] != b"\x01\x00":
                    raise LoadError(f"a client was answered {packet[2:].hex()}, and not that its session is there")
                waiting.unregister(number)
                waits.append(now - begun.pop(number))
        yield Line("", {"clients": float(count), **percentiles_ms(waits)})


def failover(case: Case) -> Iterator[Line]:
    """Clients whose queue waits in the database, after their node was killed: from CONNECT to the last message."""
    count, kept = case.scaled(MOVED), case.scaled(WAITING)
    with cluster(case) as at, ExitStack() as stack:
        hearing = stay(at.port, [f"s{number}" for number in range(count)])
        stack.callback(links.close_all, hearing)
        links.subscribe_all(hearing, lambda number: [(topic(number), 1)])
        sending = opened(stack, at.nodes[1].port, "publisher")
        for number in range(count):
            publish_all(sending[0], ((topic(number), bytes(64)) for _ in range(kept)), 256)
        _kill(at.nodes[0])
        connacks, waits = [], []
        for number in range(count):
            sock, began = _returning(stack, at.nodes[1 + number % 2], f"s{number}")
            links.expect(sock, frames.CONNACK)
            connacks.append(time.monotonic() - began)
            left, data = kept, b""
            while left:
                data += sock.recv(links.READ_SIZE)
                answers, end = puback_all(data)
                sock.sendall(answers)
                left -= len(answers) // 4
                data = data[end:]
            waits.append(time.monotonic() - began)
        yield Line("CONNACK", {"clients": float(count), **percentiles_ms(connacks)})
        yield Line(f"its {kept:,} messages", {"clients": float(count), **percentiles_ms(waits)})


def _returning(stack: ExitStack, node: BrokerProcess, name: str) -> tuple[socket, float]:
    """Send the CONNECT of a client that wants its session back; return its connection, and the time before that."""
    sock = stack.enter_context(create_connection((HOST, node.port), LIMIT))
    sock.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    began = time.monotonic()
    sock.sendall(frames.connect(name, clean=False))
    return sock, began


def _kill(node: BrokerProcess) -> None:
    os.kill(node.pid, signal.SIGKILL)


def _each(count: int, make: Callable[[int], list[socket]]) -> list[socket]:
    return [sock for number in range(count) for sock in make(number)]


_COSTS: Final = ("rate/s", "CPU µs", "nodes µs", "database µs", "lost")

BENCH: Final = Bench(
    "cluster",
    "What durable messages cost on three nodes with one database, and how long a fail-over takes.",
    {
        "durable": Row(f"{PAIRS} pairs, QoS 1, {PAIR_SHAPE.window} in flight each", durable, columns=_COSTS),
        "away": Row(f"QoS 1 to {AWAY} sessions that are away, {AWAY_SHAPE.window:,} in flight", away, columns=_COSTS),
        "devices": Row(
            f"{DEVICES:,} devices, a message a second each",
            devices,
            columns=("CPU µs", "nodes µs", "database µs", "p50 ms", "p99 ms", "lost"),
        ),
        "reconnect": Row(f"{CLIENTS:,} clients reconnect at once after kill -9 of their node", reconnect),
        "failover": Row("a client reconnects after kill -9 of its node", failover),
    },
    peers("canopy"),
)
