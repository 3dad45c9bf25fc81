"""A message to very many receivers, delivered over several turns.

Owns, for one message (`Broadcast`), the subscriptions that matched when it arrived, and the progress; and the line of
such messages (`Broadcasts`). Promises: one delivery to each session, as when all get it at once; a client that
unsubscribes before its turn gets nothing, nor does one that subscribes after the message. A journal is told of each
session that has had it, so that a restarted broker continues with the others. The few recipients that it finds behind
very many filters become those of the next messages.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.jobs import BROADCASTS, OBJECT_WORK, Budget, Job, Scheduler
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.recipients import NO_FILTERS, install, matching, merge, refresh
from canopy_mqtt.core.routing.verdicts import Verdicts
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.match_cache import Route
from canopy_mqtt.core.topics.subscription import (
    FilterEntry,
    Recipient,
    SharedGroup,
    Subscription,
    subscription_identifiers,
    without_own,
)

if TYPE_CHECKING:
    from canopy_mqtt.core.routing.fanout import Fanout

MAX_BROADCASTS: Final = 8
"""Messages that are on their way to very many, each with a list of them. Clients wait before they publish another;
links and the broker itself do not: for one more of theirs, the first in line goes at once to all who wait for it."""

MAX_DIRECT_SUBSCRIPTIONS: Final = 4_096
"""Subscriptions to which a message goes in one call; with more it goes in turns. Their deliveries, or the recipients
that are computed from them, are some milliseconds."""

MAX_DIRECT_QOS0_SUBSCRIPTIONS: Final = 16_384
"""The same for QoS 0 and a single filter, where most get the very same frame."""


class Broadcast:
    """One message in progress."""

    def __init__(self, route: Route, message: Message, origin: Session | None, passed: set[str] | None = None) -> None:
        """`passed`: the clients that do not get it (again), where it goes on after a restart."""
        self.message = message
        # The publishing session, for No Local.
        self.origin = origin
        self.over = False  # all have it
        self.route = route
        self.version: i64 = route.version
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
        # The recipients of the next messages. None: too many, or without those that passed, who get the next messages.
        self._found: list[Recipient] | None = [] if passed is None else None
        for entry in route.entries:
            if not entry.retired:
                self.entries.append(entry)
                self._listeners.append(list(entry.subscriptions))
                groups = [group for group in entry.groups.values() if group.home is None]
                self.groups.extend(groups)
                self.count += len(entry.subscriptions) + len(groups)

    def keep(self, journal: Journal, number: int) -> None:
        """Tell a journal of its way, under that number."""
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
        """Return the recipient of a subscription's session; None: it had the message, or has unsubscribed."""
        entries = self.entries
        if subscription.entry is not entries[self._entry]:
            return None
        session = subscription.session
        if self._passed is not None and session.client_id in self._passed:
            return None
        if len(entries) == 1:
            return subscription
        if session in self._seen:
            return None
        self._seen.add(session)
        recipient = merge(matching(session, entries))
        found = self._found
        if found is not None:
            found.append(recipient)
            if len(found) > MAX_DIRECT_SUBSCRIPTIONS:
                self._found = None
        return recipient

    def deliver(self, subscription: Subscription, verdicts: Verdicts | None) -> bool:
        """Deliver the message to the session of a subscription, if it may have it. False where there was nothing to do.

        `verdicts`: who may have it; None: all.
        """
        recipient = self.recipient(subscription)
        if recipient is None:
            return False
        session = recipient.session
        if self._journal is not None and session.journal is not None:
            # Before its rest is tried: nothing of this call is kept without the rest of it.
            self._journal.passed(self._number, session.client_id)
        message = self.message
        if verdicts is not None and not verdicts.may(session):
            session.ledger.barred(session.principal, message.topic, False)
            return True
        if recipient.no_local and session is self.origin:
            others = without_own(recipient)
            if others is None:
                return True
            recipient = others
        qos: int = message.qos if message.qos < recipient.qos else recipient.qos
        if verdicts is not None:
            qos = min(qos, verdicts.find(session))
        retain = message.retain and recipient.retain_as_published
        session.deliver(message, qos, retain, subscription_identifiers(recipient), None, recipient.message_terms)
        return True

    def found(self) -> list[Recipient] | None:
        """Return the recipients of what follows, all of them or none.

        None where there are too many, one filter has them all, or some had the message before.
        """
        return None if len(self.entries) < 2 else self._found


