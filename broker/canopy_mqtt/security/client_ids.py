"""Client identifiers that belong to users (`security.client_ids`).

Matching takes linear time for all user names. It caches nothing by user, as `fnmatch` would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

USER: Final = "{user}"


def belongs(client_id: str, user: str | None, patterns: Sequence[str]) -> bool:
    """Return True if one of the patterns matches a client identifier: `*` is any text, `{user}` the name of the user.

    Without a user name only patterns without `{user}` match. Every user may use the empty identifier, for which the
    broker chooses a new one. Without patterns every identifier is allowed.
    """
    if not patterns or not client_id:
        return True
    for pattern in patterns:
        if user is None and USER in pattern:
            continue
        # The name is put in last, so that an asterisk in it stands for itself.
        if _matches(client_id, [part.replace(USER, user or "") for part in pattern.split("*")]):
            return True
    return False


def _matches(text: str, parts: list[str]) -> bool:
    """Return True if the text contains the parts in this order, the first at its beginning and the last at its end."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return text == first
    if not text.startswith(first) or not text.endswith(last) or len(text) < len(first) + len(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in parts[1:-1]:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
