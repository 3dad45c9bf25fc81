"""Payloads that are a text or a number, whole."""

from __future__ import annotations

import re
from typing import Any, Final

from canopy_pipeline.tables.payloads.bad_payload import BadPayloadError
from canopy_pipeline.tables.payloads.column_values import value
from canopy_pipeline.tables.plans import Plan

_NUMBER: Final = re.compile(rb"\s*[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?\s*")


def text_of(payload: bytes) -> str:
    """UTF-8.

    Raises:
        BadPayloadError: it is not.
    """
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise BadPayloadError("malformed", f"not UTF-8 at byte {error.start}") from error


class TextDecoder:
    def rows(self, payload: bytes, topic: str, seq: int) -> list[tuple[Any, ...]]:
        del topic, seq
        return [(text_of(payload),)]


class NumberDecoder:
    def __init__(self, plan: Plan) -> None:
        self.column = plan.columns[0]

    def rows(self, payload: bytes, topic: str, seq: int) -> list[tuple[Any, ...]]:
        del topic, seq
        if len(payload) > 1_000 or _NUMBER.fullmatch(payload) is None:
            raise BadPayloadError("wrong-type", "not a decimal number")
        return [(value(float(payload), self.column),)]
