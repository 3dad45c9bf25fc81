"""Checks a store: its pages, its rows, and whether they agree with each other."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from broker.store.sqlite.schema import SCHEMA
from broker.store.tools import rows
from broker.store.tools.looking import Look, look

PAGES: Final = 100
"""Findings of SQLite about pages and indexes, at most."""

_STRAY: Final = (
    "SELECT '{0}', count(*) FROM {0} WHERE session NOT IN"
    " (SELECT id FROM session UNION ALL SELECT id FROM gone_session) HAVING count(*) > 0"
)
_MISSING: Final = (
    "SELECT number, message FROM delivery WHERE message NOT NULL AND message NOT IN (SELECT id FROM message)"
)
_REFS: Final = (
    "SELECT id, refs, ifnull(found, 0) FROM message LEFT JOIN (SELECT message, count(*) AS found FROM delivery"
    " WHERE message NOT NULL GROUP BY message) ON message = id WHERE refs != ifnull(found, 0)"
)
_TWICE: Final = (
    "SELECT max(number), packet_id, client_id FROM delivery JOIN session ON session = id WHERE state > 0"
    " GROUP BY session, packet_id HAVING count(*) > 1"
)
_ENDED: Final = "SELECT client_id FROM session WHERE id IN (SELECT id FROM gone_session)"

DISAGREE: Final = (
    (_STRAY.format("subscription"), "{0}: {1} rows of it belong to no session"),
    (_STRAY.format("received"), "{0}: {1} rows of it belong to no session"),
    (_STRAY.format("delivery"), "{0}: {1} rows of it belong to no session"),
    (_MISSING, "delivery {0}: its message {1} is missing"),
    (_REFS, "message {0}: {1} deliveries should point to it, and {2} do"),
    (_TWICE, "delivery {0}: packet identifier {1} is in flight to {2!r} more than once"),
    (_ENDED, "session {0!r} has ended, and is there"),
)
"""What is found wrong between tables: the statement that finds it, and the line."""


def verify(directory: Path) -> Iterator[str]:
    """What is wrong with the store of a directory, a line each. Raises StoreError: it cannot be read at all."""
    with look(directory) as found:
        damage = [str(line) for (line,) in found.db.execute(f"PRAGMA integrity_check({PAGES})")]
        if damage != ["ok"]:
            yield from damage
            return
        missing = list(_missing(found))
        if missing:
            yield from missing
            return
        for table in rows.TABLES:
            yield from _rows(found, table)
        for statement, line in DISAGREE:
            for values in found.db.execute(statement):
                yield line.format(*values)


def _missing(found: Look) -> Iterator[str]:
    """Columns that the file should have."""
    whole = sqlite3.connect(":memory:")
    try:
        whole.executescript(SCHEMA)
        for table in rows.TABLES:
            there = {column.name for column in rows.columns(found.db, table)}
            for column in rows.columns(whole, table):
                if column.name not in there:
                    yield f"{table}: its column {column.name} is missing"
    finally:
        whole.close()


def _rows(found: Look, table: str) -> Iterator[str]:
    kinds = rows.columns(found.db, table)
    names = [column.name for column in kinds]
    for values in found.db.execute(f"SELECT * FROM {table}"):
        fault = _type_fault(kinds, values) or rows.fault(table, dict(zip(names, values, strict=True)))
        if fault:
            yield f"{table} {values[0]!r:.{rows.LONGEST_NAME}}: {fault}"


def _type_fault(kinds: list[rows.Column], values: tuple[Any, ...]) -> str:
    for column, value in zip(kinds, values, strict=True):
        if why := rows.type_fault(column, value):
            return f"{column.name} {why}"
    return ""
