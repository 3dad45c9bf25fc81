"""Merging segments: no row is seen twice or not at all, whatever happens in between."""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from canopy_mqtt.record.files import row_groups
from canopy_mqtt.record.schema import SCHEMA
from canopy_pipeline.cli import app
from canopy_pipeline.compact import compact_job
from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.record.record_folder import RecordFolder, Segment, size
from canopy_pipeline.record.segments import events
from tests.pipeline.folder import NOW, manifests, record, seen
from tests.pipeline.recorded import beside

HOUR = timedelta(hours=1)
NONE = timedelta(0)


def compact(
    folder: Path, target: int = 1 << 20, remove_after: timedelta = HOUR, dry_run: bool = False
) -> compact_job.CompactOutcome:
    return compact_job.run(str(folder), HOUR, target, remove_after, dry_run, now=NOW)


def test_small_segments_of_hours_that_are_over_become_one(tmp_path: Path) -> None:
    written = record(tmp_path)
    before = seen(tmp_path)
    assert compact(tmp_path, dry_run=True).line(True).startswith("would merge 11 segments into 3 (56 rows")
    assert not list(tmp_path.rglob("merged-*"))
    outcome = compact(tmp_path)
    # The newest segment of all is the recorder's to find.
    assert [number for _, number in outcome.merged] == [4, 4, 3]
    assert (outcome.rows, outcome.removed, outcome.refused) == (56, 0, 0)
    assert seen(tmp_path) == before
    assert all(path.exists() for path in written)
    for said, parts in zip(
        manifests(tmp_path, "merged-*.json"), (written[:4], written[4:8], written[8:11]), strict=True
    ):
        content = (tmp_path / said["segment"]).read_bytes()
        merged = pq.ParquetFile(tmp_path / said["segment"])
        whole = pa.concat_tables([pq.ParquetFile(path).read() for path in parts])
        assert merged.read().equals(whole)
        assert merged.metadata.row_group(0).column(0).compression == "ZSTD"
        assert merged.metadata.num_row_groups == 1
        assert said["replaces"] == [str(path.relative_to(tmp_path)) for path in parts]
        assert (said["bytes"], said["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
        assert (said["rows"], said["kinds"]["publish"]) == (len(whole), 20 if said["rows"] != 15 else 15)
        assert (said["from_seq"], said["to_seq"]) == (whole["seq"][0].as_py(), whole["seq"][-1].as_py())
    crossing = manifests(tmp_path, "merged-*.json")[1]
    assert crossing["runs"] == ["0a1b2c3d", "ffffffff"]
    assert crossing["gaps"] == [[26, 35, 10]]
    # Nothing is left to do, until what is replaced has stood long enough.
    assert compact(tmp_path).merged == []
    later = compact_job.run(str(tmp_path), HOUR, 1 << 20, HOUR, now=NOW + HOUR)
    assert later.removed == 11
    assert seen(tmp_path) == before
    assert [path.exists() for path in written] == [False] * 11 + [True]
    assert len(manifests(tmp_path)) == 4


def test_row_groups_of_large_payloads_stay_within_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sum(pq.ParquetFile(path).read().nbytes for path in record(tmp_path)[:4])
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", whole // 3)
    before = seen(tmp_path)
    compact(tmp_path)
    first = pq.ParquetFile(tmp_path / manifests(tmp_path, "merged-*.json")[0]["segment"])
    assert 1 < first.metadata.num_row_groups <= 3
    assert seen(tmp_path) == before


def test_what_is_young_large_or_not_vouched_for_stays(tmp_path: Path) -> None:
    written = record(tmp_path, hours=2)
    sizes = [path.stat().st_size for path in written]
    # Two of them fit in the target, three do not.
    assert [number for _, number in compact(tmp_path, target=2 * max(sizes) + 10).merged] == [2, 2, 2]
    shutil.rmtree(tmp_path)
    written = record(tmp_path, hours=2)
    assert compact_job.run(str(tmp_path), HOUR, 100, HOUR, now=NOW).merged == []
    young = compact_job.run(str(tmp_path), HOUR, 1 << 20, HOUR, now=NOW - timedelta(hours=4))
    assert [number for _, number in young.merged] == [4]
    assert young.merged[0][0].startswith("date=2026-11-21/hour=16/")
    for path in written[4:6]:
        beside(tmp_path, path).unlink()
    assert compact(tmp_path).merged == []
    assert len(seen(tmp_path)) == 41


def test_a_segment_that_is_not_what_it_was_is_named_and_its_group_left(tmp_path: Path) -> None:
    written = record(tmp_path)
    said: list[str] = []
    written[1].write_bytes(written[1].read_bytes()[:-8])
    older = pq.ParquetFile(written[5]).read().drop_columns(["properties"])
    pq.write_table(older, written[5])
    manifest = beside(tmp_path, written[5])
    digest = hashlib.sha256(written[5].read_bytes()).hexdigest()
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"sha256": digest}))
    outcome = compact_job.run(str(tmp_path), HOUR, 1 << 20, NONE, say=said.append, now=NOW)
    assert outcome.refused == 1
    assert f"{written[1].name}: not what its manifest's checksum says" in said[0]
    # Columns that an older segment lacks are null.
    assert [number for _, number in outcome.merged] == [4, 3]
    assert pq.read_schema(tmp_path / outcome.merged[0][0]).equals(SCHEMA)
    assert outcome.removed == 7
    manifest = beside(tmp_path, written[0])
    manifest.write_text("{")
    with pytest.raises(PipelineError, match=rf"{manifest.name}: not a manifest"):
        compact(tmp_path)


