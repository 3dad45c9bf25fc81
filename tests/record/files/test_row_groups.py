"""The row groups of a segment: whole ones, but for the last, and numbers that take little room."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from canopy_mqtt.record.files import row_groups
from canopy_mqtt.record.files.row_groups import RowGroups
from canopy_mqtt.record.schema import SCHEMA


def rows(first: int, count: int, payload: bytes = b"") -> pa.RecordBatch:
    columns = {
        "seq": range(first, first + count), "kind": ["publish"] * count, "ts": range(first, first + count),
        "recv_ns": range(first, first + count), "run_id": ["r"] * count, "payload": [payload] * count,
    }  # fmt: skip
    arrays = [pa.array(columns.get(each.name, [None] * count), each.type) for each in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def written(path: Path, *batches: pa.RecordBatch | pa.Table) -> pq.ParquetFile:
    with open(path, "wb") as file, RowGroups(file, SCHEMA) as groups:
        for batch in batches:
            groups.add(batch)
    return pq.ParquetFile(path)


def sizes(file: pq.ParquetFile) -> list[int]:
    return [file.metadata.row_group(number).num_rows for number in range(file.metadata.num_row_groups)]


def test_only_the_last_row_group_is_smaller_however_the_rows_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP", 10)
    file = written(tmp_path / "a", rows(1, 7), rows(8, 7), pa.Table.from_batches([rows(15, 20)]), rows(35, 3))
    assert sizes(file) == [10, 10, 10, 7]
    assert file.read(["seq"])["seq"].to_pylist() == [*range(1, 38)]


def test_large_rows_make_smaller_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", 10_000)
    assert sizes(written(tmp_path / "a", *(rows(number, 1, b"x" * 4_000) for number in range(1, 8)))) == [3, 3, 1]


def test_numbers_are_written_as_differences(tmp_path: Path) -> None:
    group = written(tmp_path / "a", rows(1, 1_000)).metadata.row_group(0)
    found = {each.path_in_schema: each.encodings for each in map(group.column, range(group.num_columns))}
    assert all("DELTA_BINARY_PACKED" in found[name] for name in ("seq", "ts", "recv_ns", "ref_seq"))
    assert group.column(0).statistics.max == 1_000
