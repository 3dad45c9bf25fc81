"""The reasons why a payload makes no row."""

from __future__ import annotations

from typing import Final, Literal, get_args

Reason = Literal[
    "not-recorded", "too-large", "too-deep", "too-many-fields", "malformed", "duplicate-key", "missing", "wrong-type",
    "out-of-range", "not-finite", "no-birth", "no-schema", "late", "ahead",
]  # fmt: skip
REASONS: Final = get_args(Reason)
"""All reasons, by which dead letters are counted."""

MAX_DETAIL: Final = 200
"""Characters of a detail, which may quote a client's payload."""


class BadPayloadError(Exception):
    """A payload makes no row: one of `REASONS`, and a detail."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        # It is kept as UTF-8: what a client sent may hold halves of surrogate pairs.
        self.detail = detail[:MAX_DETAIL].encode(errors="replace").decode()
