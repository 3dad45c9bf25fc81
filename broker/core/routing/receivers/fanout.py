"""Finds the receivers of a message: from the filters that match its topic to the sessions behind them.

A message costs one look-up (none of the trie if the cache has the topic) and one step for each receiver; no lock, no
await. Its cost does not grow with the absent members of a share group nor, as long as no subscription changes, with the
number of filters behind a plan (`plans`). Each session whose filters match gets one delivery, with the highest QoS
among them and every subscription identifier [MQTT-3.3.4-2] [MQTT-3.3.4-3]; each share group gets one.
"""

from __future__ import annotations

from typing import Final, cast

from mypy_extensions import i64

from broker.core.counters import FULL_BYTES, FULL_MESSAGES, GLOBAL, NO_QUOTA
from broker.core.permissions import NEVER_MADE, Permissions
from broker.core.persistence.journal import Journal
from broker.core.queues.live.outbox import ACCEPTED, KEPT_BACK
from broker.core.queues.message import Message
from broker.core.queues.queue_totals import QueueTotals
from broker.core.queues.requests import RequestMessage
from broker.core.routing.deadlines import Deadlines
from broker.core.routing.in_turns.broadcasts import (
    BROADCAST,
    PLAIN_BROADCAST,
    Broadcast,
    BroadcastLine,
    Interrupted,
    listeners,
)
from broker.core.routing.receivers.bursts import Run
from broker.core.routing.receivers.plans import FanoutPlan
from broker.core.routing.receivers.reach import BarredList, Reach, share_qos
from broker.core.routing.subscription_table import SubscriptionTable
from broker.core.session.session import Session
from broker.core.tap import Tap
from broker.core.topics.route import Route
from broker.core.topics.subscription import FilterEntry, SharedGroup, Subscription, identifiers

FULL: Final = frozenset({FULL_MESSAGES, FULL_BYTES, GLOBAL, NO_QUOTA})
"""The causes of a drop that say that a queue was full."""

REFUSED_BY_ALL: Final = -1
"""Answer of `forward` and `spread` in place of a count: every queue that the message was for was full."""

NOBODY: Final = -4
"""Answer of a share group without a member, beside those of `Session.deliver`."""

TOOK: Final = 1 << 32
"""What a queue that took a message adds to the sum of answers; one that was full adds 1, any other nothing."""

MOST_IN_LINE: Final = 8
"""Messages that are on their way to very many, each with a list of them. Clients wait before they publish another;
links and the broker itself do not: for one more of theirs, the first in line goes at once to all who are left."""

SLOW: Final = 16
"""What a delivery that has an object of its own (about a microsecond) counts for in a turn, in deliveries of bytes."""

WAITS: Final = 2
"""How many more such deliveries one counts for that has to wait in its session, in memory that is new."""


