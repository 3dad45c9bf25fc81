"""The report's files: what is in them, for whom, and that they come whole or not at all."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadtest.load.report import columns, files
from loadtest.load.report.files import Files, ReportError, write
from loadtest.load.report.result import Result
from tests.loadtest.load.results import ATTACK, SCENARIO, empty_result, full_result

BEGUN = datetime(2026, 5, 4, 10, 20, 30, 250_000, tzinfo=UTC)


@pytest.fixture(scope="module")
def result() -> Result:
    return full_result()


@pytest.fixture(scope="module")
def written(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write(result, tmp_path_factory.mktemp("report") / "deep" / "folder")


def rows_of(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_all_files_are_there_and_nothing_else(written: Files) -> None:
    names = sorted(path.name for path in written.folder.iterdir())

    assert names == ["pairs.parquet", "report.html", "samples.parquet", "scenario.toml", "seconds.parquet",
                     "summary.json"]  # fmt: skip
    assert written.scenario.read_text() == SCENARIO


def test_the_summary_is_the_result(result: Result, written: Files) -> None:
    summary = json.loads(written.summary.read_text())

    assert summary == json.loads(json.dumps(result.as_json()))
    assert summary["deliveries"]["lost"] == 20
    assert summary["pairs"][0]["publisher"] == ATTACK


def test_seconds(result: Result, written: Files) -> None:
    rows = rows_of(written.seconds)

    assert len(rows) == len(result.seconds)
    assert rows[0]["start"] == -2.0
    assert (BEGUN - rows[0]["ts"]).total_seconds() == 2.0
    assert rows[-1]["sent"] == result.seconds[-1].sent
    assert rows[0]["p99"] is None
    assert rows[0]["latencies"] == []
    assert {row["us"]: row["count"] for row in rows[-1]["latencies"]} == result.seconds[-1].latencies
    assert {row["run"] for row in rows} == {"1a2b3c4d"}


def test_samples(result: Result, written: Files) -> None:
    rows = rows_of(written.samples)

    assert len(rows) == len(result.samples)
    assert (rows[7]["ts"] - BEGUN).total_seconds() == pytest.approx(result.samples[7].sent_at)
    assert [row["latency"] for row in rows] == [sample.latency for sample in result.samples]


def test_every_pair_is_a_row(result: Result, written: Files) -> None:
    rows = rows_of(written.pairs)

    assert [(row["publisher"], row["lost"], row["told_lost"]) for row in rows] == [("sensor-0", 0, 0), (ATTACK, 20, 20)]
    assert len(rows) == len(result.pairs)


@pytest.mark.parametrize("name", ["seconds", "samples", "pairs"])
def test_spark_can_read_it(written: Files, name: str) -> None:
    """Spark knows no timestamp[ns] and no unsigned 64 bits; maps are lists of structs here."""
    file = pq.ParquetFile(getattr(written, name))

    def kinds(kind: pa.DataType) -> list[pa.DataType]:
        inner = [kind.field(at).type for at in range(kind.num_fields)]
        return [kind, *(each for part in inner for each in kinds(part))]

    for field in file.schema_arrow:
        for kind in kinds(field.type):
            assert not pa.types.is_map(kind)
            assert not pa.types.is_unsigned_integer(kind)
            assert not pa.types.is_timestamp(kind) or str(kind) == "timestamp[us, tz=UTC]"
            assert not pa.types.is_null(kind), f"{field.name} has no type"
    groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
    assert groups
    assert {group.column(at).compression for group in groups for at in range(group.num_columns)} == {"ZSTD"}
    if name != "pairs":
        assert str(file.schema_arrow.field("ts").type) == "timestamp[us, tz=UTC]"


def test_rows_are_written_in_batches(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: Files
) -> None:
    monkeypatch.setattr(columns, "BATCH", 7)

    again = write(result, tmp_path)

    assert pq.ParquetFile(again.samples).num_row_groups > 40
    assert rows_of(again.samples) == rows_of(written.samples)


def test_nothing_makes_empty_files_with_all_columns(tmp_path: Path, written: Files) -> None:
    empty = write(empty_result(), tmp_path)

    for name in ("seconds", "samples", "pairs"):
        table = pq.read_table(getattr(empty, name))
        assert table.num_rows == 0
        assert table.schema.equals(pq.read_table(getattr(written, name)).schema)


@pytest.mark.parametrize(
    "begun", ["2026-05-04T10:20:30.25", "2026-05-04T12:20:30.250+02:00", "2026-05-04T10:20:30.25Z"]
)
def test_the_beginning_is_read_in_every_form(begun: str) -> None:
    result = empty_result()
    result.begun = begun

    assert columns.began(result) == round(BEGUN.timestamp() * 1e6)


def test_an_interruption_leaves_the_earlier_report_whole(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = write(empty_result(), tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def interrupted(_: Result) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "page", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(result, tmp_path / "out")

    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert json.loads(earlier.summary.read_text())["run"] == "00000000"


def test_a_report_is_never_written_over(tmp_path: Path) -> None:
    """Two runs may begin in the same second, or share a folder: the second report goes beside the first."""
    folder = tmp_path / "monday"
    first, second, third = (write(empty_result(), folder).folder for _ in range(3))
    assert [first, second, third] == [folder, tmp_path / "monday-2", tmp_path / "monday-3"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here is no folder")

    with pytest.raises(ReportError) as caught:
        write(empty_result(), tmp_path / "file" / "report")

    assert str(caught.value) == f"{tmp_path / 'file' / 'report'}: the report cannot be written (Not a directory)"
