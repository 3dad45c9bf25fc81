"""Payloads in JSON: an object whose fields become columns.

Promises: what JSON readers differ in is refused: keys that are there twice, NaN and Infinity, text that is not UTF-8.
Depth and number of fields are bounded.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from canopy_pipeline.tables.payloads.bad_payload import (
    DUPLICATE,
    MALFORMED,
    NOT_FINITE,
    OUT_OF_RANGE,
    TOO_DEEP,
    TOO_MANY,
    WRONG_TYPE,
    BadPayloadError,
)
from canopy_pipeline.tables.payloads.column_values import value
from canopy_pipeline.tables.payloads.plain import text_of
from canopy_pipeline.tables.plans import Column, Limits, Plan

_TEXTS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Each text, also one that does not end; no character is scanned twice."""
_BRACKETS: Final = re.compile(r"[\[{]|[\]}]")
_DIGITS: Final = 1_000
"""Of a number: float64 has 17 of them, and 1e308 has 309."""


class JsonReader:
    """Payloads as Python has them, within bounds."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_constant=_constant, parse_float=_float, parse_int=_int
        )

    def read(self, payload: bytes) -> Any:
        """Any JSON value.

        Raises:
            BadPayloadError: it is none, or more than is read.
        """
        text = text_of(payload)
        if text.count("[") + text.count("{") > self.limits.depth:
            self._measure(text)
        try:
            return self._decoder.decode(text)
        except ValueError as error:
            raise BadPayloadError(MALFORMED, f"not JSON: {error}") from error
        except RecursionError as error:
            raise BadPayloadError(TOO_DEEP, f"deeper than {self.limits.depth}") from error

    def _measure(self, text: str) -> None:
        depth = 0
        for found in _BRACKETS.finditer(_TEXTS.sub("", text)):
            depth += 1 if found[0] in "[{" else -1
            if depth > self.limits.depth:
                raise BadPayloadError(TOO_DEEP, f"deeper than {self.limits.depth}")

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(pairs) > self.limits.fields:
            raise BadPayloadError(TOO_MANY, f"more than {self.limits.fields:,} fields in an object")
        made = dict(pairs)
        if len(made) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise BadPayloadError(DUPLICATE, f"the key {twice!r} is there twice")
        return made


def _constant(text: str) -> float:
    raise BadPayloadError(NOT_FINITE, f"{text} is not valid JSON")


def _float(text: str) -> float:
    if len(text) > _DIGITS:
        raise BadPayloadError(OUT_OF_RANGE, f"a number of {len(text):,} characters")
    made = float(text)
    if not math.isfinite(made):
        raise BadPayloadError(OUT_OF_RANGE, "a number that does not fit float64")
    return made


def _int(text: str) -> int:
    if len(text) > _DIGITS:
        raise BadPayloadError(OUT_OF_RANGE, f"a number of {len(text):,} digits")
    return int(text)


class JsonDecoder:
    def __init__(self, plan: Plan) -> None:
        self.columns = plan.columns
        self.reader = JsonReader(plan.limits)

    def rows(self, payload: bytes, topic: str, seq: int) -> list[tuple[Any, ...]]:
        del topic, seq
        found = self.reader.read(payload)
        if not isinstance(found, dict):
            raise BadPayloadError(WRONG_TYPE, f"{type(found).__name__} instead of a JSON object")
        return [fields(found, self.columns)]


def fields(found: dict[str, Any], columns: tuple[Column, ...]) -> tuple[Any, ...]:
    """The values of the columns, out of nested objects."""
    return tuple(value(_at(found, column.path), column) for column in columns)


def _at(found: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(found, dict):
            return None
        found = found.get(key)
    return found
