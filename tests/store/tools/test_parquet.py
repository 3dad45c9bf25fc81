"""`canopy store export --format parquet`: the same rows as the lines of JSON, whole or not there, and in again."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.core.codec.properties import decode_forward
from broker.core.queues.message import Message
from broker.store.tools import parquet
from broker.store.tools.rows import TABLES
from tests.store.sqlite.place import count
from tests.store.tools.filled import fill
from tests.store.tools.test_commands import canopy, damage, filled

__all__ = ["filled"]

DERIVED = ("user_properties", "will_user_properties")
PARQUET = ("--format", "parquet")


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """What pyarrow reads, as the lines of JSON have it; times as whole microseconds."""
    found: list[dict[str, Any]] = []
    for table in TABLES:
        for row in pq.read_table(folder / f"{table}.parquet", page_checksum_verification=True).to_pylist():
            line: dict[str, Any] = {"type": table}
            for name, value in row.items():
                if value is None or name in DERIVED:
                    continue
                if isinstance(value, bytes):
                    line[name] = base64.b64encode(value).decode()
                elif hasattr(value, "timestamp"):
                    line[name] = round(value.timestamp() * 1e6)
                else:
                    line[name] = json.loads(value) if name == "principal" else value
            found.append(line)
    return found


def exported(directory: Path) -> list[dict[str, Any]]:
    """The lines of JSON of a store, but the first; times as whole microseconds."""
    found = [json.loads(line) for line in canopy("export", directory).splitlines()[1:]]
    for line in found:
        for name in line.keys() & {"disconnected_at", "will_due", "expires_at"}:
            line[name] = round(line[name] * 1e6)
    return found


def test_the_same_rows_as_lines_of_json(filled: Path, tmp_path: Path) -> None:
    canopy("export", filled, tmp_path / "p", *PARQUET)
    assert lines_of(tmp_path / "p") == exported(filled)
    assert {each.stat().st_mode & 0o777 for each in (tmp_path / "p").iterdir()} == {0o600}
    assert (tmp_path / "p").stat().st_mode & 0o777 == 0o700


def test_columns_have_types(filled: Path, tmp_path: Path) -> None:
    canopy("export", filled, tmp_path / "p", *PARQUET)
    found = pq.read_schema(tmp_path / "p" / "delivery.parquet")
    kinds = {name: str(found.field(name).type) for name in ("client_id", "payload", "expires_at", "state", "retain")}
    assert kinds == {
        "client_id": "string",
        "payload": "binary",
        "expires_at": "timestamp[us, tz=UTC]",
        "state": "string",
        "retain": "bool",
    }
    assert str(found.field("identifiers").type) == "list<element: int64>"


async def test_user_properties_beside_a_broker(tmp_path: Path) -> None:
    raw = b"\x01\x01\x26\x00\x01k\x00\x02v1\x26\x00\x01k\x00\x00"
    assert decode_forward(raw).user == [("k", "v1"), ("k", "")]
    store = await fill(tmp_path / "s")
    try:
        store.journal.retained_set(Message(b"r/3", b"x", 1, True, raw, 0.0, "p"))
        await store.flush()
        await asyncio.to_thread(canopy, "export", tmp_path / "s", tmp_path / "p", *PARQUET)
    finally:
        await store.close()
    rows = {row["topic"]: row for row in pq.read_table(tmp_path / "p" / "retained.parquet").to_pylist()}
    assert rows["r/3"]["user_properties"] == [{"key": "k", "value": "v1"}, {"key": "k", "value": ""}]
    assert (rows["r/3"]["properties"], rows["r/1"]["user_properties"]) == (raw, [])


@pytest.mark.parametrize(("rows", "size"), [(2, 1 << 20), (1 << 20, 300)])
def test_row_groups_are_bounded(
    filled: Path, tmp_path: Path, rows: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rows, and by bytes: nothing is left out between them."""
    monkeypatch.setattr(parquet, "ROW_GROUP", rows)
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", size)
    damage(
        filled,
        "INSERT INTO retained WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 9)"
        " SELECT 'x/' || i, zeroblob(200), 1, NULL, NULL, NULL, NULL, 0 FROM n",
    )
    canopy("export", filled, tmp_path / "p", *PARQUET)
    about = pq.read_metadata(tmp_path / "p" / "retained.parquet")
    groups = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
    assert groups == ([2, 2, 2, 2, 2, 1] if rows == 2 else [4, 2, 2, 2, 1])
    assert lines_of(tmp_path / "p") == exported(filled)


def test_a_flipped_bit_is_found(filled: Path, tmp_path: Path) -> None:
    canopy("export", filled, tmp_path / "p", *PARQUET)
    path = tmp_path / "p" / "retained.parquet"
    before = pq.read_table(path)
    content = bytearray(path.read_bytes())
    at = content.index(b"r/1")
    content[at] ^= 1
    path.write_bytes(content)
    # Only the checksum tells.
    assert pq.read_table(path) != before
    told = canopy("import", tmp_path / "t", tmp_path / "p", code=1)
    assert "retained.parquet cannot be read (it is damaged, or no Parquet file)" in told
    assert count(tmp_path / "t", "session") == 0


def test_out_and_in_again(filled: Path, tmp_path: Path) -> None:
    canopy("export", filled, tmp_path / "p", *PARQUET)
    told = canopy("import", tmp_path / "t", tmp_path / "p")
    assert told.endswith(": 2 sessions with 2 subscriptions and 7 messages, 2 retained messages\n")
    assert exported(tmp_path / "t") == exported(filled)
    assert canopy("verify", tmp_path / "t").endswith(": whole\n")


