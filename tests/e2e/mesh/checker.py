"""Whether a history is what docs/cluster.md promises. A pure function, `check`.

It excuses what the page excuses, and nothing else:

- a client that came to another node while its own was disturbed has, or may have, two sessions that become one: what
  was published meanwhile may be in both, and what may have been sent in one is not sent again (QoS 2);
- a message that waits in the memory of a node for one that cannot be reached ends with that node's process;
- a session that moves while a third node cannot be reached misses what is published there until that is over;
- nodes that cannot reach each other do not know of each other's clients.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.e2e.mesh.history import (
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
    for promise in (_at_least_once, _nothing_made_up, _exactly_once, _order, _retained, _one_connection):
        promise(whole, verdict)
    return verdict


class _Whole:
    """A history, and what follows from it for several promises."""

    def __init__(self, history: History, settles: float) -> None:
        self.sent = history.of(Sent)
        self.acknowledged = {(event.topic, event.number): event for event in history.of(Acknowledged)}
        self.received = history.of(Received)
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

    def disturbed(self, nodes: Iterable[str], begin: float, end: float) -> bool:
        """Whether something was wrong with, or between, any of these nodes then, or had been a little before."""
        wanted = set(nodes)
        return any(
            fault.at <= end and begin <= fault.until + self.settles and wanted & set(fault.nodes)
            for fault in self.faults
        )

    def apart(self, one: str, other: str, begin: float, end: float, but: Fault) -> bool:
        """Whether two nodes may have been unable to reach each other then, or had been a little before; not counting
        one fault."""
        return any(
            fault is not but
            and fault.at <= end
            and begin <= fault.until + self.settles
            and (set(fault.nodes) >= {one, other} or (len(fault.nodes) == 1 and fault.nodes[0] in (one, other)))
            for fault in self.faults
        )

    def moved_without(self, node: str, client: str, at: float) -> bool:
        """Whether a client came to another node in the course of a fault of a node, which was there at this time."""
        moves = [event for before, event in itertools.pairwise(self.homes[client]) if before.node != event.node]
        return any(
            node in fault.nodes
            and fault.at - self.settles <= at <= fault.until + self.settles
            and any(fault.at <= move.at and move.began <= fault.until + self.settles for move in moves)
            for fault in self.faults
        )

    def _torn(self) -> dict[str, float]:
        """From when on a client may have two sessions, or parts of one at two nodes.

        It came to another node while that node, or the one where its session was, was disturbed, or became so before
        the move was over; or it was told that it has no session, having had one.
        """
        torn: dict[str, float] = {}
        for client, homes in self.homes.items():
            for before, event in itertools.pairwise(homes):
                moved = before.node != event.node
                lost = not event.present
                nodes = (before.node, event.node)
                if lost or (moved and self.disturbed(nodes, event.began, event.at + self.settles)):
                    torn[client] = event.began
                    break
        return torn

    def whole(self, client: str, at: float) -> bool:
        """Whether a client has had one session until then."""
        return at < self.torn.get(client, at + 1.0)


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
    """It was waiting in the memory of a node for another one, and that process ended, or the session moved from there.
    Or it was of QoS 2, and sent in a session of two that became one."""
    if sent.qos == 2 and client in whole.torn:
        return True
    if any(whole.moved_without(node, client, sent.at) for node in (sent.node, acknowledged.node)):
        return True
    homes = {event.node for event in whole.homes[client]}
    for fault in whole.faults:
        if fault.kind != "kill" or fault.until < sent.at or fault.nodes[0] not in (sent.node, acknowledged.node):
            continue
        if any(whole.apart(fault.nodes[0], home, sent.at, fault.at, fault) for home in homes - set(fault.nodes)):
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
    publishers = {event.topic: event.client for event in whole.sent}
    for (client, topic, number), events in times.items():
        # A publisher whose session was torn may have sent it to both.
        verdict.judge(
            "exactly once",
            len(events) == 1,
            (
                not (
                    whole.whole(events[0].client, events[-1].at)
                    and whole.whole(publishers.get(topic, ""), events[-1].at)
                )
            ),
            client,
            f"{topic} {number} came {len(events)} times: {[(event.node, round(event.at, 3)) for event in events]}",
        )


def _order(whole: _Whole, verdict: Verdict) -> None:
    """[MQTT-4.6.0-6] The first deliveries of a topic come in the order in which its publisher sent them."""
    highest: dict[tuple[str, str], Received] = {}
    known: set[tuple[str, str, int]] = set()
    publishers = {event.topic: event.client for event in whole.sent}
    for event in whole.received:
        if (event.client, event.topic, event.number) in known:
            continue
        known.add((event.client, event.topic, event.number))
        before = highest.get((event.client, event.topic))
        verdict.judge(
            "order",
            before is None or before.number < event.number,
            (not (whole.whole(event.client, event.at) and whole.whole(publishers.get(event.topic, ""), event.at))),
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


def _one_connection(whole: _Whole, verdict: Verdict) -> None:
    """[MQTT-3.1.4-3] When a client identifier has a new connection, the one before it is over, with 0x8E."""
    for homes in whole.homes.values():
        for number, event in enumerate(homes):
            for before in homes[:number]:
                _replaced(whole, verdict, before, event)


def _replaced(whole: _Whole, verdict: Verdict, before: Opened, event: Opened) -> None:
    ended = whole.ended.get(before.connection)
    nodes = (before.node, event.node)
    if ended is not None and ended.at < event.began:
        return
    answered = [each for each in whole.answered if each.connection == before.connection and each.asked > event.at]
    for each in answered:
        verdict.judge(
            "one connection",
            False,
            whole.disturbed(nodes, before.began, each.at),
            event.client,
            f"{before.node} answers at {each.at:.3f}, and {event.node} has had the client since {event.at:.3f}",
        )
    if not answered:
        verdict.checked["one connection"] += 1
    if ended is not None and not ended.own:
        verdict.judge(
            "told 0x8E",
            ended.code == REPLACED,
            whole.disturbed(nodes, before.began, ended.at),
            event.client,
            f"{before.node} ended the connection with {ended.code} when it came to {event.node}",
        )
