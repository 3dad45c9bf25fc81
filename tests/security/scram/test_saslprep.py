"""SASLprep: the examples of RFC 4013, section 3, and what must not be mixed."""

from __future__ import annotations

import pytest

from canopy_mqtt.security.scram.saslprep import saslprep
from tests.support.runs import for_each


@for_each(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_prepared(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@for_each("text", ["\u0007", "\u0627\u0031", "\u0627a\u0628", "\ue000", "\U0001f600\u0221", "\x7f"])
def test_prohibited(text: str) -> None:
    with pytest.raises(ValueError, match=r"RFC 4013|control|mixed") as caught:
        saslprep(text)
    assert text not in str(caught.value)
