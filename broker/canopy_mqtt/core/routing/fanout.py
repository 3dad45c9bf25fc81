"""Delivers a message: from its topic to the sessions whose filters match.

A message costs one look-up (none of the trie if the cache has the topic) and one step for each receiver; no lock, no
await. Its cost does not grow with the absent members of a share group nor, as long as no subscription changes, with the
number of filters that match (`recipients`). Each session whose filters match gets one delivery, with the highest QoS
among them and every subscription identifier [MQTT-3.3.4-2] [MQTT-3.3.4-3]; each share group gets one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.hooks import Permissions, Recorder
from canopy_mqtt.core.jobs import (
    MISS_LENGTH_SHIFT,
    MISS_LEVEL_WORK,
    MISS_WORK,
    OBJECT_WORK,
    WAITING_OBJECTS,
    Scheduler,
)
from canopy_mqtt.core.ledger import (
    ACCEPTED,
    EXCLUDED,
    FULL_BYTES,
    FULL_MESSAGES,
    GLOBAL,
    NO_QUOTA,
)
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.queues.message import NEAR_MAX_SIZE, Message
from canopy_mqtt.core.queues.requests import RequestMessage
from canopy_mqtt.core.routing.broadcast import (
    MAX_DIRECT_QOS0_SUBSCRIPTIONS,
    MAX_DIRECT_SUBSCRIPTIONS,
    Broadcasts,
)
from canopy_mqtt.core.routing.recipients import NO_FILTERS, build, refresh
from canopy_mqtt.core.routing.subscription_table import SubscriptionTable
from canopy_mqtt.core.routing.verdicts import BarredList, Verdicts
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.match_cache import Route
from canopy_mqtt.core.topics.subscription import (
    NO_IDENTIFIERS,
    MergedRecipient,
    Recipient,
    SharedGroup,
    Subscription,
    subscription_identifiers,
    without_own,
)

if TYPE_CHECKING:
    from canopy_mqtt.core.routing.bursts import Run
    from canopy_mqtt.core.routing.share_queues import ShareQueues

FULL: Final = frozenset({FULL_MESSAGES, FULL_BYTES, GLOBAL, NO_QUOTA})
"""The causes of a drop that say that a queue was full."""

REFUSED_BY_ALL: Final = -1
"""Answer of `deliver` in place of a count: every queue that the message was for was full."""

TOOK: Final = 1 << 32
"""A queue that took a message adds this to the sum of answers; one that was full adds 1, any other nothing."""

NO_MEMBER: Final = -7
"""Answer of `deliver_to_group` in place of a cause: no member may have the message."""

UNQUEUED: Final = -6
"""Answer in place of a cause: a message does not wait in the queue of its group, but is for a member."""

MAX_MEMBERS_TRIED: Final = 16
"""Connected members of a share group that are asked whether they have room, for one message."""


class Fanout:
    """Delivers a message to the subscribers of its topic."""

    def __init__(self, table: SubscriptionTable, totals: QueueTotals, jobs: Scheduler) -> None:
        self.table = table
        self._totals = totals
        self._cache = table.cache
        self._changes = table.cache.changes
        self.budget: Final = totals.budget
        self.permissions: Permissions | None = None  # what access control says, if there is one
        # Messages that are on their way to very many, and whether there are any.
        self.broadcasts = Broadcasts(self, totals, jobs)
        self.broadcasting = False
        self.at_once: i64 = MAX_DIRECT_SUBSCRIPTIONS
        self.barred = BarredList()  # deliveries that access control has not allowed
        self.share_queues: ShareQueues | None = None  # the router's

    # -- routes --------------------------------------------------------------------------------------------------------

    def route(self, topic: bytes, asking: bool = True) -> Route | None:
        """Return the cached route of a topic with its present recipients; None: it is not cached.

        Without `asking`: None as well if access control would have to be asked for it.
        """
        # `MatchCache.lookup`, spelled out: this is asked for every message.
        cache = self._cache
        route = cache.routes.get(topic)
        if route is not None:
            route.used = True
            cache.hits += 1
            permissions = self.permissions
            stamp: i64 = NO_FILTERS
            if permissions is not None:
                stamp = permissions.delivery_stamp()
            if route.as_of != self._changes.count or route.stamp != stamp:
                if not asking and stamp != NO_FILTERS:
                    return None
                now: i64 = self._changes.count
                cache.renew(route)
                if route.built_of != route.version or route.stamp != stamp:
                    self.budget.used += refresh(route, cache, permissions, stamp, self.at_once)
                else:
                    # What has changed is about other topics.
                    route.as_of = now
        return route

    def new_route(self, topic: bytes) -> Route:
        """Return the route of a topic that is not cached, from the trie, with its present recipients."""
        # Filters that a client chose decide how far the trie is walked: the publisher pays for it in turns.
        trie = self.table.trie
        before = trie.probes
        route = self._cache.store(topic)
        self._cache.renew(route)
        walked = trie.probes - before + MISS_LEVEL_WORK * topic.count(b"/") + (len(topic) >> MISS_LENGTH_SHIFT)
        self.budget.used += MISS_WORK + walked
        permissions = self.permissions
        stamp: i64 = NO_FILTERS if permissions is None else permissions.delivery_stamp()
        self.budget.used += refresh(route, self._cache, permissions, stamp, self.at_once)
        return route

    # -- one message ---------------------------------------------------------------------------------------------------

    def _record(self, route: Route, message: Message) -> Recorder | None:
        """Record a message if a recorder wants it. Return the recorder if it wants the deliveries, too."""
        tap = self._totals.tap
        if tap is None or not route.tapped:
            return None
        tap.message(message, self._totals.now)
        return tap if tap.deliveries else None

    def deliver(self, route: Route, message: Message, origin: Session | None, records: bool = True) -> int:
        """Deliver a message to the sessions whose filters match its topic, and to no others [MQTT-3.3.2-3].

        Except its own publisher, where that said No Local [MQTT-3.8.3-3]. It goes out with the lower of its QoS and the
        granted one [MQTT-3.8.4-8], and with RETAIN only where it came with it and Retain As Published is set
        [MQTT-3.3.1-12] [MQTT-3.3.1-13], which no 3.1.1 client has [MQTT3-3.3.1-9] but a bridge. `records`: the
        recorder, if one wants it, has not had it.

        Returns how many sessions and groups it was for; `REFUSED_BY_ALL` where a message of QoS 1 or 2 found every
        queue full (the publisher of one with QoS 0 is not told).
        """
        tap = self._record(route, message) if route.tapped and records else None
        if self.broadcasting and message.topic in self.broadcasts.topics and tap is None and self._may_wait(message):
            # Behind those of its topic, however many listen by now.
            return self.broadcasts.begin(route, message, origin)
        # The publisher is told how the queues answered.
        asked = message.qos > 0
        listeners: i64 = route.listeners
        if listeners > self.at_once:
            if (
                tap is None
                and (not route.built or (not route.own_list and (asked or listeners > MAX_DIRECT_QOS0_SUBSCRIPTIONS)))
                and self._may_wait(message)
            ):
                return self.broadcasts.begin(route, message, origin)
            if not route.built:
                self.budget.used += build(route, self._cache)
        if route.barred is not None:
            self.barred.count(route.barred)
        count: i64 = 0
        answers: i64 = 0
        slow: i64 = 0
        tagged: i64 = 0
        # `Message.shared_frame_suits`, spelled out.
        shared = message.expires_at == 0.0 and message.size < NEAR_MAX_SIZE
        sole = route.sole
        for recipient in route.receivers if sole is None else [sole]:
            session = recipient.session
            if recipient.no_local and session is origin:
                others = without_own(recipient)
                if others is None:
                    continue
                recipient = others
            count += 1
            qos = message.qos if message.qos < recipient.qos else recipient.qos
            send_buffer = session.send_buffer
            if (
                qos == 0
                and send_buffer is not None
                and session.fast_path
                and recipient.plain
                and shared
                and not (message.retain and recipient.retain_as_published)
            ):
                # The common case, spelled out: the same frame for all, straight to the send buffer.
                session.offered += 1
                frame = message.frame_v5 if session.v5 else message.frame_v3
                answer = send_buffer.offer(frame if frame is not None else message.qos0_frame(session.v5))
                if asked:
                    answers += _answer_weight(answer)
                continue
            slow += 1
            retain = message.retain and recipient.retain_as_published
            identifiers = NO_IDENTIFIERS if recipient.plain else subscription_identifiers(recipient)
            answer = session.deliver(message, qos, retain, identifiers, None, recipient.message_terms)
            if answer == EXCLUDED:
                count -= 1
                continue
            queue = session.made_queue
            if qos > 0 and queue is not None and queue.messages > 0:
                slow += WAITING_OBJECTS
            if answer == ACCEPTED and isinstance(recipient, MergedRecipient):
                tagged += len(identifiers)  # they are in every copy that is written
            if answer == ACCEPTED:
                answers += TOOK
            else:
                answers += _answer_weight(answer)
            if tap is not None:
                _tell(tap, answer, session.client_id, qos, retain, None)
        for group in route.groups:
            answer = self.deliver_to_group(group, message, route.verdicts, tap)
            if answer != NO_MEMBER:
                count += 1
                slow += 1
                answers += _answer_weight(answer)
        self.budget.used += count + slow * (OBJECT_WORK - 1) + tagged
        if asked and 0 < answers < TOOK:
            return REFUSED_BY_ALL
        return count

    # -- frames as they came -------------------------------------------------------------------------------------------

    def offer_plain(
        self, recipient: Recipient, frames: bytes, count: int, largest: int, v5: bool, origin: Session | None
    ) -> bool:
        """Offer the bytes that came in to one receiver, if they suit: no object is made for them.

        `count` QoS 0 frames side by side, the longest of `largest` bytes, in the layout of 5.0 or of 3.1.1. False, and
        nothing has happened, when they are to be looked at one by one.
        """
        session = recipient.session
        send_buffer = session.send_buffer
        if (
            send_buffer is None
            or not (session.fast_path or session.takes_frames_of(origin))
            or session.v5 != v5
            or not recipient.plain
            or (recipient.no_local and session is origin)
        ):
            return False
        session.offered += count
        send_buffer.offer_run(frames, count, largest)
        self.budget.used += count
        return True

    def forward_run(self, run: Run, route: Route, origin: Session | None) -> None:
        """Offer a run to all receivers at the one filter that its topics match (`Route.run_key`)."""
        slow: i64 = 0
        for recipient in route.recipients():
            session = recipient.session
            if recipient.no_local and session is origin:
                continue
            its = run
            if (
                session.v5 != run.v5
                and (session.fast_path or session.takes_frames_of(origin))
                and session.send_buffer is not None
            ):
                its = run.translated()
            if not (
                self.offer_plain(recipient, its.data, its.count, its.largest, its.v5, origin)
                or session.excludes(origin)
            ):
                identifiers = subscription_identifiers(recipient)
                for message in run.messages():
                    session.deliver(message, 0, False, identifiers, None, recipient.message_terms)
                slow += 1
        self.budget.used += OBJECT_WORK * slow * run.count
        if route.run_key is not None:
            route.run_key.set_slow(slow)

    # -- a message for very many ---------------------------------------------------------------------------------------

    def _may_wait(self, message: Message) -> bool:
        """Return False for a message that access control filters, and for a request."""
        permissions = self.permissions
        return (permissions is None or not permissions.filters) and not isinstance(message, RequestMessage)

    def would_wait(self, topic: bytes) -> bool:
        """Return whether a publish to a topic comes after those that are on their way: it is, or may be, for very many.

        Or one of them is of its topic: fewer may listen there by now, and they are still to get that one before.
        """
        if topic in self.broadcasts.topics:
            return True
        route = self.route(topic)
        return route is None or route.listeners > self.at_once

    # -- share groups --------------------------------------------------------------------------------------------------

    def verdicts(self, topic: bytes) -> Verdicts | None:
        """Return what is known of who may have a message of a topic; None: all may have it."""
        permissions = self.permissions
        if permissions is None or not permissions.filters:
            return None
        route = self.route(topic)
        return self.new_verdicts(topic) if route is None else route.verdicts

    def new_verdicts(self, topic: bytes) -> Verdicts | None:
        """The same, and nothing is known yet."""
        permissions = self.permissions
        return None if permissions is None or not permissions.filters else Verdicts(topic, permissions)

    def choose(self, group: SharedGroup, message: Message, verdicts: Verdicts | None) -> Subscription | None:
        """Return the member of a share group that gets a message [MQTT-4.8.2-3]; None: none may, or there is none.

        The next connected one in turn that has room for it and an open window. If none has, the next connected one: its
        queue takes the message, or drops one. If none is connected, the next of the others: the message is for the
        queue of the group. `verdicts` says who may have it. One whose Maximum Packet Size it exceeds is chosen only if
        there is no other. `MAX_MEMBERS_TRIED` are asked at most.
        """
        if verdicts is None:
            return _choose(group, message, None)
        before = verdicts.work()
        held = verdicts.references()
        chosen = _choose(group, message, verdicts)
        work = verdicts.work() - before
        if work > 0:
            # Access control was asked about members: the publisher is charged.
            self.budget.used += work
            route = self._cache.routes.get(message.topic)
            if route is not None and route.verdicts is verdicts:
                self._cache.charge(route, route.references + verdicts.references() - held)
        return chosen

    def deliver_to_one_group(self, group: SharedGroup, message: Message) -> int:
        """Deliver a message that is for one share group alone, and record it if a recorder wants it. Return 0 if it is
        for no member, else 1."""
        tap: Recorder | None = None
        if self._totals.tap is not None:
            tap = self._record(self.route(message.topic) or self.new_route(message.topic), message)
        return 0 if self.deliver_to_group(group, message, self.verdicts(message.topic), tap) == NO_MEMBER else 1

    def deliver_to_group(
        self, group: SharedGroup, message: Message, verdicts: Verdicts | None, tap: Recorder | None
    ) -> int:
        """Deliver a message to a member of a share group, or to the queue of the group. Return the answer.

        To the queue where no member is connected, and behind what waits there. EXCLUDED: the store that brokers share
        has the queue, and the members (`core.shared`). NO_MEMBER: no member may have it, which is counted as refused to
        the one whose turn it is.
        """
        member = self.choose(group, message, verdicts)
        if member is None:
            barred = None if verdicts is None else group.next_member()
            if barred is not None:
                barred.session.ledger.barred(barred.session.principal, message.topic, False)
            return NO_MEMBER
        if message.qos > 0 and member.session.claim is not None:
            return EXCLUDED
        queues = self.share_queues
        waits = group.queue is not None or not (member.present or group.connected.count > 0)
        if waits and queues is not None and group.home is None:  # a queue is at the group's home alone
            answer = queues.add(group, member, message)
            if answer != UNQUEUED:
                if tap is not None:
                    name = group.full_name
                    _tell(tap, answer, name, min(message.qos, group.highest_qos), False, name)
                return answer
        answer = deliver_to_member(member, group, message, verdicts)
        if tap is not None:
            # By the name of the group: that of a worker's subscription says how many members it has.
            qos, retain = share_qos(message, member, verdicts), message.retain and member.retain_as_published
            _tell(tap, answer, member.session.client_id, qos, retain, group.full_name)
        return answer


def _tell(tap: Recorder, answer: int, client_id: str, qos: int, retain: bool, shared: str | None) -> None:
    """Record how a session, or the queue of a group, answered to a message."""
    if answer == ACCEPTED:
        tap.delivered(client_id, qos, retain, shared)
    else:
        tap.refused(client_id, answer, shared)


def _answer_weight(answer: int) -> i64:
    """Return what a queue's answer adds to a sum of answers."""
    if answer == ACCEPTED:
        return TOOK
    return 1 if answer in FULL else 0


