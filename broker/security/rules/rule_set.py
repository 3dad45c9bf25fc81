"""Rules in their order, and the first of them that speaks about a topic.

Owns the index: by the first level of their filters, so that a topic is held against those rules alone that may match
it. A topic costs no more for rules about other first levels, however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.principal import Principal
from broker.security.rules.rule import PUBLISH, SUBSCRIBE, Rule


class RuleSet:
    """Some rules, which are about the same clients. Owns nothing of the rules."""

    __slots__ = ("__weakref__", "_by_level", "_other", "number", "rules", "templated")

    def __init__(self, rules: Sequence[Rule], number: int = 0) -> None:
        """`number`: no other set of the same owner has it, nor will have."""
        self.number = number
        self.rules = tuple(rules)
        # Whether a verdict is about one client, and not about all of these.
        self.templated = any(rule.templated for rule in rules)
        self._by_level: dict[str, list[tuple[int, Rule]]] = {}
        self._other: list[tuple[int, Rule]] = []
        for order, rule in enumerate(rules):
            first = rule.levels[0]
            if first in ("+", "#") or "{" in first or "%" in first:
                self._other.append((order, rule))
            else:
                self._by_level.setdefault(first, []).append((order, rule))

    def about(self, principal: Principal, action: int, topic: str, qos: int = 0, retain: bool = False) -> Rule | None:
        """The first rule about a client that publishes to a topic name, or is sent a message of it."""
        levels = topic.split("/")
        found: Rule | None = None
        at = len(self.rules)
        for rules in (self._by_level.get(levels[0], ()), self._other):
            for order, rule in rules:
                if order >= at:
                    break
                if not rule.actions & action:
                    continue
                if action == PUBLISH and (
                    (rule.retain is not None and rule.retain is not retain) or (rule.allow and qos > rule.max_qos)
                ):
                    continue
                if rule.says(principal, levels):
                    found, at = rule, order
                    break
        return found

    def about_filter(self, principal: Principal, topic_filter: str) -> Rule | None:
        """The first rule that speaks about a subscription to a filter: it denies some of it, or allows all of it."""
        for rule in self.rules:
            if not rule.actions & SUBSCRIBE:
                continue
            if rule.allow:
                if rule.grants(principal, topic_filter):
                    return rule
            elif rule.touches(principal, topic_filter):
                return rule
        return None
