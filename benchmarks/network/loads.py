"""Closed loops: loads that keep a bounded number of messages in flight and go as fast as the broker lets them.

Owns: the loops of the rows that measure capacity: pairs at QoS 0, one to many, many to one, pairs at QoS 1 and 2.

Promises: no more than ``window`` messages of a publisher are under way at any time, so that a broker's queues need not
overflow; a message the broker lost goes back into the window as soon as a later one shows the gap. A publisher whose
window has not moved for ``PROBE_AFTER`` sends one burst over it, so that a loss at the end of the window shows, too,
and does not stop the load; never so many that a gap could be ambiguous. Nothing is sent after ``stop()``; what is still
missing after the drain is lost.

Latency is measured in ``benchmarks.network.paced``: in a closed loop it only tells the window back.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.network.links import Link, Loop, receive
from benchmarks.network.streams import AckedCheck, Ledger, MergedCheck, PublisherAcks, Rounds, StreamCheck, Templates
from canopy_load.brokers import frames

PROBE_AFTER: Final = 0.25  # seconds


@dataclass(frozen=True)
class Shape:
    """How a closed loop sends: payload bytes, messages in flight for each publisher, and messages in one write."""

    payload: int = 64
    window: int = 128
    burst: int = 64
    level: int = frames.MQTT_3_1_1

    @property
    def cycle(self) -> int:
        """Sequence numbers before they begin again: more than twice the window, so that a gap is never ambiguous."""
        return 4 * self.window

    def __post_init__(self) -> None:
        if self.window % self.burst or not 0 < self.cycle <= 1 << 16:
            raise ValueError("the window must be a multiple of the burst, and at most 16384")


def topic(number: int) -> str:
    """The topic of publisher ``number``; all have one length."""
    return f"bench/{number:04d}"


def publishes(publisher: int, shape: Shape, qos: int = 0, topics: int = 1) -> list[bytes]:
    """One publisher's cycle of PUBLISH frames, on its own topic, or on as many from there on, in turn."""
    return [
        frames.publish(
            topic(publisher + number % topics),
            frames.payload(publisher, number, shape.payload),
            qos,
            number + 1,
            shape.level,
        )
        for number in range(shape.cycle)
    ]


class Source:
    """One publisher's bursts, built once, and sent while the window has room.

    ``built`` is its cycle of PUBLISH frames, with sequence numbers from 0; a whole number of bursts."""

    def __init__(self, link: Link, built: Sequence[bytes], shape: Shape) -> None:
        step = shape.burst
        self._bursts = [memoryview(b"".join(built[at : at + step])) for at in range(0, len(built), step)]
        self._next = 0
        self._burst: Final = step
        self._room: Final = shape.window - step
        self._most: Final = shape.cycle // 2 - step
        self._probed = -1  # what was sent when ``probe`` was last called
        self.link = link
        self.sent = 0
        self.in_flight = 0
        self.stopped = False

    def back(self, count: int) -> None:
        """``count`` messages have left the window: send on where a whole burst fits."""
        self.in_flight -= count
        while self.in_flight <= self._room and not self.stopped:
            self._send()

    def probe(self) -> None:
        """Send one burst over the window if nothing was sent since the last call, within what a gap can tell."""
        if self.sent == self._probed and self.in_flight < self._most and not self.stopped:
            self._send()
        self._probed = self.sent

    def _send(self) -> None:
        self.in_flight += self._burst
        self.sent += self._burst
        self.link.send(self._bursts[self._next])
        self._next = (self._next + 1) % len(self._bursts)