def share_qos(message: Message, member: Recipient, verdicts: Verdicts | None) -> int:
    """Return the QoS with which a member of a share group is sent a message; `verdicts` None: as it was granted."""
    qos = message.qos if message.qos < member.qos else member.qos
    return qos if verdicts is None else min(qos, verdicts.find(member.session))


def deliver_to_member(member: Subscription, group: SharedGroup, message: Message, verdicts: Verdicts | None) -> int:
    """Offer a message to a member of a share group, as its own subscription has it [MQTT-3.3.1-12]: its answer."""
    qos, retain = share_qos(message, member, verdicts), message.retain and member.retain_as_published
    return member.session.deliver(message, qos, retain, subscription_identifiers(member), group, member.message_terms)


def _choose(group: SharedGroup, message: Message, verdicts: Verdicts | None) -> Subscription | None:
    size = message.size
    for _ in range(min(group.connected.count, MAX_MEMBERS_TRIED)):
        member = group.next_member() if verdicts is None else _next_connected(group, verdicts)
        if member is None:
            break
        session = member.session
        send_buffer = session.send_buffer
        qos = message.qos if message.qos < member.qos else member.qos
        if (
            send_buffer is not None
            and send_buffer.has_room(size)
            and (qos == 0 or takes_at_once(session))
            and not group.is_busy(member)
            and fits(message, member)
        ):
            return member
        group.pass_over(member)
    # No member is connected, or none has room: the next in turn takes it, so that each has its share of these.
    member = _next_in_turn(group, verdicts)
    if member is None or fits(message, member):
        return member
    for _ in range(min(group.connected.count, MAX_MEMBERS_TRIED)):
        other = _next_in_turn(group, verdicts)
        if other is not None and fits(message, other):
            return other
    other = group.next_member(True) if verdicts is None else verdicts.permitted(group, group.away).next_member(verdicts)
    return member if other is None else other


