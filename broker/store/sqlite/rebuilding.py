"""Makes a fresh file of what is whole in a damaged one, and puts the damaged one aside.

Promises: the damaged file and its log keep their bytes; the new file is complete and on the disk before it gets the
name of the store, whenever the process dies. Rows that refer to a lost one are lost with it, and counted.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from broker.store.base import StoreError
from broker.store.groups import checksums
from broker.store.sqlite.reading import COUNTED, WITHOUT_WILL
from broker.store.sqlite.salvaging import COLUMNS, Row, Salvage
from broker.store.sqlite.schema import APPLICATION, SCHEMA, VERSION

PART: Final = 2_000
"""Rows that are written at a time."""

SIDE_FILES: Final = ("", "-wal", "-shm")

WIDTHS: Final = {table: columns for kinds in COLUMNS.values() for columns, tables in kinds.items() for table in tables}

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
"""What goes with rows that are lost, by table."""


class Rebuilt:
    """What came of it, rows by table."""

    def __init__(self) -> None:
        self.kept = dict.fromkeys(checksums.OF, 0)
        self.lost: dict[str, int] = {}
        self.aside: Path | None = None
        """Where the damaged file is now, if it was put aside."""

    def lose(self, what: str, count: int) -> None:
        """So many more are lost."""
        if count:
            self.lost[what] = self.lost.get(what, 0) + count

    def told(self) -> str:
        """What was kept and what is lost, for people."""
        lost = ", ".join(f"{count:,} of {what}" for what, count in sorted(self.lost.items())) or "nothing"
        kept = ", ".join(f"{count:,} of {what}" for what, count in self.kept.items() if count) or "nothing"
        return f"lost: {lost}; kept: {kept}"


def make(db: sqlite3.Connection) -> None:
    """The tables of a new file, all or none."""
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
    salvage = Salvage(source)
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(target, isolation_level=None)
    try:
        make(db)
        db.execute("BEGIN IMMEDIATE")
        rows = salvage.rows()
        while part := list(islice(rows, PART)):
            _insert(db, part, rebuilt)
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
    finally:
        db.close()
    for table, count in salvage.lost.items():
        rebuilt.lose(table, count)
    return rebuilt


def _insert(db: sqlite3.Connection, rows: list[Row], rebuilt: Rebuilt) -> None:
    by_table: dict[str, list[tuple[object, ...]]] = {}
    for row in rows:
        by_table.setdefault(row.table, []).append(row.values)
    for table, values in by_table.items():
        places = ",".join("?" * WIDTHS[table])
        db.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({places})", values)
    without = [(each[0],) for each in by_table.get("session", ()) if checksums.will_fault(each)]
    db.executemany(WITHOUT_WILL, without)
    rebuilt.lose("will", len(without))


def put_aside(path: Path) -> Rebuilt:
    """Put a damaged file aside, and a fresh one with what is whole in its place. Raises StoreError."""
    fresh = _fresh(path)
    try:
        fresh.unlink(missing_ok=True)
        rebuilt = rebuild(path, fresh)
        _keep(fresh)
        rebuilt.aside = _aside(path)
        _put(path, rebuilt.aside)
    except (OSError, sqlite3.Error) as error:
        told = getattr(error, "strerror", None) or error
        raise StoreError(f"{path} is damaged, and cannot be set aside ({told}): make room, or move it away") from error
    return rebuilt


def finish(path: Path) -> None:
    """Go on where a process died while it put a file aside, or forget what it had made of it. Raises OSError."""
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


def _keep(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_names(directory: Path) -> None:
    """The names of files are to outlive a loss of power as well as what is in them."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def tables() -> Iterator[tuple[str, ...]]:
    """The tables and indexes as they are in every file of this version."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(SCHEMA)
        yield from db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2")
    finally:
        db.close()