def test_years_beyond_the_calendar(filled: Path, tmp_path: Path) -> None:
    damage(filled, "UPDATE retained SET expires_at = 1e12")
    canopy("export", filled, tmp_path / "p", *PARQUET)
    canopy("import", tmp_path / "t", tmp_path / "p")
    assert exported(tmp_path / "t") == exported(filled)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE retained SET expires_at = 1e300",
        "UPDATE retained SET expires_at = 9e999",
        "UPDATE retained SET expires_at = 'x'",
        "UPDATE retained SET qos = 'secret'",
        "UPDATE retained SET properties = x'ffff'",
    ],
)
def test_a_row_that_cannot_be_written_leaves_nothing(filled: Path, tmp_path: Path, statement: str) -> None:
    """In the last table: the others are written then."""
    damage(filled, statement)
    told = canopy("export", filled, tmp_path / "p", *PARQUET, code=1)
    assert "a row of retained cannot be written as Parquet: see canopy store verify" in told
    assert (told.count("\n"), "secret" in told) == (1, False)
    assert list(tmp_path.iterdir()) == [filled]


def test_a_disk_without_room_leaves_nothing(filled: Path, tmp_path: Path) -> None:
    damage(filled, "INSERT INTO retained VALUES ('x', randomblob(400000), 1, NULL, NULL, NULL, NULL, 0)")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        told = canopy("export", filled, tmp_path / "p", *PARQUET, code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert told == f"canopy: {tmp_path / 'p'} cannot be written (File too large): make room, or name another one\n"
    assert list(tmp_path.iterdir()) == [filled]


def test_what_is_there_is_not_overwritten(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert "is there already" in canopy("export", filled, tmp_path / "there", *PARQUET, code=1)
    assert list((tmp_path / "there").iterdir()) == []
    assert "cannot be written" in canopy("export", filled, tmp_path / "no" / "p", *PARQUET, code=1)
    assert "name a folder" in canopy("export", filled, *PARQUET, code=2)


def changed(path: Path, name: str, value: object) -> None:
    """Another value in the first row of a file."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[0][name] = value
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)


@pytest.mark.parametrize(
    ("table", "name", "value", "fault"),
    [
        ("retained", "topic", "a/#", "row 1: topic cannot be: topic name holds a wildcard"),
        ("retained", "qos", 3, "row 1: qos is not between 0 and 2"),
        ("delivery", "state", "lost", "row 1: state is none of queued, sent, released"),
        ("delivery", "identifiers", [0], "row 1: identifiers is no list of subscription identifiers"),
        ("delivery", "message", 9, "row 1: message 9 does not stand before it"),
        ("subscription", "client_id", "nobody", "row 1: no session of its client_id stands before it"),
        ("session", "principal", "x", "row 1: principal makes no sense"),
    ],
)
def test_a_row_that_cannot_come_in_is_named(
    filled: Path, tmp_path: Path, table: str, name: str, value: object, fault: str
) -> None:
    """By the checks of the lines of JSON; and nothing has come in."""
    canopy("export", filled, tmp_path / "p", *PARQUET)
    changed(tmp_path / "p" / f"{table}.parquet", name, value)
    told = canopy("import", tmp_path / "t", tmp_path / "p", code=1)
    assert told == f"canopy: {tmp_path / 'p' / table}.parquet: {fault}\n"
    assert (count(tmp_path / "t", "session"), count(tmp_path / "t", "retained")) == (0, 0)


def test_a_folder_that_is_no_export(filled: Path, tmp_path: Path) -> None:
    canopy("export", filled, tmp_path / "p", *PARQUET)
    path = tmp_path / "p" / "retained.parquet"
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata(None), path)
    assert "is not that of an export" in canopy("import", tmp_path / "t", tmp_path / "p", code=1)
    pq.write_table(table.append_column("colour", pa.array([1] * len(table))), path)
    assert "'colour' means nothing for table retained" in canopy("import", tmp_path / "t", tmp_path / "p", code=1)
    texts = table.set_column(table.schema.get_field_index("qos"), "qos", pa.array(["1"] * len(table)))
    pq.write_table(texts, path)
    assert "'qos' means nothing" in canopy("import", tmp_path / "t", tmp_path / "p", code=1)
    path.write_bytes(os.urandom(200))
    assert "or no Parquet file" in canopy("import", tmp_path / "t", tmp_path / "p", code=1)
    path.unlink()
    assert "retained.parquet cannot be read (No such file" in canopy("import", tmp_path / "t", tmp_path / "p", code=1)
    assert count(tmp_path / "t", "session") == 0


@pytest.mark.parametrize("command", ["export", "import"])
def test_without_pyarrow(filled: Path, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "broker.store.tools.parquet")
    monkeypatch.delattr("broker.store.tools.parquet")
    (tmp_path / "p").mkdir()
    arguments = (filled, tmp_path / "q", *PARQUET) if command == "export" else (tmp_path / "t", tmp_path / "p")
    told = canopy(command, *arguments, code=1)
    assert told.startswith("canopy: Parquet needs pyarrow: ")
    assert told.count("\n") == 1
    assert {each.name for each in tmp_path.iterdir()} == {"s", "p"}
