"""Find the promises of MQTT that a broker has broken in a history, and the operations that show it: a pure function,
`check`.

Owns: sessions and subscriptions as they follow from the history, and a rule for each promise.

Promises: what the history cannot decide is counted as unjudged and is no finding: a session whose client is away at the
end, a message for a group one of whose members lost its session, a session that a CONNECT without an answer may have
ended. The history must end with its clients connected and nothing on its way.

Several nodes are held to what one broker is held to.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import Final

from canopy_load.ledger.history import (
    Connect,
    Delivery,
    Ended,
    Event,
    History,
    Look,
    Operation,
    Ping,
    Publish,
    Stream,
    Subscribe,
    Unsubscribe,
)
from canopy_mqtt.core.codec.topic_names import matches, parse_shared

TAKEN_OVER: Final = 0x8E
SEEN: Final = 2.0
"""Seconds after which a broker has surely seen that a member of a share group is gone; until then it may choose it."""


@dataclass(frozen=True)
class Finding:
    """A promise that was broken: its name, the statement that makes it, whose, and the operations that show it."""

    promise: str
    statement: str
    client: str
    operations: tuple[int, ...]
    what: str


@dataclass
class Verdict:
    """The broken promises; how often each promise was checked against the history, and how often it could not be."""

    findings: list[Finding] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    unjudged: Counter[str] = field(default_factory=Counter)

    def keep(self, promise: str) -> None:
        """Count one check of a promise that was kept."""
        self.checked[promise] += 1

    def hold(self, promise: str, kept: bool, statement: str, client: str, events: Iterable[Event], what: str) -> None:
        """Count one check of a promise to one client, which may have been broken."""
        self.keep(promise)
        if not kept:
            self.findings.append(Finding(promise, statement, client, tuple(each.number for each in events), what))


@dataclass
class _Subscription:
    asked: Subscribe
    qos: int
    until: float = inf

    @property
    def group(self) -> str:
        """The whole filter, if it is a shared one."""
        return self.asked.topic_filter if parse_shared(self.asked.topic_filter)[0] else ""


class _Session:
    """One session of a client: from a CONNECT that found none to the next one that found none or wanted none."""

    def __init__(self, first: Connect) -> None:
        self.connections = [first]
        self.until = inf
        self.open = True
        """True if its client is connected at the end."""
        self.subscriptions: list[_Subscription] = []

    def hears(self, topic: str) -> list[_Subscription]:
        """Return the subscriptions that match a topic, at any time."""
        return [each for each in self.subscriptions if _matches(each.asked.topic_filter, topic)]


@lru_cache(maxsize=65_536)
def _matches(topic_filter: str, topic: str) -> bool:
    """Return True if a topic filter, which may be that of a share group, matches a topic."""
    return matches(parse_shared(topic_filter)[1], topic)


def check(history: History) -> Verdict:
    """Check a history against every promise."""
    whole = _Whole(history)
    verdict = Verdict()
    for rule in RULES:
        rule(whole, verdict)
    return verdict


class _Whole:
    """A history, with its sessions and deliveries by client."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.messages = {(each.stream, each.sequence): each for each in history.of(Publish)}
        self.ended = {each.connection: each for each in history.of(Ended)}
        self.sessions: dict[str, list[_Session]] = defaultdict(list)
        connects: dict[str, list[Connect]] = defaultdict(list)
        for connect in history.of(Connect):
            connects[connect.client].append(connect)
        self.connects = connects
        for client, found in connects.items():
            self.sessions[client] = self._sessions_of(found)
        for each in history.of(Subscribe):
            self._subscribe(each)
        for gone in history.of(Unsubscribe):
            for session in self.sessions[gone.client]:
                for one in session.subscriptions:
                    if one.asked.topic_filter == gone.topic_filter and one.asked.began < gone.began < one.until:
                        one.until = gone.began
        self.came: dict[tuple[str, int], list[Delivery]] = defaultdict(list)
        """By client and the number of its session."""
        for delivery in history.of(Delivery):
            if not delivery.retained:
                at = self.session_at(delivery.client, delivery.at)
                self.came[delivery.client, at].append(delivery)

    def _sessions_of(self, connects: list[Connect]) -> list[_Session]:
        made: list[_Session] = []
        doubtful = False
        for connect in connects:
            if connect.outcome == "fail":
                continue
            if connect.outcome == "unknown":
                # It may have ended what was there.
                doubtful = doubtful or connect.clean
                if made and connect.clean:
                    made[-1].until = min(made[-1].until, connect.began)
                continue
            if made and connect.present and not connect.clean and not doubtful:
                made[-1].connections.append(connect)
            else:
                if made:
                    made[-1].until = min(made[-1].until, connect.began)
                made.append(_Session(connect))
            doubtful = False
        for session in made:
            last = session.connections[-1]
            over = self.ended.get(last.number)
            if over is not None:
                session.open = False
                if not last.keeps:
                    session.until = min(session.until, over.at)
        return made

    def session_at(self, client: str, at: float) -> int:
        """The number of the client's session at a time; -1 before the first."""
        return bisect_right(self.sessions[client], at, key=lambda each: each.connections[0].began) - 1

    def _subscribe(self, asked: Subscribe) -> None:
        at = self.session_at(asked.client, asked.began)
        if asked.outcome != "ok" or at < 0:
            return
        session = self.sessions[asked.client][at]
        for each in session.subscriptions:
            if each.asked.topic_filter == asked.topic_filter and each.until == inf:
                # It goes on, perhaps with another QoS.
                each.qos = min(each.qos, asked.qos)
                return
        session.subscriptions.append(_Subscription(asked, asked.qos))

    def all_sessions(self) -> Iterator[_Session]:
        for found in self.sessions.values():
            yield from found


