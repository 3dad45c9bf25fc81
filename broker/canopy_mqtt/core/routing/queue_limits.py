"""Applies limits, queue rules and queue options to the queues of each client and subscription.

Owns the way from limits and rules to the queues of a session, its connection and its subscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec.topic_names import parse_shared
from canopy_mqtt.core.counters import QueueTotals
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queues.queue_terms import (
    DROP_NEWEST,
    LATEST,
    QueueTerms,
    RequestedTerms,
    SubscriptionQueue,
    SubscriptionTerms,
    grant,
    max_client_bytes,
    queue_terms,
    sub_queue_terms,
    subscription_rules,
)
from canopy_mqtt.core.routing.fanout import Fanout
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import Subscription

if TYPE_CHECKING:
    from mypy_extensions import i64

SWEEP: Final = 12_000
"""Messages that are too old and are dropped in one sweep: some milliseconds. The others follow in the next ones."""


class QueueLimits:
    """Sets the terms of queues."""

    def __init__(self, limits: Limits, fanout: Fanout) -> None:
        self._limits = limits
        self._budget = fanout.budget
        self._table = fanout.table
        # What everybody's queues keep to, where there are no rules.
        self._terms: QueueTerms | None = None
        self._max_client_bytes = 0

    def forget(self) -> None:
        """Take other limits: clients that connect from now on get what they say."""
        self._terms = None

    def sub_queue_terms(self, session: Session, topic_filter: str, options: RequestedTerms | None) -> SubscriptionTerms:
        """Return the terms of a subscription's messages, by the rules and by the queue options of its client."""
        terms = session.terms
        if terms is None:
            terms = queue_terms(self._limits, session.client_id, session.user_name)
        self._budget.used += len(session.rules)
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
            self._max_client_bytes = max_client_bytes(limits, terms)
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
            0 if session.is_link else self._max_client_bytes,
        )
        send_buffer = session.send_buffer
        if send_buffer is not None:
            send_buffer.limit(policy, terms.live_messages, terms.live_bytes)
            send_buffer.tells = session.v5 and self._limits.tell_loss
            send_buffer.low_latency(sub_queue is not None or session.fresh_sub_queues > 0)

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
        terms: SubscriptionTerms | None,
        options: RequestedTerms | None,
    ) -> None:
        """Let a subscription's messages keep to `terms`: in a queue of their own where these are not the client's."""
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
        if session.send_buffer is not None:
            session.send_buffer.low_latency(session.sub_queue is not None or session.fresh_sub_queues > 0)

    def sweep(self, load: QueueTotals, now: float) -> None:
        """Drop what has grown too old in queues where nothing comes or goes."""
        aging = load.aging
        left: i64 = SWEEP
        for sub_queue in list(aging):
            session = sub_queue.session
            left -= session.shed_stale(sub_queue, now, left)
            if sub_queue.waiting == 0:
                del aging[sub_queue]
            if left <= 0:
                return


def _has_terms(session: Session, terms: SubscriptionTerms) -> bool:
    """Return whether these are what all messages of a session keep to."""
    sub_queue = session.sub_queue
    if sub_queue is not None:
        return sub_queue.same(terms.policy, terms.max_age, terms.depth)
    return session.policy == terms.policy and terms.max_age == 0.0 and terms.depth == 0