class Fanout:
    """Delivers a message to the subscribers of its topic."""

    def __init__(self, table: SubscriptionTable, load: QueueTotals, deadlines: Deadlines) -> None:
        self.table = table
        self._deadlines = deadlines
        self._load = load
        self._cache = table.cache
        # Deliveries, and what else is charged to whoever caused it; only grows.
        self.work: i64 = 0
        self.tap: Tap | None = None  # who records what happens, if anybody does; see `Router.record`
        self.permissions: Permissions | None = None  # what access control says, if there is one
        # The same where it wants to know whom a message went to, and only while one that is recorded is routed.
        self._telling: Tap | None = None
        # Messages that are on their way to very many; whether there are any; who keeps what is accepted, if anybody.
        self.line = BroadcastLine()
        self._broadcasts = self.line.broadcasts
        self.broadcasting = False
        self.journal: Journal | None = None
        self.at_once: i64 = BROADCAST
        self.barred = BarredList()  # deliveries that access control has not allowed

    def charge(self, work: i64) -> None:
        """So much was done for whoever publishes now."""
        self.work += work

    def forward(self, route: Route, message: Message, origin: Session | None) -> int:
        """Have a message recorded, and offer it to everybody on the route: see `spread`."""
        tap = self.tap
        if tap is None or not route.tapped:
            return self.spread(route, message, origin)
        tap.message(message, self._load.now)
        if not tap.deliveries:
            return self.spread(route, message, origin)
        self._telling = tap
        try:
            return self.spread(route, message, origin)
        finally:
            self._telling = None

    def sole_receiver(self, route: Route, qos: i64) -> Session | None:
        """Who alone gets what goes this way, with this QoS and nothing of its own; None: `forward` finds them."""
        entries = route.entries
        if len(entries) != 1 or route.tapped or not self.open(route):
            return None
        sole = entries[0].sole
        if sole is None or i64(sole.qos) < qos or sole.identifier > 0 or sole.no_local or sole.sub_queue is not None:
            return None
        return cast(Session, sole.session)

    def open(self, route: Route) -> bool:
        """Whether everybody on a route may have what goes this way, so that nobody need be asked."""
        permissions = self.permissions
        return permissions is None or not permissions.filters or self._limited(route, permissions) is None

    def _limited(self, route: Route, permissions: Permissions) -> Reach | None:
        """Who may have what goes this way, if that is not everybody; worked out again when something has changed."""
        stamp = permissions.stamp()
        if route.open_stamp == stamp and route.open_version == route.version():
            return None
        reach = cast("Reach | None", route.reach)
        if reach is None or not reach.holds(stamp, route.version()):
            reach = self._reach(route, permissions, stamp, reach)
        return None if reach.everybody else reach

    def _reach(self, route: Route, permissions: Permissions, stamp: int, before: Reach | None) -> Reach:
        entries = route.entries
        # Before anybody is asked: what changes meanwhile is not in the answers.
        version = route.version()
        reach = Reach(route.topic, permissions)
        if len(entries) == 1:
            reach.look(entries[0], None, before)
        if len(entries) > 1 or reach.lowered:
            reach.look(None, self._plan(route), before)
        else:
            # Of a time when some were sent less than they were granted.
            route.plan = None
        reach.made_for(stamp, version)
        route.reach = reach
        route.open_stamp = stamp if reach.everybody else NEVER_MADE
        route.open_version = version
        self.work += reach.references + reach.asked * (SLOW + permissions.source.ask_work)
        self._cache.charge(route, reach.references)
        return reach

    def spread(self, route: Route, message: Message, origin: Session | None) -> int:
        """Offer a message to everybody on a route: those whose filters match its topic, and nobody else [MQTT-3.3.2-3].

        Except its own publisher, where that said No Local [MQTT-3.8.3-3]. It goes out with the lower of its QoS and the
        granted one [MQTT-3.8.4-8], and with RETAIN only where it came with it and Retain As Published is set
        [MQTT-3.3.1-12] [MQTT-3.3.1-13], which no 3.1.1 client has [MQTT3-3.3.1-9] but a bridge.

        Returns how many sessions and groups it was for; `REFUSED_BY_ALL` where a message of QoS 1 or 2 found every
        queue full (one of QoS 0 has nobody who wants to know).
        """
        if self.broadcasting and message.topic in self.line.topics and self._may_wait(message):
            # Behind those of its topic, however many listen by now.
            return self._begin_broadcast(route, message, origin)
        entries = route.entries
        reach: Reach | None = None
        permissions = self.permissions
        if permissions is not None and permissions.filters:
            reach = self._limited(route, permissions)
            if reach is not None and reach.barred:
                self.barred.count(reach)
            if reach is not None and reach.lowered:
                return self._forward_plan(self._plan(route), message, origin, reach)
        if len(entries) == 1:
            entry = entries[0]
            count: i64 = 0
            answers: i64 = 0
            slow: i64 = 0
            sharable = message.sharable()
            # Somebody will want to know how the queues answered.
            asked = message.qos > 0
            subscriptions = entry.subscriptions
            if (
                len(subscriptions) > self.at_once
                and (asked or len(subscriptions) > PLAIN_BROADCAST)
                and self._may_wait(message)
            ):
                return self._begin_broadcast(route, message, origin)
            for subscription in subscriptions if reach is None else reach.subscriptions:
                session = cast(Session, subscription.session)
                if subscription.no_local and session is origin:
                    continue
                count += 1
                qos = message.qos if message.qos < subscription.qos else subscription.qos
                outbox = session.outbox
                if (
                    qos == 0
                    and outbox is not None
                    and session.fast_path
                    and subscription.identifier == 0
                    and subscription.sub_queue is None
                    and sharable
                    and not (message.retain and subscription.retain_as_published)
                ):
                    # The common case, spelled out: the same frame for everybody, straight to the outbox.
                    session.offered += 1
                    frame = message.frame_v5 if session.v5 else message.frame_v3
                    answer = outbox.offer(frame if frame is not None else message.qos0_frame(session.v5))
                    if asked:
                        answers += _weight(answer)
                    continue
                slow += 1
                retain = message.retain and subscription.retain_as_published
                answer = session.deliver(message, qos, retain, identifiers(subscription), None, subscription.sub_queue)
                if answer == KEPT_BACK:
                    count -= 1
                    continue
                if qos > 0 and session.queue.messages > 0:
                    slow += WAITS
                answers += _weight(answer)
                if self._telling is not None:
                    self._tell(answer, session, qos, retain, None)
            groups = entry.groups
            if groups:
                for group in groups.values():
                    answer = self._share(group, message, reach)
                    if answer != NOBODY:
                        count += 1
                        slow += 1
                        answers += _weight(answer)
            self.work += count + slow * (SLOW - 1)
            if asked and 0 < answers < TOOK:
                return REFUSED_BY_ALL
            return count
        if not entries:
            return 0
        plan = self._known_plan(route)
        if plan is None:
            if listeners(route) > self.at_once and self._may_wait(message):
                # To make one would take long.
                return self._begin_broadcast(route, message, origin)
            plan = self._plan(route)
        return self._forward_plan(plan, message, origin, reach)

    # -- a message for very many ---------------------------------------------------------------------------------------

    def _may_wait(self, message: Message) -> bool:
        """Not for a record of deliveries, access control, or a request."""
        permissions = self.permissions
        return (
            self._telling is None
            and (permissions is None or not permissions.filters)
            and not isinstance(message, RequestMessage)
        )

    def would_wait(self, topic: bytes) -> bool:
        """Whether a publish to a topic comes after those that are on their way: it is for very many, or may be.

        Or one of them is of its topic: fewer may listen there by now, and they are still to get that one before.
        """
        if topic in self.line.topics:
            return True
        route = self._cache.lookup(topic)
        return route is None or listeners(route) > self.at_once

    def _begin_broadcast(self, route: Route, message: Message, origin: Session | None) -> int:
        """Have a message go to very many from the next turn on. How many they are."""
        broadcasts = self._broadcasts
        if len(broadcasts) >= MOST_IN_LINE and self._broadcast_turn(broadcasts[0], 1 << 60):  # all of it
            self.line.went()
        broadcast = self.line.add(route, message, origin, self.journal)
        self.broadcasting = True
        self.work += SLOW + broadcast.count // 64  # they are written down
        self._deadlines.set(self, self._load.now)
        return broadcast.count

    def resume(self, interrupted: Interrupted, now: float) -> None:
        """Have a message that was on its way when the last broker died go on in the next turn: all are there then."""
        self.line.resume(interrupted)
        self.broadcasting = True
        self._deadlines.set(self, now)

    def work_off(self, until: i64) -> None:
        """Hand messages to very many, until `work` has come to `until`: the first message first."""
        self.line.begin_interrupted(self._cache, self.journal)
        broadcasts = self._broadcasts
        while broadcasts and self.work < until:
            if self._broadcast_turn(broadcasts[0], until):
                self.line.went()
        self.broadcasting = len(broadcasts) > 0
        if self.broadcasting:
            self._deadlines.set(self, self._load.now)

    def _broadcast_turn(self, broadcast: Broadcast, until: i64) -> bool:
        """Go on with one message. True when all have it."""
        message = broadcast.message
        reach = broadcast.reach(self.permissions)
        each: i64 = 1 if reach is None else 1 + SLOW + reach.ask_work
        while self.work < until:
            subscription = broadcast.step()
            if subscription is None:
                for group in broadcast.groups:
                    if group.size > 0:
                        self._share(group, message, reach)
                        self.work += SLOW
                broadcast.end()
                plan = broadcast.plan()
                if plan is not None:
                    self._keep_plan(broadcast.route, plan, broadcast.version)
                return True
            self.work += each
            if broadcast.deliver(subscription, reach):
                self.work += SLOW + (len(broadcast.entries) >> 1)
        return False

    def _tell(self, answer: int, session: Session, qos: int, retain: bool, shared: str | None) -> None:
        """Have it recorded how a session answered to the message that is being routed."""
        tap = self._telling
        if tap is None:
            return
        if answer == ACCEPTED:
            tap.delivered(session.client_id, qos, retain, shared)
        else:
            tap.refused(session.client_id, answer, shared)

    def offer_plain(
        self, subscription: Subscription, frames: bytes, count: int, largest: int, v5: bool, origin: Session | None
    ) -> bool:
        """Offer the bytes that came in to one who listens there, if they suit: no object is made for them.

        `count` QoS 0 frames side by side, the longest of `largest` bytes, in the layout of 5.0 or of 3.1.1. False, and
        nothing has happened, when they are to be looked at one by one.
        """
        session = cast(Session, subscription.session)
        outbox = session.outbox
        if (
            outbox is None
            or not session.fast_path
            or session.v5 != v5
            or subscription.identifier != 0
            or subscription.sub_queue is not None
            or (subscription.no_local and session is origin)
        ):
            return False
        session.offered += count
        outbox.offer_run(frames, count, largest)
        self.work += count
        return True

    def forward_run(self, run: Run, entry: FilterEntry, origin: Session | None) -> None:
        """Offer a run to everybody at the one filter that its topics match; the filter has no share groups."""
        slow: i64 = 0
        for subscription in entry.subscriptions:
            session = cast(Session, subscription.session)
            if subscription.no_local and session is origin:
                continue
            its = run
            if session.v5 != run.v5 and session.fast_path and session.outbox is not None:
                its = run.translated()
            if not self.offer_plain(subscription, its.data, its.count, its.largest, its.v5, origin):
                for message in run.messages():
                    session.deliver(message, 0, False, identifiers(subscription), None, subscription.sub_queue)
                slow += 1
        self.work += SLOW * slow * run.count
        entry.took_one_by_one(slow)

    def _plan(self, route: Route) -> FanoutPlan:
        """The merged targets of a route with several entries."""
        plan = self._known_plan(route)
        if plan is None:
            plan = FanoutPlan(route.entries)
            # Also what many subscriptions of one session took: whoever changes one of them each time pays for all.
            self.work += plan.references + plan.looked
            self._keep_plan(route, plan, route.version())
        return plan

    def _known_plan(self, route: Route) -> FanoutPlan | None:
        """The plan of a route, mended where one of its entries has changed; None: it is to be made (again)."""
        version = route.version()
        plan = cast("FanoutPlan | None", route.plan)
        if plan is None or route.plan_version == version:
            return plan
        made: i64 = plan.made
        if not plan.mend(route.entries):
            route.plan = None
            return None
        self.work += (1 + plan.made - made) * len(route.entries) + len(plan.groups)
        self._keep_plan(route, plan, version)
        return plan

    def _keep_plan(self, route: Route, plan: FanoutPlan, version: int) -> None:
        route.plan = plan
        route.plan_version = version
        self._cache.charge(route, plan.references)

    def _forward_plan(self, plan: FanoutPlan, message: Message, origin: Session | None, reach: Reach | None) -> int:
        count: i64 = 0
        answers: i64 = 0
        tagged: i64 = 0
        waits: i64 = 0
        for target in plan.targets if reach is None else reach.targets:
            if target.no_local and target.session is origin:
                if target.rest is None:
                    continue
                target = target.rest
            qos = message.qos if message.qos < target.qos else target.qos
            retain = message.retain and target.retain_as_published
            answer = target.session.deliver(message, qos, retain, target.identifiers, None, target.sub_queue)
            if answer == KEPT_BACK:
                continue
            count += 1
            if qos > 0 and target.session.queue.messages > 0:
                waits += WAITS
            if answer == ACCEPTED:
                tagged += len(target.identifiers)  # they are in every copy that is written
            answers += _weight(answer)
            if self._telling is not None:
                self._tell(answer, target.session, qos, retain, None)
        for group in plan.groups:
            answer = self._share(group, message, reach)
            if answer != NOBODY:
                count += 1
                answers += _weight(answer)
        self.work += SLOW * (count + waits) + tagged
        if message.qos > 0 and 0 < answers < TOOK:
            return REFUSED_BY_ALL
        return count

    def _share(self, group: SharedGroup, message: Message, reach: Reach | None) -> int:
        """Give a message to one member: the next that is connected and has room, else connected, else any.

        Of those who may have it; where none may, a delivery is refused to the one whose turn it is. No more than
        `TRIES` are asked for room. Returns how its session answered, or NOBODY.

        [MQTT-4.8.2-3]
        """
        chosen = self.choose(group, message, reach)
        if chosen is None:
            member = None if reach is None else group.next_member()
            if member is not None:
                session = cast(Session, member.session)
                session.ledger.barred(session.principal, message.topic, False)
            return NOBODY
        qos, session = share_qos(message, chosen, reach), cast(Session, chosen.session)
        retain = message.retain and chosen.retain_as_published
        answer = session.deliver(message, qos, retain, identifiers(chosen), group, chosen.sub_queue)
        if self._telling is not None:
            self._tell(answer, session, qos, retain, chosen.topic_filter)
        return answer

    def choose(self, group: SharedGroup, message: Message, reach: Reach | None) -> Subscription | None:
        """The member of a share group that is to have a message; None: none may, or there is none."""
        asked = 0 if reach is None else reach.asked
        chosen = choose(group, message, reach)
        self._asked(reach, asked)
        return chosen

    def _asked(self, reach: Reach | None, before: i64) -> None:
        """Access control was asked about members: charge it to whoever publishes."""
        permissions = self.permissions
        if reach is not None and permissions is not None and reach.asked != before:
            self.work += (reach.asked - before) * (SLOW + permissions.source.ask_work)
            route = self._cache.held(reach.topic.encode())
            if route is not None and route.reach is reach:
                self._cache.charge(route, reach.references)

    def reach(self, topic: bytes) -> Reach | None:
        """Who may have a message of a topic, as far as its last ones have told; None: everybody."""
        permissions = self.permissions
        if permissions is None or not permissions.filters:
            return None
        route = self._cache.lookup(topic)
        return Reach(topic, permissions) if route is None else self._limited(route, permissions)


