"""Checks a store: its pages, its rows, and whether they agree with each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.store.group_commit import checksums
from canopy_mqtt.store.sqlite.opening import DamagedFile, check
from canopy_mqtt.store.sqlite.reading import any_text
from canopy_mqtt.store.tools import row_rules
from canopy_mqtt.store.tools.read_only import ReadOnlyStore, open_read_only

PAGES: Final = 100
"""Findings of SQLite about pages and indexes, at most."""

_STRAY: Final = (
    "SELECT '{0}', count(*) FROM {0} WHERE session NOT IN"
    " (SELECT id FROM session UNION ALL SELECT id FROM gone_session) HAVING count(*) > 0"
)
_MISSING: Final = (
    "SELECT number, message FROM delivery WHERE message IS NOT NULL AND message NOT IN (SELECT id FROM message)"
)
_REFS: Final = (
    "SELECT id, refs, coalesce(found, 0) FROM message LEFT JOIN (SELECT message AS pointed, count(*) AS found"
    " FROM delivery WHERE message IS NOT NULL GROUP BY message) AS counted ON pointed = id"
    " WHERE refs != coalesce(found, 0)"
)
_TWICE: Final = (
    "SELECT max(number), packet_id, client_id FROM delivery JOIN session ON session = id WHERE state > 0"
    " GROUP BY session, packet_id, client_id HAVING count(*) > 1"
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
"""The contradictions between tables: the statement that finds one, and the line."""


def verify(directory: Path) -> Iterator[str]:
    """Yield the faults of the store of a directory, a line each. Raises StoreError if it cannot be read at all."""
    with open_read_only(directory) as found:
        is_whole = True
        try:
            check(found.db, found.path, thorough=False)
        except DamagedFile as error:
            is_whole = False
            yield str(error)
        damage = [str(line) for (line,) in found.db.execute(f"PRAGMA integrity_check({PAGES})")]
        if damage != ["ok"]:
            yield from damage
        elif is_whole:
            with any_text(found.db):
                yield from _all_rows(found)


def _all_rows(found: ReadOnlyStore) -> Iterator[str]:
    for table in row_rules.TABLES:
        yield from _rows(found, table)
    for number, checksum in found.db.execute("SELECT id, checksum FROM gone_session"):
        if checksum != checksums.of_gone(number):
            yield f"gone_session {number}: its checksum is another"
    for session, number, checksum in found.db.execute("SELECT session, number, checksum FROM read_back"):
        if checksum != checksums.of_read_back(session, number):
            yield f"read_back {session}: its checksum is another"
    for statement, line in DISAGREE:
        for values in found.db.execute(statement):
            yield line.format(*values)


def _rows(found: ReadOnlyStore, table: str) -> Iterator[str]:
    kinds = row_rules.columns(found.db, table)
    names = [column.name for column in kinds]
    for values in found.db.execute(f"SELECT * FROM {table}"):
        plain = values[: len(names)]
        fault = (
            _type_fault(kinds, plain)
            or row_rules.fault(table, dict(zip(names, plain, strict=True)))
            or checksums.fault(table, values)
            or (table == "session" and _will(values))
        )
        if fault:
            yield f"{table} {values[0]!r:.{row_rules.MAX_NAME}}: {fault}"


def _will(values: tuple[Any, ...]) -> str:
    why = checksums.will_fault(values)
    return why and f"the will: {why}"


def _type_fault(kinds: list[row_rules.Column], values: tuple[Any, ...]) -> str:
    for column, value in zip(kinds, values, strict=True):
        if why := row_rules.type_fault(column, value):
            return f"{column.name} {why}"
    return ""
