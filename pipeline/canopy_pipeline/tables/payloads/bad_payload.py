"""The reasons why a payload makes no row."""

from __future__ import annotations

from typing import Final

NOT_RECORDED: Final = "not-recorded"
TOO_LARGE: Final = "too-large"
TOO_DEEP: Final = "too-deep"
TOO_MANY: Final = "too-many-fields"
MALFORMED: Final = "malformed"
DUPLICATE: Final = "duplicate-key"
MISSING: Final = "missing"
WRONG_TYPE: Final = "wrong-type"
OUT_OF_RANGE: Final = "out-of-range"
NOT_FINITE: Final = "not-finite"
NO_BIRTH: Final = "no-birth"
NO_SCHEMA: Final = "no-schema"
LATE: Final = "late"
AHEAD: Final = "ahead"

REASONS: Final = (
    NOT_RECORDED,
    TOO_LARGE,
    TOO_DEEP,
    TOO_MANY,
    MALFORMED,
    DUPLICATE,
    MISSING,
    WRONG_TYPE,
    OUT_OF_RANGE,
    NOT_FINITE,
    NO_BIRTH,
    NO_SCHEMA,
    LATE,
    AHEAD,
)
"""All reasons, by which dead letters are counted."""

MAX_DETAIL: Final = 200
"""Characters of a detail, which may quote a client's payload."""


class BadPayloadError(Exception):
    """A payload makes no row: one of `REASONS`, and a detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        # It is kept as UTF-8: what a client sent may hold halves of surrogate pairs.
        self.detail = detail[:MAX_DETAIL].encode(errors="replace").decode()
