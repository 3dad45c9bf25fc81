"""Makes a fresh file of what SQLite can read of a damaged one, and puts the damaged one aside.

Promises: the damaged file and its log keep their bytes; the new file is complete and on the disk before it gets the
name of the store, whenever the process dies. A row counts only if its checksums are right; of pages that SQLite cannot
read, all rows are lost. Rows that refer to a lost one are lost with it, and counted.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.group_commit import checksums
from canopy_mqtt.store.sqlite.reading import COUNTED, WITHOUT_WILL, any_text
from canopy_mqtt.store.sqlite.schema import APPLICATION, SCHEMA, VERSION
from canopy_mqtt.store.times import Note

PART: Final = 2_000
"""Rows that are written at a time."""

MAX_KEY: Final = 2**63 - 1

ONE_BY_ONE: Final = 500
"""Numbers behind a row that are tried each, where a page cannot be read: it has no more rows. Beyond, steps double."""

SIDE_FILES: Final = ("", "-wal", "-shm")

KEYS: Final = {
    **dict.fromkeys((*checksums.OF, "gone_session", "read_back", "clock"), "rowid"),
    "subscription": "session",
    "received": "session",
    "passed": "broadcast",
}
"""By table: the number in whose order its rows are read."""

_OF_NOBODY: Final = "session NOT IN (SELECT id FROM session)"
_ENDED: Final = "session IN (SELECT id FROM gone_session)"
ENDED: Final = tuple(
    f"DELETE FROM {table} WHERE {_ENDED}" for table in ("subscription", "received", "delivery", "passed")
)
REFERRING: Final = (
    ("subscription", f"DELETE FROM subscription WHERE {_OF_NOBODY}"),
    ("received", f"DELETE FROM received WHERE {_OF_NOBODY}"),
    ("delivery", f"DELETE FROM delivery WHERE {_OF_NOBODY}"),
    ("delivery", "DELETE FROM delivery WHERE message NOT NULL AND message NOT IN (SELECT id FROM message)"),
    ("passed", f"DELETE FROM passed WHERE {_OF_NOBODY} OR broadcast NOT IN (SELECT id FROM broadcast)"),
    ("", "DELETE FROM read_back WHERE session NOT IN (SELECT id FROM session)"),
)
"""The statements that delete the rows which referred to lost ones, by table."""


class Rebuilt:
    """The result of rebuilding: rows by table."""

    def __init__(self) -> None:
        self.kept = dict.fromkeys(checksums.OF, 0)
        self.lost: dict[str, int] = {}
        self.aside: Path | None = None
        """Where the damaged file is now, if it was put aside."""

    def lose(self, what: str, count: int) -> None:
        if count:
            self.lost[what] = self.lost.get(what, 0) + count


def make(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA page_size = 4096")
    # Before the first page: the file can shrink again.
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA synchronous = FULL")
    db.executescript(
        f"BEGIN IMMEDIATE; {SCHEMA} INSERT INTO canopy VALUES ({VERSION}); PRAGMA application_id = {APPLICATION};"
        f" PRAGMA user_version = {VERSION}; COMMIT;"
    )


def rebuild(source: Path, target: Path) -> Rebuilt:
    """Fill a new file with what is whole in another one, which no broker uses. Raises OSError and sqlite3.Error."""
    rebuilt = Rebuilt()
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with (
        closing(sqlite3.connect(target, isolation_level=None)) as db,
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as damaged,
        any_text(damaged),
    ):
        make(db)
        damaged.execute("PRAGMA cell_size_check = ON")
        db.execute("BEGIN IMMEDIATE")
        for table in KEYS:
            rows = _rows(damaged, table, rebuilt)
            while part := list(islice(rows, PART)):
                _insert(db, table, part, rebuilt)
        for statement in ENDED:
            db.execute(statement)
        db.execute("DELETE FROM gone_session")
        for table, statement in REFERRING:
            count = db.execute(statement).rowcount
            if table:
                rebuilt.lose(table, count)
        db.execute(COUNTED)
        db.execute("DELETE FROM message WHERE refs = 0")
        for table in rebuilt.kept:
            rebuilt.kept[table] = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        db.execute("COMMIT")
    return rebuilt


def _rows(damaged: sqlite3.Connection, table: str, rebuilt: Rebuilt) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table that are whole, also behind pages that cannot be read."""
    key, tried, step = -1, 0, 1
    while key <= MAX_KEY:
        try:
            for found, *row in damaged.execute(
                f"SELECT {KEYS[table]}, * FROM {table} NOT INDEXED WHERE {KEYS[table]} >= ? ORDER BY 1", (key,)
            ):
                if isinstance(found, int):
                    key, tried, step = found, 0, 1
                if _is_right(table, row):
                    yield tuple(row)
                elif table in checksums.OF:
                    rebuilt.lose(table, 1)
            return
        except sqlite3.DatabaseError:
            if tried == 0:
                rebuilt.lose(f"{table} (ranges of rows)", 1)
            tried += 1
            step = 1 if tried < ONE_BY_ONE else 2 * step
            key += step


def _is_right(table: str, row: list[Any]) -> bool:
    try:
        if table == "gone_session":
            return bool(checksums.of_gone(row[0]) == row[1])
        if table == "read_back":
            return bool(checksums.of_read_back(row[0], row[1]) == row[2])
        if table == "clock":
            return Note.of(row) is not None
        return not checksums.fault(table, row)
    except (TypeError, struct.error):
        return False


def _insert(db: sqlite3.Connection, table: str, rows: list[tuple[Any, ...]], rebuilt: Rebuilt) -> None:
    # A row that is there was read before the page behind it could not be.
    db.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)
    if table == "session":
        without = [(each[0],) for each in rows if checksums.will_fault(each)]
        db.executemany(WITHOUT_WILL, without)
        rebuilt.lose("will", len(without))


def put_aside(path: Path) -> Rebuilt:
    """Put a damaged file aside, and a fresh one with what is whole in its place. Raises StoreError."""
    fresh = _fresh(path)
    try:
        fresh.unlink(missing_ok=True)
        rebuilt = rebuild(path, fresh)
        keep(fresh)
        rebuilt.aside = _aside(path)
        _put(path, rebuilt.aside)
    except (OSError, sqlite3.Error) as error:
        told = getattr(error, "strerror", None) or error
        raise StoreError(f"{path} is damaged, and cannot be set aside ({told}): make room, or move it away") from error
    return rebuilt


def finish(path: Path) -> None:
    """Finish what a process that died had begun, or forget it. Raises OSError."""
    fresh = _fresh(path)
    if not fresh.exists():
        return
    if path.exists():
        fresh.unlink()
        return
    found = [each for each in path.parent.glob(f"{path.name}.damaged-*") if not each.name.endswith(SIDE_FILES[1:])]
    _put(path, max(found, default=_aside(path)))


def _put(path: Path, aside: Path) -> None:
    # Its log goes before the new file has the name: it would be taken for the log of that.
    for side in SIDE_FILES:
        there = path.with_name(path.name + side)
        if there.exists():
            there.rename(aside.with_name(aside.name + side))
            keep_names(path.parent)
    _fresh(path).rename(path)
    keep_names(path.parent)


def _fresh(path: Path) -> Path:
    return path.with_name(f"{path.name}.salvaged")


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")


def keep(path: Path) -> None:
    """Sync the file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_names(directory: Path) -> None:
    """Sync the directory, so that the names of files outlive a loss of power as well as their content."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tables() -> Iterator[tuple[str, ...]]:
    """Return the tables and indexes as they are in every file of this version."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(SCHEMA)
        yield from db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2")
    finally:
        db.close()
