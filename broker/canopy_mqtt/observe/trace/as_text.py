"""Writes a trace as lines for people: time, connection, client, direction, packet, fields.

Promises: one entry is one line, and no text of a client can end it or control a terminal: texts are quoted, and all
characters but printable ones are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from canopy_mqtt.observe.trace.as_json import iso
from canopy_mqtt.observe.trace.entries import CLOSED, OPENED, Denied, Entry
from canopy_mqtt.observe.trace.fields import fields, name

MAX_LENGTH: Final = 400
"""Characters of one value, such as a payload, that are shown."""

MAX_ITEMS: Final = 100
"""Entries of one list, such as the filters of a SUBSCRIBE, that are shown."""


def _shown(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def quoted(text: str) -> str:
    """Quote a text, cut to `MAX_LENGTH`."""
    shown = "".join(_shown(character) for character in text[:MAX_LENGTH])
    return f'"{shown}"' if len(text) <= MAX_LENGTH else f'"{shown}"…({len(text)} characters)'


def value(item: Any) -> str:
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, str):
        return quoted(item)
    if isinstance(item, dict):
        return "{" + " ".join(f"{key}={value(inner)}" for key, inner in item.items()) + "}"
    if isinstance(item, list):
        more = f", …({len(item)})" if len(item) > MAX_ITEMS else ""
        return "[" + ", ".join(value(inner) for inner in item[:MAX_ITEMS]) + more + "]"
    return str(item)


def refusal(denied: Denied, reason: str) -> str:
    times = f" ({denied.count} times)" if denied.count > 1 else ""
    what = f"refused: {denied.action} {quoted(denied.topic)}, 0x{denied.reason_code:02X}"
    return f"{what}, by {quoted(reason)[1:-1]}{times}"


def line(entry: Entry) -> str:
    """One entry, without the end of the line."""
    connection = entry.connection
    start = f"{iso(entry.time)} #{connection.number} {quoted(connection.client_id)} {connection.address}"
    if entry.what == OPENED:
        return f"{start} connected to {connection.listener}"
    if entry.what == CLOSED:
        return f"{start} closed: {quoted(entry.note)[1:-1]}" if entry.note else f"{start} closed"
    if entry.denied is not None:
        return f"{start} {refusal(entry.denied, entry.note)}"
    parts = [start, "<-" if entry.inward else "->", name(entry)]
    parts += [f"{key}={value(item)}" for key, item in fields(entry).items()]
    kept = f", {len(entry.data)} kept" if len(entry.data) < entry.size else ""
    return " ".join([*parts, f"({entry.size} bytes{kept})"])


def lines(entries: Iterable[Entry]) -> Iterator[bytes]:
    for entry in entries:
        yield line(entry).encode("utf-8", "backslashreplace") + b"\n"
