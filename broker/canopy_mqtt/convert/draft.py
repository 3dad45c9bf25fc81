"""Collects settings with the lines that they come from, and writes them as TOML.

Owns the format: TOML that `canopy check-config` accepts, each setting beside its source line, and the lines that could
not be converted at the top. Promises: each line becomes a setting in force, or gets a note (`note_the_rest`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError

from canopy_mqtt.convert.source import Line

Value: TypeAlias = bool | int | float | str | Sequence[str]

Result = TypeVar("Result")

HEAD: Final = """\
# Settings for Canopy, made by `canopy convert` from {source}.
# Comments name the lines that a setting comes from; `canopy check-config FILE` shows what differs from the defaults.
#
# What this file does not set has Canopy's default. These defaults differ from mosquitto's:
#   limits.max_packet_size     8 MiB; mosquitto 2.1 takes 2,000,000 bytes, 2.0 packets of any size
#   mqtt.max_inflight          1,024 messages; mosquitto 20
#   queue.session_messages     10,000 messages; mosquitto 1,000. Canopy also bounds all queues in bytes
#   session.max_expiry         a week; mosquitto keeps a session of 3.1.1 for ever
#   session.takeover           a session belongs to the user name that made it; in mosquitto to its client identifier
#   mqtt.topic_alias_maximum   64; mosquitto 10
# And these answers: a message that several filters of a client match comes to it once, not once for each filter; a
# CONNECT whose will may not be published is refused; a wrong password is refused with 4 in MQTT 3.1.1, not with 5.
"""


class Kind(Enum):
    """The fate of a line that becomes no setting, or not only one."""

    GUARD = "KEEPS SOMEBODY OUT, and is missing here"
    """Without it the broker would admit, or show, more than before: see the replacement."""
    MISSING = "missing"
    """Canopy has nothing of the kind."""
    INSTEAD = "instead"
    """Canopy has a replacement, which is not set automatically."""
    NOTHING = "nothing to do"
    """Canopy does this by default, or mosquitto ignores it, too."""
    NEXT = "to do next"
    """The line is a setting, and needs a further step."""


class Note(NamedTuple):
    """A line, and its fate."""

    line: Line
    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.line}: {self.kind.value}: {self.text}"


class Entry(NamedTuple):
    """One setting, and its source."""

    value: Value
    why: tuple[Line | str, ...]


class Table:
    """A section, or one table of a list. `off`: the reason why it is written as a comment; empty: it is not."""

    def __init__(self, title: str, *why: Line | str) -> None:
        self.title = title
        self.why: list[Line | str] = list(why)
        self.entries: dict[str, Entry] = {}
        self.inner: dict[str, Table] = {}
        self.off = ""

    def set(self, key: str, value: Value, *why: Line | str) -> None:
        """Set a key; a later value replaces an earlier one, as in mosquitto."""
        self.entries[key] = Entry(value, why)

    def subtable(self, key: str) -> Table:
        """Return the table under a key of this one: `[listener.tls]`."""
        return self.inner.setdefault(key, Table(f"[{self.title.strip('[]')}.{key}]"))

    def lines(self) -> Iterable[str]:
        written = [*self._lines()]
        if not self.off:
            return written
        return [f"# {shown(self.off)}", *(f"# {line}" if line else "#" for line in written)]

    def values(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            key: list(each.value) if isinstance(each.value, (list, tuple)) else each.value
            for key, each in self.entries.items()
        }
        made.update((key, inner.values()) for key, inner in self.inner.items())
        return made

    def sources(self) -> Iterator[Line]:
        for why in (self.why, *(entry.why for entry in self.entries.values())):
            yield from (each for each in why if isinstance(each, Line))
        for inner in self.inner.values():
            yield from inner.sources()

    def _lines(self) -> Iterable[str]:
        yield from (f"# {shown(str(each))}" for each in self.why)
        yield self.title
        for key, entry in self.entries.items():
            yield from (f"# {shown(str(each))}" for each in entry.why)
            yield f"{key} = {to_toml(entry.value)}"
        for inner in self.inner.values():
            yield ""
            yield from inner.lines()


class Draft:
    def __init__(self, source: str) -> None:
        self.source = source
        # Each once: what is said of several listeners may be the same.
        self.notes: dict[Note, None] = {}
        self.tables: list[Table] = []
        self._sections: dict[str, Table] = {}

    def set(self, name: str, value: Value, *why: Line | str) -> None:
        """Set a setting by its full name, like `limits.max_packet_size`."""
        section, _, key = name.partition(".")
        self._sections.setdefault(section, Table(f"[{section}]")).set(key, value, *why)

    def table(self, name: str, *why: Line | str) -> Table:
        """Add a table to a list: `[[listener]]`."""
        made = Table(f"[[{name}]]", *why)
        self.tables.append(made)
        return made

    def note(self, line: Line, kind: Kind, text: str) -> None:
        self.notes[Note(line, kind, text)] = None

    def read(self, line: Line | None, read: Callable[[str], Result], otherwise: Result) -> Result:
        """Return the value of a line, or `otherwise` without one; a malformed one is noted."""
        if line is not None:
            try:
                return read(line.value)
            except ValueError as error:
                self.note(line, Kind.MISSING, f"the value has to be {error}")
        return otherwise

    def of_kind(self, *kinds: Kind) -> list[Note]:
        return [note for note in self.notes if note.kind in kinds]

    def note_the_rest(self, lines: Iterable[Line]) -> None:
        """Note each line that has no note, and that no setting in force comes from."""
        tables = (*self._sections.values(), *self.tables)
        settled = {line.place for table in tables if not table.off for line in table.sources()}
        settled.update(note.line.place for note in self.notes)
        off = {line.place: table.off for table in tables if table.off for line in table.sources()}
        for line in lines:
            if line.place not in settled:
                self.note(line, Kind.MISSING, off.get(line.place) or "it has no effect here")

    def toml(self) -> str:
        parts = [HEAD.format(source=shown(self.source)).rstrip("\n").split("\n")]
        for kind in Kind:
            notes = self.of_kind(kind)
            if notes:
                title = "To do next" if kind is Kind.NEXT else f"Not converted, {kind.value}"
                parts.append([f"# {title}:", *(f"#   {n.line}\n#     {shown(n.text)}" for n in notes)])
        parts += [list(table.lines()) for table in (*self._sections.values(), *self.tables)]
        return "\n\n".join("\n".join(part) for part in parts) + "\n"


def to_toml(value: Value) -> str:
    if isinstance(value, (bool, str)):
        # What JSON leaves as it is and TOML does not allow: DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (int, float)):
        return str(value)
    return f"[{', '.join(to_toml(each) for each in value)}]"


def fault(model: type[BaseModel], values: dict[str, Any]) -> str:
    """Return the place and the reason why a model refuses values; empty: it accepts them."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(each) for each in found["loc"] if isinstance(each, str) and not each.startswith("("))
        return f"{where or 'a value'}: {found['msg']}"
    return ""


def shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
