"""Formats numbers in sentences for people: counts, durations, sizes."""

from __future__ import annotations

from typing import Final

UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: `1 message`, `2,000 messages`. `plural`: for nouns that do not take an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units: `3 d 4 h`, `25 min 21 s`, `12 s`."""
    left = round(seconds)
    parts: list[str] = []
    for long, unit in UNITS:
        if left >= long and len(parts) < 2:
            parts.append(f"{left // long} {unit}")
        elif parts:
            break
        left %= long
    return " ".join(parts) or "0 s"


def size(count: float) -> str:
    """Format a number of bytes: `512 B`, `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
