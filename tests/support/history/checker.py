"""Whether a history is what several brokers promise that act as one. A pure function, `check`.

There are no such brokers yet: the judge is kept for those to come. It excuses this, and nothing else:

- a client that came to another node while that could not reach its own has, or may have, two sessions that become
  one: what was on its way meanwhile may be in both, and what may have been sent in one is not sent again (QoS 2); what
  it publishes with a packet identifier that one of them knows is taken for a repetition (QoS 2);
- a session that has moved while a third node could not be reached misses what is published there until that is over,
  or gets it again, if one of its own nodes ends before, or did not answer in time;
- a process that starts while a node cannot be reached does not know what that one's clients want by now, of those that
  have come there since;
- a message of QoS 2 that a process has when it ends, before it has acknowledged it, may not come, or come twice, to a
  client that moves, or whose process ends too, before it is acknowledged;
- what a publisher publishes at another node may overtake what waits for a node that cannot be reached;
- nodes that cannot reach each other do not know of each other's clients; one that does not answer in time is not
  waited for.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

from tests.support.history.history import (
    REPLACED,
    Acknowledged,
    Answered,
    Ended,
    Fault,
    History,
    Opened,
    Received,
    Retained,
    Sent,
    Subscribed,
)

SETTLES: Final = 3.0
"""Seconds after a fault in which nodes may not know of each other again."""

SLOW: Final = 1.0
"""Seconds for a CONNACK from which on some node may not have been waited for: half of the test's `confirm_timeout`."""


@dataclass(frozen=True)
class Violation:
    """A promise that was broken: its name, of whom, and what there was."""

    promise: str
    client: str
    what: str


@dataclass
class Verdict:
    """What was wrong; how often each promise was held against the history, and how often it was not for a reason."""

    violations: list[Violation] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)

    def judge(self, promise: str, kept: bool, excused: bool, client: str, what: str) -> None:
        """One promise of one client."""
        if kept:
            self.checked[promise] += 1
        elif excused:
            self.excused[promise] += 1
        else:
            self.checked[promise] += 1
            self.violations.append(Violation(promise, client, what))


def check(history: History, settles: float = SETTLES) -> Verdict:
    """Hold a history against every promise."""
    verdict = Verdict()
    whole = _Whole(history, settles)
    for promise in (_at_least_once, _nothing_made_up, _exactly_once, _order, _retained, _session_kept, _one_connection):
        promise(whole, verdict)
    return verdict


