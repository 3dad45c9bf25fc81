"""Find the promises of MQTT that a broker has broken in a history, and the operations that show it: a pure function,
`check`.

Owns: a rule for each promise; ``sessions`` has what they are about.

Promises: what the history cannot decide is counted as unjudged and is no finding: a session whose client is away at the
end, a message for a group one of whose members lost its session, a session that a CONNECT without an answer may have
ended. The history must end with its clients connected and nothing on its way.

Several nodes are held to what one broker is held to.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Final

from canopy_load.ledger.history import (
    UNKNOWN,
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
from canopy_load.ledger.sessions import Session, Subscription, Whole, hits

TAKEN_OVER: Final = 0x8E
QUOTA_EXCEEDED: Final = 0x97
LEAVES: Final = (0x8B, 0x9C)
"""Server shutting down, Use another server: the node does not serve the client any more, whatever it does."""
NO_SUBSCRIPTION_EXISTED: Final = 0x11
EXPIRY_MARGIN: Final = 1.0
"""Seconds within which a Session Expiry Interval may be over early: a broker counts in whole ones."""
STARVED: Final = 50
"""Messages to other members of a share group, while a member that is connected gets none. A broker that chooses one of
three members at random leaves one out so often once in 600 million times."""

FIRST: Final = 0.5
"""Seconds for which a member of a share group must have been alone before what waited is to have come to it."""
NEVER_ENDED: Final = Ended(client="", at=inf, connection=-1)


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
    at_most_once: Counter[str] = field(default_factory=lambda: Counter(due=0, came=0))
    """Acknowledged messages to subscriptions with QoS 0: `due`, and how many of them `came`."""

    def keep(self, promise: str) -> None:
        """Count one check of a promise that was kept."""
        self.checked[promise] += 1

    def hold(self, promise: str, kept: bool, statement: str, client: str, events: Iterable[Event], what: str) -> None:
        """Count one check of a promise to one client, which may have been broken."""
        self.keep(promise)
        if not kept:
            self.findings.append(Finding(promise, statement, client, tuple(each.number for each in events), what))


def check(history: History, blind: Sequence[tuple[float, float]] = ()) -> Verdict:
    """Check a history against every promise. `blind`: from when to when something was wrong with the broker, so that it
    may not have seen that a connection was over."""
    whole = Whole(history, blind)
    verdict = Verdict()
    for rule in RULES:
        rule(whole, verdict)
    return verdict


def _statement(qos: int) -> str:
    return "[MQTT-4.3.3-1]" if qos == 2 else "[MQTT-4.3.2-1]"


def _lost(whole: Whole, verdict: Verdict) -> None:
    """Check that an acknowledged message comes to each session that was subscribed before it was sent."""
    for client, sessions in whole.sessions.items():
        for at, session in enumerate(sessions):
            plain = [each for each in session.subscriptions if not each.group]
            came = {(each.stream, each.sequence) for each in whole.came[client, at]}
            for publish in whole.acknowledged(*(each.asked.topic_filter for each in plain)):
                there = [each for each in plain if hits(each.asked.topic_filter, publish.topic)]
                found = [each for each in there if each.due(publish)]
                if publish.since > session.until:
                    break
                if not found:
                    _at_most_once(publish, there, (publish.stream, publish.sequence) in came, verdict)
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


def _at_most_once(publish: Publish, there: list[Subscription], came: bool, verdict: Verdict) -> None:
    """Count a message to a subscription with QoS 0, of which nothing is promised."""
    if any(each.qos == 0 and each.asked.ended <= publish.since < each.until for each in there):
        verdict.at_most_once["due"] += 1
        verdict.at_most_once["came"] += came


def _lost_to_groups(whole: Whole, verdict: Verdict) -> None:
    """Check that an acknowledged message comes to one member of each group that was there before it was sent. A message
    on its way to a member whose session ended need not be sent to another one [MQTT-4.8.2-5]: it is not judged if the
    session of a member was there, and ended, before nothing was on its way any more."""
    members: dict[str, list[tuple[Session, Subscription]]] = defaultdict(list)
    for session in whole.all_sessions():
        for each in session.subscriptions:
            if each.group:
                members[each.group].append((session, each))
    came = {(each.client, each.stream, each.sequence) for found in whole.came.values() for each in found}
    for group, those in members.items():
        published = whole.acknowledged(group)
        since = [each.since for each in published]
        clients = {each.asked.client for _, each in those}
        there: dict[int, Subscription] = {}
        # The times of members whose sessions ended, or may have.
        doubtful: list[tuple[float, float]] = []
        for session, each in those:
            until = min(session.until, each.until)
            if until < inf or not session.open:
                doubtful.append((each.asked.began, until))
            for at in range(bisect_left(since, each.asked.ended), bisect_left(since, until)):
                if each.due(published[at]):
                    there.setdefault(at, each)
        for at, each in sorted(there.items()):
            publish = published[at]
            rest = whole.rest(publish.ended)
            if any((client, publish.stream, publish.sequence) in came for client in clients):
                verdict.keep("lost to a group")
            elif any(began <= rest and publish.since < whole.seen(end) and end <= rest for began, end in doubtful):
                verdict.unjudged["lost to a group"] += 1
            else:
                what = f"{publish.topic} {publish.sequence} was acknowledged and came to no member of {group}"
                verdict.hold("lost to a group", False, _statement(publish.qos), group, (each.asked, publish), what)


def _starved(whole: Whole, verdict: Verdict) -> None:
    """Check that a member of a share group that stays connected gets some of many messages. It is the purpose of the
    group, not a statement."""
    groups: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for (client, at), deliveries in whole.came.items():
        for each in deliveries if at >= 0 else ():
            heard = whole.sessions[client][at].hears(each.stream[1])
            publish = whole.messages.get((each.stream, each.sequence))
            if len(heard) == 1 and heard[0].group and publish is not None:
                groups[heard[0].group].append((each.at, publish.since, client))
    for session in whole.all_sessions():
        for subscription in session.subscriptions:
            if not subscription.group:
                continue
            came = sorted(groups[subscription.group])
            times = [at for at, _, _ in came]
            for connect in session.connections:
                over = whole.ended.get(connect.number)
                begin = max(connect.ended, subscription.asked.ended)
                end = min(subscription.until, inf if over is None else over.at)
                span = [each for each in came[bisect_left(times, begin) : bisect_left(times, end)] if each[1] >= begin]
                own = sum(client == connect.client for _, _, client in span)
                if len(span) - own >= STARVED:
                    what = f"it stayed connected, and got none of {len(span)} messages to {subscription.group}"
                    shown = (connect, subscription.asked)
                    verdict.hold("starved", own > 0, "section 4.8.2", connect.client, shown, what)


def _first_of_group(whole: Whole, verdict: Verdict) -> None:
    """Check that what was published while no member of a group was connected comes to the one that connects first. No
    statement says so: brokers differ. A message that came to another one is a finding if that one connected `FIRST`
    seconds later, and the first one was still there; nothing may have been wrong with the broker meanwhile."""
    groups: dict[str, list[tuple[Session, Subscription]]] = defaultdict(list)
    for session in whole.all_sessions():
        for each in session.subscriptions:
            if each.group:
                groups[each.group].append((session, each))
    copies: dict[tuple[Stream, int], list[Delivery]] = defaultdict(list)
    for deliveries in whole.came.values():
        for copy in deliveries:
            copies[copy.stream, copy.sequence].append(copy)
    for group, those in groups.items():
        clients = {each.asked.client for _, each in those}
        attempts = sorted((each for name in clients for each in whole.connects[name]), key=lambda each: each.began)
        resumed = {each.number for session, _ in those for each in session.connections[1:]}
        asked = {each.asked.client: each.asked.ended for _, each in those}
        for publish in whole.acknowledged(group):
            if not any(each.due(publish) for _, each in those):
                continue
            there = [each for each in attempts if each.began <= publish.ended]
            if any(whole.over(each) >= publish.since for each in there) or len(there) == len(attempts):
                continue
            came = [each for each in copies[publish.stream, publish.sequence] if each.client in clients]
            if not came:
                continue
            first = attempts[len(there)]
            taken = min(came, key=lambda each: each.at)
            if taken.client == first.client:
                verdict.keep("first of a group")
                continue
            its = max(
                (each for each in attempts if each.client == taken.client and each.began <= taken.at),
                key=lambda each: each.began,
            )
            if (
                first.outcome != "ok"
                or first.number not in resumed
                or asked[first.client] > first.began
                or its.began < first.ended + FIRST
                or whole.ended.get(first.number, NEVER_ENDED).at < its.began
                or whole.is_blind(first.began, its.began)
            ):
                verdict.unjudged["first of a group"] += 1
                continue
            what = f"{publish.topic} {publish.sequence} waited for {taken.client}, though {first.client} came first"
            shown = (publish, first, its, taken)
            verdict.hold("first of a group", False, "the queue of a share group", group, shown, what)


def _as_sent(whole: Whole, verdict: Verdict) -> None:
    """Check that each delivery was sent before, is unaltered, and goes to a subscriber of it, with the lower of its own
    QoS and that of the subscription; where several match, that of any. A subscription is one of the session in which
    the delivery came."""
    # By client and the number of its session.
    asked: dict[tuple[str, int], list[Subscribe]] = defaultdict(list)
    gone: dict[str, list[Unsubscribe]] = defaultdict(list)
    for change in whole.history.events:
        if isinstance(change, Subscribe) and change.outcome != "fail":
            asked[change.client, whole.session_at(change)].append(change)
        elif isinstance(change, Unsubscribe) and change.outcome == "ok":
            gone[change.client].append(change)
    for each in whole.history.of(Delivery):
        publish = whole.messages.get((each.stream, each.sequence))
        name = f"{each.stream[1]} {each.sequence}"
        if each.stream[0] == UNKNOWN:
            what = f"a message on {each.stream[1]} came with a payload that nobody sent"
            verdict.hold("altered", False, "section 3.3", each.client, (each,), what)
            continue
        if publish is None or publish.began > each.at:
            verdict.hold("as sent", False, "section 3.3", each.client, (each,), f"{name} came and was never sent")
            continue
        verdict.keep("as sent")
        shown = (publish, each)
        verdict.hold("altered", each.intact, "section 3.3", each.client, shown, f"{name} came altered")
        of_session = asked[each.client, whole.session_at(each)]
        heard = [one for one in of_session if one.number < each.number and hits(one.topic_filter, publish.topic)]
        verdict.hold("asked for", bool(heard), "section 3.3.4", each.client, shown, f"{name} matches no subscription")
        if heard:
            ends = [_withdrawn(one, gone[each.client]) for one in heard]
            _by_options(verdict, publish, each, heard, ends)
            if gone[each.client]:
                kept = any(end is None or end.ended >= publish.since for end in ends)
                what = f"{name} was published after the UNSUBACK"
                over = [end for end in ends[-1:] if end is not None]
                verdict.hold("unsubscribed", kept, "[MQTT-3.10.4-2]", each.client, (heard[-1], *over, *shown), what)
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


def _withdrawn(asked: Subscribe, gone: list[Unsubscribe]) -> Unsubscribe | None:
    """Return the UNSUBSCRIBE that ended a subscription."""
    return next((each for each in gone if each.topic_filter == asked.topic_filter and each.began > asked.began), None)


def _by_options(
    verdict: Verdict, publish: Publish, each: Delivery, heard: list[Subscribe], ends: list[Unsubscribe | None]
) -> None:
    """Check that a delivery obeys the options of the subscriptions that it may be for, and its RETAIN flag too. `ends`:
    how each of these subscriptions was ended."""
    shown: tuple[Event, ...] = (heard[-1], publish, each)
    name = f"{publish.topic} {publish.sequence}"
    if any(one.no_local for one in heard):
        kept = publish.client != each.client or not all(one.no_local for one in heard)
        verdict.hold("No Local", kept, "[MQTT-3.8.3-3]", each.client, shown, f"{name} came back to its publisher")
    if all(one.as_published for one in heard):
        what = f"{name} was published with RETAIN {int(publish.retain)} and came with {int(each.retain)}"
        kept = each.retain == publish.retain
        verdict.hold("RETAIN", kept, "[MQTT-3.3.1-13]", each.client, shown, what)
    elif publish.since > max(one.ended for one in heard):
        what = f"{name} was published after the SUBACK and came with RETAIN 1"
        verdict.hold("RETAIN", not each.retain, "[MQTT-3.3.1-12]", each.client, shown, what)
    if all(one.handling == 2 for one in heard):
        # An earlier subscription may have been there when it was published.
        kept = any(
            one.began <= publish.ended and (end is None or end.ended >= publish.since)
            for one, end in zip(heard, ends, strict=True)
        )
        what = f"{name} was retained before the SUBSCRIBE, which wanted no retained messages"
        over = [end for end in ends if end is not None]
        shown = (heard[-1], *over, publish, each)
        verdict.hold("Retain Handling", kept, "[MQTT-3.3.1-11]", each.client, shown, what)


def _copies(whole: Whole) -> Iterator[tuple[Session, list[Delivery], Publish]]:
    """Yield all deliveries of each message to each session."""
    for (client, at), deliveries in whole.came.items():
        found: dict[tuple[Stream, int], list[Delivery]] = defaultdict(list)
        for each in deliveries:
            found[each.stream, each.sequence].append(each)
        for message, copies in found.items():
            if message in whole.messages and at >= 0:
                yield whole.sessions[client][at], copies, whole.messages[message]


def _twice(whole: Whole, verdict: Verdict) -> None:
    """Check that a message of QoS 2 comes once to each session, or once for each of its filters that match and were
    granted QoS 2 [MQTT-3.3.4-2]."""
    for session, copies, publish in _copies(whole):
        plain = [each for each in copies if each.qos == 0]
        if plain and not publish.resent:
            kept = len(plain) <= max(1, len(session.hears(publish.topic)))
            what = f"{publish.topic} {publish.sequence} came {len(plain)} times with QoS 0"
            verdict.hold("twice with QoS 0", kept, "section 4.3.1", plain[0].client, (publish, *plain), what)
        twice = [each for each in copies if each.qos == 2]
        if not twice or publish.again:
            continue
        kept = len(twice) <= max(1, sum(one.qos == 2 for one in session.hears(publish.topic)))
        what = f"{publish.topic} {publish.sequence} came {len(twice)} times with QoS 2"
        promise = "will twice" if publish.will else "twice"
        verdict.hold(promise, kept, "[MQTT-4.3.3-1]", twice[0].client, (publish, *twice), what)


def _dup(whole: Whole, verdict: Verdict) -> None:
    """Check that DUP is 0 in what comes first on the first connection of a session, and 1 in what comes again with its
    packet identifier on a later one. Share groups and overlapping filters may have more than one copy."""
    for session, copies, publish in _copies(whole):
        heard = session.hears(publish.topic)
        if len(heard) != 1 or heard[0].group:
            continue
        name = f"{publish.topic} {publish.sequence}"
        first, *later = session.connections
        if not first.present and (not later or copies[0].number < later[0].number):
            what = f"{name} came with DUP 1 on the first connection of the session"
            shown: tuple[Event, ...] = (first, publish, copies[0])
            verdict.hold("DUP", not copies[0].dup, "[MQTT-3.3.1-3]", first.client, shown, what)
        for one, other in pairwise([each for each in copies if each.qos == 1 and not publish.again]):
            if 0 < one.packet_id == other.packet_id and any(one.number < each.number < other.number for each in later):
                what = f"{name} came again on another connection with DUP 0"
                shown = (publish, one, other)
                verdict.hold("DUP", other.dup, "[MQTT-3.3.1-1]", first.client, shown, what)


def _to_two_members(whole: Whole, verdict: Verdict) -> None:
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


def _order(whole: Whole, verdict: Verdict) -> None:
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
            anew = (
                publish is not None
                and publish.again
                and all(one.asked.ended > publish.began or one.until <= publish.ended for one in heard)
            )
            # With QoS 0 nothing waits for a client that is away: only the repetition may come.
            anew = anew or (each.qos == 0 and publish is not None and publish.resent)
            if each.stream[0] == UNKNOWN or message in known or anew or any(one.group for one in heard):
                continue
            known.add(message)
            before = highest.get((each.stream, each.qos))
            kept = before is None or before.sequence < each.sequence
            shown = [] if before is None else [*_published(whole, before), *_published(whole, each), before, each]
            what = f"{each.stream[1]} {each.sequence} came behind {before and before.sequence}"
            verdict.hold("order", kept, "[MQTT-4.6.0-6]", client, shown, what)
            if kept:
                highest[each.stream, each.qos] = each


def _published(whole: Whole, delivery: Delivery) -> list[Event]:
    found = whole.messages.get((delivery.stream, delivery.sequence))
    return [] if found is None else [found]


def _retained(whole: Whole, verdict: Verdict) -> None:
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
            shown = (*(newer if may else ()), look)
            what = f"{topic} is {found and found[1]} at {look.node}: a newer one was acknowledged, or it was never sent"
            verdict.hold("retained, the last", bool(may) and not newer, "[MQTT-3.3.1-5]", look.client, shown, what)
    for topic, published in by_topic.items():
        for one, other in _pairs(looks):
            # Nothing was published between the beginning of one and the end of the other.
            if any(each.ended >= one.at and each.began <= max(other.at, other.until) for each in published):
                verdict.unjudged["retained, the same"] += one.node == other.node
                verdict.unjudged["retained, each node"] += one.node != other.node
                continue
            promise = "retained, the same" if one.node == other.node else "retained, each node"
            kept = one.found.get(topic) == other.found.get(topic)
            what = f"{topic} is {one.found.get(topic)} at {one.node}, {other.found.get(topic)} at {other.node}"
            done = [each for each in published if each.outcome == "ok" and each.ended < one.at]
            shown = (*sorted(done, key=lambda each: each.ended)[-1:], one, other)
            verdict.hold(promise, kept, "[MQTT-3.3.1-5]", other.client, shown, what)


def _pairs(looks: list[Look]) -> Iterator[tuple[Look, Look]]:
    """Yield each look with the one before at its node, and with the one before at another node."""
    last: dict[str, Look] = {}
    for look in looks:
        elsewhere = [each for node, each in last.items() if node != look.node]
        if look.node in last:
            yield last[look.node], look
        if elsewhere:
            yield max(elsewhere, key=lambda each: each.at), look
        last[look.node] = look


def _sessions(whole: Whole, verdict: Verdict) -> None:
    """Check that a client finds the session that it left, and none that it did not leave."""
    for client, connects in whole.connects.items():
        there: bool | None = False  # None: nobody knows
        before: Connect | None = None
        # The last one that was answered, whatever came between.
        known: Connect | None = None
        for connect in connects:
            if connect.outcome == "fail":
                continue
            if before is not None and not before.keeps:
                over = whole.ended.get(before.number)
                # While a broker has not seen that the connection is over, the session is there.
                there = False if over is not None and whole.seen(over.at) <= connect.began else None
            if there and known is not None and _expired(whole, known, connect):
                there = None
            if connect.outcome == "unknown":
                # It may have made one, or ended it.
                there = there if there and not connect.clean and connect.keeps else None
                before = None
                continue
            shown = (connect,) if known is None else (known, connect)
            if connect.clean:
                what = "a clean start found a session"
                verdict.hold("session", not connect.present, "[MQTT-3.2.2-2]", client, shown, what)
            elif there is None:
                verdict.unjudged["session"] += 1
            else:
                what = "its session is gone" if there else "it found a session that it never left"
                verdict.hold("session", connect.present is there, "[MQTT-3.2.2-3]", client, shown, what)
            there, before, known = True, connect, connect


def _expired(whole: Whole, before: Connect, connect: Connect) -> bool:
    """Return True if a session may have expired between two connections."""
    over = whole.ended.get(before.number)
    away = connect.began - (before.began if over is None else over.at)
    return away + EXPIRY_MARGIN >= before.lasts


def _takeover(whole: Whole, verdict: Verdict) -> None:
    """Check that a new connection of a client identifier ends the one before it, with 0x8E if with any reason code."""
    pings: dict[int, list[Ping]] = defaultdict(list)
    for ping in whole.history.of(Ping):
        if ping.outcome == "ok":
            pings[ping.connection].append(ping)
    for client, connects in whole.connects.items():
        for before, after in pairwise([each for each in connects if each.outcome == "ok"]):
            over = whole.ended.get(before.number)
            if over is not None and (over.number < after.number or over.at < after.began):
                continue
            late = [each for each in pings[before.number] if each.began >= after.ended]
            shown: tuple[Event, ...] = (before, after, *late[:1])
            what = f"a connection at {before.node} is answered after another one at {after.node}"
            verdict.hold("one connection", not late, "[MQTT-3.1.4-3]", client, shown, what)
            if over is not None and (
                over.code == QUOTA_EXCEEDED
                or (over.code in LEAVES and (over.at <= after.ended or before.node != after.node))
            ):
                # A broker may have ended it for that, just before; for the others while the new one waited, and a node
                # that has hung, or stops, and knows of nothing.
                verdict.unjudged["told 0x8E"] += 1
            elif over is not None and not over.own and over.code is not None:
                what = f"the connection that was taken over ended with 0x{over.code:02x}"
                verdict.hold(
                    "told 0x8E", over.code == TAKEN_OVER, "[MQTT-3.1.4-3]", client, (before, after, over), what
                )


def _answered(whole: Whole, verdict: Verdict) -> None:
    """Check that each request of a connection that is still there has been answered."""
    present = {client: sessions[-1].connections[-1] for client, sessions in whole.sessions.items() if sessions}
    for operation in whole.history.of(Operation):
        connect = present.get(operation.client)
        if connect is None or not whole.sessions[operation.client][-1].open:
            continue
        if isinstance(operation, Publish) and operation.qos and not operation.will:
            name, statement = f"PUBLISH {operation.topic} {operation.sequence}", "[MQTT-3.3.4-1]"
        elif isinstance(operation, Subscribe) and operation.number > connect.number:
            name, statement = f"SUBSCRIBE {operation.topic_filter}", "[MQTT-3.8.4-1]"
        elif isinstance(operation, Unsubscribe) and operation.number > connect.number:
            name, statement = f"UNSUBSCRIBE {operation.topic_filter}", "[MQTT-3.10.4-4]"
        else:
            continue
        shown = (connect, operation)
        kept = operation.outcome != "unknown"
        verdict.hold("answered", kept, statement, operation.client, shown, f"{name} was never answered")


def _unsubacks(whole: Whole, verdict: Verdict) -> None:
    """Check that an UNSUBACK does not say that there was no subscription where there was one."""
    for gone in whole.history.of(Unsubscribe):
        if gone.outcome != "ok" or gone.code is None:
            continue
        session = whole.sessions[gone.client][whole.session_at(gone)]
        there = [each.asked for each in session.subscriptions if each.gone is gone]
        if there:
            what = f"the UNSUBACK says that there was no subscription to {gone.topic_filter}"
            kept = gone.code != NO_SUBSCRIPTION_EXISTED
            verdict.hold("UNSUBACK", kept, "section 3.11.3", gone.client, (there[0], gone), what)


def _protocol(whole: Whole, verdict: Verdict) -> None:
    """Check that no connection ended because the broker broke the protocol."""
    for over in whole.history.of(Ended):
        connect = whole.history.events[over.connection]
        verdict.hold("protocol", not over.broke, "section 4.13", over.client, (connect, over), over.broke)


RULES: Final = (
    _sessions, _as_sent, _lost, _lost_to_groups, _first_of_group, _starved, _twice, _dup, _to_two_members, _order,
    _retained, _takeover, _answered, _unsubacks, _protocol,
)  # fmt: skip
