"""An ordered set of rules that finds the first match for a topic.

Owns the index by the first level of the filters: a topic is compared only with rules that may match it. Rules about
other first levels cost it nothing, however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.rules.rule import PUBLISH, SUBSCRIBE, Rule


class RuleSet:
    """Rules for the same clients. It only reads them."""

    __slots__ = ("__weakref__", "_by_level", "_other", "number", "rules", "templated")

    def __init__(self, rules: Sequence[Rule], number: int = 0) -> None:
        """`number` is unique among the sets of one owner, now and later."""
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
        """Return the first rule for a client that publishes to a topic name, or receives from it."""
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
                if rule.applies_to(principal, levels):
                    found, at = rule, order
                    break
        return found

    def about_filter(self, principal: Principal, topic_filter: str) -> Rule | None:
        """Return the first rule that applies to a subscription: it denies some of the filter, or allows all of it."""
        for rule in self.rules:
            if not rule.actions & SUBSCRIBE:
                continue
            if rule.allow:
                if rule.covers(principal, topic_filter):
                    return rule
            elif rule.overlaps(principal, topic_filter):
                return rule
        return None