def _next_in_turn(group: SharedGroup, verdicts: Verdicts | None) -> Subscription | None:
    """Return the member whose turn it is, of those that may have the message: a connected one if there is one."""
    if verdicts is None:
        return group.next_member()
    member = _next_connected(group, verdicts)
    return verdicts.permitted(group, group.away).next_member(verdicts) if member is None else member


def fits(message: Message, member: Subscription) -> bool:
    """Return whether a member can be sent a message: no client that is connected has said that it takes none so large.

    A link says so once the message is as its upstream broker gets it.
    """
    session = member.session
    send_buffer = session.send_buffer
    if send_buffer is None or session.upstream:
        return True
    qos = message.qos if message.qos < member.qos else member.qos
    return send_buffer.refusal(message, qos, subscription_identifiers(member)) == ACCEPTED


def takes_at_once(session: Session) -> bool:
    """Return whether no message waits in a session and its window is open, so that the next is sent at once."""
    return session.send_quota() > 0 and (session.made_queue is None or session.made_queue.pending is None)


def _next_connected(group: SharedGroup, verdicts: Verdicts) -> Subscription | None:
    """Return the member whose turn it is, of the connected ones that may have the message."""
    return None if group.connected.count == 0 else verdicts.permitted(group, group.connected).next_member(verdicts)
