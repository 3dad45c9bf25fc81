"""The receivers of a topic that several filters match: computed once, and updated when subscriptions change.

Owns `FanoutPlan`: one `Recipient` for each session behind the filters of a route, with the result of its subscriptions
there, and the share groups. Promises: a plan always equals a new one; a change of a few subscriptions costs in
proportion to them and to the filters of the route, and not to the recipients. Only if more has changed than a filter
remembers (`Changed`) is the plan computed again.
"""

from __future__ import annotations

from typing import Final, cast

from mypy_extensions import i64

from broker.core.queues.delivery import SubscriptionQueue
from broker.core.session.session import Session
from broker.core.topics.subscription import Changed, FilterEntry, SharedGroup, Subscription

NO_IDENTIFIERS: Final[tuple[int, ...]] = ()

FEW: Final = 16
"""Subscriptions of a filter that a plan remembers itself. A filter with more remembers its latest changes."""

MOST_MENDED: Final = 128
"""Sessions for which a plan is mended; beyond, it is made anew."""


class Recipient:
    """One session's part of a publish that several of its filters match: `add` each, then call `settle` once."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._parts: list[Subscription] = []
        self.qos = 0
        self.retain_as_published = False
        self.no_local = False
        self.identifiers: tuple[int, ...] = NO_IDENTIFIERS
        self.sub_queue: SubscriptionQueue | None = None
        # With No Local: what the others make of a message of the session's own; None without any others.
        self.rest: Recipient | None = None
        # Its index in the plan.
        self.place: i64 = 0

    def add(self, subscription: Subscription) -> None:
        """Join another matching subscription of the same session."""
        self._parts.append(subscription)
        if subscription.qos > self.qos:
            self.qos = subscription.qos
        if subscription.retain_as_published:
            self.retain_as_published = True
        if subscription.no_local:
            self.no_local = True

    def settle(self) -> None:
        """All are there: work out what is left."""
        parts = self._parts
        self._parts = []
        found: list[int] = []
        first = parts[0]
        for part in parts:
            if part.identifier > 0:
                found.append(part.identifier)  # [MQTT-3.3.4-4]
            if first.sub_queue is not None and (part.sub_queue is None or part.topic_filter < first.topic_filter):
                first = part
        # It waits once: on the terms of a subscription that has none of its own, or else of the first by its filter.
        self.sub_queue = first.sub_queue
        if found:
            self.identifiers = tuple(found)
        if self.no_local:
            # The subscriptions with No Local do not count for one's own messages; the others still do.
            rest = Recipient(self.session)
            for part in parts:
                if not part.no_local:
                    rest.add(part)
            if rest._parts:
                rest.settle()
                self.rest = rest

    def capped(self, qos: int) -> Recipient:
        """The same with a QoS of its own, which is lower: no more is allowed."""
        made = Recipient(self.session)
        made.qos = qos
        made.retain_as_published = self.retain_as_published
        made.no_local = self.no_local
        made.identifiers = self.identifiers
        made.sub_queue = self.sub_queue
        rest = self.rest
        made.rest = rest if rest is None or rest.qos <= qos else rest.capped(qos)
        return made

    def references(self) -> i64:
        """How many references it holds: what it weighs in the match cache."""
        size: i64 = 1 + len(self.identifiers)
        if self.rest is not None:
            size += self.rest.references()
        return size


class Seen:
    """A filter of the route, in the version that a plan has seen."""

    def __init__(self, entry: FilterEntry) -> None:
        self.entry = entry
        self.version = entry.version
        # Who subscribed, where they are few; where they are many, the filter writes down who changes.
        self.few: list[Subscription] | None = None
        self.changed: Changed | None = None
        if entry.ordinary_count <= FEW:
            self.few = list(entry.subscriptions)
        else:
            self.changed = entry.watch()

    def __del__(self) -> None:
        if self.changed is not None:
            self.entry.unwatch(self.changed)

    def sessions(self, into: dict[Session, None]) -> bool:
        """The sessions whose subscriptions here have changed since, or may have. False: nobody knows."""
        entry = self.entry
        if entry.version == self.version:
            return True
        few = self.few
        if few is not None:
            if entry.ordinary_count > MOST_MENDED:
                return False
            for subscription in few:
                into[cast(Session, subscription.session)] = None
            for subscription in entry.subscriptions:
                into[cast(Session, subscription.session)] = None
            return True
        changed = self.changed
        if changed is None:
            return False
        since = changed.since(self.version, entry.version)
        if since is None:
            return False
        for subscriber in since:
            into[cast(Session, subscriber)] = None
        return True


class FanoutPlan:
    """The receivers of a topic with several matching filters."""

    def __init__(self, entries: list[FilterEntry]) -> None:
        self.targets: list[Recipient] = []
        self.groups: list[SharedGroup] = []
        # What all recipients hold, and the groups.
        self.references: i64 = 0
        # Subscriptions that were looked at to make it.
        self.looked: i64 = 0
        # How many recipients were made, ever.
        self.made: i64 = 0
        self._seen: dict[FilterEntry, Seen] = {}
        # Made when the plan is first mended: most never are.
        self._by_session: dict[Session, Recipient] | None = None
        by_session: dict[Session, Recipient] = {}
        for entry in entries:
            for subscription in entry.subscriptions:
                session = cast(Session, subscription.session)
                target = by_session.get(session)
                if target is None:
                    target = Recipient(session)
                    by_session[session] = target
                target.add(subscription)
                self.looked += 1
        self.targets = list(by_session.values())
        for place in range(len(self.targets)):
            target = self.targets[place]
            target.place = place
            target.settle()
            self.references += target.references()
        self.made = len(self.targets)
        self._look(entries)

    @staticmethod
    def of(targets: list[Recipient], entries: list[FilterEntry]) -> FanoutPlan:
        """The plan of recipients that are settled: those of these filters as they are now."""
        plan = FanoutPlan([])
        plan.targets = targets
        place: i64 = 0
        for target in targets:
            target.place = place
            place += 1
            plan.references += target.references()
        plan.made = place
        plan._look(entries)
        return plan

    def mend(self, entries: list[FilterEntry]) -> bool:
        """Bring the plan up to date with the present filters of its route. False: it has to be made anew."""
        sessions: dict[Session, None] = {}
        for seen in self._seen.values():
            if not seen.sessions(sessions):
                return False
        total: i64 = 0
        for entry in entries:
            count: i64 = entry.ordinary_count
            total += count
            if entry not in self._seen:
                if count > MOST_MENDED:
                    return False
                for subscription in entry.subscriptions:
                    sessions[cast(Session, subscription.session)] = None
        # Where a few clients have most of the subscriptions, to make it anew is less work.
        if len(sessions) > MOST_MENDED or len(sessions) * len(entries) > total + MOST_MENDED:
            return False
        by_session = self._by_session
        if by_session is None:
            by_session = {}
            for target in self.targets:
                by_session[target.session] = target
            self._by_session = by_session
        for session in sessions:
            self._renew(session, entries, by_session)
        self.references -= len(self.groups)
        self.groups = []
        self._look(entries)
        return True

    def _look(self, entries: list[FilterEntry]) -> None:
        """Take down the groups, and which versions of the filters this plan is made of."""
        before = self._seen
        now: dict[FilterEntry, Seen] = {}
        for entry in entries:
            if entry.retired:
                continue
            if entry.groups:
                self.groups.extend(entry.groups.values())
            seen = before.get(entry)
            if seen is None or seen.version != entry.version:
                seen = Seen(entry)
            now[entry] = seen
        self._seen = now
        self.references += len(self.groups)

    def _renew(self, session: Session, entries: list[FilterEntry], by_session: dict[Session, Recipient]) -> None:
        """Have one session's recipient be what its subscriptions come to now."""
        made: Recipient | None = None
        subscriptions = session.subscriptions
        for entry in entries:
            # Ordinary subscriptions stand under their filter.
            subscription = subscriptions.get(entry.topic_filter)
            if subscription is not None and subscription.entry is entry and subscription.group is None:
                if made is None:
                    made = Recipient(session)
                    self.made += 1
                made.add(subscription)
        targets = self.targets
        old = by_session.get(session)
        if old is not None:
            self.references -= old.references()
        if made is not None:
            made.settle()
            self.references += made.references()
            by_session[session] = made
            if old is not None:
                made.place = old.place
                targets[made.place] = made
            else:
                made.place = len(targets)
                targets.append(made)
        elif old is not None:
            del by_session[session]
            last = targets.pop()
            if last is not old:
                last.place = old.place
                targets[last.place] = last