def _weight(answer: int) -> i64:
    """What a queue's answer adds to a sum of answers."""
    if answer == ACCEPTED:
        return TOOK
    return 1 if answer in FULL else 0


TRIES: Final = 16
"""Connected members that are asked whether they have room, for one message."""


def choose(group: SharedGroup, message: Message, reach: Reach | None) -> Subscription | None:
    """The member that is to have a message; None: none may, or there is none. `reach`: who may; None: everybody."""
    size = message.size()
    for _ in range(min(group.connected.count, TRIES)):
        member = group.next_member() if reach is None else _connected(group, reach)
        if member is None:
            break
        session = cast(Session, member.session)
        outbox = session.outbox
        qos = message.qos if message.qos < member.qos else member.qos
        if (
            outbox is not None
            and outbox.has_room(size)
            and (qos == 0 or (session.window.quota > 0 and session.queue.pending is None))
        ):
            return member
    # No member is connected, or none has room: the next in turn takes it, so that each has its share of these.
    return _next(group, reach)


def _next(group: SharedGroup, reach: Reach | None) -> Subscription | None:
    """Whose turn it is, of those who may have the message: of the connected ones, or of the others if need be."""
    if reach is None:
        return group.next_member()
    member = _connected(group, reach)
    return reach.permitted(group, group.away).next_member(reach) if member is None else member


def _connected(group: SharedGroup, reach: Reach) -> Subscription | None:
    """Whose turn it is, of the connected ones who may have the message."""
    return None if group.connected.count == 0 else reach.permitted(group, group.connected).next_member(reach)