class ClosedLoop:
    """What all closed loops share: their ledger and their sources."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.sources: list[Source] = []
        self._next_probe = math.inf

    def start(self) -> None:
        """Fill every window."""
        for source in self.sources:
            source.back(0)

    def tick(self, now: float) -> float:
        """Wake up publishers whose windows stand still; when to look again."""
        if self._next_probe == math.inf:
            self._next_probe = now + PROBE_AFTER
        elif now >= self._next_probe:
            self._next_probe = now + PROBE_AFTER
            for source in self.sources:
                source.probe()
        return self._next_probe

    def stop(self) -> None:
        """Send nothing more."""
        for source in self.sources:
            source.stopped = True

    @property
    def sent(self) -> int:
        """Messages published so far."""
        return sum(source.sent for source in self.sources)

    def missing(self) -> int:
        """Deliveries under way: sent, not delivered, and not known to be lost."""
        return sum(source.in_flight for source in self.sources)


class QuietPairs(ClosedLoop):
    """Publisher ``n`` to subscriber ``n`` at QoS 0; with ``rounds`` it sends round ``n``, and all have one number of
    frames.

    The messages of a burst are all for one subscriber: what differs from topic to topic is the look-up, not the
    writing. All pairs go round their topics in turn, so a broker that remembers far fewer looks up nearly every one.
    """

    def __init__(
        self,
        loop: Loop,
        publishers: list[socket.socket],
        subscribers: list[socket.socket],
        shape: Shape,
        rounds: Sequence[Sequence[bytes]] | None = None,
    ) -> None:
        super().__init__()
        templates = Templates(shape.cycle, shape.level) if rounds is None else Rounds(rounds, shape.level)
        each = (publishes(number, shape) for number in range(len(publishers))) if rounds is None else rounds
        for publisher, subscriber, built in zip(publishers, subscribers, each, strict=True):
            source = Source(Link(loop, publisher), built, shape)
            self.sources.append(source)
            pair = QuietPair(loop, subscriber, source, StreamCheck(templates, self.ledger))
            loop.add(subscriber, pair.read)


class QuietPair:
    """The subscriber's end of a pair: what it reads goes back into the window of its source."""

    def __init__(self, loop: Loop, subscriber: socket.socket, source: Source, check: StreamCheck) -> None:
        self._subscriber = subscriber
        self._buffer = loop.buffer
        self._source = source
        self._feed = check.feed

    def read(self) -> None:
        """Read once, and let the publisher send on."""
        size = receive(self._subscriber, self._buffer)
        if size:
            count = self._feed(self._buffer[:size])
            if count:
                self._source.back(count)