class _Whole:
    """A history, and what follows from it for several promises."""

    def __init__(self, history: History, settles: float) -> None:
        self.sent = history.of(Sent)
        self.messages = {(event.topic, event.number): event for event in self.sent}
        self.acknowledged = {(event.topic, event.number): event for event in history.of(Acknowledged)}
        self.received = history.of(Received)
        self.came: dict[tuple[str, str], list[Received]] = defaultdict(list)
        for received in self.received:
            self.came[received.client, received.topic].append(received)
        self.opened = history.of(Opened)
        self.ended = {event.connection: event for event in history.of(Ended)}
        self.answered = history.of(Answered)
        self.retained = history.of(Retained)
        self.faults = history.of(Fault)
        self.subscribed = history.of(Subscribed)
        self.settles = settles
        self.homes: dict[str, list[Opened]] = defaultdict(list)
        for event in self.opened:
            self.homes[event.client].append(event)
        self.torn = self._torn()

    def apart(
        self, one: str, other: str, begin: float, end: float, but: Fault | None = None
    ) -> tuple[float, float] | None:
        """When two nodes may have been unable to reach each other, around and within a time: from the first fault on,
        to a little after the last of those that follow each other so soon. None: they could.

        Of one node with itself: when it stood still, or had no process. `but`: a fault that does not count.
        """
        between = [
            fault
            for fault in self.faults
            if fault is not but
            and (
                (len(fault.nodes) == 1 and fault.nodes[0] in (one, other))
                or (one != other and set(fault.nodes) >= {one, other})
            )
        ]
        first, last = end, begin
        for fault in between:
            if fault.at <= end and begin <= fault.until + self.settles:
                first, last = min(first, fault.at), max(last, fault.until + self.settles)
        if last == begin:
            return None
        # In order of their beginnings: what follows, and then what was before.
        for fault in between:
            if first <= fault.at <= last:
                last = max(last, fault.until + self.settles)
        for fault in sorted(between, key=lambda each: each.until, reverse=True):
            if fault.at < first <= fault.until + self.settles:
                first = fault.at
        return first, last

    def moves(self, client: str) -> Iterator[tuple[Opened, Opened]]:
        """The connections of a client at two nodes one after the other."""
        for before, event in itertools.pairwise(self.homes[client]):
            if before.node != event.node:
                yield before, event

    def lost_for_a_reason(self, client: str, before: Opened, event: Opened) -> bool:
        """Whether the session that a client does not find may be at a node that could not be reached."""
        if any(first < event.began <= last for first, last in self.torn.get(client, ())):
            return True
        if before.node == event.node:
            return False
        apart = self.apart(before.node, event.node, event.began, event.at)
        return apart is not None or event.at - event.began >= SLOW

    def homes_between(self, client: str, begin: float, end: float) -> set[str]:
        """The nodes at which a client's session was from one time to another."""
        homes = self.homes[client]
        at = sum(1 for each in homes if each.at < begin)
        return {each.node for each in homes[max(at - 1, 0) :] if each.began <= end}

    def _torn(self) -> dict[str, list[tuple[float, float]]]:
        """From when until when a client may have two sessions, or parts of one at several nodes.

        It came to another node while that node could not reach the one where its session was, or lost it before the
        move was over, or it was told that it has no session, having had one: until all of them have met again.
        """
        torn: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for client, homes in self.homes.items():
            parts: set[str] = set()
            for before, event in itertools.pairwise(homes):
                spans = torn[client]
                if spans and event.began > spans[-1][1]:
                    parts.clear()
                tears = self._tears(before, event)
                if not parts and not tears:
                    continue
                if not parts:
                    spans.append((event.began, event.at + self.settles))
                elif tears:
                    spans[-1] = (spans[-1][0], max(spans[-1][1], event.at + self.settles))
                parts |= {before.node, event.node}
                ends = spans[-1][1]
                for one, other in itertools.combinations(sorted(parts), 2):
                    found = self.apart(one, other, event.began, ends)
                    ends = ends if found is None else max(ends, found[1])
                spans[-1] = (spans[-1][0], ends)
        return torn

    def _tears(self, before: Opened, event: Opened) -> bool:
        """Whether a client may have two sessions since it came from one node to another."""
        if not event.present:
            return True
        if before.node == event.node:
            return False
        apart = self.apart(before.node, event.node, event.began, event.at + self.settles)
        return apart is not None or event.at - event.began >= SLOW

    def published_at(self, sent: Sent) -> set[str]:
        """The nodes that have published a message: the one to which it was sent first, and the one that acknowledged
        it."""
        acknowledged = self.acknowledged.get((sent.topic, sent.number))
        return {sent.node} if acknowledged is None else {sent.node, acknowledged.node}

    def one_of_two(self, client: str, topic: str, numbers: Iterable[int], end: float) -> bool:
        """Whether the subscriber or the publisher may have had two sessions while some messages were on their way."""
        sent = [self.messages[topic, number] for number in numbers if (topic, number) in self.messages]
        begin = min((each.at for each in sent), default=end)
        return self.split(client, begin, end) or any(self.split(each.client, begin, end) for each in sent)

    def split(self, client: str, begin: float, end: float) -> bool:
        """Whether a client may have had two sessions at some time from one to another."""
        return any(first <= end and begin <= last for first, last in self.torn.get(client, ()))


def matches(topic_filter: str, topic: str) -> bool:
    """For a topic filter that is a topic or ends with /#."""
    if topic_filter.endswith("/#"):
        return topic == topic_filter[:-2] or topic.startswith(topic_filter[:-1])
    return topic == topic_filter


def _at_least_once(whole: _Whole, verdict: Verdict) -> None:
    """[MQTT-4.3.2-1] Acknowledged: it comes to each session that was subscribed before it was sent."""
    came = {(event.client, event.topic, event.number) for event in whole.received}
    for sent in whole.sent:
        acknowledged = whole.acknowledged.get((sent.topic, sent.number))
        if acknowledged is None or sent.qos == 0:
            continue
        for client in {
            event.client for event in whole.subscribed if event.at < sent.at and matches(event.topic_filter, sent.topic)
        }:
            kept = (client, sent.topic, sent.number) in came
            verdict.judge(
                "at least once",
                kept,
                not kept and _may_be_lost(whole, sent, acknowledged, client),
                client,
                f"{sent.topic} {sent.number} (QoS {sent.qos}), acknowledged by {acknowledged.node}, did not come",
            )


