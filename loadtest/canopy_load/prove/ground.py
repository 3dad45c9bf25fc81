"""The facts that all clients of a proof share: the history, the names on the wire, and the marks in payloads.

Owns: `Ground`, and how a stream (publisher, topic and QoS) and a sequence number become a payload and come back.

Promises: names in the history are those of the plan; those on the wire begin with the run's own prefix, so that a
broker that others use, too, is not disturbed, and messages of others are counted as foreign and not judged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from canopy_load.engine.job import Target
from canopy_load.ledger import mark
from canopy_load.ledger.history import History, Kind, Stream
from canopy_mqtt.core.codec.topic_names import parse_shared

PAYLOAD_SIZE: Final = 64
"""Bytes."""
PATIENCE: Final = 10.0
"""Seconds after which an answer, or a message, counts as not coming."""


@dataclass(frozen=True)
class Login:
    """User name and password of all clients."""

    user: str | None = None
    password: str | None = None


NOBODY: Final = Login()


class Streams:
    """All streams of a run, numbered as they appear, and their sequence numbers."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._mark = mark.Mark(run)
        self._numbers: dict[Stream, int] = {}
        self._streams: list[Stream] = []
        self._next: Counter[Stream] = Counter()

    def message(self, stream: Stream) -> tuple[int, bytes]:
        """Return the next sequence number of a stream, and the payload that carries it."""
        if stream not in self._numbers:
            self._numbers[stream] = len(self._streams)
            self._streams.append(stream)
        sequence = self._next[stream]
        self._next[stream] += 1
        payload = mark.pack(self._run, 0, self._numbers[stream], sequence) + mark.filler(PAYLOAD_SIZE)
        return sequence, payload

    def read(self, payload: bytes) -> tuple[Stream, int, bool] | None:
        """Return the stream and the number of a payload, and whether it is whole; None: it is none of this run."""
        found = self._mark
        if not found.read(payload) or found.stream >= len(self._streams):
            return None
        whole = len(payload) == PAYLOAD_SIZE and payload.endswith(mark.filler(PAYLOAD_SIZE))
        return self._streams[found.stream], found.sequence, whole


@dataclass
class Ground:
    """`identifier`: 8 hexadecimal digits, of the run; `news` is set by everything that happens."""

    identifier: str
    targets: Sequence[Target]
    login: Login = NOBODY
    patience: float = PATIENCE
    history: History = field(default_factory=History)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    notes: Counter[str] = field(default_factory=Counter)
    """What the broker refused, for people."""
    foreign: int = 0
    """Messages that are none of this run."""

    def __post_init__(self) -> None:
        self.streams = Streams(mark.run_number(self.identifier))
        self.prefix = f"prove-{self.identifier}"

    def now(self) -> float:
        """Seconds of the event loop's clock, in which the whole history is."""
        return asyncio.get_running_loop().time()

    def note(self, event: Kind) -> Kind:
        """Add an event to the history."""
        self.history.add(event)
        self.news.set()
        return event

    def topic(self, name: str) -> str:
        return f"{self.prefix}/{name}"

    def filter(self, name: str) -> str:
        """Return a topic filter as it is on the wire. Only `#` alone reaches beyond the topics of this run."""
        group, rest = parse_shared(name)
        if group:
            return f"$share/{self.prefix}-{group}/{self.topic(rest)}"
        return name if name == "#" else self.topic(name)

    def name(self, topic: str) -> str:
        """Return the name in the plan of a topic on the wire; of others, the topic."""
        return topic.removeprefix(f"{self.prefix}/")
