"""A record that is a table of Delta Lake, too: others count the same in it at any moment, whatever was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from canopy_mqtt.delta import TableError
from canopy_mqtt.delta import table as tables
from canopy_mqtt.record.files.delta_follower import DeltaFollower
from canopy_mqtt.record.files.folder import describe
from canopy_pipeline.cli import app
from canopy_pipeline.compact import compact_job as compact
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.record.record_folder import RecordFolder
from canopy_pipeline.retention import retention_job as retention
from tests.pipeline.folder import NOW, record, seen
from tests.pipeline.record.test_killed import held
from tests.pipeline.recorded import Story

HOUR: Final = timedelta(hours=1)
NONE: Final = timedelta(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A record of three hours that is a table."""
    record(tmp_path)
    DeltaFollower(tmp_path).follow(None)
    return tmp_path


def merge(folder: Path) -> compact.CompactOutcome:
    return compact.run(str(folder), HOUR, 1 << 20, NONE, now=NOW)


def told(folder: Path, version: int) -> dict[str, Any]:
    """What the metadata of a commit says."""
    lines = (folder / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    made: dict[str, Any] = next(each for each in map(json.loads, lines) if "commitInfo" in each)["commitInfo"]["canopy"]
    return made


def test_the_readers_count_the_same(spark: SparkSession, folder: Path) -> None:
    """DuckDB and Spark over the table's files, pandas and Arrow by deltalake; before and after."""
    before = seen(folder)
    for _ in range(2):
        table = DeltaTable(folder)
        files = table.file_uris()
        with duckdb.connect() as engine:
            counted = engine.execute("SELECT count(*), sum(seq) FROM read_parquet(?)", [files]).fetchone()
        assert counted == (len(before), sum(before))
        assert held(folder) == before
        assert sorted(table.to_pandas(columns=["seq", "date", "hour"])["seq"]) == before
        # What the folder still holds besides is not among them.
        counted = spark.read.parquet(*files).selectExpr("count(*)", "sum(seq)").first()
        assert counted == (len(before), sum(before))
        compact.run(str(folder), HOUR, 1 << 20, HOUR, now=NOW)
    assert len(files) == 4


def test_a_time_is_pruned_by_folders_and_statistics(folder: Path) -> None:
    merge(folder)
    adds = pa.table(DeltaTable(folder).get_add_actions(flatten=True)).to_pylist()
    by_hour = {(str(each["partition.date"]), each["partition.hour"]): each for each in adds if "merged" in each["path"]}
    first = by_hour["2026-11-21", 16]
    assert (first["num_records"], first["min.seq"], first["max.seq"]) == (20, 1, 20)
    assert (str(first["min.ts"]), str(first["max.ts"])) == ("2026-11-21 16:00:00+00:00", "2026-11-21 16:30:00+00:00")


def test_a_commit_says_what_the_manifests_say(folder: Path) -> None:
    merge(folder)
    begun, merged = told(folder, 1), told(folder, 2)
    assert (begun["why"], len(begun["added"]), begun["removed"]) == ("record", 12, [])
    assert (merged["why"], len(merged["added"]), len(merged["removed"])) == ("compact", 3, 11)
    crossing = merged["added"][1]
    assert (crossing["from_seq"], crossing["rows"], crossing["gaps"]) == (21, 21, [[26, 35, 10]])
    assert len(crossing["sha256"]) == 64
    log = (folder / "_delta_log" / f"{2:020d}.json").read_text().splitlines()
    changes = [each.get("add") or each["remove"] for each in map(json.loads, log) if "commitInfo" not in each]
    # Rows that were only moved.
    assert [each["dataChange"] for each in changes] == [False] * 14
    retention.run(str(folder), HOUR * 5, now=NOW)
    assert (told(folder, 3)["why"], told(folder, 3)["added"]) == ("retention", [])
    assert held(folder) == seen(folder)
    assert 1 not in held(folder)


MERGE: Final = """
import sys
from datetime import datetime, timedelta
from canopy_pipeline.compact import compact_job
compact_job.run(sys.argv[1], timedelta(hours=1), 1 << 20, timedelta(0), now=datetime.fromisoformat(sys.argv[2]))
"""


@pytest.mark.long
@pytest.mark.parametrize("merged", [0, 2])
def test_merges_are_killed_while_the_recorder_adds(folder: Path, merged: int) -> None:
    """After so many merged segments; the table has each event once all the while."""
    follower = DeltaFollower(folder)
    follower.follow(None)
    count, story = len(held(folder)), Story(first_seq=1_000, begin=NOW - timedelta(minutes=1))
    command = [sys.executable, "-P", "-c", MERGE, str(folder), NOW.isoformat()]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, env=environment) as process:
        while process.poll() is None:
            story.events.clear()
            story.publish("p", "t")
            (path,) = story.write(folder)
            follower.follow(describe(folder, path.relative_to(folder).as_posix()))
            count += 1
            with suppress(FileNotFoundError):
                # What is replaced goes at once here; who has listed it before looks again.
                numbers = held(folder)
                assert len(numbers) == len(set(numbers)) == count
            if len(list(folder.rglob("_manifests/**/merged-*.json"))) >= merged:
                process.kill()
    assert len(held(folder)) == count
    merge(folder)
    DeltaFollower(folder).follow(None)
    assert held(folder) == seen(folder)
    assert len(seen(folder)) == count


def test_a_table_that_somebody_else_wrote_to_is_left_alone(folder: Path) -> None:
    """To add what it lacks would count rows twice."""
    before = held(folder)
    DeltaTable(folder).optimize.compact()
    for call in (lambda: merge(folder), lambda: retention.run(str(folder), HOUR, now=NOW)):
        with pytest.raises(PipelineError, match="a file that Canopy did not write: date="):
            call()
    with pytest.raises(TableError, match="a file that Canopy did not write"):
        DeltaFollower(folder).follow(None)
    assert held(folder) == before


def test_what_comes_together_is_committed_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged segment comes in the commit in which what it stands for goes."""
    before = held(folder)
    monkeypatch.setattr(tables, "TOGETHER", 1)
    merge(folder)
    version = DeltaTable(folder).version()
    assert version == 4
    for each in range(1, version + 1):
        assert len(told(folder, each)["added"]) in (1, 12)
    assert held(folder) == before
    assert [len(told(folder, each)["removed"]) for each in (2, 3, 4)] == [4, 4, 3]


def test_a_copy_elsewhere_is_not_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = RecordFolder(str(folder))
    monkeypatch.setattr(record, "local", None)
    with pytest.raises(PipelineError, match="is merged and removed where the recorder writes it"):
        record.settle("compact")


def test_without_the_package_nothing_is_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    for name in ("canopy_mqtt.delta", "canopy_mqtt.delta.table"):
        monkeypatch.delitem(sys.modules, name)
    result = CliRunner().invoke(app, ["compact", "--input", str(folder)])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "pip install '.[delta]'" in result.stderr
    assert not list(folder.rglob("merged-*"))
