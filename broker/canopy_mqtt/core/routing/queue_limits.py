"""Applies limits, queue rules and queue options to the queues of each client and subscription.

Owns the way from limits and rules to the queues of a session, its connection and its subscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec.topic_names import parse_shared
from canopy_mqtt.core.limits import Limits
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.queues.queue_terms import (
    DROP_NEWEST,
    LATEST,
    MessageTerms,
    QueueTerms,
    RequestedTerms,
    SubscriptionTerms,
    grant,
    max_client_bytes,
    queue_terms,
    subscription_rules,
    subscription_terms,
)
from canopy_mqtt.core.routing.fanout import Fanout
from canopy_mqtt.core.routing.nodes import NodeSession
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

    def subscription_terms(
        self, session: Session, topic_filter: str, options: RequestedTerms | None
    ) -> SubscriptionTerms:
        """Return the terms of a subscription's messages, by the rules and by the queue options of its client."""
        terms = session.terms
        if terms is None:
            terms = queue_terms(self._limits, session.client_id, session.user_name)
        self._budget.used += len(session.rules)
        found = subscription_terms(session.rules, topic_filter, terms)
        return found if options is None else grant(options, self._limits, terms, found)

    def apply(self, session: Session) -> None:
        """Give a session's queues, and those of its connection, the terms that the settings have for its client.

        What waits already stays where it is.
        """
        limits = self._limits
        if isinstance(session, NodeSession):
            session.bound(limits)
            return
        terms = self._terms
        if terms is None or limits.rules:
            terms = queue_terms(limits, session.client_id, session.user_name)
            self._terms = terms
            self._max_client_bytes = max_client_bytes(limits, terms)
        session.terms = terms
        session.rules = subscription_rules(limits, session.client_id, session.user_name) if limits.rules else ()
        policy = terms.policy
        message_terms = None
        if policy == LATEST or terms.max_age > 0.0:
            message_terms = _message_terms(session, SubscriptionTerms(policy, terms.max_age), session.message_terms)
        if policy == LATEST:
            # Full of topics, it takes no more.
            policy = DROP_NEWEST
        session.limit(
            policy,
            message_terms,
            terms.session_messages,
            terms.session_bytes,
            limits.max_inflight_bytes,
            0 if session.is_link else self._max_client_bytes,
        )
        send_buffer = session.send_buffer
        if send_buffer is not None:
            send_buffer.limit(policy, terms.live_messages, terms.live_bytes)
            send_buffer.tells_losses = session.v5 and self._limits.tell_loss
            send_buffer.low_latency(message_terms is not None or session.fresh_terms > 0)

    def apply_to_group(self, queue: Session, topic_filter: str) -> None:
        """Give the queue of a share group the terms of a session, and those that the rules have for its filter."""
        before = queue.message_terms
        self.apply(queue)
        if queue.rules:
            terms = self.subscription_terms(queue, topic_filter, None)
            if not _has_terms(queue, terms):
                queue.message_terms = _message_terms(queue, terms, before)

    def renew_terms(self, session: Session, subscription: Subscription) -> None:
        """The rules are about another user than before: give a subscription the queue that it has now."""
        message_terms = subscription.message_terms
        options = None if message_terms is None else message_terms.options
        if session.rules or message_terms is not None:
            topic_filter = parse_shared(subscription.topic_filter)[1]
            self.give_terms(session, subscription, self.subscription_terms(session, topic_filter, options), options)

    def give_terms(
        self,
        session: Session,
        subscription: Subscription,
        terms: SubscriptionTerms | None,
        options: RequestedTerms | None,
    ) -> None:
        """Let a subscription's messages keep to `terms`: in a queue of their own where these are not the client's."""
        before = subscription.message_terms
        message_terms: MessageTerms | None = None
        if terms is not None and (options is not None or not _has_terms(session, terms)):
            message_terms = _message_terms(session, terms, before)
            message_terms.options = options
        if message_terms is before:
            return
        self._table.give_queue(subscription, message_terms)
        if before is not None and before.fresh:
            self.count_fresh(session, -1)
        if message_terms is not None and message_terms.fresh:
            self.count_fresh(session, 1)

    def count_fresh(self, session: Session, change: int) -> None:
        """A session has one more (1) or one fewer (-1) subscription whose messages are worth less the longer they wait.

        Its connection writes less ahead as long as there is one.
        """
        session.fresh_terms += change
        if session.send_buffer is not None:
            session.send_buffer.low_latency(session.message_terms is not None or session.fresh_terms > 0)

    def sweep(self, totals: QueueTotals, now: float) -> None:
        """Drop what has grown too old in queues where nothing comes or goes."""
        aging = totals.aging
        left: i64 = SWEEP
        for message_terms in list(aging):
            session = message_terms.session
            left -= session.shed_stale(message_terms, now, left)
            if message_terms.waiting == 0:
                del aging[message_terms]
            if left <= 0:
                return


def _message_terms(session: Session, terms: SubscriptionTerms, before: MessageTerms | None) -> MessageTerms:
    """Return the terms of messages for these: those that there are, with what waits, if they are the same."""
    return before if before is not None and before.keeps_to(terms) else MessageTerms(session, terms)


def _has_terms(session: Session, terms: SubscriptionTerms) -> bool:
    """Return whether these are what all messages of a session keep to."""
    message_terms = session.message_terms
    if message_terms is not None:
        return message_terms.keeps_to(terms)
    return session.policy == terms.policy and terms.max_age == 0.0 and terms.depth == 0
