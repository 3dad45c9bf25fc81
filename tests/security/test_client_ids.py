"""Client identifiers that belong to users."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.security.client_ids import belongs
from tests.support.runs import for_each


@for_each(
    ("client_id", "user", "patterns", "expected"),
    [
        ("anything", "alice", [], True),
        ("alice-1", "alice", ["{user}-*"], True),
        ("alice-", "alice", ["{user}-*"], True),
        ("alice", "alice", ["{user}-*"], False),
        ("alice", "alice", ["{user}-*", "{user}"], True),
        ("bob-1", "alice", ["{user}-*"], False),
        ("Alice-1", "alice", ["{user}-*"], False),
        ("bob-1", "*", ["{user}-*"], False),
        ("*-1", "*", ["{user}-*"], True),
        ("public-1", None, ["{user}-*"], False),
        ("public-1", None, ["{user}-*", "public-*"], True),
        ("None-1", None, ["{user}-*"], False),
        ("", "alice", ["{user}"], True),
        ("site-alice-7", "alice", ["site-{user}-*"], True),
        ("alice-alice", "alice", ["{user}*{user}"], True),
        ("alice", "alice", ["{user}*{user}"], False),
    ],
)
def test_whose_it_is(client_id: str, user: str | None, patterns: list[str], expected: bool) -> None:
    assert belongs(client_id, user, patterns) is expected


TEXTS = st.text(alphabet="ab*", max_size=8)


@given(client_id=TEXTS, user=TEXTS, pattern=st.text(alphabet="ab*U", max_size=8))
def test_as_a_regular_expression_has_it(client_id: str, user: str, pattern: str) -> None:
    parts = [re.escape(part).replace("U", re.escape(user)) for part in pattern.split("*")]
    expected = not client_id or re.fullmatch(".*".join(parts), client_id) is not None
    assert belongs(client_id, user, [pattern.replace("U", "{user}")]) is expected
