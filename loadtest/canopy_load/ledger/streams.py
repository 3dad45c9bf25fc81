"""The streams of a run (publisher, topic and QoS).

Owns: `Streams`, which makes a payload of a stream and a sequence number, and reads both from it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from canopy_load.ledger import mark
from canopy_load.ledger.history import Stream

PAYLOAD_SIZE: Final = 64
"""Bytes."""


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
