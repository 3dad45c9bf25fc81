"""Imports lines of JSON as `exporting` writes them, or other rows, into an empty store.

Owns the rules for a line. Promises: everything is imported in one transaction, or nothing; the first invalid line is
named with its number. Rows that a broker could not use are refused (`row_rules`).
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from canopy_mqtt.core.queues.delivery import QUEUED
from canopy_mqtt.json_keys import RepeatedKey, unique
from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.group_commit import checksums
from canopy_mqtt.store.sqlite.opening import CACHE_KIBIBYTES, FILE, LOCK, PART, lock_folder, open_store, told
from canopy_mqtt.store.sqlite.reading import COUNTED
from canopy_mqtt.store.sqlite.rebuilding import Rebuilt, keep, keep_names, rebuild
from canopy_mqtt.store.sqlite.schema import CLOCK_NOTED, FORGET_CLOCK
from canopy_mqtt.store.times import Clocks, Note
from canopy_mqtt.store.tools import row_rules
from canopy_mqtt.store.tools.exporting import HEAD, TEXTS_OF_JSON
from canopy_mqtt.store.tools.read_only import file_of, process_using

NUMBERS: Final = {name: state for state, name in row_rules.STATES.items()}
MAX_LINE: Final = 512 * 1024 * 1024
"""Bytes: the largest message as base64, and half as much again. A file without ends of lines stays out of memory."""

MADE_HERE: Final = {"session": "id", "delivery": "number", "message": "refs"}
"""By table: the column that lines do not have."""


class FaultyRow(ValueError):
    """Why a row cannot come in."""


class Importer:
    """An empty store within a transaction. `counts`: rows by table."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._columns = {table: row_rules.columns(db, table) for table in row_rules.TABLES}
        self._inserts = {
            table: f"INSERT INTO {table} VALUES ({','.join('?' * (len(kinds) + checksums.amount(table)))})"
            for table, kinds in self._columns.items()
        }
        self.counts = dict.fromkeys(row_rules.TABLES, 0)
        self._clients: dict[str, int] = {}
        self._refs: dict[int, int] = {}
        self._broadcasts: set[int] = set()
        self._in_flight: set[tuple[int, int]] = set()

    def columns(self, table: str) -> list[row_rules.Column]:
        return self._columns[table]

    def line(self, values: Any) -> None:
        """Bring in a line of JSON. Raises FaultyRow."""
        if not isinstance(values, dict):
            raise FaultyRow("is no object")
        fields = dict(values)
        table = fields.pop("type", None)
        if not isinstance(table, str) or table not in self._columns:
            raise FaultyRow(f"type is none of {', '.join(row_rules.TABLES)}")
        row: dict[str, Any] = {}
        for column in self._columns[table]:
            if column.name == "session":
                row["client_id"] = fields.pop("client_id", None)
            elif column.name != MADE_HERE.get(table):
                value = fields.pop(column.name, None)
                row[column.name] = None if value is None else _value(column, value)
        if fields:
            raise FaultyRow(f"{next(iter(fields))[: row_rules.MAX_NAME]!r} means nothing for type {table}")
        self.row(table, row)

    def row(self, table: str, values: Mapping[str, Any]) -> None:
        """Bring in a row with the values of its columns; `client_id` stands for the session. Raises FaultyRow."""
        number = self.counts[table] + 1
        row: dict[str, Any] = {}
        for column in self._columns[table]:
            name = column.name
            if name == "session":
                row[name] = self._clients.get(values["client_id"]) if isinstance(values["client_id"], str) else None
                if row[name] is None:
                    raise FaultyRow("no session of its client_id stands before it")
                continue
            if name == MADE_HERE.get(table):
                row[name] = 0 if name == "refs" else number
                continue
            value = row[name] = values.get(name)
            if (value is not None or column.needed) and (why := row_rules.type_fault(column, value)):
                raise FaultyRow(f"{name} {why}")
        if why := row_rules.fault(table, row):
            raise FaultyRow(why)
        if table == "delivery":
            self._check(row)
        elif table == "passed" and row["broadcast"] not in self._broadcasts:
            raise FaultyRow(f"broadcast {row['broadcast']} does not stand before it")
        try:
            whole = tuple(row.values())
            self._db.execute(self._inserts[table], (*whole, *checksums.OF[table](whole)))
        except sqlite3.IntegrityError as error:
            raise FaultyRow("is there twice") from error
        except UnicodeEncodeError as error:
            raise FaultyRow("holds half a surrogate pair") from error
        self.counts[table] = number
        if table == "session":
            self._clients[row["client_id"]] = number
        elif table == "message":
            self._refs[row["id"]] = 0
        elif table == "broadcast":
            self._broadcasts.add(row["id"])

    def _check(self, row: Mapping[str, Any]) -> None:
        message = row["message"]
        if message is not None and message not in self._refs:
            raise FaultyRow(f"message {message} does not stand before it")
        if row["state"] != QUEUED:
            identifier = (row["session"], row["packet_id"])
            if identifier in self._in_flight:
                raise FaultyRow(f"packet_id {row['packet_id']} of its client is in flight already")
            self._in_flight.add(identifier)
        if message is not None:
            self._refs[message] += 1

    def forget_unused(self) -> None:
        """Take out again the messages whose deliveries could not come in."""
        unused = [number for number, refs in self._refs.items() if not refs]
        for number in unused:
            del self._refs[number]
        self._db.executemany("DELETE FROM message WHERE id = ?", ((number,) for number in unused))
        self.counts["message"] -= len(unused)

    def finish(self) -> None:
        """All is in. Raises StoreError: something is missing."""
        for number, refs in self._refs.items():
            if not refs:
                raise StoreError(f"message {number} belongs to no delivery: take its line out")
        self._db.execute(COUNTED)


