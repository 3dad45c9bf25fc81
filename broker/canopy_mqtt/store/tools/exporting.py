"""Exports a store as lines of JSON, one for each row, which `importing` reads.

Owns the lines. A line is a row of the tables (`sqlite.schema`) under the names of its columns, except what has a
meaning only in a file: `client_id` instead of the session, the order of the lines instead of numbers, names for states,
true and false for flags, base64 for bytes; times are those of the system's clock. NULL is omitted. Equal stores make
equal lines.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, Final

from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.sqlite.reading import READ_BACK
from canopy_mqtt.store.tools import row_rules
from canopy_mqtt.store.tools.read_only import ReadOnlyStore

HEAD: Final = {"type": "canopy-store", "version": 1}
"""The first line: the version is that of the lines."""

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

LEFT_OUT: Final = frozenset({"number", "refs"})
TIMES: Final = frozenset({"disconnected_at", "will_due", "expires_at"})
TEXTS_OF_JSON: Final = frozenset({"principal", "identifiers"})

USED: Final = "SELECT DISTINCT message FROM delivery WHERE message NOT NULL AND session IN (SELECT id FROM session)"

BEHIND_SESSIONS: Final = {
    "subscription": "ORDER BY session, filter",
    "received": "ORDER BY session, packet_id",
    "delivery": "ORDER BY number",
    "passed": "ORDER BY broadcast, session",
}


def lines(found: ReadOnlyStore) -> Iterator[str]:
    """All of a store. Raises StoreError: a row cannot be read."""
    yield _line(HEAD)
    clients: dict[int, str] = {}
    for table in row_rules.TABLES:
        for row in rows_of(found, table):
            if table == "session":
                clients[row.pop("id")] = row["client_id"]
            try:
                yield _line({"type": table, **_shown(row, clients, found.ahead)})
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise StoreError(f"{found.path}: a row of {table} cannot be read: see canopy store verify") from error


def rows_of(found: ReadOnlyStore, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table whose session exists, in an order that replaces their numbers."""
    db = found.db
    names = [column.name for column in row_rules.columns(db, table)]
    order = BEHIND_SESSIONS.get(table)
    chosen = "ORDER BY rowid" if order is None else f"WHERE session IN (SELECT id FROM session) {order}"
    # There is no index for this, and few messages are shared.
    used = frozenset(number for (number,) in db.execute(USED)) if table == "message" else frozenset()
    read_back = {row[0]: row[1] for row in db.execute(READ_BACK)} if table == "delivery" else {}
    for values in db.execute(f"SELECT {', '.join(names)} FROM {table} {chosen}"):
        if table != "message" or values[0] in used:
            row = dict(zip(names, values, strict=True))
            if read_back and row["number"] <= read_back.get(row["session"], 0):
                # The delivery was read back into memory, so no size on disk counts.
                row["size"] = None
            yield row


def _shown(row: dict[str, Any], clients: dict[int, str], ahead: float) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if value is None or name in LEFT_OUT:
            continue
        if name == "session":
            shown["client_id"] = clients[value]
        elif isinstance(value, bytes):
            shown[name] = base64.b64encode(value).decode()
        elif name in row_rules.FLAGS:
            shown[name] = value != 0
        elif name in TIMES:
            shown[name] = value - ahead
        elif name in TEXTS_OF_JSON:
            shown[name] = json.loads(value)
        else:
            shown[name] = row_rules.STATES[value] if name == "state" else value
    return shown


def _line(values: dict[str, Any]) -> str:
    return _ENCODER.encode(values)