class FanOut(ClosedLoop):
    """One publisher to many subscribers at QoS 0; a burst leaves the window when the last subscriber has it.

    With more than one topic, neighbouring messages have different ones; a cycle must hold each as often."""

    def __init__(
        self,
        loop: Loop,
        publisher: socket.socket,
        subscribers: list[socket.socket],
        shape: Shape,
        topics: int = 1,
    ) -> None:
        super().__init__()
        if shape.cycle % topics:
            raise ValueError(f"a cycle of {shape.cycle} messages does not hold {topics} topics as often each")
        built = publishes(0, shape, topics=topics)
        templates = Templates(shape.cycle, shape.level) if topics == 1 else Rounds([built], shape.level)
        self._source = Source(Link(loop, publisher), built, shape)
        self.sources.append(self._source)
        self._burst = shape.burst
        self._subscribers = len(subscribers)
        self._taken = [0] * (shape.cycle // shape.burst)  # subscribers that have a burst, by burst modulo length
        self._legs = [_Leg(self, loop, sock, StreamCheck(templates, self.ledger)) for sock in subscribers]
        for sock, leg in zip(subscribers, self._legs, strict=True):
            loop.add(sock, leg.read)

    def missing(self) -> int:
        return self._source.sent * self._subscribers - sum(leg.received for leg in self._legs)

    def passed(self, first: int, last: int) -> None:
        """One subscriber has bursts ``first`` up to but not including ``last``."""
        taken = self._taken
        for burst in range(first, last):
            slot = burst % len(taken)
            taken[slot] += 1
            if taken[slot] == self._subscribers:
                taken[slot] = 0
                self._source.back(self._burst)

    @property
    def burst(self) -> int:
        """Messages in one write of the publisher."""
        return self._burst


class _Leg:
    def __init__(self, load: FanOut, loop: Loop, subscriber: socket.socket, check: StreamCheck) -> None:
        self._load = load
        self._subscriber = subscriber
        self._buffer = loop.buffer
        self._feed = check.feed
        self._burst = load.burst
        self.received = 0  # messages delivered or known to be lost

    def read(self) -> None:
        size = receive(self._subscriber, self._buffer)
        if size:
            before = self.received
            after = self.received = before + self._feed(self._buffer[:size])
            first, last = before // self._burst, after // self._burst
            if first != last:
                self._load.passed(first, last)


class FanIn(ClosedLoop):
    """Many publishers to one subscriber at QoS 0, who subscribed with a wildcard."""

    def __init__(self, loop: Loop, publishers: list[socket.socket], subscriber: socket.socket, shape: Shape) -> None:
        super().__init__()
        templates = Templates(shape.cycle, shape.level)
        self._check = MergedCheck(templates, self.ledger, len(publishers), shape.burst)
        self._subscriber = subscriber
        self._buffer = loop.buffer
        self.sources = [
            Source(Link(loop, sock), publishes(number, shape), shape) for number, sock in enumerate(publishers)
        ]
        loop.add(subscriber, self._read)

    def _read(self) -> None:
        size = receive(self._subscriber, self._buffer)
        if not size:
            return
        advanced = self._check.advanced
        for publisher in self._check.feed(self._buffer[:size]):
            count = advanced[publisher]
            if count:
                advanced[publisher] = 0
                self.sources[publisher].back(count)


class AckedPairs(ClosedLoop):
    """Publisher ``n`` to subscriber ``n`` at QoS 1 or 2 on both sides; a message leaves the window when it has been
    delivered and the broker has finished with its publisher."""

    def __init__(
        self, loop: Loop, publishers: list[socket.socket], subscribers: list[socket.socket], shape: Shape, qos: int
    ) -> None:
        super().__init__()
        templates = Templates(shape.cycle, shape.level)
        for number, (publisher, subscriber) in enumerate(zip(publishers, subscribers, strict=True)):
            pair = _AckedPair(loop, publisher, subscriber, AckedCheck(templates, self.ledger, qos))
            source = Source(Link(loop, publisher, pair.read_acks), publishes(number, shape, qos), shape)
            pair.attach(source, Link(loop, subscriber, pair.read_messages))
            self.sources.append(source)


class _AckedPair:
    def __init__(self, loop: Loop, publisher: socket.socket, subscriber: socket.socket, messages: AckedCheck) -> None:
        self._buffer = loop.buffer
        self._publisher = publisher
        self._subscriber = subscriber
        self._messages = messages
        self._acks = PublisherAcks()
        self._delivered = 0
        self._finished = 0
        self._source: Source | None = None
        self._link: Link | None = None

    def attach(self, source: Source, subscriber: Link) -> None:
        """The two sending sides, which need this object's callbacks to be made."""
        self._source = source
        self._link = subscriber

    def read_messages(self) -> None:
        size = receive(self._subscriber, self._buffer)
        if not size or self._link is None:
            return
        before = min(self._delivered, self._finished)
        self._delivered += self._messages.feed(self._buffer[:size])
        if self._messages.answer:
            self._link.send(self._messages.answer)
            self._messages.answer = bytearray()
        self._give_back(before)

    def read_acks(self) -> None:
        size = receive(self._publisher, self._buffer)
        if not size or self._source is None:
            return
        before = min(self._delivered, self._finished)
        self._finished += self._acks.feed(self._buffer[:size])
        if self._acks.answer:
            self._source.link.send(self._acks.answer)
            self._acks.answer = bytearray()
        self._give_back(before)

    def _give_back(self, before: int) -> None:
        count = min(self._delivered, self._finished) - before
        if count and self._source is not None:
            self._source.back(count)