def _value(column: row_rules.Column, value: Any) -> Any:
    """A value of a line as that of a column. Raises FaultyRow."""
    if column.name in row_rules.FLAGS:
        if not isinstance(value, bool):
            raise FaultyRow(f"{column.name} is neither true nor false")
        return int(value)
    if isinstance(value, bool):
        raise FaultyRow(f"{column.name} {row_rules.type_fault(column, None) or 'is neither true nor false'}")
    if column.name == "state":
        if not isinstance(value, str) or value not in NUMBERS:
            raise FaultyRow(f"state is none of {', '.join(NUMBERS)}")
        return NUMBERS[value]
    if column.name in TEXTS_OF_JSON:
        return json.dumps(value, ensure_ascii=False)
    if column.kind == "BLOB":
        try:
            return base64.b64decode(value, validate=True)
        except (ValueError, TypeError) as error:
            raise FaultyRow(f"{column.name} is no base64") from error
    return value


@contextmanager
def filling(directory: Path, cache: int = CACHE_KIBIBYTES) -> Iterator[Importer]:
    """The store of a directory, made where there is none, to be filled; `cache`: KiB of it in memory.

    Raises StoreError: in use, or not empty.
    """
    store = open_store(directory, "full")
    db = store.db
    try:
        db.execute(f"PRAGMA cache_size = -{cache}")
        for table in (*row_rules.TABLES, "gone_session"):
            if db.execute(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT 1)").fetchone()[0]:
                raise StoreError(f"{store.path} is not empty: name a folder that holds no store yet")
        db.execute("BEGIN IMMEDIATE")
        try:
            importer = Importer(db)
            yield importer
            importer.finish()
            # The rows have times of the system's clock.
            clocks = Clocks.of_system()
            wall = clocks.wall()
            db.execute(FORGET_CLOCK)
            db.execute(CLOCK_NOTED, Note(wall, wall, clocks.uptime(), clocks.boot).row())
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        raise StoreError(told(store.path, error)) from error
    finally:
        store.close()
        hand_over(store.path)


def hand_over(path: Path) -> None:
    """Give files that root has made to the owner of the folder, the broker's user."""
    if os.geteuid() == 0:
        folder = path.parent.stat()
        for each in (path, path.with_name(LOCK)):
            if each.exists():
                os.chown(each, folder.st_uid, folder.st_gid)


def bring(directory: Path, source: BinaryIO, name: str) -> dict[str, int]:
    """Bring the lines of `source`, which errors call `name`, into the store of a directory; rows by table.

    Raises:
        StoreError: the store cannot be filled, or a line cannot come in, which is named; then nothing has.
    """
    with filling(directory) as importer:
        number = 0
        decoder = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=unique)
        for number, line in enumerate(iter(lambda: source.readline(MAX_LINE + 1), b""), 1):
            if len(line) > MAX_LINE:
                raise StoreError(f"{name}: line {number}: is longer than {MAX_LINE:,} bytes")
            try:
                values = decoder.decode(line.decode("utf-8-sig"))
                if number == 1:
                    if values != HEAD:
                        raise FaultyRow("is not that of an export (canopy store export)")
                else:
                    importer.line(values)
            except (FaultyRow, RepeatedKey) as error:
                raise StoreError(f"{name}: line {number}: {error}") from error
            except (ValueError, RecursionError) as error:
                raise StoreError(f"{name}: line {number}: not JSON ({error})") from error
        if not number:
            raise StoreError(f"{name}: is empty")
    return importer.counts


def _no_number(text: str) -> float:
    raise FaultyRow(f"{text} is no number")


def salvage(directory: Path, into: Path) -> Rebuilt:
    """Fill a new store in the directory `into` with what is whole in the store of another one.

    The file has its name when it is complete; until then it is called `PART`.

    Raises:
        StoreError: there is none, a broker uses it, or there is something at `into` already.
    """
    path, target, part = file_of(directory), into / FILE, into / PART
    user = process_using(path)
    if user is not None:
        raise StoreError(f"{directory} is in use by process {user or '?'}: stop that one")
    try:
        lock = lock_folder(into)
        try:
            if os.path.lexists(target):
                raise StoreError(f"{target} is there already: name a folder that holds no store yet")
            for left in (part, part.with_name(f"{PART}-journal")):  # by one that was killed
                left.unlink(missing_ok=True)
            rebuilt = rebuild(path, part)
            keep(part)
            part.rename(target)
            keep_names(into)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(lock)
    except OSError as error:
        raise StoreError(f"{target} cannot be made ({error.strerror}): name another folder, or make room") from error
    except sqlite3.Error as error:
        raise StoreError(told(target, error)) from error
    hand_over(target)
    return rebuilt
