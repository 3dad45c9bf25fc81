"""One value of a payload as the value of a column.

Promises: nothing is bent: text is no number, 1 is not true, and a number that does not fit is refused. Times are
microseconds since 1970, in UTC where they name no zone.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from canopy_pipeline.tables.payloads.bad_payload import BadPayloadError
from canopy_pipeline.tables.plans import Column

UNITS: Final = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1.0, "ns": 0.001}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST: Final = int((datetime(1, 1, 2, tzinfo=UTC) - _EPOCH).total_seconds()) * 1_000_000
_LATEST: Final = int((datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH).total_seconds()) * 1_000_000
_WHOLE: Final = {"int32": 31, "int64": 63}
_WORDS: Final[Mapping[type, str]] = {
    str: "a text", bool: "a boolean", int: "a number", float: "a number", Decimal: "a number", bytes: "bytes",
    dict: "an object", list: "an array", UUID: "a UUID",
}  # fmt: skip
"""What a payload has, by the type that Python has for it; any other is one of times."""


def fields(found: dict[str, Any], columns: tuple[Column, ...]) -> tuple[Any, ...]:
    """The values of the columns, out of nested objects."""
    made = []
    for column in columns:
        each: Any = found
        for key in column.path:
            each = each.get(key) if isinstance(each, dict) else None
        made.append(value(each, column))
    return tuple(made)


def value(found: Any, column: Column) -> Any:
    """Convert a decoded value to the column's type.

    Raises:
        BadPayloadError: the value does not fit the column.
    """
    if found is None:
        if column.required:
            raise BadPayloadError("missing", f"{column.name}: there is no {'.'.join(column.path)}")
        return None
    if column.type in _WHOLE:
        return _whole(found, column)
    made = _CASTS[column.type](found, column)
    if isinstance(made, str):
        try:
            made.encode()
        except UnicodeEncodeError as error:
            raise BadPayloadError("malformed", f"{column.name}: half of a surrogate pair is no text") from error
    return made


def _wrong(found: Any, column: Column) -> BadPayloadError:
    return BadPayloadError("wrong-type", f"{column.name}: {in_words(found)} is not {column.type}")


def in_words(found: Any) -> str:
    """Return what kind of value a payload has, for people."""
    return "null" if found is None else _WORDS.get(type(found), "a time")


def _whole(found: Any, column: Column) -> int:
    if type(found) is not int:
        if isinstance(found, (float, Decimal)) and math.isfinite(found) and found == int(found):
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int):
            raise _wrong(found, column)
    bits = _WHOLE[column.type]
    if not -(1 << bits) <= found < 1 << bits:
        raise BadPayloadError("out-of-range", f"{column.name}: does not fit {column.type}")
    return found


def _number(found: Any, column: Column) -> float:
    if isinstance(found, bool) or not isinstance(found, (int, float, Decimal)):
        raise _wrong(found, column)
    try:
        made = float(found)
    except OverflowError as error:
        raise BadPayloadError("out-of-range", f"{column.name}: does not fit {column.type}") from error
    if not math.isfinite(made):
        raise BadPayloadError("not-finite", f"{column.name}: {made} is not a finite number")
    return made


def _boolean(found: Any, column: Column) -> bool:
    if not isinstance(found, bool):
        raise _wrong(found, column)
    return found


def _text(found: Any, column: Column) -> str:
    if isinstance(found, (UUID, date)):
        return str(found)
    if not isinstance(found, str):
        raise _wrong(found, column)
    return found


def _bytes(found: Any, column: Column) -> bytes:
    if isinstance(found, bytes):
        return found
    if not isinstance(found, str):
        raise _wrong(found, column)
    try:
        return base64.b64decode(found, validate=True)
    except ValueError as error:
        raise BadPayloadError("malformed", f"{column.name}: not base64") from error


def _time(found: Any, column: Column) -> int:
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found)
        except ValueError as error:
            raise BadPayloadError("malformed", f"{column.name}: not an ISO 8601 time") from error
    if isinstance(found, datetime):
        made = micros(found)
    elif isinstance(found, date):
        made = micros(datetime(found.year, found.month, found.day, tzinfo=UTC))
    elif isinstance(found, bool) or not isinstance(found, (int, float)):
        raise _wrong(found, column)
    else:
        made = _counted(found, column)
    if not _EARLIEST <= made <= _LATEST:
        raise BadPayloadError("out-of-range", f"{column.name}: a time before the year 1 or after 9999")
    return made


def _counted(found: float, column: Column) -> int:
    unit = column.unit
    if isinstance(found, int):
        return found // 1_000 if unit == "ns" else found * int(UNITS[unit])
    made = found * UNITS[unit]
    if not math.isfinite(made):
        raise BadPayloadError("not-finite", f"{column.name}: {found} {unit} is not a time")
    return round(made)


def micros(at: datetime) -> int:
    """Return exact microseconds since 1970; UTC if the time names no zone."""
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _json(found: Any, column: Column) -> str:
    del column
    return as_json(found)


def as_json(found: Any) -> str:
    """Any value as JSON text; bytes as base64, times in ISO 8601."""
    try:
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadPayloadError("malformed", f"cannot be written as JSON ({error})") from error


def _plain(found: Any) -> Any:
    return base64.b64encode(found).decode() if isinstance(found, bytes) else str(found)


_CASTS: Final[Mapping[str, Any]] = {
    "boolean": _boolean,
    "float64": _number,
    "string": _text,
    "binary": _bytes,
    "timestamp": _time,
    "json": _json,
}