def _may_be_lost(whole: _Whole, sent: Sent, acknowledged: Acknowledged, client: str) -> bool:
    """It was of QoS 2, and sent in a session of two that became one, or on its way as its node ended; or a third node
    had it when the session moved without that, or had begun without knowing that the client is there."""
    return (
        (sent.qos == 2 and _ended_with_a_session(whole, sent, client))
        or any(_moved_without(whole, node, client, sent.at) for node in {sent.node, acknowledged.node})
        or (sent.qos == 2 and whole.split(sent.client, sent.at, acknowledged.at))
        or (sent.qos == 2 and _died_in_between(whole, sent, acknowledged, client))
        or _began_without(whole, sent.node, client, sent.at)
        or _began_without(whole, acknowledged.node, client, acknowledged.at)
    )


def _ended_with_a_session(whole: _Whole, sent: Sent, client: str) -> bool:
    later = (each.at for each in whole.came[client, sent.topic] if each.number > sent.number)
    passed = min(later, default=inf)
    return any(sent.at <= last and first <= passed for first, last in whole.torn.get(client, ()))


def _moved_without(whole: _Whole, node: str, client: str, at: float) -> bool:
    """Whether a client moved between two other nodes while one of these could not reach the node, which had the message
    at this time, and one of the client's nodes ended before it could again; or they did not answer in time."""
    for before, event in whole.moves(client):
        if node in (before.node, event.node):
            continue
        if event.at - event.began >= SLOW and event.began - whole.settles <= at <= event.at + whole.settles:
            return True
        for other in (before.node, event.node):
            found = whole.apart(node, other, event.began, event.at)
            if found is not None and found[0] <= at <= found[1] and _ended(whole, client, before, event, found[1]):
                return True
    return False


def _ended(whole: _Whole, client: str, before: Opened, event: Opened, end: float) -> bool:
    """Whether the process of a node that a client has come from, or been at since, ended before a time."""
    nodes = {before.node} | whole.homes_between(client, event.at, end)
    return any(
        fault.kind == "kill" and fault.nodes[0] in nodes and event.began <= fault.until and fault.at <= end
        for fault in whole.faults
    )


def _died_in_between(whole: _Whole, sent: Sent, acknowledged: Acknowledged, client: str) -> bool:
    """Whether the process to which it was sent ended before it was acknowledged, and until then the subscriber moved,
    or the process of its node ended too."""
    homes = whole.homes_between(client, sent.at, acknowledged.at)
    ended = {
        fault.nodes[0]
        for fault in whole.faults
        if fault.kind == "kill" and sent.at <= fault.until and fault.at <= acknowledged.at
    }
    return sent.node in ended and (len(homes) > 1 or bool(homes & ended - {sent.node}))


def _began_without(whole: _Whole, node: str, client: str, at: float) -> bool:
    """Whether the process of a node, which had the message at this time, had begun when the client's node could not be
    reached, and had not reached it since; and the client came there so late that the process before did not know it."""
    for fault in whole.faults:
        if fault.kind != "kill" or fault.nodes[0] != node or fault.until > at:
            continue
        for home in whole.homes_between(client, at, at) - {node}:
            found = whole.apart(node, home, fault.until, fault.until, fault)
            if found is not None and at <= found[1]:
                known = min(fault.at, found[0]) - whole.settles
                if whole.homes_between(client, known, at) != {home}:
                    return True
    return False


def _nothing_made_up(whole: _Whole, verdict: Verdict) -> None:
    """What comes was sent, to that topic, with that QoS or less."""
    sent = {(event.topic, event.number): event for event in whole.sent}
    for event in whole.received:
        found = sent.get((event.topic, event.number))
        verdict.judge(
            "as it was sent",
            found is not None and found.at <= event.at and event.qos <= found.qos,
            False,
            event.client,
            f"{event.topic} {event.number} came with QoS {event.qos}: {found}",
        )


def _exactly_once(whole: _Whole, verdict: Verdict) -> None:
    """[MQTT-4.3.3-1] A message of QoS 2 does not come twice."""
    times: dict[tuple[str, str, int], list[Received]] = defaultdict(list)
    for event in whole.received:
        if event.qos == 2:
            times[event.client, event.topic, event.number].append(event)
    for (client, topic, number), events in times.items():
        kept = len(events) == 1
        verdict.judge(
            "exactly once",
            kept,
            not kept
            and (
                whole.one_of_two(client, topic, (number,), events[-1].at)
                or _came_late(whole, client, whole.messages.get((topic, number)))
            ),
            client,
            f"{topic} {number} came {len(events)} times: {[(event.node, round(event.at, 3)) for event in events]}",
        )


def _came_late(whole: _Whole, client: str, sent: Sent | None) -> bool:
    """Whether the node where it was published had it for the session when that moved without the node, or ended before
    it had acknowledged it."""
    if sent is None:
        return False
    acknowledged = whole.acknowledged.get((sent.topic, sent.number))
    if acknowledged is not None and _died_in_between(whole, sent, acknowledged, client):
        return True
    return any(_moved_without(whole, node, client, sent.at) for node in whole.published_at(sent))