def _due(publish: Publish, each: _Subscription) -> bool:
    """Return True if an acknowledged message must come to a subscription that lasts."""
    return (
        each.asked.ended <= publish.began < each.until
        and min(publish.qos, each.qos) > 0
        and not (each.asked.no_local and each.asked.client == publish.client)
    )


def _acknowledged(whole: _Whole) -> list[Publish]:
    """Return the acknowledged messages, in the order in which they were published."""
    found = [each for each in whole.messages.values() if each.outcome == "ok" and each.qos > 0]
    return sorted(found, key=lambda each: each.began)


def _statement(qos: int) -> str:
    return "[MQTT-4.3.3-1]" if qos == 2 else "[MQTT-4.3.2-1]"


def _lost(whole: _Whole, verdict: Verdict) -> None:
    """Check that an acknowledged message comes to each session that was subscribed before it was sent."""
    published = _acknowledged(whole)
    began = [each.began for each in published]
    for client, sessions in whole.sessions.items():
        for at, session in enumerate(sessions):
            came = {(each.stream, each.sequence) for each in whole.came[client, at]}
            first = min((each.asked.ended for each in session.subscriptions), default=inf)
            for publish in published[bisect_left(began, first) : bisect_right(began, session.until)]:
                found = [each for each in session.hears(publish.topic) if not each.group and _due(publish, each)]
                if not found:
                    continue
                promise = "will missing" if publish.will else "lost"
                if (publish.stream, publish.sequence) in came:
                    verdict.keep(promise)
                elif session.until < inf or not session.open or all(each.until < inf for each in found):
                    verdict.unjudged[promise] += 1
                elif publish.will:
                    what = f"the will {publish.topic} {publish.sequence} was due and did not come"
                    verdict.hold(promise, False, "[MQTT-3.1.2-8]", client, (found[0].asked, publish), what)
                else:
                    what = f"{publish.topic} {publish.sequence} (QoS {publish.qos}) was acknowledged and did not come"
                    verdict.hold(promise, False, _statement(publish.qos), client, (found[0].asked, publish), what)


