"""Numbers in sentences for people: so many things, so long a time."""

from __future__ import annotations

from typing import Final

UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun: `1 message`, `2,000 messages`. `plural`: of nouns that do not take an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """A time in its two largest units: `3 d 4 h`, `25 min 21 s`, `12 s`."""
    left = round(seconds)
    parts: list[str] = []
    for size, unit in UNITS:
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
        elif parts:
            break
        left %= size
    return " ".join(parts) or "0 s"
