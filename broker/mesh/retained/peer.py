"""One other node, as far as retained messages go: what it is to be told, and how far this node has read from it.

Owns `Peer`, a record that `replicas` fills and empties. Promises: what waits for a node is bounded by the number of
topics, however often they change, and what is on the way to it by `WINDOW_BYTES` and one message.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from broker.mesh.retained.clock import Stamp

WINDOW_BYTES: Final = 262_144
"""Bytes of entries that a node has not taken yet, from which on it gets no more."""

RESTING: Final = 0
ASKING: Final = 1
READING: Final = 2
"""What goes on of a round in which this node reads what it lacks: nothing; it said what it has; it reads buckets."""


class Peer:
    """What is known of a node since it joined."""

    def __init__(self) -> None:
        # What it is to be told: topics written here, with the stamp that each corrects.
        self.changes: dict[str, Stamp | None] = {}
        # What it wants: buckets, with the digests of what it has of them; the topics that are still to be looked at of
        # the first; whether it has been told that it has all of it.
        self.wanted: deque[tuple[int, set[int]]] = deque()
        self.topics: list[str] = []
        self.answering = False
        # Its sums, while they wait for an answer; None: none do.
        self.sums: list[int] | None = None
        # Bytes of the messages on the way to it, oldest first, and of all of them.
        self.on_the_way: deque[int] = deque()
        self.bytes_on_the_way = 0
        # This node's own round: the buckets that are still to be read, and how many writes have come with it.
        self.phase = ASKING
        self.asked = False
        self.buckets: list[int] = []
        self.differed = False
        self.taken = 0
        self.next_round = 0.0
        self.pause = 0.0
        # Whether a whole round is over.
        self.complete = False

    def may_send(self) -> bool:
        """Whether there is something for it, and room on the way to it."""
        return self.bytes_on_the_way < WINDOW_BYTES and (bool(self.changes) or self.answering)

    def sent(self, size: int) -> None:
        """Entries are on their way."""
        self.on_the_way.append(size)
        self.bytes_on_the_way += size

    def took(self) -> bool:
        """It has taken the oldest of them; False: there were none."""
        if not self.on_the_way:
            return False
        self.bytes_on_the_way -= self.on_the_way.popleft()
        return True
