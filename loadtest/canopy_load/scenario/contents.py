"""Payloads from files: a whole file, or a line each.

Owns: reading such a file, where the mark stands in it, and `{n}` and `{time}`.

A text says with `{mark}` where the mark stands. Without it a JSON object gets a last member `"mark"`, and behind
anything else come a blank and the mark.

Promises: bounded (`MAX_BYTES`, `MAX_LINES`). The same file, sequence number and time make the same payload in every
process, so that a subscriber's account knows a changed byte.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from functools import lru_cache
from pathlib import Path
from typing import Final

from canopy_load.scenario.scenario_schema import Payload

MAX_BYTES: Final = 64_000_000
MAX_LINES: Final = 1_000_000

MARK: Final = b"{mark}"
NUMBER: Final = b"{n}"
TIME: Final = b"{time}"


class Contents:
    """The payloads of a `publish` from a file, line after line; a whole file is one line."""

    def __init__(self, lines: list[tuple[bytes, bytes]], filled: bool) -> None:
        self.lines = lines
        self.filled = filled
        """True if `{n}` and `{time}` are filled in, so that each message is different."""
        self.largest = max(len(before) + len(after) for before, after in lines)

    @property
    def fixed(self) -> tuple[bytes, bytes] | None:
        """The payload before and behind the mark, if it is the same in every message; None if messages differ."""
        return self.lines[0] if len(self.lines) == 1 and not self.filled else None

    def around(self, sequence: int, milliseconds: int) -> tuple[bytes, bytes]:
        """Return the payload of a message before and behind the mark; `milliseconds` count from 1970."""
        before, after = self.lines[sequence % len(self.lines)]
        if not self.filled:
            return before, after
        number, time = str(sequence).encode(), str(milliseconds).encode()
        return (
            before.replace(NUMBER, number).replace(TIME, time),
            after.replace(NUMBER, number).replace(TIME, time),
        )


def contents(payload: Payload) -> Contents | None:
    """Return the contents of a file that a scenario names; None if it names none.

    Raises:
        ValueError: the file cannot be read, or does not hold what it should; a line for people.
    """
    name = payload.file or payload.lines
    if name is None:
        return None
    return _read(name, payload.lines is not None, payload.fill)


def bounded(name: str) -> bytes:
    """The bytes of a file.

    Raises:
        ValueError: it cannot be read, or has more than `MAX_BYTES`; a line for people.
    """
    path = Path(name)
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ValueError(f"{name}: {size:,} bytes, at most {MAX_BYTES:,}")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{name}: cannot be read: {error.strerror or error}") from error


@lru_cache(maxsize=16)
def _read(name: str, by_line: bool, filled: bool) -> Contents:
    data = bounded(name)
    lines = [line for line in data.removeprefix(BOM_UTF8).splitlines() if line] if by_line else [data]
    if not 0 < len(lines) <= MAX_LINES or not data:
        raise ValueError(f"{name}: {len(lines) if data else 0:,} lines, from 1 to {MAX_LINES:,} are taken")
    return Contents([_around(name, number, line) for number, line in enumerate(lines, 1)], filled)


def _around(name: str, number: int, text: bytes) -> tuple[bytes, bytes]:
    before, mark, after = text.partition(MARK)
    if mark:
        if MARK in after:
            raise ValueError(f"{name}: {{mark}} stands twice in text {number}")
        return before, after
    inner = text.strip()
    if inner.startswith(b"{") and inner.endswith(b"}") and len(inner) > 1:
        end = text.rindex(b"}")
        comma = b", " if inner[1:-1].strip() else b""
        return text[:end] + comma + b'"mark": "', b'"' + text[end:]
    return text + b" ", b""