def _lost_to_groups(whole: _Whole, verdict: Verdict) -> None:
    """Check that an acknowledged message comes to one member of each group that was there before it was sent. A message
    on its way to a member whose session ended need not be sent to another one [MQTT-4.8.2-5]."""
    members: dict[str, list[tuple[_Session, _Subscription]]] = defaultdict(list)
    for session in whole.all_sessions():
        for each in session.subscriptions:
            if each.group:
                members[each.group].append((session, each))
    came = {(each.client, each.stream, each.sequence) for found in whole.came.values() for each in found}
    for group, those in members.items():
        published = [each for each in _acknowledged(whole) if _matches(group, each.topic)]
        began = [each.began for each in published]
        clients = {each.asked.client for _, each in those}
        there: dict[int, _Subscription] = {}
        # The end of the last session of a member that ended, or may have.
        doubtful = -inf
        for session, each in those:
            until = min(session.until, each.until)
            if until < inf or not session.open:
                doubtful = max(doubtful, until)
            for at in range(bisect_left(began, each.asked.ended), bisect_left(began, until)):
                if _due(published[at], each):
                    there.setdefault(at, each)
        for at, each in sorted(there.items()):
            publish = published[at]
            if any((client, publish.stream, publish.sequence) in came for client in clients):
                verdict.keep("lost to a group")
            elif doubtful + SEEN > publish.began:
                verdict.unjudged["lost to a group"] += 1
            else:
                what = f"{publish.topic} {publish.sequence} was acknowledged and came to no member of {group}"
                verdict.hold("lost to a group", False, _statement(publish.qos), group, (each.asked, publish), what)


def _as_sent(whole: _Whole, verdict: Verdict) -> None:
    """Check that each delivery was sent before, is unaltered, and goes to a subscriber of it, with the lower of its own
    QoS and that of the subscription; where several match, that of any."""
    asked: dict[str, list[Subscribe]] = defaultdict(list)
    for subscribe in whole.history.of(Subscribe):
        if subscribe.outcome != "fail":
            asked[subscribe.client].append(subscribe)
    for each in whole.history.of(Delivery):
        publish = whole.messages.get((each.stream, each.sequence))
        name = f"{each.stream[1]} {each.sequence}"
        if publish is None or publish.began > each.at:
            verdict.hold("as sent", False, "section 3.3", each.client, (each,), f"{name} came and was never sent")
            continue
        verdict.keep("as sent")
        shown = (publish, each)
        verdict.hold("altered", each.intact, "section 3.3", each.client, shown, f"{name} came altered")
        heard = [
            one for one in asked[each.client] if one.began <= each.at and _matches(one.topic_filter, publish.topic)
        ]
        verdict.hold("asked for", bool(heard), "section 3.3.4", each.client, shown, f"{name} matches no subscription")
        if heard:
            qualities = [min(publish.qos, one.qos) for one in heard]
            kept = min(qualities) <= each.qos <= max(qualities)
            what = f"{name} (QoS {publish.qos}, subscribed with {heard[-1].qos}) came with QoS {each.qos}"
            verdict.hold("QoS", kept, "[MQTT-3.8.4-8]", each.client, (heard[-1], *shown), what)
        refused = publish.outcome == "fail"
        if publish.will:
            what = f"{name} came, the will of a client that said goodbye, or came back before its delay was over"
            verdict.hold("will revoked", not refused, "[MQTT-3.1.2-10]", each.client, shown, what)
            what = f"{name} came before the delay of the will was over"
            early = each.at < publish.not_before
            verdict.hold("will too early", not early, "[MQTT-3.1.2-8]", each.client, shown, what)
        else:
            what = f"{name} came though the broker had refused it"
            verdict.hold("refused", not refused, "section 3.4.2.1", each.client, shown, what)


def _copies(whole: _Whole) -> Iterator[tuple[_Session, list[Delivery], Publish]]:
    """Yield all deliveries of each message to each session."""
    for (client, at), deliveries in whole.came.items():
        found: dict[tuple[Stream, int], list[Delivery]] = defaultdict(list)
        for each in deliveries:
            found[each.stream, each.sequence].append(each)
        for message, copies in found.items():
            if message in whole.messages and at >= 0:
                yield whole.sessions[client][at], copies, whole.messages[message]


