"""Rules that a token brings, or an authentication service answers with: for that client alone, and asked first.

Owns both forms: an object of lists, `{"pub": [...], "sub": [...], "all": [...]}`, as EMQX has it, whose topics are all
allowed; and a list of tables, like `{"permission": "deny", "action": "publish", "topic": "a/#"}` (EMQX's) or with the
keys of a `[[rule]]`: `effect`, `action`, `filters`, `max_qos`, `retain`. What is not understood is an error: half of
the rules would be other rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from broker.security.rules.rule import ACTIONS, ALL, Rule
from broker.settings.access.rules import Rule as RuleTable

MOST_FILTERS: Final = 256
"""Filters in the rules of one client: each is held against what the client does, until one speaks."""

MOST_CHARACTERS: Final = 16_384
"""Characters in those filters together: a session keeps them."""

EMQX_ACTIONS: Final = {"pub": "publish", "sub": "subscribe", "all": "all"}
EMQX_KEYS: Final = {"permission": "effect", "topic": "filters", "qos": "max_qos"}
PLACE: Final = "the client's own rules"


def read_claims(claims: object) -> tuple[Rule, ...]:
    """The rules of a claim, whatever JSON it is.

    Raises:
        ValueError: it cannot be used; the text says why, and repeats nothing of it.
    """
    if isinstance(claims, Mapping):
        tables: list[object] = []
        for key, action in EMQX_ACTIONS.items():
            if claims.get(key):
                tables.append({"action": action, "filters": claims[key]})
        if set(claims) - set(EMQX_ACTIONS):
            raise ValueError('rules are an object with "pub", "sub" and "all", or a list')
    elif isinstance(claims, Sequence) and not isinstance(claims, str):
        tables = [_named_ours(table) for table in claims]
    else:
        raise ValueError('rules are an object with "pub", "sub" and "all", or a list')
    rules: list[Rule] = []
    for at, table in enumerate(tables):
        try:
            read = RuleTable.model_validate(table)
        except ValidationError as error:
            where = ".".join(str(each) for each in error.errors()[0]["loc"])
            raise ValueError(f"rule {at + 1} is not right{f' at {where}' if where else ''}") from None
        rules += of_table(read, f"{PLACE}, number {at + 1}")
        if len(rules) > MOST_FILTERS:
            raise ValueError(f"more than {MOST_FILTERS} filters")
    if sum(len(rule.topic_filter) for rule in rules) > MOST_CHARACTERS:
        raise ValueError(f"filters of more than {MOST_CHARACTERS} characters")
    return tuple(rules)


def _named_ours(table: object) -> object:
    if not isinstance(table, Mapping):
        return table
    named = {EMQX_KEYS.get(key, key): value for key, value in table.items()}
    if {"user", "anonymous", "group", "client_id", "listener", "address"}.intersection(named):
        raise ValueError("rules of one client name no other")
    return named


def of_table(table: RuleTable, place: str) -> list[Rule]:
    """The rules of a `[[rule]]` table, one for each filter; whom it is about is the caller's."""
    actions = 0
    for action in table.action:
        actions |= ALL if action == "all" else ACTIONS[action]
    retain = None if table.retain == "any" else bool(table.retain)
    return [
        Rule(text, table.effect == "allow", actions, place, max_qos=table.max_qos, retain=retain)
        for text in table.filters
    ]


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
