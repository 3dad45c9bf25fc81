"""All subscriptions of a broker: their filters, their size, and their removal when their session ends.

Owns the trie, the match cache, the accounts of subscriptions, and the ended sessions that still have some. The accounts
are exact: the end of a subscription subtracts what it added (`topics.filter_bytes`). The subscriptions of an ended
session are removed in turns; it gets no message meanwhile (`Session.deliver`, `SharedGroup`), and each new subscription
first removes two of them, so that they do not accumulate.
"""

from __future__ import annotations

from collections import deque
from typing import Final, cast

from mypy_extensions import i64

from broker.core.accounts import Accounts, Room
from broker.core.hooks import SubscriptionListener
from broker.core.limits import Limits
from broker.core.queues.delivery import SubscriptionQueue
from broker.core.queues.queue_totals import QueueTotals
from broker.core.session.session import Session
from broker.core.tap import Tap
from broker.core.topics.filter_bytes import (
    SUB_QUEUE_BYTES,
    SUBSCRIPTION_BYTES,
    most_subscription_bytes,
    subscription_bytes,
)
from broker.core.topics.match_cache import MatchCache
from broker.core.topics.subscription import FilterEntry, Subscription
from broker.core.topics.trie import create

DROP_WORK: Final = 16
"""What a subscription that is taken away counts for in a turn, as deliveries."""

NODE_WORK: Final = 5
"""What becomes of the trie counts for one more by so many bits of its bytes (32 bytes): a filter of 128 levels that
shares none of them makes 128 nodes, 80 microseconds."""

OUTDATED_WORK: Final = 4
"""What a cached topic that is to be compared with a new wide filter counts for: whoever publishes there next waits for
it, and whoever subscribes has caused it."""

DROPS: Final = 512
"""Subscriptions that are taken away in one call: half a millisecond, or one."""

DROP_NODES: Final = 11
"""One that takes its filter with it counts as one more by so many bits of what that took (2 KiB): six nodes."""

DROPS_AT_ONCE: Final = 32
"""Those that go with their session: hundreds of sessions may end in one round of the event loop."""

DROPS_PAID: Final = 2
"""Subscriptions of sessions that are over which each new subscription takes away."""


