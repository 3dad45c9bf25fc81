"""A message to very many receivers, delivered over several turns.

Owns, for one message, the subscriptions that matched when it arrived, and the progress. Promises: one delivery to each
session, as with a `FanoutPlan`; who unsubscribes before its turn gets nothing, nor does who subscribes after the
message. A journal is told of each session that has had it, so that a restarted broker continues with the others. What
it finds about few sessions with very many filters becomes their plan for the next messages.
"""

from __future__ import annotations

from collections import deque
from typing import Final, cast

from mypy_extensions import i64

from broker.core.permissions import Permissions
from broker.core.persistence.journal import Journal
from broker.core.queues.message import Message
from broker.core.routing.receivers.plans import FanoutPlan, Recipient
from broker.core.routing.receivers.reach import Reach
from broker.core.session.session import Session
from broker.core.topics.match_cache import MatchCache
from broker.core.topics.route import Route
from broker.core.topics.subscription import FilterEntry, SharedGroup, Subscription

BROADCAST: Final = 4_096
"""Subscriptions from which on a message goes to them in turns: so many deliveries, or a plan of them, are some
milliseconds."""

PLAIN_BROADCAST: Final = 16_384
"""The same for QoS 0 and a single filter, where most get the very same frame."""


def listeners(route: Route) -> i64:
    """How many ordinary subscriptions match a topic."""
    count: i64 = 0
    for entry in route.entries:
        count += entry.ordinary_count
    return count


class Broadcast:
    """One message in progress."""

    def __init__(self, route: Route, message: Message, origin: Session | None, passed: set[str] | None = None) -> None:
        """`passed`: the clients that do not get it (again), where it goes on after a restart."""
        self.message = message
        # The publishing session, for No Local.
        self.origin = origin
        self.over = False
        """Whether all have it."""
        self.route = route
        self.version = route.version()
        self.entries: list[FilterEntry] = []
        self.groups: list[SharedGroup] = []
        # How many subscriptions and groups there are.
        self.count: i64 = 0
        self._listeners: list[list[Subscription]] = []
        self._entry: i64 = 0
        self._at: i64 = 0
        self._seen: set[Session] = set()
        # Who is told of its way, and its number there.
        self._journal: Journal | None = None
        self._number = 0
        self._passed = passed
        # What a plan would have. None: it would have too many, or not those that passed, who get the next messages.
        self._targets: list[Recipient] | None = [] if passed is None else None
        for entry in route.entries:
            if not entry.retired:
                self.entries.append(entry)
                self._listeners.append(list(entry.subscriptions))
                self.groups.extend(entry.groups.values())
                self.count += len(entry.subscriptions) + len(entry.groups)

    def keep(self, journal: Journal, number: int) -> None:
        """Have a journal told of its way under that number."""
        self._journal = journal
        self._number = number

    def end(self) -> None:
        """All have it."""
        self.over = True
        if self._journal is not None:
            self._journal.broadcast_over(self._number)

    def step(self) -> Subscription | None:
        """The next subscription; None when there are no more."""
        listeners = self._listeners
        while self._entry < len(listeners):
            present = listeners[self._entry]
            if self._at < len(present):
                self._at += 1
                return present[self._at - 1]
            self._entry += 1
            self._at = 0
        return None

    def recipient(self, subscription: Subscription) -> Recipient | None:
        """All that its session has to do with the message; None where it had it, or does not subscribe any more."""
        entries = self.entries
        if subscription.entry is not entries[self._entry]:
            return None
        session = cast(Session, subscription.session)
        if self._passed is not None and session.client_id in self._passed:
            return None
        target = Recipient(session)
        if len(entries) == 1:
            target.add(subscription)
        elif session in self._seen:
            return None
        else:
            self._seen.add(session)
            subscriptions = session.subscriptions
            for entry in entries:
                # Ordinary subscriptions stand under their filter.
                other = subscriptions.get(entry.topic_filter)
                if other is not None and other.entry is entry and other.group is None:
                    target.add(other)
        target.settle()
        targets = self._targets
        if targets is not None:
            targets.append(target)
            if len(targets) > BROADCAST:
                self._targets = None
        return target

    def reach(self, permissions: Permissions | None) -> Reach | None:
        """Who may have it. None: everybody, as when it came; the rules that are made meanwhile hold for the rest."""
        if permissions is None or not permissions.filters:
            return None
        return Reach(self.route.topic, permissions)

    def deliver(self, subscription: Subscription, reach: Reach | None) -> bool:
        """Offer the message to the session of a subscription. False where there was nothing to do.

        `reach`: see there.
        """
        target = self.recipient(subscription)
        if target is None:
            return False
        session = target.session
        if self._journal is not None and session.journal is not None:
            # Before its rest is tried: nothing of this call is kept without the rest of it.
            self._journal.passed(self._number, session.client_id)
        if reach is not None and not reach.may(session):
            return False
        message = self.message
        if target.no_local and session is self.origin:
            if target.rest is None:
                return True
            target = target.rest
        qos = message.qos if message.qos < target.qos else target.qos
        if reach is not None:
            qos = reach.qos(session, qos)
        retain = message.retain and target.retain_as_published
        session.deliver(message, qos, retain, target.identifiers, None, target.sub_queue)
        return True

    def plan(self) -> FanoutPlan | None:
        """The plan for what follows, made of all receivers or not at all.

        None where there are too many, some had the message before, or something has changed meanwhile.
        """
        if self._targets is None or len(self.entries) < 2 or self.route.version() != self.version:
            return None
        return FanoutPlan.of(self._targets, self.route.entries)


