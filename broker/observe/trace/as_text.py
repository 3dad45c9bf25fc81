"""A trace as lines for people: time, connection, client, direction, packet, fields.

Promises: one entry is one line, and nothing that a client sent can end it or steer a terminal: texts stand in quotes,
with everything but printable characters escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from broker.observe.trace.as_json import iso
from broker.observe.trace.fields import fields, name
from broker.observe.trace.kept import CLOSED, OPENED, Denied, Entry

LONGEST: Final = 400
"""Characters of one value, such as a payload, that are shown."""

MOST: Final = 100
"""Entries of one list, such as the filters of a SUBSCRIBE, that are shown."""


def _shown(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def quoted(text: str) -> str:
    """A text in quotes, cut to `LONGEST`."""
    shown = "".join(_shown(character) for character in text[:LONGEST])
    return f'"{shown}"' if len(text) <= LONGEST else f'"{shown}"…({len(text)} characters)'


def value(item: Any) -> str:
    """A value as it stands in a line."""
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, str):
        return quoted(item)
    if isinstance(item, dict):
        return "{" + " ".join(f"{key}={value(inner)}" for key, inner in item.items()) + "}"
    if isinstance(item, list):
        more = f", …({len(item)})" if len(item) > MOST else ""
        return "[" + ", ".join(value(inner) for inner in item[:MOST]) + more + "]"
    return str(item)


def refusal(denied: Denied, reason: str) -> str:
    """What was refused, and by what."""
    times = f" ({denied.count} times)" if denied.count > 1 else ""
    what = f"refused: {denied.action} {quoted(denied.topic)}, 0x{denied.reason_code:02X}"
    return f"{what}, by {quoted(reason)[1:-1]}{times}"


def line(entry: Entry) -> str:
    """One entry, without the end of the line."""
    party = entry.party
    start = f"{iso(entry.time)} #{party.number} {quoted(party.client_id)} {party.address}"
    if entry.what == OPENED:
        return f"{start} connected to {party.listener}"
    if entry.what == CLOSED:
        return f"{start} closed: {quoted(entry.note)[1:-1]}" if entry.note else f"{start} closed"
    if entry.denied is not None:
        return f"{start} {refusal(entry.denied, entry.note)}"
    parts = [start, "<-" if entry.inward else "->", name(entry)]
    parts += [f"{key}={value(item)}" for key, item in fields(entry).items()]
    kept = f", {len(entry.data)} kept" if len(entry.data) < entry.size else ""
    return " ".join([*parts, f"({entry.size} bytes{kept})"])


def lines(entries: Iterable[Entry]) -> Iterator[bytes]:
    """One line for each entry."""
    for entry in entries:
        yield line(entry).encode("utf-8", "backslashreplace") + b"\n"
