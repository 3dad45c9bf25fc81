"""The well-behaved clients, in a process of their own: pairs that exchange stamped messages, and one that PINGs.

`World` is the side of whoever measures; `_serve` runs in the process. Half of the pairs use QoS 0 and half QoS 1. Waits
and latencies are measured twice: in time, and in the processor time that the broker's event loop used meanwhile. The
second is what the broker did for others first, and does not grow with what else the machine has to do.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

from benchmarks.network import links
from loadtest.brokers import frames
from loadtest.brokers.process import HOST, loop_time
from loadtest.brokers.stats import percentile

INTERVAL: Final = 0.01  # seconds between two rounds
PERIOD: Final = 10  # rounds after which each publisher has had its turn
PING_PAUSE: Final = 0.004  # seconds from PINGRESP to the next PINGREQ
STRAGGLERS: Final = 3.0  # seconds that messages have to come after the last was sent
TOPIC: Final = "pairs/{:03}"


@dataclass(frozen=True)
class Measured:
    """What the well-behaved clients had since they were last asked. Times in seconds."""

    sent: int
    received: int
    latencies: tuple[float, ...]
    # The same in the broker's own processor time.
    works: tuple[float, ...]
    pings: int
    wait: float
    # The longest wait of a PING in the broker's own processor time.
    wait_cpu: float
    # Connections that the broker closed.
    cut: int

    @property
    def lost(self) -> int:
        """Messages that did not arrive."""
        return self.sent - self.received


def p99(latencies: list[float] | tuple[float, ...]) -> float:
    """The 99th percentile, 0.0 of nothing."""
    return percentile(sorted(latencies), 0.99) or 0.0


class World:
    """The process of the well-behaved clients. Use as a context manager."""

    def __init__(self, pairs: int, core: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, pairs, core), daemon=True)

    def __enter__(self) -> World:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send(("end", 0, 0))
        self._process.join(2.0)
        self._process.kill()
        self._process.join()

    def open(self, port: int, pid: int) -> None:
        """Connect to the broker that listens there; messages begin to flow."""
        self._ask("open", port, pid)

    def measure(self) -> Measured:
        """What there was since the last call, or since `open`. The messages under way are waited for."""
        answer = self._ask("measure", 0, 0)
        assert isinstance(answer, Measured)
        return answer

    def close(self) -> None:
        """Leave the broker."""
        self._ask("close", 0, 0)

    def _ask(self, what: str, port: int, pid: int) -> object:
        self._pipe.send((what, port, pid))
        if not self._pipe.poll(60.0):
            raise RuntimeError("the well-behaved clients do not answer")
        answer: object = self._pipe.recv()
        if isinstance(answer, str):
            raise RuntimeError(f"the well-behaved clients failed: {answer}")
        return answer


class _Client:
    """One well-behaved connection."""

    def __init__(self, sock: socket.socket, number: int, qos: int) -> None:
        self.sock = sock
        self.number = number
        self.qos = qos
        self.rest = b""
        self.packet_id = 0
        # The broker's processor time when its messages under way were sent, by their sequence numbers.
        self.sent_at: dict[int, int] = {}
        self.sequence = 0


class _Pairs:
    """All of them, on one broker."""

    def __init__(self, count: int, port: int, pid: int) -> None:
        self.pid = pid
        self.count = count
        names = [f"pair-{kind}-{number}" for kind in ("s", "p") for number in range(count)]
        socks = links.open_clients(HOST, port, [*names, "pinger"])
        links.subscribe_all(socks[:count], lambda number: [(TOPIC.format(number), number % 2)])
        links.prepare(socks)
        self.subscribers = {sock.fileno(): _Client(sock, at, at % 2) for at, sock in enumerate(socks[:count])}
        self.publishers = [_Client(sock, at, at % 2) for at, sock in enumerate(socks[count:-1])]
        self.pinger = socks[-1]
        self.socks = socks
        self.by_number = {sock.fileno(): sock for sock in socks}
        self.epoll = select.epoll()
        for sock in socks:
            self.epoll.register(sock.fileno(), select.EPOLLIN)
        self.round = 0
        self.next_round = time.monotonic()
        self.ping_at = 0.0
        self.ping_sent = 0.0
        self.ping_cpu = 0
        self.reset()

    def reset(self) -> None:
        """Begin to count anew."""
        self.sent = self.received = self.pings = self.cut = 0
        self.wait = self.wait_cpu = 0.0
        self.latencies: list[float] = []
        self.works: list[float] = []

    def turn(self, sending: bool) -> None:
        """Send what is due, and take what has come."""
        now = time.monotonic()
        if sending and now >= self.next_round:
            self.next_round = max(self.next_round + INTERVAL, now - INTERVAL)
            self._send_round()
        if not self.ping_sent and now >= self.ping_at:
            self.ping_sent = time.monotonic()
            self.ping_cpu = loop_time(self.pid)
            self._write(self.pinger, frames.PINGREQ)
        wake = min(self.next_round, self.ping_at if not self.ping_sent else now + INTERVAL)
        for number, _ in self.epoll.poll(max(0.0, min(wake - time.monotonic(), INTERVAL))):
            self._read(number)

    def _send_round(self) -> None:
        for publisher in self.publishers[self.round % PERIOD :: PERIOD]:
            stamp = time.monotonic_ns()
            publisher.packet_id = publisher.packet_id % 65_535 + 1
            publisher.sequence = (publisher.sequence + 1) % 65_536
            publisher.sent_at[publisher.sequence] = loop_time(self.pid)
            payload = frames.payload(publisher.number, publisher.sequence, 32, stamp)
            packet = frames.publish(TOPIC.format(publisher.number), payload, publisher.qos, publisher.packet_id)
            if self._write(publisher.sock, packet):
                self.sent += 1
        self.round += 1

    def _write(self, sock: socket.socket, data: bytes) -> bool:
        try:
            return sock.send(data) == len(data)
        except BlockingIOError:
            # Its last messages still wait in the system: it is not sent more, and so nothing of it is lost.
            return False
        except OSError:
            self.cut += 1
            return False

    def _read(self, number: int) -> None:
        client = self.subscribers.get(number)
        sock = self.by_number[number]
        try:
            data = sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.cut += 1
            self.epoll.unregister(number)
            return
        if sock is self.pinger:
            self._pong()
        elif client is not None:
            self._take(client, data)

    def _pong(self) -> None:
        now = time.monotonic()
        self.wait = max(self.wait, now - self.ping_sent)
        self.wait_cpu = max(self.wait_cpu, (loop_time(self.pid) - self.ping_cpu) / 1e9)
        self.pings += 1
        self.ping_sent = 0.0
        self.ping_at = now + PING_PAUSE

    def _take(self, client: _Client, data: bytes) -> None:
        now = time.monotonic_ns()
        cpu = loop_time(self.pid)
        data = client.rest + data
        at = 0
        while (size := frames.packet_size(data, at)) and at + size <= len(data):
            shape = frames.PublishShape.read(data, at, frames.MQTT_3_1_1)
            number, sequence, _, stamp = frames.PAYLOAD_HEAD.unpack_from(data, at + shape.payload)
            self.received += 1
            self.latencies.append((now - stamp) / 1e9)
            began = self.publishers[number].sent_at.pop(sequence, cpu)
            self.works.append((cpu - began) / 1e9)
            if shape.qos:
                self._write(client.sock, b"\x40\x02" + data[at + shape.packet_id : at + shape.packet_id + 2])
            at += size
        client.rest = data[at:]

    def measured(self) -> Measured:
        """Wait for what is under way, tell, and begin anew."""
        end = time.monotonic() + STRAGGLERS
        while time.monotonic() < end and (self.received < self.sent or self.ping_sent):
            self.turn(False)
        if self.ping_sent:
            self.wait = max(self.wait, time.monotonic() - self.ping_sent)
            with contextlib.suppress(OSError):
                self.wait_cpu = max(self.wait_cpu, (loop_time(self.pid) - self.ping_cpu) / 1e9)
        told = Measured(
            self.sent,
            self.received,
            tuple(self.latencies),
            tuple(self.works),
            self.pings,
            self.wait,
            self.wait_cpu,
            self.cut,
        )
        self.reset()
        self.next_round = time.monotonic()
        return told

    def close(self) -> None:
        """Leave."""
        self.epoll.close()
        links.close_all(self.socks)


def _serve(pipe: Connection, count: int, core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})
    pairs: _Pairs | None = None
    while True:
        try:
            while not pipe.poll(None if pairs is None else 0):
                if pairs is not None:
                    pairs.turn(True)
            what, port, pid = pipe.recv()
            if what == "end":
                return
            answer: object = None
            if what == "open":
                pairs = _Pairs(count, port, pid)
            elif pairs is not None and what == "measure":
                answer = pairs.measured()
            elif pairs is not None:
                pairs.close()
                pairs = None
            pipe.send(answer)
        except (EOFError, KeyboardInterrupt):
            return
        except Exception as error:
            pairs = None
            with contextlib.suppress(OSError):
                pipe.send(f"{type(error).__name__}: {error}")
