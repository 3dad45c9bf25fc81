"""A trace as JSON Lines: one object for each packet, and for each connection that came or went."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from broker.observe.trace.fields import fields, name
from broker.observe.trace.kept import CLOSED, OPENED, Entry

_EVENTS: Final = {OPENED: "connection opened", CLOSED: "connection closed"}


def iso(nanoseconds: int) -> str:
    """A time in UTC with microseconds, as RFC 3339 has it."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1_000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def row(entry: Entry) -> dict[str, Any]:
    """One entry as plain values. `bytes`: the packet in hexadecimal, secrets masked, as far as it was kept."""
    party = entry.party
    known: dict[str, Any] = {
        "time": iso(entry.time),
        "connection": party.number,
        "client_id": party.client_id,
        "address": party.address,
        "listener": party.listener,
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
    """One line for each entry."""
    for entry in entries:
        yield json.dumps(row(entry)).encode() + b"\n"
