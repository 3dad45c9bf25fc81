"""Recorded traffic in a plan: which publisher plays which topics of a capture.

Owns: ``Share`` and ``Recording``: data only, no file is open (``replay_spool`` reads the capture).

Promises: each topic belongs to one publisher, by a hash of its name that is the same everywhere, so that it keeps its
order. A topic whose messages differ in QoS or RETAIN is one stream for each kind. Every process that reads the same
capture finds the same numbers. Memory: the names of at most `MAX_RECORDED_STREAMS` streams; the messages are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

PUBLISHERS: Final = "publishers"
"""The group whose clients play the recording."""
MAX_RECORDED_STREAMS: Final = 1_000_000
"""Topics, times kinds of QoS and RETAIN."""
OPEN_END: Final = 86_400.0
"""Seconds of a stage of unknown length: it ends when everything is sent."""
RETAIN: Final = 4
"""In a kind, beside the QoS in its two lowest bits."""


@dataclass
class Share:
    """The messages that one publisher plays; lists are by the number of its stream."""

    topics: list[str] = field(default_factory=list)
    """As they were recorded, without the prefix."""
    kinds: bytearray = field(default_factory=bytearray)
    """QoS, and `RETAIN`."""
    messages: int = 0

    @property
    def highest(self) -> int:
        return max((kind & 3 for kind in self.kinds), default=0)

    @property
    def lowest(self) -> int:
        return min((kind & 3 for kind in self.kinds), default=0)


@dataclass
class Recording:
    """A capture as it is dealt to publishers."""

    path: str
    prefix: str
    """Stands before every topic when it is played."""
    shares: list[Share]
    """By publisher."""
    filters: tuple[str, ...] = ()
    """The topic filters of the capture, as far as it names them."""
    messages: int = 0
    topics: int = 0
    first: int = 0
    """Time of the first message in nanoseconds, by the capture's own clock."""
    last: int = 0
    small: int = 0
    """Messages that are too short for a mark."""

    @property
    def seconds(self) -> float:
        """From the first message to the last."""
        return (self.last - self.first) / 1e9

    @property
    def highest(self) -> int:
        return max((share.highest for share in self.shares), default=0)
