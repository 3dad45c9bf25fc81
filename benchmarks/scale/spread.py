"""A closed loop on very many topics: each pair's publisher goes round its own list of them.

Owns: ``frames_of`` (the frames of one pair: its topics in a shuffled order, again and again) and ``SpreadPairs``.

Promises: every topic ``device/C/X/N/x`` is matched by exactly one of the filters ``device/C/+/N/#``. The messages of a
burst are all for one subscriber: what differs from topic to topic is the look-up, not the writing. All pairs go round
their topics in turn, so a broker that remembers far fewer looks up nearly every message. Deliveries are checked against
the whole round, as blocks.

QoS 0 only, and topics of one length.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from random import Random
from typing import Final

from benchmarks.network.links import Link, Loop
from benchmarks.network.loads import ClosedLoop, QuietPair, Shape, Source
from benchmarks.network.streams import Rounds, StreamCheck
from loadtest.brokers import frames

SHAPE: Final = Shape()


def filter_of(client: int, number: int) -> str:
    """Filter ``number`` of a client; all have one length."""
    return f"device/{client:05d}/+/{number:07d}/#"


def every_topic_of(client: int) -> str:
    """The filter that matches all topics of a client."""
    return f"device/{client:05d}/#"


def topic_of(client: int, variant: int, number: int) -> str:
    """A topic that matches filter ``number`` of the client and no other; ``variant`` tells topics of a filter apart."""
    return f"device/{client:05d}/{variant:05d}/{number:07d}/x"


def frames_of(client: int, filters: int, topics: int, shape: Shape = SHAPE) -> list[bytes]:
    """A round of frames over ``topics`` topics (1..16,384) of a client with ``filters`` filters.

    A round has at least ``shape.cycle`` frames and whole bursts; where there are fewer topics, they come again.
    """
    numbers = Random(client).sample(range(filters), min(filters, topics))
    count = max(shape.cycle, -(-topics // shape.burst) * shape.burst)
    built: list[bytes] = []
    for sequence in range(count):
        variant = sequence % topics
        name = topic_of(client, variant, numbers[variant % len(numbers)])
        built.append(frames.publish(name, frames.payload(client, sequence, shape.payload)))
    return built


class SpreadPairs(ClosedLoop):
    """Publisher ``n`` sends round ``n`` to subscriber ``n`` at QoS 0; all rounds have one number of frames."""

    def __init__(
        self,
        loop: Loop,
        publishers: Sequence[socket.socket],
        subscribers: Sequence[socket.socket],
        rounds: Sequence[Sequence[bytes]],
        shape: Shape = SHAPE,
    ) -> None:
        super().__init__()
        templates = Rounds(rounds, shape.level)
        for publisher, subscriber, built in zip(publishers, subscribers, rounds, strict=True):
            source = Source(Link(loop, publisher), built, shape)
            self.sources.append(source)
            pair = QuietPair(loop, subscriber, source, StreamCheck(templates, self.ledger))
            loop.add(subscriber, pair.read)