class SubscriptionTable:
    """The filters of one broker and their subscribers."""

    def __init__(self, layout: str, match_cache: int, totals: QueueTotals, accounts: Accounts) -> None:
        self.trie = create(layout)
        self.cache = MatchCache(self.trie, match_cache)
        self.count = 0
        # Of those, the shared ones.
        self.shared_count = 0
        # Bytes that are counted for them, without their filters: the trie counts those.
        self.own_bytes: i64 = 0
        # Who wants to know what is asked for here, if anybody does.
        self.listener: SubscriptionListener | None = None
        self.tap: Tap | None = None
        # How many go in one call.
        self.drops: i64 = DROPS
        self._totals = totals
        self._room: Room = accounts.filters
        self._leaving: deque[Session] = deque()

    @property
    def bytes(self) -> i64:
        """What is counted for all subscriptions and filters together."""
        return self.own_bytes + self.trie.bytes

    def cost(self, name: str, group_name: str, topic_filter: str) -> i64:
        """What is counted for a subscription that shares nothing with others.

        `name` as the client wrote it, `topic_filter` without `$share/name/`.
        """
        return subscription_bytes(name, group_name) + self.trie.cost(topic_filter)

    def own_room(self, limits: Limits, session: Session) -> i64:
        """Bytes that the client's next subscriptions may take, by its own bounds and that of its user."""
        account = session.account
        left: i64 = account.room
        if limits.max_filter_bytes_per_client > 0:
            own: i64 = limits.max_filter_bytes_per_client - account.filters
            if own < left:
                left = own
        if limits.max_user_bytes > 0 and not account.owner.internal:
            own = limits.max_user_bytes - account.owner.bytes
            if own < left:
                left = own
        return left

    def room(self, limits: Limits, session: Session) -> i64:
        """Bytes that the client's next subscriptions may surely take, also by what is fair."""
        left: i64 = self.own_room(limits, session)
        if limits.max_filter_bytes > 0:
            fair: i64 = self._room.left_in_pieces(session.account.owner, limits.max_filter_bytes, int(self.bytes))
            if fair < left:
                left = fair
        return left

    def is_fair(self, limits: Limits, session: Session, cost: i64) -> bool:
        """Whether the client's account may take so much of what is left for all."""
        if limits.max_filter_bytes == 0:
            return True
        fair: i64 = self._room.left(session.account.owner, limits.max_filter_bytes, int(self.bytes))
        return cost <= fair

    def most_cost(self, length: i64) -> i64:
        """No subscription to a name of so many characters takes more: who has so much room need not count.

        For several, those of 0 and one of all their characters take as much together.
        """
        return most_subscription_bytes(length) + self.trie.most_cost(length)

    def add(self, session: Session, subscription: Subscription, group_name: str, topic_filter: str) -> i64:
        """Hang a new subscription of a session at its filter. The work that it was, in deliveries."""
        work: i64 = 0
        if self._leaving:
            if self.tap is not None:
                self._end_namesake(session.client_id, subscription.topic_filter)
            work = DROP_WORK * self.work_off(DROPS_PAID)
        cache = self.cache
        before = cache.walked + cache.extended
        outdated: i64 = cache.outdated
        held: i64 = self.trie.bytes
        entry = cache.insert(topic_filter)
        work += cache.walked + cache.extended - before + (self.trie.bytes - held >> NODE_WORK)
        work += OUTDATED_WORK * (cache.outdated - outdated)
        cache.add(entry, subscription, group_name)
        session.subscriptions[subscription.topic_filter] = subscription
        self._account(subscription, group_name, entry, 1)
        if self.listener is not None and not session.uplink:
            self.listener.wanted(topic_filter)
        return work

    def give_queue(self, subscription: Subscription, sub_queue: SubscriptionQueue | None) -> None:
        """Have the messages of a subscription wait in a queue of their own, or (None) in that of its session."""
        before = subscription.sub_queue
        subscription.sub_queue = sub_queue
        if before is None or sub_queue is None:
            change = SUB_QUEUE_BYTES if before is None else -SUB_QUEUE_BYTES
            self.own_bytes += change
            self._charge(subscription, change)
        self.touch(subscription)

    def touch(self, subscription: Subscription) -> None:
        """The options of a subscription have changed in place."""
        if subscription.entry is not None:
            self.cache.touch(subscription.entry, subscription)

    def drop(self, subscription: Subscription) -> i64:
        """Take a subscription away from its filter, and the filter with the last one. Its session has let go of it.

        The bytes of the trie that went.
        """
        entry = subscription.entry
        assert entry is not None
        group = subscription.group
        topic_filter = entry.topic_filter
        self._account(subscription, "" if group is None else group.name, entry, -1)
        self.cache.discard(entry, subscription)
        held: i64 = self.trie.bytes
        if entry.empty:
            self.cache.remove(topic_filter)
        if self.listener is not None and not cast(Session, subscription.session).uplink:
            self.listener.unwanted(topic_filter)
        return held - self.trie.bytes

    def tell(self, subscription: Subscription, snapshot: bool) -> None:
        """Have a subscription recorded: a new one, or (`snapshot`) one that was there before."""
        tap = self.tap
        if tap is not None:
            tap.subscribed(
                cast(Session, subscription.session).client_id,
                subscription.topic_filter,
                subscription.qos,
                subscription.no_local,
                subscription.retain_as_published,
                subscription.identifier,
                snapshot,
            )

    # -- the ends of sessions ------------------------------------------------------------------------------------------

    @property
    def leaving(self) -> bool:
        """True while sessions that are over have subscriptions left: `work_off` is to be called."""
        return len(self._leaving) > 0

    def end(self, session: Session) -> i64:
        """Begin to take away the subscriptions of a session that is over. How many went at once: all of a few."""
        done = self._end_some(session, min(DROPS_AT_ONCE, self.drops))
        if session.subscriptions:
            self._leaving.append(session)
        return done

    def work_off(self, most: i64) -> i64:
        """Take away up to `most` subscriptions of sessions that are over, the first session first.

        How many went; those with many levels of their own count as several (`DROP_NODES`).
        """
        leaving = self._leaving
        done: i64 = 0
        while leaving and done < most:
            done += self._end_some(leaving[0], most - done)
            if not leaving[0].subscriptions:
                leaving.popleft()
        return done

    def _end_some(self, session: Session, most: i64) -> i64:
        subscriptions = session.subscriptions
        done: i64 = 0
        while subscriptions and done < most:
            _, subscription = subscriptions.popitem()
            done += self._end(session, subscription)
        if not subscriptions:
            # An empty dict keeps the room that it had; a plan may refer to the session for a while.
            session.subscriptions = {}
        return done

    def _end(self, session: Session, subscription: Subscription) -> i64:
        """Take away one of a session that is over. How many it counts as."""
        if self.tap is not None:
            self.tap.unsubscribed(session.client_id, subscription.topic_filter, True)
        freed: i64 = self.drop(subscription)
        sub_queue = subscription.sub_queue
        if sub_queue is not None:
            self._totals.aging.pop(sub_queue, None)
        return 1 + (freed >> DROP_NODES)

    def _end_namesake(self, client_id: str, name: str) -> None:
        """What a record says of a subscription's end comes before what it says of the next one of that name."""
        for session in self._leaving:
            if session.client_id == client_id:
                subscription = session.subscriptions.pop(name, None)
                if subscription is not None:
                    self._end(session, subscription)

    def _account(self, subscription: Subscription, group_name: str, entry: FilterEntry, change: i64) -> None:
        """A subscription has come (`change` 1) or goes (-1)."""
        if group_name:
            size: i64 = subscription_bytes(subscription.topic_filter, group_name)
        else:
            # Its name is the filter.
            size = SUBSCRIPTION_BYTES + entry.text
        if subscription.sub_queue is not None:
            size += SUB_QUEUE_BYTES
        self.count += change
        if group_name:
            self.shared_count += change
        self.own_bytes += change * size
        self._charge(subscription, change * (size + entry.cost))

    def _charge(self, subscription: Subscription, change: i64) -> None:
        account = cast(Session, subscription.session).account
        account.filters += change
        account.fit()
        self._room.change(account.owner, int(change))
