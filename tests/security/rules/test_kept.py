"""Rules of a principal that a store keeps."""

from __future__ import annotations

import json

import pytest

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.security.rules.claims import KeptRules
from canopy_mqtt.security.rules.rule import ALL, PUBLISH, Rule
from tests.support.runs import for_each


def test_they_say_the_same_when_they_come_back() -> None:
    rules = (
        Rule("a/{user}/#", True, ALL, "token: rule[1]", max_qos=1),
        Rule("b/+", False, ALL, "token: rule[2]", retain=True),
    )
    again = KeptRules().read(json.loads(json.dumps(KeptRules().write((*rules, "somebody's own")))))
    names = ("topic_filter", "levels", "allow", "actions", "place", "who", "max_qos", "retain", "templated")
    assert [[getattr(one, name) for name in names] for one in again] == [
        [getattr(one, name) for name in names] for one in rules
    ]
    principal = Principal("u")
    assert isinstance(again[0], Rule)
    assert isinstance(again[1], Rule)
    assert again[0].applies_to(principal, ["a", "u", "x"])
    assert again[1].actions == PUBLISH


@for_each("values", [[["a"]], [7], [[1, 2, 3, 4, 5, 6]]])
def test_what_nobody_wrote_is_an_error(values: list[object]) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        KeptRules().read(values)
