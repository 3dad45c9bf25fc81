"""Open loops: loads that send by the clock, whatever the broker does.

Owns: the clock that such a load goes by (``Clocked``), paced publishing with latency, and the stream of SUBSCRIBE and
UNSUBSCRIBE that runs beside another load.

Promises: each message carries the time it was handed to the kernel; latency is the time at which the subscriber's read
returned, less that, in nanoseconds, for every delivery and not a sample.

It is for low rates: frames are looked at one by one.
"""

from __future__ import annotations

import socket
import time
from typing import Final

from benchmarks.network.links import Link, LoadError, Loop, receive
from benchmarks.network.loads import topic
from benchmarks.network.measure import Timed
from benchmarks.network.streams import Ledger, step
from canopy_load.brokers import frames
from canopy_load.brokers.frames import PAYLOAD_HEAD, FrameError, PublishShape

CYCLE: Final = 1 << 16
LATE_BURST: Final = 64  # sendings without looking at the sockets, when the generator has fallen behind


class Clocked:
    """Something that sends one thing every ``interval`` seconds, in the end as many as the time had room for."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next = 0.0
        self._stopped = False

    def start(self) -> None:
        """Begin with the first one now."""
        self._next = time.monotonic()

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True

    def tick(self, now: float) -> float:
        """Send what is due; when the next one is."""
        for _ in range(LATE_BURST):
            if self._stopped:
                return now + 1.0
            if self._next > now:
                break
            self._send()
            self._next += self._interval
        return self._next

    def _send(self) -> None:
        raise NotImplementedError


class Paced(Clocked, Timed):
    """``publishers`` send in turn, together ``rate`` messages a second; each subscriber hears one publisher.

    With as many subscribers as publishers they are pairs; with one publisher, all subscribers hear it; a single
    subscriber of several publishers hears all of them.
    """

    def __init__(
        self,
        loop: Loop,
        publishers: list[socket.socket],
        subscribers: list[socket.socket],
        rate: float,
        payload: int = 64,
        level: int = frames.MQTT_3_1_1,
    ) -> None:
        Clocked.__init__(self, 1.0 / rate)
        Timed.__init__(self)
        self.ledger = Ledger()
        self.sent = 0
        self._turn = 0
        self._each = max(1, len(subscribers) // len(publishers))
        self._links = [Link(loop, sock) for sock in publishers]
        self._sequences = [0] * len(publishers)
        self._frames = [
            bytearray(frames.publish(topic(number), frames.payload(number, 0, payload), level=level))
            for number in range(len(publishers))
        ]
        self._at = PublishShape.read(self._frames[0], 0, level).payload
        self._ears = [_Ear(self, loop, sock, level) for sock in subscribers]
        for sock, ear in zip(subscribers, self._ears, strict=True):
            loop.add(sock, ear.read)

    def missing(self) -> int:
        """Deliveries under way: sent, not delivered, and not known to be lost."""
        return self.sent * self._each - self.ledger.delivered - self.ledger.lost

    def _send(self) -> None:
        number = self._turn
        self._turn = (number + 1) % len(self._links)
        sequence = self._sequences[number]
        self._sequences[number] = (sequence + 1) % CYCLE
        frame = self._frames[number]
        PAYLOAD_HEAD.pack_into(frame, self._at, number, sequence, 0, time.monotonic_ns())
        self._links[number].send(bytes(frame))
        self.sent += 1


class _Ear:
    def __init__(self, load: Paced, loop: Loop, subscriber: socket.socket, level: int) -> None:
        self._load = load
        self._subscriber = subscriber
        self._buffer = loop.buffer
        self._level = level
        self._carry = b""
        self._sequences: dict[int, int] = {}

    def read(self) -> None:
        size = receive(self._subscriber, self._buffer)
        if not size:
            return
        now = time.monotonic_ns()
        data = self._carry + bytes(self._buffer[:size])
        ledger, latencies = self._load.ledger, self._load.latencies
        offset = 0
        while (length := frames.packet_size(data, offset)) and offset + length <= len(data):
            shape = PublishShape.read(data, offset, self._level)
            publisher, sequence, _, stamp = PAYLOAD_HEAD.unpack_from(data, offset + shape.payload)
            if shape.topic != topic(publisher):
                raise FrameError(f"the broker delivered on {shape.topic!r} what was sent on {topic(publisher)!r}")
            due = self._sequences.get(publisher, 0)
            self._sequences[publisher] = (due + step(ledger, due, sequence, CYCLE)) % CYCLE
            latencies.append(now - stamp)
            offset += length
        self._carry = data[offset:]


class Churn(Clocked):
    """One client that subscribes and unsubscribes by the clock, on filters nobody publishes to.

    A cycle is one SUBSCRIBE of a new filter and one UNSUBSCRIBE of the filter before, in one write; ``rate`` cycles a
    second. The answers are counted: a broker that falls behind is not asked for more than ``MAX_WAITING``.
    """

    MAX_WAITING: Final = 1000

    def __init__(self, loop: Loop, sock: socket.socket, rate: float, level: int = frames.MQTT_3_1_1) -> None:
        super().__init__(1.0 / rate)
        self.answered = 0
        self.skipped = 0
        self._loop = loop
        self._sock = sock
        self._link = Link(loop, sock, self._read)
        self._level = level
        self._cycle = 0
        self._waiting = 0
        self._carry = b""

    def _send(self) -> None:
        if self._waiting > 2 * self.MAX_WAITING:
            self.skipped += 1
            return
        cycle = self._cycle
        self._cycle += 1
        packet_id = cycle % 30_000 * 2 + 1
        data = frames.subscribe(packet_id, [(f"churn/{cycle % 5_000}/+/x", 0)], self._level)
        if cycle:
            data += frames.unsubscribe(packet_id + 1, [f"churn/{(cycle - 1) % 5_000}/+/x"], self._level)
            self._waiting += 1
        self._waiting += 1
        self._link.send(data)

    def _read(self) -> None:
        size = receive(self._sock, self._loop.buffer)
        if not size:
            return
        data = self._carry + bytes(self._loop.buffer[:size])
        offset = 0
        while (length := frames.packet_size(data, offset)) and offset + length <= len(data):
            kind = data[offset]
            if kind not in (frames.SUBACK, frames.UNSUBACK):
                raise LoadError(f"the broker sent {frames.packet_name(kind)} to a client that only subscribes")
            if kind == frames.SUBACK and data[offset + length - 1] >= 0x80:
                raise LoadError(f"the broker refused SUBSCRIBE with code 0x{data[offset + length - 1]:02x}")
            self.answered += 1
            self._waiting -= 1
            offset += length
        self._carry = data[offset:]