def _twice(whole: _Whole, verdict: Verdict) -> None:
    """Check that a message of QoS 2 comes once to each session, or once for each of its filters that match and were
    granted QoS 2 [MQTT-3.3.4-2]."""
    for session, copies, publish in _copies(whole):
        twice = [each for each in copies if each.qos == 2]
        if not twice or publish.again:
            continue
        kept = len(twice) <= max(1, sum(one.qos == 2 for one in session.hears(publish.topic)))
        what = f"{publish.topic} {publish.sequence} came {len(twice)} times with QoS 2"
        promise = "will twice" if publish.will else "twice"
        verdict.hold(promise, kept, "[MQTT-4.3.3-1]", twice[0].client, (publish, *twice), what)


def _to_two_members(whole: _Whole, verdict: Verdict) -> None:
    """Check that a message goes to one member of a group; to another with QoS 1 only if the first lost its
    connection."""
    groups: dict[tuple[str, Stream, int], list[Delivery]] = defaultdict(list)
    for session, copies, publish in _copies(whole):
        heard = session.hears(publish.topic)
        if len(heard) == 1 and heard[0].group and not publish.again:
            groups[heard[0].group, publish.stream, publish.sequence] += copies
    ends: dict[str, list[float]] = defaultdict(list)
    for over in whole.ended.values():
        ends[over.client].append(over.at)
    for (group, stream, sequence), copies in groups.items():
        copies.sort(key=lambda each: each.at)
        kept = all(
            one.client == other.client or (one.qos == 1 and any(one.at <= at <= other.at for at in ends[one.client]))
            for one, other in pairwise(copies)
        )
        shown = (whole.messages[stream, sequence], *copies)
        what = f"{stream[1]} {sequence} came to {', '.join(sorted({each.client for each in copies}))}"
        verdict.hold("to two members", kept, "[MQTT-4.8.2-4]", group, shown, what)


def _order(whole: _Whole, verdict: Verdict) -> None:
    """Check that the first deliveries of a stream come in the order of publishing, outside of share groups. Of a
    message that was published anew, the first one that comes to a later subscription may be the second that was
    sent."""
    for (client, at), deliveries in whole.came.items():
        highest: dict[tuple[Stream, int], Delivery] = {}
        known: set[tuple[Stream, int]] = set()
        for each in deliveries:
            message = each.stream, each.sequence
            heard = whole.sessions[client][at].hears(each.stream[1]) if at >= 0 else []
            publish = whole.messages.get(message)
            anew = publish is not None and publish.again and all(one.asked.ended > publish.began for one in heard)
            if message in known or anew or any(one.group for one in heard):
                continue
            known.add(message)
            before = highest.get((each.stream, each.qos))
            kept = before is None or before.sequence < each.sequence
            shown = [] if before is None else [*_published(whole, before), *_published(whole, each), before, each]
            what = f"{each.stream[1]} {each.sequence} came behind {before and before.sequence}"
            verdict.hold("order", kept, "[MQTT-4.6.0-6]", client, shown, what)
            if kept:
                highest[each.stream, each.qos] = each


def _published(whole: _Whole, delivery: Delivery) -> list[Event]:
    found = whole.messages.get((delivery.stream, delivery.sequence))
    return [] if found is None else [found]


def _retained(whole: _Whole, verdict: Verdict) -> None:
    """Check that retained messages are no older than those acknowledged before, and the same at every node."""
    by_topic: dict[str, list[Publish]] = defaultdict(list)
    for publish in whole.messages.values():
        if publish.retain:
            by_topic[publish.topic].append(publish)
    looks = whole.history.of(Look)
    for look in looks:
        for topic, published in by_topic.items():
            found = look.found.get(topic)
            done = [each for each in published if each.outcome == "ok" and each.ended < look.at]
            if found is None:
                # There was none yet, or one that was removed.
                may = [each.ended for each in published if each.clears and each.outcome != "fail"] + [-inf]
            else:
                may = [each.ended for each in published if (each.stream, each.sequence) == found]
            newer = [each for each in done if all(each.began > at for at in may)]
            shown = (*newer[:1], look)
            what = f"{topic} is {found and found[1]} at {look.node}: a newer one was acknowledged, or it was never sent"
            verdict.hold("retained, the last", bool(may) and not newer, "[MQTT-3.3.1-5]", look.client, shown, what)
    for topic, published in by_topic.items():
        settled = [each for each in looks if all(one.ended < each.at or one.outcome == "fail" for one in published)]
        for one, other in pairwise(settled):
            kept = one.found.get(topic) == other.found.get(topic)
            what = f"{topic} is {one.found.get(topic)} at {one.node}, {other.found.get(topic)} at {other.node}"
            verdict.hold("retained, the same", kept, "[MQTT-3.3.1-5]", other.client, (one, other), what)


