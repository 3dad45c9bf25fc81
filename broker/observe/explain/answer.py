"""What the answer to "what would happen to this message" says: its parts, as the API gives them.

Owns the models. A sentence of each part says the same for people. Bounded: receivers come a page at a time, and of
filters and share groups the first `MOST_SHOWN` are named and the others counted.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

MOST_SHOWN: Final = 100
"""Filters, and share groups, that one answer names."""

UNKNOWN: Final = (
    "past messages: the broker keeps only each client's ledger of deliveries and losses; a trace shows packets",
    "what a full queue drops to make room",
    "publish rates: the broker reads later from a publisher above its rate, which loses nothing",
    "what a hook of an embedding program would answer",
)
"""What no answer can say."""


class Publisher(BaseModel):
    """What the broker makes of the PUBLISH itself."""

    client_id: str | None
    accepted: bool
    reason_code: int
    """Of the acknowledgement, or of the DISCONNECT; 0: accepted."""
    disconnected: bool
    """Whether the connection of whoever publishes ends for it."""
    rule: str
    """The access rule that decides, and where it stands; empty: nobody was asked."""
    topic: str
    """What the publisher calls the topic: its mount is left out."""
    sentence: str


class Match(BaseModel):
    """A topic filter that the topic matches."""

    topic_filter: str
    subscriptions: int
    groups: int


class Subscription(BaseModel):
    """A subscription of a receiver that matches."""

    topic_filter: str
    qos: int
    """Granted."""
    no_local: bool
    retain_as_published: bool
    identifier: int


class Queue(BaseModel):
    """The queues of a receiver as they are now. Bounds of 0: unlimited."""

    policy: str
    live_messages: int
    live_bytes: int
    max_live_messages: int
    max_live_bytes: int
    waiting_messages: int
    waiting_bytes: int
    max_waiting_messages: int
    max_waiting_bytes: int
    in_flight: int
    send_quota: int
    max_packet: int
    oldest_waits: float
    """Seconds; 0.0: nothing waits, or its client is away."""
    max_age: float
    depth: int


class Ledger(BaseModel):
    """What has become of everything that the receiver's session was ever offered."""

    delivered: int
    queued: int
    dropped: dict[str, int]
    """By cause; those that never happened are left out."""


class Receiver(BaseModel):
    """What one session would get."""

    client_id: str
    gets: bool
    """Whether it is sent the message, now or when there is room or its client is back."""
    outcome: str
    """`sent`, `waits`, `dropped`, `denied`, `own` (No Local), `link`, `gone` or `none`: nothing matches."""
    cause: str
    """Of the drop."""
    certain: bool
    """False where a queue is full now, or all together, or where it gets the same message in another way before."""
    connected: bool
    qos: int
    retain: bool
    subscriptions: list[Subscription]
    more_subscriptions: int
    """That match, beyond those that are named."""
    group: str
    """The share group that it gets it for."""
    rule: str
    disconnects: bool
    """Whether its client is disconnected for it."""
    topic: str
    """What it calls the topic: its mount is left out."""
    queue: Queue | None
    ledger: Ledger | None
    sentence: str


class Group(BaseModel):
    """A share group of a filter that matches."""

    name: str
    topic_filter: str
    connected: int
    away: int
    next: Receiver | None
    """Who would get the message; null: nobody may, or nobody is there."""
    sentence: str


class Retained(BaseModel):
    """What becomes of the message as the retained one of its topic."""

    stored: bool
    clears: bool
    refused_by: str
    """The setting."""
    present: bool
    """Whether the topic has one now."""
    present_publisher: str
    present_bytes: int
    sentence: str


class Answer(BaseModel):
    """What would happen to a message now."""

    topic: str
    qos: int
    """After `mqtt.upgrade_outgoing_qos`."""
    retain: bool
    size: int
    publisher: Publisher
    filters: list[Match]
    more_filters: int
    remembered: bool
    """Whether the match cache has the topic."""
    recorded: bool
    """Whether the recorder keeps it."""
    in_turns: bool
    """Whether so many listen that it goes to them in turns: what each then does is as it is by then."""
    receivers: list[Receiver]
    groups: list[Group]
    more_groups: int
    retained: Retained | None
    limit: int
    cursor: str | None
    """Where the next receivers begin; null: these were all."""
    unknown: list[str]
    """What this answer cannot know."""
