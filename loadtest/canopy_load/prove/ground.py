"""The facts that all clients of a proof share: the history, and the names on the wire.

Owns: `Ground`, and `Login`.

Promises: names in the history are those of the plan; those on the wire begin with the run's own prefix, so that a
broker that others use, too, is not disturbed, and messages on other topics are counted as foreign and not judged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from canopy_load.engine.job import Target
from canopy_load.ledger import mark
from canopy_load.ledger.history import History, Kind, Publish
from canopy_load.ledger.packet_log import PacketLog
from canopy_load.ledger.streams import Streams
from canopy_mqtt.core.codec.topic_names import parse_shared

PATIENCE: Final = 10.0
"""Seconds after which an answer, or a message, counts as not coming."""
MOMENT: Final = 1e-6
"""The least seconds between two events."""
MAX_CONNECTING: Final = 200
"""Clients that connect at the same time."""


@dataclass(frozen=True)
class Login:
    """User name and password of all clients."""

    user: str | None = None
    password: str | None = None


NOBODY: Final = Login()


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
    """What people should know."""
    refused: Counter[str] = field(default_factory=Counter)
    """What the broker refused, for people: what needs it cannot be judged."""
    retained: set[str] = field(default_factory=set)
    """The topics that have a retained message by what was acknowledged."""
    cleared: dict[str, Publish] = field(default_factory=dict)
    """By topic, the last message that removed the retained one."""
    logs: dict[str, PacketLog] = field(default_factory=dict)
    """The packets of each client."""
    step: int = -1
    """The number of the last step that was taken."""
    foreign: int = 0
    """Messages on topics that are none of this run."""

    def __post_init__(self) -> None:
        self.streams = Streams(mark.run_number(self.identifier))
        self.prefix = f"prove-{self.identifier}"
        self._last = 0.0
        self.doors = asyncio.Semaphore(MAX_CONNECTING)

    def now(self) -> float:
        """Seconds of the event loop's clock, in which the whole history is; each later than the one before.

        uvloop's clock stands still in a turn, and what comes late in a long one would have come too early: the system's
        monotonic clock, from which it is taken, goes on.
        """
        loop = asyncio.get_running_loop()
        present = loop.time() if isinstance(loop, asyncio.BaseEventLoop) else monotonic()
        self._last = max(present, self._last + MOMENT)
        return self._last

    def note(self, event: Kind) -> Kind:
        """Add an event to the history."""
        self.history.add(event).step = self.step
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
