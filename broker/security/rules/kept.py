"""Rules that a token or a service brought, as plain values that a store can keep, and back."""

from __future__ import annotations

from typing import Any

from broker.security.rules.rule import Rule


class KeptRules:
    """Writes and reads a principal's own rules, as a store on disk asks for it."""

    def write(self, rules: tuple[object, ...]) -> list[Any]:
        """One list for each. What is no rule of ours nobody asks about, and is left out."""
        return [
            [rule.topic_filter, rule.allow, rule.actions, rule.place, rule.max_qos, rule.retain]
            for rule in rules
            if isinstance(rule, Rule)
        ]

    def read(self, values: list[Any]) -> tuple[object, ...]:
        """The rules that `write` made these of. Raises ValueError, TypeError or AttributeError: it did not."""
        return tuple(
            Rule(topic_filter, allow, actions, place, max_qos=max_qos, retain=retain)
            for topic_filter, allow, actions, place, max_qos, retain in values
        )