class Interrupted:
    """A broadcast that an earlier broker did not finish: its number there, and the clients that do not get it."""

    def __init__(self, message: Message, origin: Session | None, number: int, passed: set[str]) -> None:
        self.message = message
        self.origin = origin
        self.number = number
        self.passed = passed


class BroadcastLine:
    """All broadcasts in progress, oldest first, and how many of them each topic has."""

    def __init__(self) -> None:
        self.broadcasts: deque[Broadcast] = deque()
        self.topics: dict[bytes, int] = {}
        # Such as were on their way when an earlier broker died, until all are there whom they may be for.
        self._interrupted: list[Interrupted] = []

    def add(self, route: Route, message: Message, origin: Session | None, journal: Journal | None) -> Broadcast:
        """Have a message be the last in line. `journal`: who keeps what is accepted, if anybody does."""
        broadcast = Broadcast(route, message, origin)
        if message.qos > 0 and journal is not None:
            broadcast.keep(journal, journal.broadcast(message))
        self.broadcasts.append(broadcast)
        self._count(message.topic)
        return broadcast

    def _count(self, topic: bytes) -> None:
        self.topics[topic] = self.topics.get(topic, 0) + 1

    def last(self) -> Broadcast | None:
        """The last one: when it is over, all are that came before it. None: there is none."""
        return self.broadcasts[-1] if self.broadcasts else None

    def went(self) -> None:
        """The first has gone to all."""
        topic = self.broadcasts.popleft().message.topic
        self.topics[topic] -= 1
        if self.topics[topic] == 0:
            del self.topics[topic]

    def resume(self, interrupted: Interrupted) -> None:
        """Have one go on, with `begin_interrupted`; what comes to its topic from now on stands behind it."""
        self._interrupted.append(interrupted)
        self._count(interrupted.message.topic)

    def begin_interrupted(self, cache: MatchCache, journal: Journal | None) -> None:
        """Whom they are for is found out now. They stand before what has come since."""
        if not self._interrupted:
            return
        for each in reversed(self._interrupted):
            broadcast = Broadcast(cache.route(each.message.topic), each.message, each.origin, each.passed)
            if journal is not None:
                broadcast.keep(journal, each.number)
            self.broadcasts.appendleft(broadcast)
        self._interrupted = []