class Broadcasts(Job):
    """The broadcasts in progress, oldest first; as a job, it delivers them one after the other."""

    def __init__(self, fanout: Fanout, totals: QueueTotals, jobs: Scheduler) -> None:
        """`fanout` has the routes, and chooses members of share groups. Its `broadcasting` says if there are any."""
        self.line: deque[Broadcast] = deque()
        # How many of them each topic has.
        self.topics: dict[bytes, int] = {}
        # Such as were on their way when an earlier broker died, until all are there whom they may be for: the message,
        # its publisher, its number there, and the clients that do not get it.
        self._interrupted: list[tuple[Message, Session | None, int, set[str]]] = []
        self._fanout = fanout
        self._totals = totals
        self._jobs = jobs

    def begin(self, route: Route, message: Message, origin: Session | None) -> int:
        """Begin to hand a message to very many, from the next turn on. Return how many they are."""
        budget = self._totals.budget
        if len(self.line) >= MAX_BROADCASTS:
            end: i64 = budget.end
            budget.begin(1 << 60)  # all of it
            self._go_on(self.line[0], budget)
            budget.begin(end - budget.used)
        broadcast = Broadcast(route, message, origin)
        journal = self._totals.journal
        if message.qos > 0 and journal is not None:
            broadcast.keep(journal, journal.broadcast(message))
        self.line.append(broadcast)
        self._count(message.topic)
        budget.used += OBJECT_WORK + broadcast.count // 64  # they are written down
        return broadcast.count

    def resume(self, message: Message, origin: Session | None, number: int, passed: set[str]) -> None:
        """Go on, from the next turn on, with a message that was on its way when an earlier broker died.

        `number`: its number in the journal; `passed`: the clients that do not get it. Later messages of its topic stand
        behind it.
        """
        self._interrupted.append((message, origin, number, passed))
        self._count(message.topic)

    def _count(self, topic: bytes) -> None:
        self.topics[topic] = self.topics.get(topic, 0) + 1
        self._fanout.broadcasting = True
        self._jobs.submit(BROADCASTS, self)

    def step(self, budget: Budget) -> bool:
        """Deliver the messages that are on their way, the first one first."""
        interrupted, self._interrupted = self._interrupted, []
        for message, origin, number, passed in reversed(interrupted):
            # Whom it is for is found out now. It stands before what has come since.
            broadcast = Broadcast(self._fanout.table.cache.route(message.topic), message, origin, passed)
            if self._totals.journal is not None:
                broadcast.keep(self._totals.journal, number)
            self.line.appendleft(broadcast)
        while self.line and not budget.spent():
            self._go_on(self.line[0], budget)
        self._fanout.broadcasting = len(self.line) > 0
        return not self.line

    def _go_on(self, broadcast: Broadcast, budget: Budget) -> None:
        """Deliver the first message in line; it leaves the line when all have it."""
        fanout = self._fanout
        message = broadcast.message
        # None: all may have it, as when it came; the rules that are made meanwhile hold for the rest.
        verdicts = fanout.new_verdicts(message.topic)
        each: i64 = 1
        if verdicts is not None and fanout.permissions is not None:
            each += OBJECT_WORK + fanout.permissions.source.ask_work
        while not budget.spent():
            subscription = broadcast.step()
            if subscription is None:
                for group in broadcast.groups:
                    if group.size > 0:
                        fanout.deliver_to_group(group, message, verdicts, None)
                        budget.used += OBJECT_WORK
                self._end(broadcast, verdicts is None)
                return
            budget.used += each
            if broadcast.deliver(subscription, verdicts):
                budget.used += OBJECT_WORK + (len(broadcast.entries) >> 1)

    def _end(self, broadcast: Broadcast, all_may: bool) -> None:
        """All have it: take it out of the line. Keep the recipients that it found, if all may have the messages."""
        broadcast.end()
        topic = self.line.popleft().message.topic
        self.topics[topic] -= 1
        if self.topics[topic] == 0:
            del self.topics[topic]
        found = broadcast.found()
        if found is not None and all_may:
            fanout, route = self._fanout, broadcast.route
            cache = fanout.table.cache
            cache.renew(route)
            fanout.budget.used += refresh(route, cache, fanout.permissions, NO_FILTERS, fanout.at_once)
            if not route.built and route.version == broadcast.version:
                install(route, cache, found)
