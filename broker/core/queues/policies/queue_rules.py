"""Chooses the terms of a client's queues and of single subscriptions from the settings and the rules.

Owns `QueueRule` and the order in which rules apply: all that match, one after the other; a later one wins for what it
sets. Rules with a topic filter apply to subscriptions, all others to clients.

Promises: without rules, nothing is computed. `queue_options` reads what a subscriber requests.
"""

from __future__ import annotations

from broker.core.codec.topic_names import covers
from broker.core.limits import Limits
from broker.core.queues.policies.queue_policy import UNSET, QueueRule, QueueTerms, SubscriptionQueueTerms


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