def _sessions(whole: _Whole, verdict: Verdict) -> None:
    """Check that a client finds the session that it left, and none that it did not leave."""
    for client, connects in whole.connects.items():
        there: bool | None = False  # None: nobody knows
        before: Connect | None = None
        for connect in connects:
            if connect.outcome == "fail":
                continue
            if before is not None and not before.keeps:
                over = whole.ended.get(before.number)
                there = False if over is not None and over.at < connect.began else None
            if connect.outcome == "unknown":
                # It may have made one, or ended it.
                there = there if there and not connect.clean and connect.keeps else None
                before = None
                continue
            shown = (connect,) if before is None else (before, connect)
            if connect.clean:
                what = "a clean start found a session"
                verdict.hold("session", not connect.present, "[MQTT-3.2.2-2]", client, shown, what)
            elif there is None:
                verdict.unjudged["session"] += 1
            else:
                what = "its session is gone" if there else "it found a session that it never left"
                verdict.hold("session", connect.present is there, "[MQTT-3.2.2-3]", client, shown, what)
            there, before = True, connect


def _takeover(whole: _Whole, verdict: Verdict) -> None:
    """Check that a new connection of a client identifier ends the one before it, with 0x8E if with any reason code."""
    pings: dict[int, list[Ping]] = defaultdict(list)
    for ping in whole.history.of(Ping):
        if ping.outcome == "ok":
            pings[ping.connection].append(ping)
    for client, connects in whole.connects.items():
        for before, after in pairwise([each for each in connects if each.outcome == "ok"]):
            over = whole.ended.get(before.number)
            if over is not None and over.at < after.began:
                continue
            late = [each for each in pings[before.number] if each.began >= after.ended]
            shown: tuple[Event, ...] = (before, after, *late[:1])
            what = f"a connection at {before.node} is answered after another one at {after.node}"
            verdict.hold("one connection", not late, "[MQTT-3.1.4-3]", client, shown, what)
            if over is not None and not over.own and over.code is not None:
                what = f"the connection that was taken over ended with 0x{over.code:02x}"
                verdict.hold(
                    "told 0x8E", over.code == TAKEN_OVER, "[MQTT-3.1.4-3]", client, (before, after, over), what
                )


def _answered(whole: _Whole, verdict: Verdict) -> None:
    """Check that each request of a connection that is still there has been answered."""
    present = {client: sessions[-1].connections[-1] for client, sessions in whole.sessions.items() if sessions}
    for operation in whole.history.of(Operation):
        connect = present.get(operation.client)
        if connect is None or connect.number in whole.ended:
            continue
        if isinstance(operation, Publish) and operation.qos and not operation.will:
            name, statement = f"PUBLISH {operation.topic} {operation.sequence}", "[MQTT-3.3.4-1]"
        elif isinstance(operation, Subscribe) and operation.number > connect.number:
            name, statement = f"SUBSCRIBE {operation.topic_filter}", "[MQTT-3.8.4-1]"
        else:
            continue
        shown = (connect, operation)
        kept = operation.outcome != "unknown"
        verdict.hold("answered", kept, statement, operation.client, shown, f"{name} was never answered")


def _protocol(whole: _Whole, verdict: Verdict) -> None:
    """Check that no connection ended because the broker broke the protocol."""
    for over in whole.history.of(Ended):
        connect = whole.history.events[over.connection]
        verdict.hold("protocol", not over.broke, "section 4.13", over.client, (connect, over), over.broke)


RULES: Final = (
    _sessions, _as_sent, _lost, _lost_to_groups, _twice, _to_two_members, _order, _retained, _takeover, _answered,
    _protocol,
)  # fmt: skip
