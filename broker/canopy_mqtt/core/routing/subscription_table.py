"""All subscriptions of a broker: their filters, their size, and their removal when their session ends.

Owns the trie, the match cache, the accounts of subscriptions, and the ended sessions that still have some. The accounts
are exact: the end of a subscription subtracts what it added. The subscriptions of an ended
session are removed in turns; it gets no message meanwhile (`Session.deliver`, `SharedGroup`), and each new subscription
first removes two of them, so that they do not accumulate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.accounts import Accounts, Room
from canopy_mqtt.core.hooks import SubscriptionListener
from canopy_mqtt.core.jobs import DROP_WORK, NODE_SHIFT, OUTDATED_WORK, REMOVAL, Budget, Job, Scheduler
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queue_totals import UNLIMITED, QueueTotals
from canopy_mqtt.core.queues.queue_terms import MessageTerms
from canopy_mqtt.core.routing.share_homes import ShareHome, stand_for
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.match_cache import MatchCache
from canopy_mqtt.core.topics.subscription import (
    SUB_QUEUE_BYTES,
    SUBSCRIPTION_BYTES,
    SharedGroup,
    Subscription,
    group_bytes,
)
from canopy_mqtt.core.topics.trie import create

if TYPE_CHECKING:
    from canopy_mqtt.core.routing.share_queues import ShareQueues

DROPS: Final = 512
"""Subscriptions that are taken away in one call: half a millisecond, or one."""

DROP_NODES: Final = 11
"""A subscription that goes counts as one more for every 2 KiB that its filter frees in the trie: six nodes."""

DROPS_AT_ONCE: Final = 32
"""Those that go with their session: hundreds of sessions may end in one round of the event loop."""

DROPS_PAID: Final = 2
"""Subscriptions of sessions that are over which each new subscription takes away."""


class SubscriptionTable(Job):
    """The filters of one broker and their subscribers; as a job, the removal of those of ended sessions."""

    def __init__(self, layout: str, match_cache: int, totals: QueueTotals, accounts: Accounts, jobs: Scheduler) -> None:
        self.trie = create(layout)
        self.cache = MatchCache(self.trie, match_cache)
        # Subscriptions, with those of ended sessions that are still to be removed.
        self.count = 0
        # Of those, the shared ones.
        self.shared_count = 0
        # Bytes that are counted for them, without their filters: the trie counts those.
        self.own_bytes: i64 = 0
        # Bytes that count for subscriptions of sessions that brokers share and that are not here (`core.shared`). The
        # store's to set.
        self.elsewhere: i64 = 0
        # Who wants to know what is subscribed to here; None: there is no listener.
        self.listener: SubscriptionListener | None = None
        # True if SUBACKs may have to wait for it (`SubscriptionListener.waits`).
        self.confirms = False
        self.share_queues: ShareQueues | None = None  # the router's
        # Says at which other worker a share group lives, by its full name: the client identifier of that one, empty
        # for here. None: all live here.
        self.home_of: Callable[[str], str] | None = None
        # How many go in one call.
        self.drops: i64 = DROPS
        self._totals = totals
        self._budget = totals.budget
        self._jobs = jobs
        self._accounts = accounts
        self._room: Room = accounts.filters
        self._leaving: deque[Session] = deque()

    @property
    def bytes(self) -> i64:
        """Return the bytes that are counted for all subscriptions and filters together."""
        return self.own_bytes + self.trie.bytes

    def cost(self, name: str, group_name: str, topic_filter: str) -> i64:
        """Return the bytes that are counted for a subscription that shares nothing with others.

        `name` as the client wrote it, `topic_filter` without `$share/name/`.
        """
        own: i64 = SUBSCRIPTION_BYTES + (group_bytes(name, group_name) if group_name else 0)
        return own + self.trie.cost(topic_filter)

    def room(self, limits: Limits, session: Session, own: bool = False) -> i64:
        """Return the bytes that a client's next subscriptions may surely take by its bounds, its user's, and what is
        fair. `own`: whatever is fair.
        """
        account = session.account
        left: i64 = account.max_bytes
        if left < UNLIMITED:
            left -= account.bytes
        if limits.max_filter_bytes_per_client > 0:
            most: i64 = limits.max_filter_bytes_per_client - account.filters
            if most < left:
                left = most
        if limits.max_user_bytes > 0 and not account.owner.internal:
            most = self._accounts.user_room(account.owner, limits.max_user_bytes)
            if most < left:
                left = most
        if limits.max_filter_bytes > 0 and not own:
            used: i64 = self.own_bytes + self.trie.bytes + self.elsewhere
            most = self._room.left_in_pieces(account.owner, limits.max_filter_bytes, used)
            if most < left:
                left = most
        return left

    def is_fair(self, limits: Limits, session: Session, cost: i64) -> bool:
        """Return whether the client's account may take this part of what the others have left."""
        if limits.max_filter_bytes == 0:
            return True
        fair: i64 = self._room.left(session.account.owner, limits.max_filter_bytes, int(self.bytes + self.elsewhere))
        return cost <= fair

    def add(self, session: Session, subscription: Subscription, group_name: str, topic_filter: str) -> None:
        """Add a new subscription of a session to its filter. The present turn is charged."""
        if self._leaving:
            if self._totals.tap is not None:
                self._end_namesake(session.client_id, subscription.topic_filter)
            self.work_off(DROPS_PAID)
        cache = self.cache
        before: i64 = cache.walked + cache.extended
        outdated: i64 = cache.outdated
        held: i64 = self.trie.bytes
        entry = cache.add(topic_filter, subscription, group_name)
        group = subscription.group
        own: i64 = SUBSCRIPTION_BYTES
        if group is not None:
            own += group_bytes(subscription.topic_filter, group_name)
            self.shared_count += 1
            stand_for(group, subscription)
            self._find_home(group)
        else:
            # The string that its filter has already: all subscriptions to it have one between them.
            subscription.topic_filter = entry.topic_filter
        walked: i64 = cache.walked + cache.extended - before
        nodes: i64 = self.trie.bytes - held >> NODE_SHIFT
        self._budget.used += walked + nodes + OUTDATED_WORK * (cache.outdated - outdated)
        session.subscriptions[subscription.topic_filter] = subscription
        self.count += 1
        self.charge(session, own, entry.cost)
        if self.listener is not None:
            self.listener.subscribed(subscription, topic_filter)

    def _find_home(self, group: SharedGroup) -> None:
        """Find out where a group lives that may be new, and tell that worker of it."""
        if self.home_of is not None and group.subscriptions == 1 and group.home is None:
            node = self.home_of(group.full_name)
            if node:
                group.home = ShareHome(self, node)
                group.home.changed(group)

    def give_queue(self, subscription: Subscription, message_terms: MessageTerms | None) -> None:
        """Let the messages of a subscription wait in a queue of their own, or (None) in that of its session."""
        before = subscription.message_terms
        subscription.set_message_terms(message_terms)
        if before is None or message_terms is None:
            self.charge(subscription.session, SUB_QUEUE_BYTES if before is None else -SUB_QUEUE_BYTES)
        self.touch(subscription)

    def charge(self, session: Session, change: i64, filter_bytes: i64 = 0) -> None:
        """Count bytes more, or less, that belong to a session's subscriptions; `filter_bytes`: those of a filter, too,
        which the trie counts for all."""
        self.own_bytes += change
        account = session.account
        change += filter_bytes
        account.filters += change
        if account.queue is not None or account.window is not None:
            account.fit()
        self._room.change(account.owner, int(change))

    def touch(self, subscription: Subscription) -> None:
        """The options of a subscription have changed in place."""
        if subscription.entry is not None:
            self.cache.touch(subscription.entry, subscription)
        group = subscription.group
        if group is not None:
            stand_for(group, subscription)
            group.place(subscription)

    def drop(self, subscription: Subscription) -> i64:
        """Take away a subscription that its session has let go of. Return the bytes of the trie that went."""
        account = subscription.session.account
        before: i64 = account.filters
        freed: i64 = self._discard(subscription)
        account.fit()
        self._room.change(account.owner, int(account.filters - before))
        return freed

    def _discard(self, subscription: Subscription) -> i64:
        """Take a subscription away from its filter, and the filter with the last one; its room is still held.

        The bytes of the trie that went.
        """
        entry = subscription.entry
        assert entry is not None
        session = subscription.session
        group = subscription.group
        own: i64 = SUBSCRIPTION_BYTES
        if group is not None:
            own += group_bytes(subscription.topic_filter, group.name)
            self.shared_count -= 1
        if subscription.message_terms is not None:
            own += SUB_QUEUE_BYTES
        self.count -= 1
        self.own_bytes -= own
        session.account.filters -= own + entry.cost
        held: i64 = self.trie.bytes
        if self.listener is not None:
            self.listener.unsubscribed(subscription, entry.topic_filter)
        self.cache.discard(entry, subscription)
        if group is not None and group.queue is not None and self.share_queues is not None:
            self.share_queues.left(group, session)
        return held - self.trie.bytes

    # -- the ends of sessions ------------------------------------------------------------------------------------------

    @property
    def leaving(self) -> bool:
        """True while sessions that are over have subscriptions left: `work_off` is to be called."""
        return len(self._leaving) > 0

    def end_later(self, session: Session) -> None:
        """Remove the subscriptions of a session that is over in turns."""
        self._leaving.append(session)
        self._jobs.submit(REMOVAL, self)

    def step(self, budget: Budget) -> bool:
        """Remove subscriptions of ended sessions, no more than `drops` of them."""
        room: i64 = (budget.end - budget.used) // DROP_WORK + 1
        self.work_off(room if room < self.drops else self.drops)
        return not self._leaving

    def work_off(self, most: i64) -> None:
        """Remove up to `most` subscriptions of sessions that are over, the first session first.

        Those with many levels of their own count as several (`DROP_NODES`).
        """
        leaving = self._leaving
        done: i64 = 0
        while leaving and done < most:
            done += self.end_some(leaving[0], most - done)
            if not leaving[0].subscriptions:
                leaving.popleft()

    def end_some(self, session: Session, most: i64) -> i64:
        """Take away up to `most` subscriptions of a session that is over. Return as how many they count."""
        subscriptions = session.subscriptions
        account = session.account
        before: i64 = account.filters
        tap = self._totals.tap
        done: i64 = 0
        while subscriptions and done < most:
            _, subscription = subscriptions.popitem()
            if tap is not None:
                tap.unsubscribed(session.client_id, subscription.topic_filter, True)
            freed: i64 = self._discard(subscription)
            if subscription.message_terms is not None:
                self._totals.aging.pop(subscription.message_terms, None)
            done += 1 + (freed >> DROP_NODES)
        # Once for all of them.
        self._room.change(account.owner, int(account.filters - before))
        if not subscriptions:
            # An empty dict keeps the room that it had; a route may refer to the session until it is refreshed.
            session.subscriptions = {}
        self._budget.used += DROP_WORK * done
        return done

    def _end_namesake(self, client_id: str, name: str) -> None:
        """Record the end of a subscription before the next one of that name."""
        for session in self._leaving:
            if session.client_id == client_id:
                subscription = session.subscriptions.pop(name, None)
                if subscription is not None:
                    # The last one is the next to go.
                    session.subscriptions[name] = subscription
                    self.end_some(session, 1)
