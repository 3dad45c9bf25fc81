"""Topic filters with named levels: `site/{site}/device/{device}/+`.

Promises: a pattern matches what the MQTT filter with `+` in place of the names matches (MQTT 5.0, section 4.7).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import matches, validate_filter

NAME: Final = r"[a-z_][a-z0-9_]{0,62}"
"""The names of tables and columns: SQL takes them without quotes, whatever it does with capitals."""

_NAMED: Final = re.compile(rf"\{{({NAME})\}}")


@dataclass(frozen=True)
class Pattern:
    text: str
    filter: str
    """The same without names."""
    names: tuple[str, ...]
    at: tuple[int, ...]
    """The positions of the named levels."""

    def values(self, topic: str) -> tuple[str, ...] | None:
        """Return the named levels of a topic; None if it does not match."""
        if not matches(self.filter, topic):
            return None
        levels = topic.split("/")
        return tuple(levels[at] for at in self.at)


def pattern(text: str) -> Pattern:
    """A topic filter as people write it in a mapping.

    Raises:
        ValueError: it is none; the message says why.
    """
    if text.startswith("$share/"):
        raise ValueError("a shared subscription; leave $share/NAME/ out")
    levels = text.split("/")
    names: dict[str, int] = {}
    for at, level in enumerate(levels):
        found = _NAMED.fullmatch(level)
        if found is not None:
            if found[1] in names:
                raise ValueError(f"the level {found[1]} has its name twice")
            names[found[1]] = at
            levels[at] = "+"
        elif "{" in level or "}" in level:
            raise ValueError(f"the level {level}: use lower-case letters, digits and _ for a name in braces")
    plain = "/".join(levels)
    try:
        validate_filter(plain)
    except ProtocolError as error:
        raise ValueError(f"{error}; give one such as site/{{site}}/device/{{device}}/+") from error
    return Pattern(text, plain, tuple(names), tuple(names.values()))
