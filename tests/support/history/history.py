"""What the clients of several brokers saw, and what was done to these: a list of events, each with its time in seconds.

A history is data and nothing else: `checker` says what is wrong with it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Final, TypeVar

REPLACED: Final = 0x8E
"""Session taken over: the code with which a connection ends for one that came later."""


@dataclass(frozen=True)
class Sent:
    """A publisher has begun to send a message for the first time. Its topic has no other publisher."""

    at: float
    client: str
    node: str
    topic: str
    number: int
    qos: int
    retain: bool = False


@dataclass(frozen=True)
class Acknowledged:
    """PUBACK or PUBREC came: from now on the message is the brokers'."""

    at: float
    node: str
    topic: str
    number: int


@dataclass(frozen=True)
class Subscribed:
    """SUBACK came, for a topic filter that is a topic or ends with /#."""

    at: float
    client: str
    topic_filter: str


@dataclass(frozen=True)
class Received:
    """A message came. Of QoS 2: its packet identifier was not that of one whose PUBREL is still to come."""

    at: float
    client: str
    node: str
    topic: str
    number: int
    qos: int


@dataclass(frozen=True)
class Opened:
    """CONNACK came: `began` is when CONNECT was sent, `connection` a number of its own."""

    at: float
    client: str
    node: str
    connection: int
    began: float
    present: bool


@dataclass(frozen=True)
class Ended:
    """A connection is over: with the code of the broker's DISCONNECT, or None where it said none.

    `own`: the client ended it.
    """

    at: float
    client: str
    connection: int
    code: int | None
    own: bool = False


@dataclass(frozen=True)
class Answered:
    """PINGRESP came for a PINGREQ that was sent at `asked`."""

    at: float
    client: str
    connection: int
    asked: float


@dataclass(frozen=True)
class Fault:
    """Something was wrong with or between these nodes from `at` to `until`. "kill" is a process that ended."""

    at: float
    until: float
    kind: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Retained:
    """What a client that subscribed at a node when all was over got as retained: topic and number."""

    at: float
    node: str
    messages: tuple[tuple[str, int], ...]


Event = Sent | Acknowledged | Subscribed | Received | Opened | Ended | Answered | Fault | Retained
Kind = TypeVar("Kind", Sent, Acknowledged, Subscribed, Received, Opened, Ended, Answered, Fault, Retained)


@dataclass
class History:
    """Events, in the order in which they were noticed."""

    events: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """One more."""
        self.events.append(event)

    def of(self, kind: type[Kind]) -> list[Kind]:
        """All of a kind, in order of time."""
        return sorted((event for event in self.events if isinstance(event, kind)), key=lambda event: event.at)

    def dumps(self) -> str:
        """A line of JSON for each event."""
        return "".join(json.dumps([type(event).__name__, asdict(event)]) + "\n" for event in self.events)