def _was_overtaken(whole: _Whole, event: Received, before: Received) -> bool:
    """Whether it waited where it was published for the client's node, which could not be reached from there, and the
    later one was published at another node."""
    sent, later = whole.messages.get((event.topic, event.number)), whole.messages.get((before.topic, before.number))
    if sent is None or later is None:
        return False
    others = whole.published_at(later)
    return any(
        others != {node} and whole.apart(node, home, sent.at, event.at) is not None
        for home in whole.homes_between(event.client, sent.at, event.at)
        for node in whole.published_at(sent) - {home}
    )


def _order(whole: _Whole, verdict: Verdict) -> None:
    """[MQTT-4.6.0-6] The first deliveries of a topic come in the order in which its publisher sent them."""
    highest: dict[tuple[str, str], Received] = {}
    known: set[tuple[str, str, int]] = set()
    for event in whole.received:
        if (event.client, event.topic, event.number) in known:
            continue
        known.add((event.client, event.topic, event.number))
        before = highest.get((event.client, event.topic))
        kept = before is None or before.number < event.number
        verdict.judge(
            "order",
            kept,
            before is not None
            and not kept
            and (
                whole.one_of_two(event.client, event.topic, (before.number, event.number), event.at)
                or _came_late(whole, event.client, whole.messages.get((event.topic, event.number)))
                or _was_overtaken(whole, event, before)
            ),
            event.client,
            f"{event.topic} {event.number} came behind {before and before.number}",
        )
        if before is None or before.number < event.number:
            highest[event.client, event.topic] = event


def _retained(whole: _Whole, verdict: Verdict) -> None:
    """When all was over each node has the same: of each topic the last acknowledged, or one sent behind it."""
    least: dict[str, int] = {}
    most: dict[str, int] = {}
    for sent in whole.sent:
        if sent.retain:
            most[sent.topic] = max(sent.number, most.get(sent.topic, -1))
            if (sent.topic, sent.number) in whole.acknowledged:
                least[sent.topic] = max(sent.number, least.get(sent.topic, -1))
    for event in whole.retained:
        found = dict(event.messages)
        for topic, number in least.items():
            verdict.judge(
                "retained, the last",
                number <= found.get(topic, -1) <= most[topic],
                False,
                event.node,
                f"{topic} is {found.get(topic)}, of {number} to {most[topic]}",
            )
        verdict.judge(
            "retained, the same",
            found == dict(whole.retained[0].messages),
            False,
            event.node,
            f"{found} is not what {whole.retained[0].node} has: {whole.retained[0].messages}",
        )


def _session_kept(whole: _Whole, verdict: Verdict) -> None:
    """[MQTT-3.2.2-2] A client that had a session finds it, on whatever node."""
    for client, homes in whole.homes.items():
        for before, event in itertools.pairwise(homes):
            verdict.judge(
                "session kept",
                event.present,
                whole.lost_for_a_reason(client, before, event),
                client,
                f"{event.node} has no session at {event.at:.3f}; it was at {before.node}",
            )


def _one_connection(whole: _Whole, verdict: Verdict) -> None:
    """[MQTT-3.1.4-3] When a client identifier has a new connection, the one before it is over, with 0x8E."""
    for homes in whole.homes.values():
        for number, event in enumerate(homes):
            for before in homes[:number]:
                _replaced(whole, verdict, before, event)


def _replaced(whole: _Whole, verdict: Verdict, before: Opened, event: Opened) -> None:
    ended = whole.ended.get(before.connection)
    if ended is not None and ended.at < event.began:
        return
    # Its claim was over soon after it had the client.
    apart = whole.apart(before.node, event.node, event.began, event.at + whole.settles)
    until = event.began if apart is None else apart[1]
    answered = [each for each in whole.answered if each.connection == before.connection and each.asked > event.at]
    for each in answered:
        verdict.judge(
            "one connection",
            False,
            each.asked <= until,
            event.client,
            f"{before.node} answers at {each.at:.3f}, and {event.node} has had the client since {event.at:.3f}",
        )
    if not answered:
        verdict.checked["one connection"] += 1
    if ended is not None and not ended.own:
        verdict.judge(
            "told 0x8E",
            ended.code == REPLACED,
            whole.apart(before.node, event.node, event.began, ended.at) is not None,
            event.client,
            f"{before.node} ended the connection with {ended.code} when it came to {event.node}",
        )
