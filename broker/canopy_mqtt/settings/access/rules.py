"""`[[rule]]` and `[access]`: the rights to publish, subscribe and receive.

Rules are asked in the order of the file, and the first that matches client, action and topic decides
(`canopy_mqtt.security.rules`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from canopy_mqtt.settings.values import Pattern, Section, filter_fault, networks, wrong

Action: TypeAlias = Literal["publish", "subscribe", "receive", "all"]
"""An action of a client. `subscribe` includes receiving the messages of the subscription; `receive` is that alone."""

PLACEHOLDERS: Final = ("{user}", "{client}", "{group}")
"""Placeholders for the client's names in the filters of a rule."""

MAX_FILTERS: Final = 10_000
"""Filters of all rules together. Each rule is checked once for a client that connects, which takes a microsecond; use
`acl_file` for more, which finds users by their names."""


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _filters(value: Sequence[str]) -> tuple[str, ...]:
    for at, text in enumerate(value):
        plain = text
        for placeholder in PLACEHOLDERS:
            plain = plain.replace(placeholder, "x")
        fault = filter_fault(plain)
        if "{" in plain or "}" in plain:
            fault = f"in which braces are those of {', '.join(PLACEHOLDERS)}"
        elif text.startswith("$share/"):
            fault = "without $share/name/ before it; the rule holds for shared subscriptions too"
        if fault:
            raise wrong(f"a topic filter {fault}", f"[{at}]", text)
    return tuple(value)


def _actions(value: Sequence[str]) -> tuple[str, ...]:
    if not value:
        raise wrong("at least one action; without the line, all")
    return tuple(value)


Patterns: TypeAlias = Annotated[Sequence[Pattern], BeforeValidator(_one_or_more), AfterValidator(tuple)]


class Rule(Section):
    """One rule. A client has to match each list that is given; an empty list matches all clients."""

    user: Patterns = ()
    anonymous: bool | None = None
    group: Patterns = ()
    client_id: Patterns = ()
    listener: Patterns = ()
    address: Annotated[Sequence[str], BeforeValidator(_one_or_more), AfterValidator(networks)] = ()
    action: Annotated[Sequence[Action], BeforeValidator(_one_or_more), AfterValidator(_actions)] = ("all",)
    filters: Annotated[Sequence[str], Field(min_length=1), BeforeValidator(_one_or_more), AfterValidator(_filters)]
    effect: Literal["allow", "deny"] = "allow"
    max_qos: Annotated[int, Field(ge=0, le=2)] = 2
    retain: bool | Literal["any"] = "any"
    _place: str = PrivateAttr("")

    @property
    def place(self) -> str:
        """The position of the rule, for people (`canopy.toml: line 9: rule[2]`); empty: unknown."""
        return self._place

    def stands(self, place: str) -> None:
        self._place = place

    @model_validator(mode="after")
    def _agrees(self) -> Rule:
        if self.effect == "deny" and self.max_qos != 2:
            raise wrong('only with effect = "allow"; a denying rule says nothing of QoS', ".max_qos", self.max_qos)
        if self.retain != "any" and not {"publish", "all"}.intersection(self.action):
            raise wrong("only with the action publish", ".retain", self.retain)
        return self


def _not_too_many(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    if sum(len(rule.filters) for rule in rules) > MAX_FILTERS:
        raise wrong(f"at most {MAX_FILTERS} filters in all rules together")
    return tuple(rules)


Rules: TypeAlias = Annotated[Sequence[Rule], AfterValidator(_not_too_many)]


class Access(Section):
    """The default for actions that no rule matches."""

    default: Literal["", "allow", "deny"] = ""
    acl_file: str = ""
