"""A message to very many receivers, delivered over several turns.

Owns, for one message, the subscriptions that matched when it arrived, and the progress. Promises: one delivery to each
session, as when all get it at once; a client that unsubscribes before its turn gets nothing, nor does one that
subscribes after the message. A journal is told of each session that has had it, so that a restarted broker continues
with the others. The few recipients that it finds behind very many filters become those of the next messages.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.recipients import Verdicts, matching, merge
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.match_cache import MatchCache, Route
from canopy_mqtt.core.topics.subscription import (
    FilterEntry,
    Recipient,
    SharedGroup,
    Subscription,
    subscription_identifiers,
    without_own,
)

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
        """Deliver the message to the session of a subscription. False where there was nothing to do.

        `verdicts`: who may have it; None: all.
        """
        recipient = self.recipient(subscription)
        if recipient is None:
            return False
        session = recipient.session
        if self._journal is not None and session.journal is not None:
            # Before its rest is tried: nothing of this call is kept without the rest of it.
            self._journal.passed(self._number, session.client_id)
        if verdicts is not None and not verdicts.may(session):
            return False
        message = self.message
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
        """Put a message last in line. `journal`: the one that keeps what is accepted, if there is one."""
        broadcast = Broadcast(route, message, origin)
        if message.qos > 0 and journal is not None:
            broadcast.keep(journal, journal.broadcast(message))
        self.broadcasts.append(broadcast)
        self._count(message.topic)
        return broadcast

    def _count(self, topic: bytes) -> None:
        self.topics[topic] = self.topics.get(topic, 0) + 1

    def went(self) -> None:
        """The first has gone to all."""
        topic = self.broadcasts.popleft().message.topic
        self.topics[topic] -= 1
        if self.topics[topic] == 0:
            del self.topics[topic]

    def resume(self, interrupted: Interrupted) -> None:
        """Put an interrupted one in line, with `begin_interrupted`; later messages of its topic stand behind it."""
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