def test_a_merged_segment_that_was_moved_stays(tmp_path: Path) -> None:
    record(tmp_path)
    before = seen(tmp_path)
    compact(tmp_path, remove_after=NONE)
    merged = min(tmp_path.rglob("merged-*.parquet"))
    place = tmp_path / "date=2026-01-01/hour=00" / merged.name
    place.parent.mkdir(parents=True)
    merged.rename(place)
    compact(tmp_path)
    assert place.exists()
    assert seen(tmp_path) == before


@pytest.mark.long
def test_two_at_once_are_refused_and_spark_reads_what_is_merged(spark: SparkSession, tmp_path: Path) -> None:
    record(tmp_path)
    before = seen(tmp_path)
    with RecordFolder(str(tmp_path)).locked():
        told = CliRunner().invoke(app, ["compact", "--input", str(tmp_path)])
        assert told.exit_code == 1
        assert "another compact or retention is at work here" in told.stderr
    assert compact(tmp_path, remove_after=NONE).removed == 11
    told = CliRunner().invoke(app, ["compact", "--input", str(tmp_path)])
    assert told.exit_code == 0, told.output
    assert "merged 0 segments into 0" in told.stdout
    assert [row["seq"] for row in events(spark, [str(tmp_path)]).orderBy("seq").collect()] == before


def test_sizes_are_read_as_people_write_them() -> None:
    assert [size(text, "--x") for text in ("1", "2k", "1.5M", "1GB", "1t")] == [1, 2048, 3 << 19, 1 << 30, 1 << 40]
    with pytest.raises(MisuseError):
        size("-1m", "--x")


def test_only_neighbours_are_merged() -> None:
    def segment(number: int, size: int, hour: int = 16) -> Segment:
        place = f"date=2026-11-21/hour={hour}/seg-0a1b2c3d-{number:015d}.parquet"
        return Segment(place, 100, number, number + 99, NOW, NOW, size, (), None, {})

    def merged(*segments: Segment) -> list[list[int]]:
        later = NOW + timedelta(days=2)
        return [[each.from_seq for each in group] for group in compact_job.groups(segments, later, timedelta(0), 500)]

    newest = segment(901, 10)
    assert merged(segment(1, 10), segment(101, 10), segment(201, 10), newest) == [[1, 101, 201]]
    # One that is large enough lies between, or one of another hour: the clock was set back.
    assert merged(segment(1, 10), segment(101, 1000), segment(201, 10), newest) == []
    # An hour that no day has.
    assert merged(segment(1, 10, 77), segment(101, 10, 77), newest) == []
    assert merged(segment(1, 10), segment(101, 10, 15), segment(201, 10), segment(301, 10), newest) == [[201, 301]]
    assert merged(segment(1, 300), segment(101, 150), segment(201, 100), segment(301, 10), newest) == [
        [1, 101],
        [201, 301],
    ]
