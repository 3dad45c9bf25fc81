"""The deliveries that each subscriber should have got, compared with those that it got.

Owns: ``Subscriptions`` (which subscribers hear a topic; the broker's own trie finds them) and ``settle``, which holds
the accounts of all subscribers against what was sent.

Promises: expected = received + lost + unconfirmed for each pair of publisher and subscriber. What a subscriber could
miss by right, while it came or went, is unjudged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from canopy_load.ledger.deliveries import Judge, Receipt
from canopy_load.report.result import Deliveries, Pair
from canopy_load.scenario.patterns import Pattern
from canopy_load.scenario.plan import Plan
from canopy_mqtt.core.codec.topic_names import matches, parse_shared
from canopy_mqtt.core.topics.trie import create

NOTHING: Final = Deliveries()


@dataclass
class TopicMatch:
    """A subscriber's match of a topic: the number of its filters that match, and the highest QoS of them."""

    filters: int
    qos: int


class Subscriptions:
    """The subscriptions of some clients of a plan. A shared subscription is one subscriber."""

    def __init__(
        self, plan: Plan, clients: Iterable[tuple[int, int]], refused: Mapping[int, Collection[str]] | None = None
    ) -> None:
        """`refused`: by subscriber, filters that the broker did not grant."""
        self._plan = plan
        self._trie = create("nodes")
        self._listeners: dict[str, list[tuple[int, int, bool]]] = {}
        shared: set[int] = set()
        for group, number in clients:
            subscriber = plan.subscriber(group, number)
            if plan.shared[group]:
                if subscriber in shared:
                    continue
                shared.add(subscriber)
            without = refused.get(subscriber, ()) if refused else ()
            for name, qos, index in plan.topic_filters(group, number):
                if name in without:
                    continue
                inner = parse_shared(name)[1]
                if inner not in self._listeners:
                    self._trie.insert(inner)
                    self._listeners[inner] = []
                no_local = plan.groups[group].subscribe[index].no_local
                self._listeners[inner].append((subscriber, qos, no_local))

    def churned(self, subscriber: int, topic: str) -> bool:
        """Return True if a filter that comes and goes by `churn` matches the topic."""
        group, number = self._plan.who(subscriber)
        churn = self._plan.groups[group].churn
        if churn is None:
            return False
        pattern, name, run = Pattern(churn.filter), self._plan.groups[group].name, self._plan.run
        return any(matches(pattern.expand(run, name, number, at), topic) for at in range(churn.filters))

    def hear(self, topic: str, publisher: int = -1) -> dict[int, TopicMatch]:
        """Return the subscribers of a topic on which the client `publisher` publishes, each with its match."""
        found: dict[int, TopicMatch] = {}
        for entry in self._trie.match(topic):
            for subscriber, qos, no_local in self._listeners[entry.topic_filter]:
                if no_local and subscriber == publisher:
                    continue
                heard = found.get(subscriber)
                if heard is None:
                    found[subscriber] = TopicMatch(1, qos)
                else:
                    heard.filters += 1
                    heard.qos = max(heard.qos, qos)
        return found


@dataclass
class Account:
    """The deliveries that one subscriber got, as its process reports them."""

    subscriber: int
    open: bool
    whole: bool
    told_lost: int
    receipts: dict[int, Deliveries]
    next: dict[int, int]
    """By stream: one above the highest sequence number that came."""
    current: dict[int, int]
    """By stream: the lowest QoS from which on the subscription has been continuous since the last message."""
    gaps: dict[int, list[tuple[int, int]]]
    """Gaps of streams that have some."""
    away: bool = False
    """True if it lost its connection at least once."""
    refused: set[str] = field(default_factory=set)
    """Filters that the broker granted to none of its clients."""


