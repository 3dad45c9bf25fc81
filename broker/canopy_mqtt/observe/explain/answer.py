"""The answer to "what would happen to this message", as the API returns it.

Owns the models. A sentence in each part says the same for people. Bounded: receivers come in pages; of filters and
share groups the first `MAX_SHOWN` are named and the others counted.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict

MAX_SHOWN: Final = 100
"""Filters, and share groups, that one answer names."""

UNKNOWN: Final = (
    "past messages: the broker keeps only each client's ledger of deliveries and losses; a trace shows packets",
    "what a full queue drops to make room",
    "publish rates: the broker reads later from a publisher above its rate, which loses nothing",
    "what a hook of an embedding program would answer",
)
"""Things that no answer can know."""


class Part(BaseModel):
    """The base of the models lets the schema promise each field, with a default value or without."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class Publisher(Part):
    """The broker's reaction to the PUBLISH itself."""

    client_id: str | None
    accepted: bool = True
    reason_code: int = 0
    """The reason code of the acknowledgement or DISCONNECT; 0: accepted."""
    disconnected: bool = False
    """True if the broker disconnects the publisher for it."""
    rule: str = ""
    """The access rule that decides, and its place; empty: no rule was asked."""
    topic: str
    """The publisher's name for the topic, without its mount."""
    sentence: str = ""


class Match(Part):
    """A topic filter that the topic matches."""

    topic_filter: str
    subscriptions: int
    groups: int


class Subscription(Part):
    """A matching subscription of a receiver."""

    topic_filter: str
    qos: int
    """The granted QoS."""
    no_local: bool
    retain_as_published: bool
    identifier: int


class Queue(Part):
    """The present state of a receiver's queues. A bound of 0: unlimited."""

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
    """Seconds for which the oldest message has waited; 0.0: the queue is empty, or the client is away."""
    max_age: float
    depth: int
    max_delay: float
    """Seconds for which the message may wait for more, so that they leave in one write; 0.0: none."""


class Ledger(Part):
    """Counts of all messages that the receiver's session was ever offered, by outcome."""

    delivered: int
    queued: int
    dropped: dict[str, int]
    """By cause; causes with a count of 0 are left out."""


class Receiver(Part):
    """The effect on one session."""

    client_id: str
    gets: bool = False
    """True if it is sent the message, either now or later (when there is room, or its client is back)."""
    outcome: str = "none"
    """`sent`, `waits`, `dropped`, `denied`, `own` (No Local), `link` or `none`: nothing matches."""
    cause: str = ""
    """The cause of the drop."""
    certain: bool = True
    """False if a queue of the receiver or the total of all queues is full now, or if it gets the message twice."""
    connected: bool = False
    qos: int = 0
    retain: bool = False
    subscriptions: list[Subscription] = []
    more_subscriptions: int = 0
    """Matching subscriptions beyond those that are named."""
    group: str = ""
    """The share group for which it gets the message."""
    rule: str = ""
    disconnects: bool = False
    """True if the broker disconnects its client for it."""
    topic: str = ""
    """The receiver's name for the topic, without its mount."""
    queue: Queue | None = None
    ledger: Ledger | None = None
    sentence: str = ""


class Group(Part):
    """A share group with a matching filter."""

    name: str
    topic_filter: str
    connected: int
    away: int
    next: Receiver | None = None
    """The member that would get the message, or the queue of the group, whose name is `$share/NAME/FILTER`; null: there
    is no member, or none may have it."""
    waiting: int = 0
    """Messages in the queue of the group."""
    sentence: str = ""


class Retained(Part):
    """The effect on the retained message of the topic."""

    stored: bool
    clears: bool
    refused_by: str
    """The setting that refuses it."""
    present: bool
    """True if the topic has a retained message now."""
    present_publisher: str = ""
    present_bytes: int = 0
    sentence: str = ""


class Answer(Part):
    """The effects of a message, if it were published now."""

    topic: str
    qos: int
    """The QoS after `mqtt.upgrade_outgoing_qos`."""
    retain: bool
    size: int
    publisher: Publisher
    filters: list[Match]
    more_filters: int
    remembered: bool
    """True if the match cache has the topic."""
    recorded: bool
    """True if the recorder keeps the message."""
    in_turns: bool
    """True if the broker serves the receivers in turns, because they are many: the state of one may change before its
    turn."""
    receivers: list[Receiver] = []
    groups: list[Group] = []
    more_groups: int = 0
    retained: Retained | None = None
    limit: int
    cursor: str | None = None
    """The cursor of the next receivers; null: there are no more."""
    unknown: list[str] = list(UNKNOWN)
    """Things that this answer cannot know."""
