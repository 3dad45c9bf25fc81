"""The requests of clients and the broker's answers, with times: the log that `checker` judges.

Owns: `Operation` (asked for at `began`, then ok, failed, or never answered: unknown) and its kinds, the events that are
no request, and `History`, which numbers them.

Promises: data and nothing else. Times are seconds of one monotonic clock. A message is known by its stream (publisher,
topic and QoS) and its sequence number, which counts the stream's messages from 0; a payload carries both.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Final, Literal, TypeVar

OperationOutcome = Literal["ok", "fail", "unknown"]
Stream = tuple[str, str, int]
"""Publisher, topic, QoS."""
UNKNOWN: Final = "?"
"""The publisher of what came on a topic of the run with a payload that does not say whose it is."""


@dataclass(kw_only=True)
class Event:
    """Something that happened to a client; `number` is its place in the history, `step` the number of the last step of
    the plan that was taken before."""

    client: str
    number: int = -1
    step: int = -1


@dataclass(kw_only=True)
class Operation(Event):
    """A request of a client. Without an answer it is unknown whether it took effect."""

    began: float
    ended: float = inf
    outcome: OperationOutcome = "unknown"
    packet_id: int = 0
    """0: it has none."""

    def ok(self, at: float) -> None:
        self.outcome, self.ended = "ok", at

    def fail(self, at: float) -> None:
        """Note that the broker refused the request, which had no effect."""
        self.outcome, self.ended = "fail", at


@dataclass(kw_only=True)
class Connect(Operation):
    """CONNECT, until CONNACK."""

    node: str = ""
    clean: bool = False
    """Clean Start, or Clean Session."""
    keeps: bool = True
    """True if the session outlives its connection by more than the history lasts."""
    lasts: float = inf
    """Seconds for which the session outlives its connection, where the broker said so in its CONNACK."""
    present: bool = False
    """Session Present."""
    over: float = inf
    """The time at which the attempt ended without CONNACK."""
    silent: bool = False
    """True if the attempt ended because nothing came for as long as the client waits, on an open connection."""


@dataclass(kw_only=True)
class Subscribe(Operation):
    """SUBSCRIBE to one topic filter, until SUBACK; `qos` is the one that was granted."""

    topic_filter: str
    qos: int
    no_local: bool = False
    as_published: bool = False
    """Retain As Published."""
    handling: int = 0
    """Retain Handling."""


@dataclass(kw_only=True)
class Unsubscribe(Operation):
    """UNSUBSCRIBE from one topic filter, until UNSUBACK."""

    topic_filter: str
    code: int | None = None
    """The Reason Code of the UNSUBACK, where it has one."""


@dataclass(kw_only=True)
class Publish(Operation):
    """A message, from its first PUBLISH until PUBACK, or PUBCOMP with QoS 2; with QoS 0 it stays unknown.

    A will is one too. It is ok from when the broker must have published it, and failed if its client came back in time
    or said goodbye.
    """

    topic: str
    qos: int
    sequence: int
    retain: bool = False
    clears: bool = False
    """True if its empty payload removes the retained message."""
    again: bool = False
    """True if it was published anew so that the broker cannot know that it is the same: in another session, or with
    QoS 1 on another connection."""
    resent: bool = False
    """True if it was sent on more than one connection."""
    will: bool = False
    lost_at: float = 0.0
    """The time at which the connection of a will was lost."""
    not_before: float = 0.0
    """The time at which the delay of a will is over."""

    @property
    def since(self) -> float:
        """The time before which the broker had no reason to send it to anybody."""
        return max(self.began, self.lost_at)

    @property
    def stream(self) -> Stream:
        return self.client, self.topic, self.qos


@dataclass(kw_only=True)
class Ping(Operation):
    """PINGREQ, until PINGRESP; `connection` is the number of its `Connect`."""

    connection: int


@dataclass(kw_only=True)
class Delivery(Event):
    """A PUBLISH that came. Of QoS 2: its packet identifier was not that of one whose PUBREL is still to come."""

    at: float
    stream: Stream
    sequence: int
    qos: int
    packet_id: int = 0
    dup: bool = False
    retain: bool = False
    """The RETAIN flag."""
    retained: bool = False
    """True for a retained message that answers a SUBSCRIBE."""
    intact: bool = True
    """True if topic and payload are those that were sent."""


@dataclass(kw_only=True)
class Ended(Event):
    """A connection is over; `connection` is the number of its `Connect`."""

    at: float
    connection: int
    own: bool = False
    """True if the client ended it."""
    code: int | None = None
    """The Reason Code of the broker's DISCONNECT."""
    broke: str = ""
    """How the broker broke the protocol, where the client ended the connection for that."""


@dataclass(kw_only=True)
class Look(Event):
    """All retained messages that a new client got at a node."""

    at: float
    """When it began."""
    until: float = 0.0
    """When it was complete."""
    node: str = ""
    found: dict[str, tuple[Stream, int]] = field(default_factory=dict)
    """By topic: stream and sequence number."""


@dataclass(kw_only=True)
class Hush(Event):
    """A client sends nothing more on a connection, whose Keep Alive is `keep_alive` seconds."""

    at: float
    connection: int
    keep_alive: int


@dataclass(kw_only=True)
class Rest(Event):
    """Nothing is on its way: everybody was connected, every request was answered, and nothing has come for a while."""

    at: float
    client: str = ""


Kind = TypeVar("Kind", bound=Event)


class History:
    """Operations and events, in the order in which they were noted."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, event: Kind) -> Kind:
        """Add an event and number it. The outcome of an operation is written into it later."""
        event.number = len(self.events)
        self.events.append(event)
        return event

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    def dumps(self) -> str:
        return "".join(json.dumps([type(event).__name__, asdict(event)]) + "\n" for event in self.events)