@dataclass
class Sent:
    """The messages that one process sent."""

    streams: dict[int, int] = field(default_factory=dict)
    """The number of messages of each stream: sequence numbers from 0."""
    uncertain: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Sequence numbers of messages that the broker may not have got."""
    resent: dict[int, int] = field(default_factory=dict)


def account(judge: Judge) -> Account:
    made = Account(
        judge.number, judge.open, judge.whole, judge.told_lost, {}, {}, {}, {}, judge.absence > 0, judge.refused
    )
    for stream, receipt in judge.receipts.items():
        made.receipts[stream] = _deliveries(receipt)
        made.next[stream] = receipt.next
        if receipt.epoch != judge.epoch:
            made.current[stream] = 3
        elif receipt.absence != judge.absence:
            made.current[stream] = 1
        gaps = receipt.gaps
        if gaps is not None and gaps.starts:
            made.gaps[stream] = list(zip(gaps.starts, gaps.ends, strict=True))
    return made


def _deliveries(receipt: Receipt) -> Deliveries:
    names = ("received", "duplicates", "redelivered", "reordered", "altered", "unjudged", "retained")
    return Deliveries(lost=receipt.missing, **{name: getattr(receipt, name) for name in names})


@dataclass
class Settled:
    """The outcome for all subscribers."""

    pairs: list[Pair]
    groups: list[Deliveries]
    strays: int
    """Deliveries on streams that no filter of the subscriber matches."""


def add(total: Deliveries, part: Deliveries) -> None:
    for each in _FIELDS:
        setattr(total, each, getattr(total, each) + getattr(part, each))


_FIELDS = [each.name for each in fields(Deliveries)]


def settle(plan: Plan, subscriptions: Subscriptions, accounts: Iterable[Account], sent: Sent) -> Settled:
    """Compare the deliveries with the messages that were sent."""
    by_subscriber = {each.subscriber: each for each in accounts}
    groups = [Deliveries() for _ in plan.groups]
    pairs: dict[tuple[int, int], Deliveries] = {}
    settled: dict[int, set[int]] = {}
    for stream, count in sent.streams.items():
        publisher = plan.publisher(stream)
        qos = plan.quality(stream)
        for subscriber, heard in subscriptions.hear(plan.topic(stream), publisher).items():
            found = by_subscriber.get(subscriber)
            if found is None:
                continue
            if found.receipts.get(stream, NOTHING).duplicates and subscriptions.churned(subscriber, plan.topic(stream)):
                heard.filters += 1
            outcome = _judge(found, stream, count, min(qos, heard.qos), heard.filters, sent)
            settled.setdefault(subscriber, set()).add(stream)
            add(pairs.setdefault((publisher, subscriber), Deliveries()), outcome)
    strays = 0
    for subscriber, found in by_subscriber.items():
        group = plan.who(subscriber)[0]
        known = settled.get(subscriber, set())
        for stream, receipt in found.receipts.items():
            if stream not in known and plan.groups[group].churn is None:
                strays += receipt.received
        groups[group].told_lost += found.told_lost
    made = []
    for (publisher, subscriber), deliveries in pairs.items():
        group = plan.who(subscriber)[0]
        add(groups[group], deliveries)
        name = plan.client_id(*plan.who(publisher))
        made.append(Pair(name, plan.subscriber_name(subscriber), plan.groups[group].name, deliveries))
    return Settled(made, groups, strays)


def _judge(found: Account, stream: int, count: int, qos: int, filters: int, sent: Sent) -> Deliveries:
    outcome = found.receipts.get(stream)
    if outcome is None:
        outcome = Deliveries()
    start = found.next.get(stream, 0)
    missing = list(found.gaps.get(stream, ()))
    if count > start:
        seen = stream in found.receipts
        continuous = found.open and (
            qos >= found.current.get(stream, 0) if seen else found.whole and (qos > 0 or not found.away)
        )
        if continuous:
            outcome.lost += count - start
            missing.append((start, count))
        else:
            outcome.unjudged += count - start
    for first, end in _united(sent.uncertain.get(stream, ())):
        doubtful = sum(max(0, min(end, to) - max(first, at)) for at, to in missing)
        outcome.lost -= doubtful
        outcome.unconfirmed += doubtful
    if filters > 1:
        # One copy for each filter that matches is the broker's to send; more are not.
        outcome.overlapping = min(outcome.duplicates, outcome.received * (filters - 1))
        outcome.duplicates -= outcome.overlapping
    again = min(outcome.duplicates, sent.resent.get(stream, 0))
    outcome.duplicates -= again
    outcome.redelivered += again
    outcome.expected = outcome.received + outcome.lost + outcome.unconfirmed
    return outcome


def _united(intervals: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers in intervals that do not overlap."""
    made: list[tuple[int, int]] = []
    for first, end in sorted(intervals):
        if made and first <= made[-1][1]:
            made[-1] = made[-1][0], max(end, made[-1][1])
        elif first < end:
            made.append((first, end))
    return made
