"""Converts a client's principal to the text in the table of sessions, and back.

Owns the names in that text. The rules from a token or a service are objects of another package, which converts them
(`RuleTexts`). Without that, they are not stored: messages that wait for the client are then checked against the rules
for all clients, until it connects again.
"""

from __future__ import annotations

import json
from math import isfinite
from types import NoneType
from typing import Any, Protocol

from canopy_mqtt.core.principal import Principal


class RuleTexts(Protocol):
    """Converts a principal's own rules to text and back."""

    def write(self, rules: tuple[object, ...]) -> list[Any]:
        """Return rules as values of JSON. Does not raise."""

    def read(self, values: list[Any]) -> tuple[object, ...]:
        """Return the rules again. Raises ValueError, TypeError or KeyError for values that no broker wrote."""


class Principals:
    """Writes and reads principals; `rules` None: without their own rules."""

    def __init__(self, rules: RuleTexts | None = None) -> None:
        self._rules = rules

    def write(self, principal: Principal) -> str:
        fields: dict[str, object] = {"user_name": principal.user_name}
        if principal.groups:
            fields["groups"] = list(principal.groups)
        if principal.attributes:
            fields["attributes"] = principal.attributes
        # JSON has no number for what never comes.
        if principal.expires_at and isfinite(principal.expires_at):
            fields["expires_at"] = principal.expires_at
        for name in ("certificate", "listener", "host", "authenticator", "mount"):
            if text := getattr(principal, name):
                fields[name] = text
        if principal.rules and self._rules is not None:
            fields["rules"] = self._rules.write(principal.rules)
        text = json.dumps(fields, ensure_ascii=False)
        # Rules are their authenticator's; whatever stands in them, the group has to be written.
        return text if text.isprintable() else json.dumps(fields)

    def read(self, text: str, client_id: str) -> Principal:
        """Return the principal of such a text. Raises ValueError, TypeError, KeyError or AttributeError if it is
        none."""
        fields = json.loads(text)
        rules, attributes, expires_at = fields.get("rules"), fields.get("attributes"), fields.get("expires_at", 0.0)
        if not isinstance(attributes, dict | NoneType) or not isinstance(expires_at, int | float):
            raise TypeError("no attributes, or no time")
        principal = Principal(
            fields["user_name"],
            tuple(fields.get("groups", ())),
            attributes,
            expires_at,
            () if rules is None or self._rules is None else self._rules.read(rules),
            *(_text(fields, "certificate"), client_id, _text(fields, "listener"), _text(fields, "host")),
            *(_text(fields, "authenticator"), _text(fields, "mount")),
        )
        if fault := principal.unfit():
            raise ValueError(fault)
        return principal


def _text(fields: dict[str, Any], name: str) -> str:
    found = fields.get(name, "")
    if not isinstance(found, str):
        raise TypeError(f"{name} is no text")
    return found
