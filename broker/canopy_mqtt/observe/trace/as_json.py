"""Writes a trace as JSON Lines: one object for each packet, and for each connection that began or ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from canopy_mqtt.observe.trace.entries import CLOSED, OPENED, Entry
from canopy_mqtt.observe.trace.fields import fields, name

_EVENTS: Final = {OPENED: "connection opened", CLOSED: "connection closed"}


def iso(nanoseconds: int) -> str:
    """Format a time in UTC with microseconds (RFC 3339)."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def row(entry: Entry) -> dict[str, Any]:
    """Return an entry as plain values. `bytes`: the kept part of the packet in hexadecimal, with masked secrets."""
    connection = entry.connection
    known: dict[str, Any] = {
        "time": iso(entry.time),
        "connection": connection.number,
        "client_id": connection.client_id,
        "address": connection.address,
        "listener": connection.listener,
    }
    if entry.what in _EVENTS:
        known["event"] = _EVENTS[entry.what]
        if entry.note:
            known["cause"] = entry.note
        return known
    if entry.denied is not None:
        denied = entry.denied
        known |= {"event": "refused", "action": denied.action, "topic": denied.topic}
        return known | {"reason_code": denied.reason_code, "reason": entry.note, "count": denied.count}
    known |= {"direction": "in" if entry.inward else "out", "packet": name(entry), "size": entry.size}
    if len(entry.data) < entry.size:
        known["kept"] = len(entry.data)
    return {**known, "fields": fields(entry), "bytes": entry.data.hex()}


def lines(entries: Iterable[Entry]) -> Iterator[bytes]:
    for entry in entries:
        yield json.dumps(row(entry)).encode() + b"\n"
