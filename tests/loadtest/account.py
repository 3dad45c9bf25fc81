"""What a scripted server did, counted for each (publisher, subscriber) pair.

Owns: the list of what was due and of what went out, and the naive recount of both. It keeps whole payloads and looks
through lists; it knows nothing of marks, runs and sequence numbers, so that it cannot repeat a mistake of the code that
it is held against.

Promises: a message is known by its publisher, topic and payload, of which no two messages of a run have the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class Message:
    """One application message as it came. `number` counts its publisher's messages from 0, in their order."""

    publisher: str
    topic: str
    payload: bytes
    number: int
    qos: int
    retain: bool = False
    properties: bytes = b""
    will: bool = False

    @property
    def identity(self) -> tuple[str, str, bytes]:
        return self.publisher, self.topic, self.payload


@dataclass(frozen=True)
class Written:
    """One PUBLISH that went to a client."""

    message: Message
    receiver: str
    """The client, where `subscriber` may stand for a whole share."""
    connection: int
    """Which of the receiver's connections, from 0."""
    qos: int
    dup: bool = False
    altered: bool = False
    retained: bool = False
    told: int = 0


@dataclass
class Account:
    """As `result.Deliveries`, where a server can know it."""

    expected: int = 0
    received: int = 0
    lost: int = 0
    duplicates: int = 0
    redelivered: int = 0
    overlapping: int = 0
    reordered: int = 0
    altered: int = 0
    retained: int = 0
    told_lost: int = 0

    def __add__(self, other: Account) -> Account:
        return Account(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass
class Pairing:
    """All that concerns one publisher and one subscriber, in order."""

    due: dict[tuple[str, str, bytes], int] = field(default_factory=dict)
    """Messages that matched a subscription to the number of filters that matched."""
    written: list[Written] = field(default_factory=list)

    def account(self) -> Account:
        """Count."""
        found = Account(expected=len(self.due))
        first: dict[tuple[str, str, bytes], Written] = {}
        copies: dict[tuple[str, str, bytes], int] = {}
        latest: dict[str, int] = {}
        for one in self.written:
            found.told_lost += one.told
            key = one.message.identity
            if one.retained:
                found.retained += 1
                continue
            found.altered += one.altered
            copies[key] = copies.get(key, 0) + 1
            if key not in first:
                first[key] = one
                topic, number = one.message.topic, one.message.number
                found.reordered += number < latest.get(topic, -1)
                latest[topic] = max(number, latest.get(topic, -1))
            elif one.qos == 1 and (one.dup or self._again(one, first[key])):
                found.redelivered += 1
            elif copies[key] <= self.due.get(key, 1):
                found.overlapping += 1
            else:
                found.duplicates += 1
        found.received = sum(key in self.due for key in first)
        found.lost = found.expected - found.received
        return found

    @staticmethod
    def _again(one: Written, first: Written) -> bool:
        return (one.receiver, one.connection) != (first.receiver, first.connection)


@dataclass
class Books:
    """Of all pairs, by client identifiers. A shared subscription stands in them under its filter."""

    pairs: dict[tuple[str, str], Pairing] = field(default_factory=dict)

    def of(self, publisher: str, subscriber: str) -> Pairing:
        """The page of one pair; made where there is none yet."""
        return self.pairs.setdefault((publisher, subscriber), Pairing())

    def account(self, publishers: Iterable[str] | None = None, subscribers: Iterable[str] | None = None) -> Account:
        """The sum over these publishers and subscribers; None: over all."""
        some, others = (None if each is None else set(each) for each in (publishers, subscribers))
        total = Account()
        for (publisher, subscriber), pair in self.pairs.items():
            if (some is None or publisher in some) and (others is None or subscriber in others):
                total += pair.account()
        return total

    def written(self, subscriber: str | None = None) -> list[Written]:
        """Every PUBLISH that went out (to one subscriber), pair by pair."""
        return [one for (_, who), pair in self.pairs.items() if subscriber in (None, who) for one in pair.written]
