"""Topic filters with named levels: `site/{site}/device/{device}/+`.

Promises: a pattern matches what the MQTT filter with `+` in place of the names matches (MQTT 5.0, section 4.7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

NAME: Final = r"[a-z_][a-z0-9_]{0,62}"
"""The names of tables and columns: SQL takes them without quotes, whatever it does with capitals."""

_NAMED: Final = re.compile(rf"\{{({NAME})\}}")


@dataclass(frozen=True)
class Pattern:
    text: str
    levels: tuple[str, ...]
    """As the filter has them, without the `#` at its end."""
    tail: bool
    """True if it ends with `#`."""
    names: tuple[str, ...]
    at: tuple[int, ...]
    """The positions of the named levels."""

    def values(self, topic: str) -> tuple[str, ...] | None:
        """Return the named levels of a topic; None if it does not match."""
        levels = topic.split("/")
        if len(levels) < len(self.levels) or (len(levels) > len(self.levels) and not self.tail):
            return None
        if topic.startswith("$") and (not self.levels or self.levels[0] == "+"):
            return None
        for mine, its in zip(self.levels, levels, strict=False):
            if mine not in ("+", its):
                return None
        return tuple(levels[at] for at in self.at)


def pattern(text: str) -> Pattern:
    """A topic filter as people write it in a mapping.

    Raises:
        ValueError: it is none; the message says why.
    """
    if not text or "\0" in text or text.startswith("$share/"):
        raise ValueError("not a topic filter, such as site/{site}/device/{device}/+")
    levels: list[str] = []
    names: dict[str, int] = {}
    for at, (level, last) in enumerate(_levels(text)):
        found = _NAMED.fullmatch(level)
        if found is not None:
            if found[1] in names:
                raise ValueError(f"the level {found[1]} has its name twice")
            names[found[1]] = at
            levels.append("+")
        elif "{" in level or "}" in level:
            raise ValueError(f"the level {level}: use lower-case letters, digits and _ for a name in braces")
        elif level == "#" and last:
            break
        elif "#" in level or ("+" in level and level != "+"):
            raise ValueError(f"the level {level}: + and # stand alone in a level, # in the last")
        else:
            levels.append(level)
    return Pattern(text, tuple(levels), text.rpartition("/")[2] == "#", tuple(names), tuple(names.values()))


def _levels(text: str) -> Iterator[tuple[str, bool]]:
    parts = text.split("/")
    for at, part in enumerate(parts):
        yield part, at == len(parts) - 1
