"""Exports a store as a folder of Parquet files, one for each table, and imports it.

Owns the types of the columns; rows, names and omissions are those of the lines of JSON (`exporting`), and imports pass
the same checks (`importing`). Promises: the folder has its name only when everything is on the disk; memory holds one
row group, and the client identifiers. Needs pyarrow, the extra `canopy-mqtt[record]`.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from broker.core.codec.errors import ProtocolError
from broker.core.codec.properties import decode_forward
from broker.store.base import StoreError
from broker.store.tools import exporting, rows
from broker.store.tools.importing import NUMBERS, FaultyRow, Importer, filling
from broker.store.tools.looking import Look

META: Final = {b"canopy-store": b"1"}
"""What each file says of itself: the version is that of the columns."""

UNFINISHED: Final = ".inprogress"
ROW_GROUP: Final = 16_384
"""Rows of a row group, at most."""
ROW_GROUP_BYTES: Final = 16_777_216
"""Bytes of texts and payloads at which a row group is written before it has so many rows."""
COMPRESSION_LEVEL: Final = 1
"""Of zstd: more costs several times the CPU for some percent."""
READ: Final = 1_024
"""Rows that are read at a time."""

MICROSECONDS: Final = 1e6
TIME: Final[Any] = pa.timestamp("us", tz="UTC")
PAIRS: Final[Any] = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
KINDS: Final[dict[str, Any]] = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string(), "BLOB": pa.binary()}
SPECIAL: Final[dict[str, Any]] = {
    "session": pa.string(),
    "state": pa.string(),
    "identifiers": pa.list_(pa.int64()),
    **dict.fromkeys(rows.FLAGS, pa.bool_()),
    **dict.fromkeys(exporting.TIMES, TIME),
}
"""By column: types that differ from those of the file."""

PROPERTIES: Final = {"properties": "user_properties", "will_properties": "will_user_properties"}
"""By column: the one that shows its User Properties, for queries; `import` goes by the encoded ones."""


def write(found: Look, folder: Path) -> None:
    """All of a store, as a new folder for the user alone.

    Raises:
        StoreError: a row cannot be read.
        OSError: the folder cannot be written; nothing of it stays.
    """
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=UNFINISHED, dir=folder.parent))
    try:
        clients: dict[int, str] = {}
        for table in rows.TABLES:
            _write_table(found, table, clients, draft / f"{table}.parquet")
        _sync(draft)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    _sync(folder.parent)


def _write_table(found: Look, table: str, clients: dict[int, str], path: Path) -> None:
    columns = rows.columns(found.db, table)
    schema = _schema(table, columns)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        with pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            # A flipped bit would else be read as another value.
            write_page_checksum=True,
        ) as writer:
            for shown in _groups(found, table, clients):
                try:
                    writer.write_batch(pa.RecordBatch.from_pylist(shown, schema))
                except (ValueError, TypeError, OverflowError) as error:
                    raise _unreadable(found, table) from error
        file.flush()
        os.fsync(file.fileno())


def _schema(table: str, columns: list[rows.Column]) -> Any:
    fields = []
    for column in columns:
        if column.name not in exporting.LEFT_OUT and (table, column.name) != ("session", "id"):
            kind = SPECIAL.get(column.name) or KINDS.get(column.kind, pa.binary())
            name = "client_id" if column.name == "session" else column.name
            fields.append(pa.field(name, kind, nullable=not column.needed))
    fields += [pa.field(PROPERTIES[column.name], PAIRS) for column in columns if column.name in PROPERTIES]
    return pa.schema(fields, metadata=META)


def _groups(found: Look, table: str, clients: dict[int, str]) -> Iterator[list[dict[str, Any]]]:
    """The rows of a table, so many at a time as make a row group."""
    group: list[dict[str, Any]] = []
    size = 0
    for row in exporting.rows_of(found, table):
        if table == "session":
            clients[row.pop("id")] = row["client_id"]
        size += sum(len(value) for value in row.values() if isinstance(value, bytes | str))
        try:
            group.append(_shown(row, clients, found.ahead))
        except (ProtocolError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise _unreadable(found, table) from error
        if len(group) >= ROW_GROUP or size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _shown(row: dict[str, Any], clients: dict[int, str], ahead: float) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if value is None or name in exporting.LEFT_OUT:
            continue
        if name == "session":
            shown["client_id"] = clients[value]
        elif name in rows.FLAGS:
            shown[name] = value != 0
        elif name in exporting.TIMES:
            shown[name] = round((value - ahead) * MICROSECONDS)
        elif name == "identifiers":
            shown[name] = json.loads(value)
        elif name in PROPERTIES:
            shown[name] = value
            shown[PROPERTIES[name]] = [{"key": key, "value": each} for key, each in decode_forward(value).user]
        else:
            shown[name] = rows.STATES[value] if name == "state" else value
    return shown


def _unreadable(found: Look, table: str) -> StoreError:
    return StoreError(
        f"{found.path}: a row of {table} cannot be written as Parquet: see canopy store verify, or export it as jsonl"
    )


def _sync(folder: Path) -> None:
    """Have the names in a folder outlive a power failure."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def bring(directory: Path, folder: Path) -> dict[str, int]:
    """Bring what `write` made into the store of a directory; rows by table.

    Raises:
        StoreError: the store cannot be filled, or a row cannot come in, which is named; then nothing has.
    """
    with filling(directory) as importer:
        for table in rows.TABLES:
            path = folder / f"{table}.parquet"
            try:
                with path.open("rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
                    _read(importer, table, file, path)
            except (OSError, pa.ArrowException, ValueError, OverflowError) as error:
                told = error.strerror if isinstance(error, OSError) else ""
                why = told or "it is damaged, or no Parquet file"
                raise StoreError(f"{path} cannot be read ({why}): export the store again") from error
    return importer.counts


def _read(importer: Importer, table: str, file: Any, path: Path) -> None:
    there = file.schema_arrow
    if META.items() - (there.metadata or {}).items():
        raise StoreError(f"{path}: is not that of an export (canopy store export --format parquet)")
    types = {field.name: field.type for field in _schema(table, importer.columns(table))}
    for field in there:
        if types.get(field.name) != field.type:
            name = field.name[: rows.LONGEST_NAME]
            raise StoreError(f"{path}: its column {name!r} means nothing for table {table}, or is of another type")
    names = [name for name in there.names if name not in PROPERTIES.values()]
    number = 0
    for batch in file.iter_batches(READ, columns=names):
        for values in _plain(batch).to_pylist():
            number += 1
            try:
                importer.row(table, _row(values))
            except FaultyRow as error:
                raise StoreError(f"{path}: row {number}: {error}") from error


def _plain(batch: Any) -> Any:
    """A batch whose times are numbers: there are more years than those of `datetime`."""
    return pa.RecordBatch.from_arrays(
        [each.cast(pa.int64()) if each.type == TIME else each for each in batch.columns], batch.schema.names
    )


def _row(values: dict[str, Any]) -> dict[str, Any]:
    """A row as the store has it. Raises FaultyRow."""
    row: dict[str, Any] = {"client_id": None}
    for name, value in values.items():
        if value is None:
            row[name] = None
        elif name in rows.FLAGS:
            row[name] = int(value)
        elif name in exporting.TIMES:
            row[name] = value / MICROSECONDS
        elif name == "identifiers":
            row[name] = json.dumps(value)
        elif name == "state":
            if value not in NUMBERS:
                raise FaultyRow(f"state is none of {', '.join(NUMBERS)}")
            row[name] = NUMBERS[value]
        else:
            row[name] = value
    return row
