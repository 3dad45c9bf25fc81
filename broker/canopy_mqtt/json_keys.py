"""Refuses objects of JSON that name a key twice, as `object_pairs_hook`: readers differ in which value counts."""

from __future__ import annotations

from typing import Any, Final

MAX_SHOWN: Final = 64
"""Characters of a key in an error."""


class RepeatedKey(ValueError):
    """Says which key stands twice."""


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. Raises RepeatedKey."""
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise RepeatedKey(f"the key {key[:MAX_SHOWN]!r} stands twice")
        made[key] = value
    return made
