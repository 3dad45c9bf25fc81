"""Applies limits, queue rules and queue options to the queues of each client and subscription.

Owns the way from limits and rules to the queues of a session, its connection and its subscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from broker.core.codec.topic_names import covers, parse_shared
from broker.core.limits import Limits
from broker.core.queues.delivery import SubscriptionQueue
from broker.core.queues.policies.queue_options import grant
from broker.core.queues.policies.queue_policy import (
    DROP_NEWEST,
    LATEST,
    UNSET,
    QueueOptions,
    QueueRule,
    QueueTerms,
    SubscriptionQueueTerms,
)
from broker.core.queues.queue_totals import QueueTotals
from broker.core.routing.receivers.fanout import Fanout
from broker.core.session.session import Session
from broker.core.topics.subscription import Subscription

if TYPE_CHECKING:
    from mypy_extensions import i64

SWEEP: Final = 12_000
"""Messages that are too old and are dropped in one sweep: some milliseconds. The others follow in the next ones."""


class QueueLimits:
    """Sets the terms of queues."""

    def __init__(self, limits: Limits, fanout: Fanout) -> None:
        """`fanout` is who keeps account of the work."""
        self._limits = limits
        self._fanout = fanout
        self._table = fanout.table
        # What everybody's queues keep to, where there are no rules.
        self._terms: QueueTerms | None = None
        self._max_client_bytes = 0

    def forget(self) -> None:
        """The limits are others: whoever connects from now on gets what they say."""
        self._terms = None

    def sub_queue_terms(
        self, session: Session, topic_filter: str, options: QueueOptions | None
    ) -> SubscriptionQueueTerms:
        """What the messages of a subscription will keep to, by the rules and by the queue options of its client."""
        terms = session.terms
        if terms is None:
            terms = queue_terms(self._limits, session.client_id, session.user_name)
        self._fanout.work += len(session.rules)
        found = sub_queue_terms(session.rules, topic_filter, terms)
        return found if options is None else grant(options, self._limits, terms, found)

    def apply(self, session: Session) -> None:
        """Give a session's queues, and those of its connection, the terms that the settings have for its client.

        What waits already stays where it is.
        """
        limits = self._limits
        terms = self._terms
        if terms is None or limits.rules:
            terms = queue_terms(limits, session.client_id, session.user_name)
            self._terms = terms
            self._max_client_bytes = _max_client_bytes(limits, terms)
        session.terms = terms
        session.rules = subscription_rules(limits, session.client_id, session.user_name) if limits.rules else ()
        policy = terms.policy
        sub_queue = None
        if policy == LATEST or terms.max_age > 0.0:
            sub_queue = session.sub_queue
            if sub_queue is None or not sub_queue.same(policy, terms.max_age, 0):
                sub_queue = SubscriptionQueue(session, policy, terms.max_age, 0)
        if policy == LATEST:
            # Full of topics, it takes no more.
            policy = DROP_NEWEST
        session.limit(
            policy,
            sub_queue,
            terms.session_messages,
            terms.session_bytes,
            limits.max_inflight_bytes,
            0 if session.link else self._max_client_bytes,
        )
        outbox = session.outbox
        if outbox is not None:
            outbox.limit(policy, terms.live_messages, terms.live_bytes)
            outbox.tells = session.v5 and self._limits.tell_loss
            outbox.keep_fresh(sub_queue is not None or session.fresh_sub_queues > 0)

    def renew_terms(self, session: Session, subscription: Subscription) -> None:
        """The rules are about another user than before: give a subscription the queue that it has now."""
        sub_queue = subscription.sub_queue
        options = None if sub_queue is None else sub_queue.options
        if session.rules or sub_queue is not None:
            topic_filter = parse_shared(subscription.topic_filter)[1]
            self.give_sub_queue(session, subscription, self.sub_queue_terms(session, topic_filter, options), options)

    def give_sub_queue(
        self,
        session: Session,
        subscription: Subscription,
        terms: SubscriptionQueueTerms | None,
        options: QueueOptions | None,
    ) -> None:
        """Have a subscription's messages keep to `terms`: in a queue of their own where these are not the client's."""
        before = subscription.sub_queue
        sub_queue: SubscriptionQueue | None = None
        if terms is not None and (options is not None or not _has_terms(session, terms)):
            sub_queue = before
            if sub_queue is None or not sub_queue.same(terms.policy, terms.max_age, terms.depth):
                sub_queue = SubscriptionQueue(session, terms.policy, terms.max_age, terms.depth)
            sub_queue.options = options
        if sub_queue is before:
            return
        self._table.give_queue(subscription, sub_queue)
        if before is not None and before.fresh:
            self.count_fresh(session, -1)
        if sub_queue is not None and sub_queue.fresh:
            self.count_fresh(session, 1)

    def count_fresh(self, session: Session, change: int) -> None:
        """A session has one more (1) or one fewer (-1) subscription whose messages are worth less the longer they wait.

        Its connection writes less ahead as long as there is one.
        """
        session.fresh_sub_queues += change
        if session.outbox is not None:
            session.outbox.keep_fresh(session.sub_queue is not None or session.fresh_sub_queues > 0)

    def sweep(self, load: QueueTotals, now: float) -> None:
        """Drop what has grown too old in queues where nothing comes or goes."""
        aging = load.aging
        left: i64 = SWEEP
        for sub_queue in list(aging):
            session = cast(Session, sub_queue.session)
            left -= session.shed_stale(sub_queue, now, left)
            if sub_queue.waiting == 0:
                del aging[sub_queue]
            if left <= 0:
                return


def _has_terms(session: Session, terms: SubscriptionQueueTerms) -> bool:
    """Whether these are what all messages of a session keep to."""
    sub_queue = session.sub_queue
    if sub_queue is not None:
        return sub_queue.same(terms.policy, terms.max_age, terms.depth)
    return session.queue.policy == terms.policy and terms.max_age == 0.0 and terms.depth == 0


def _max_client_bytes(limits: Limits, terms: QueueTerms) -> int:
    """The bound on all that is kept for a client: a part that may take more by its own bound raises it, 0 lifts it."""
    most = limits.max_client_bytes
    for part in (terms.session_bytes, limits.max_filter_bytes_per_client, limits.max_retained_bytes_per_client):
        if part == 0 or most == 0:
            return 0
        most = max(most, part)
    return most


def queue_terms(limits: Limits, client_id: str, user_name: str | None) -> QueueTerms:
    """What the queues of one client keep to."""
    terms = QueueTerms(
        limits.queue_policy,
        limits.queue_max_age,
        limits.live_messages,
        limits.live_bytes,
        limits.session_messages,
        limits.session_bytes,
    )
    for rule in limits.rules:
        if not rule.topic_filter and rule.applies_to(client_id, user_name):
            terms.policy = _either(rule.policy, terms.policy)
            terms.max_age = rule.max_age if rule.max_age >= 0.0 else terms.max_age
            terms.live_messages = _either(rule.live_messages, terms.live_messages)
            terms.live_bytes = _either(rule.live_bytes, terms.live_bytes)
            terms.session_messages = _either(rule.session_messages, terms.session_messages)
            terms.session_bytes = _either(rule.session_bytes, terms.session_bytes)
    return terms


def subscription_rules(limits: Limits, client_id: str, user_name: str | None) -> tuple[QueueRule, ...]:
    """The rules about subscriptions that can apply to those of a client."""
    return tuple([rule for rule in limits.rules if rule.topic_filter and rule.applies_to(client_id, user_name)])


def sub_queue_terms(rules: tuple[QueueRule, ...], topic_filter: str, terms: QueueTerms) -> SubscriptionQueueTerms:
    """What the messages of one subscription keep to: the client's `terms`, and what its `rules` change of them.

    `topic_filter` without `$share/name/`.
    """
    found = SubscriptionQueueTerms(terms.policy, terms.max_age, 0)
    for rule in rules:
        if covers(rule.topic_filter, topic_filter):
            found.policy = _either(rule.policy, found.policy)
            found.max_age = rule.max_age if rule.max_age >= 0.0 else found.max_age
            found.depth = _either(rule.depth, found.depth)
    return found


def _either(said: int, otherwise: int) -> int:
    return otherwise if said == UNSET else said
