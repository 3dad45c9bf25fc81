"""Durations and sizes as people write them: `"1m30s"`, `"250ms"`, `"1KiB"`, `"2MB"`.

Owns: the two grammars, for scenarios, command lines and thresholds. Numbers without a unit are taken as they are where
a number stands; a text has to name its unit.
"""

from __future__ import annotations

import re
from typing import Any, Final

SECONDS: Final = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

BYTES: Final = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}  # fmt: skip

DURATION: Final = 'a duration is a number of seconds, or text like "30s", "1m30s", "250ms", "2h"'
SIZE: Final = 'a size is a number of bytes, or text like "512B", "1KiB" (1,024), "2MB" (2,000,000)'

_PART: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(us|µs|ms|s|m|h|d)\s*")
_SIZE: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)")


def duration(text: str) -> float:
    """Parse a duration into seconds. Several parts go from the largest unit down: `1h30m`.

    Raises:
        ValueError: it is no duration; the message says what would be one.
    """
    rest, total, last = text.strip(), 0.0, float("inf")
    while rest:
        found = _PART.match(rest)
        if found is None or SECONDS[found[2]] >= last:
            break
        last = SECONDS[found[2]]
        total += float(found[1]) * last
        rest = rest[found.end() :]
    if rest or last == float("inf"):
        raise ValueError(DURATION)
    # 0.1 + 0.2 is what people wrote, and not the nearest binary fraction of each part.
    return round(total, 9)


def size(text: str) -> int:
    """Bytes.

    Raises:
        ValueError: it is no whole number of bytes; the message says what would be one.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(SIZE)
    total = float(found[1]) * BYTES[found[2]]
    if total != int(total):
        raise ValueError(SIZE)
    return int(total)


def seconds_of(item: Any) -> Any:
    """A text as seconds, a whole number of them as such; anything else as it is, for the schema to judge."""
    if not isinstance(item, str):
        return item
    found = duration(item)
    return int(found) if found == int(found) else found


def bytes_of(item: Any) -> Any:
    """A text as bytes; anything else as it is, for the schema to judge."""
    return size(item) if isinstance(item, str) else item
