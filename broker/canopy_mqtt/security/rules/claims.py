"""Parses the rules in a token or in the answer of an authentication service: for that client alone, and asked first.

Owns both forms: an object of lists, `{"pub": [...], "sub": [...], "all": [...]}`, as EMQX has it, which allows all its
topics; and a list of tables, like `{"permission": "deny", "action": "publish", "topic": "a/#"}` (EMQX's) or with the
keys of a `[[rule]]`: `effect`, `action`, `filters`, `max_qos`, `retain`. An unknown key is an error: half of the rules
would be other rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from canopy_mqtt.security.rules.rule import ACTIONS, ALL, Rule
from canopy_mqtt.settings.access.rules import Rule as RuleTable

MAX_FILTERS: Final = 256
"""Filters in the rules of one client: each action of the client is compared with them, up to the first match."""

MAX_CHARACTERS: Final = 16_384
"""Characters of all those filters: a session keeps them."""

EMQX_ACTIONS: Final = {"pub": "publish", "sub": "subscribe", "all": "all"}
EMQX_KEYS: Final = {"permission": "effect", "topic": "filters", "qos": "max_qos"}
PLACE: Final = "the client's own rules"


def read_claims(claims: object) -> tuple[Rule, ...]:
    """Parse the rules of a claim, which may be any JSON.

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
        if len(rules) > MAX_FILTERS:
            raise ValueError(f"more than {MAX_FILTERS} filters")
    if sum(len(rule.topic_filter) for rule in rules) > MAX_CHARACTERS:
        raise ValueError(f"filters of more than {MAX_CHARACTERS} characters")
    return tuple(rules)


def _named_ours(table: object) -> object:
    if not isinstance(table, Mapping):
        return table
    named = {EMQX_KEYS.get(key, key): value for key, value in table.items()}
    if {"user", "anonymous", "group", "client_id", "listener", "address"}.intersection(named):
        raise ValueError("rules of one client name no other")
    return named


def of_table(table: RuleTable, place: str) -> list[Rule]:
    """Return the rules of a `[[rule]]` table, one for each filter; the caller restricts them to clients."""
    actions = 0
    for action in table.action:
        actions |= ALL if action == "all" else ACTIONS[action]
    retain = None if table.retain == "any" else bool(table.retain)
    return [
        Rule(text, table.effect == "allow", actions, place, max_qos=table.max_qos, retain=retain)
        for text in table.filters
    ]


class KeptRules:
    """Serializes a principal's own rules for a store on disk."""

    def write(self, rules: tuple[object, ...]) -> list[Any]:
        """Return one list for each rule. Objects of other types have no effect, and are left out."""
        return [
            [rule.topic_filter, rule.allow, rule.actions, rule.place, rule.max_qos, rule.retain]
            for rule in rules
            if isinstance(rule, Rule)
        ]

    def read(self, values: list[Any]) -> tuple[object, ...]:
        """Return the rules that `write` serialized. Raises ValueError, TypeError or AttributeError for other values."""
        return tuple(
            Rule(topic_filter, allow, actions, place, max_qos=max_qos, retain=retain)
            for topic_filter, allow, actions, place, max_qos, retain in values
        )
