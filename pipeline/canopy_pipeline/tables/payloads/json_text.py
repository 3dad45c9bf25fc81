"""Payloads in JSON: an object whose fields become columns.

Promises: what JSON readers differ in is refused: keys that are there twice, NaN and Infinity, text that is not UTF-8.
Depth and number of fields are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from math import isfinite
from typing import Any, Final

from canopy_pipeline.tables.payloads.bad_payload import BadPayloadError
from canopy_pipeline.tables.payloads.column_values import in_words, value
from canopy_pipeline.tables.payloads.plain import text_of
from canopy_pipeline.tables.plans import Limits, Plan

_TEXTS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Each text, also one that does not end; no character is scanned twice."""
_BRACKETS: Final = re.compile(r"[\[{]|[\]}]")
_DIGITS: Final = 1_000
"""Of a whole number: float64 has 17 of them, and 1e308 has 309."""
_BITS: Final = 3_318
"""Of a whole number that has fewer than `_DIGITS` digits, so that a sign has room beside them."""


class JsonReader:
    """Payloads as Python has them, within bounds."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
        usual: Any = json.JSONDecoder(parse_constant=_unusual)
        self._scan = usual.scan_once

    def read(self, payload: bytes) -> Any:
        """Any JSON value.

        Raises:
            BadPayloadError: it is none, or more than is read.
        """
        text = text_of(payload)
        if text.count("[") + text.count("{") > self.limits.depth:
            self._measure(text)
        keys = text.count('":')
        if keys <= self.limits.fields and _is_usual(text):
            # At the speed of C: no call for each object and number.
            try:
                found, end = self._scan(text, 0)
                if end == len(text) and _keys(found) == keys:
                    return found
            except (ValueError, StopIteration, RecursionError):
                # Whoever reads it once more says what is wrong.
                pass
        try:
            return self._decoder.decode(text)
        except ValueError as error:
            raise BadPayloadError("malformed", f"not JSON: {error}") from error
        except RecursionError as error:
            raise BadPayloadError("too-deep", f"deeper than {self.limits.depth}") from error

    def _measure(self, text: str) -> None:
        depth = 0
        for found in _BRACKETS.finditer(_TEXTS.sub("", text)):
            depth += 1 if found[0] in "[{" else -1
            if depth > self.limits.depth:
                raise BadPayloadError("too-deep", f"deeper than {self.limits.depth}")

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(pairs) > self.limits.fields:
            raise BadPayloadError("too-many-fields", f"more than {self.limits.fields:,} fields in an object")
        made = dict(pairs)
        if len(made) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise BadPayloadError("duplicate-key", f"the key {twice!r} is there twice")
        return made


def _is_usual(text: str) -> bool:
    """Return True if `":` stands once behind each key of JSON text, and no text in it has half of a surrogate pair."""
    return not ("\\" in text or " :" in text or "\t:" in text or "\n:" in text or "\r:" in text)


def _keys(found: Any) -> int:
    """Count the keys of all objects in a value: fewer than are in its text if one is there twice. -1 for a number that
    is refused."""
    values: Iterable[Any] = found if isinstance(found, list) else (found,)
    count = 0
    if isinstance(found, dict):
        count, values = len(found), found.values()
    for each in values:
        kind = type(each)
        if kind is dict or kind is list:
            below = _keys(each)
            if below < 0:
                return -1
            count += below
        elif (kind is float and not isfinite(each)) or (kind is int and each.bit_length() > _BITS):
            return -1
    return count


def _unusual(text: str) -> float:
    raise ValueError(text)


def _constant(text: str) -> float:
    raise BadPayloadError("not-finite", f"{text} is not valid JSON")


def _float(text: str) -> float:
    made = float(text)
    if not isfinite(made):
        raise BadPayloadError("out-of-range", "a number that does not fit float64")
    return made


def _int(text: str) -> int:
    if len(text) > _DIGITS:
        raise BadPayloadError("out-of-range", f"a number of {len(text):,} digits")
    return int(text)


class JsonDecoder:
    def __init__(self, plan: Plan) -> None:
        self.reader = JsonReader(plan.limits)
        # The type that a value mostly has, and that needs no conversion.
        self._columns = [(each, each.path[0], each.path[1:], _EXACT.get(each.type)) for each in plan.columns]

    def rows(self, payload: bytes, topic: str, seq: int) -> list[tuple[Any, ...]]:
        del topic, seq
        found = self.reader.read(payload)
        if not isinstance(found, dict):
            raise BadPayloadError("wrong-type", f"{in_words(found)} instead of a JSON object")
        made = []
        for column, key, deeper, exact in self._columns:
            each = found.get(key)
            for level in deeper:
                each = each.get(level) if type(each) is dict else None
            made.append(each if type(each) is exact else value(each, column))
        return [tuple(made)]


_EXACT: Final = {"float64": float, "boolean": bool}
"""The Python type of the columns whose values JSON has as they are: its numbers are finite here."""
