"""Each kind of damage to a record, and what every command makes of it: the exit codes agree, and no figure is wrong.

A job ends with 0 over a whole record, with 3 where it wrote results that lack something and say so, with 1 where it
wrote none: then nothing is left of an earlier run that could be taken for them.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.cli import app
from canopy_pipeline.compact import compact_job as compact
from canopy_pipeline.retention import retention_job as retention
from tests.pipeline.folder import NOW
from tests.pipeline.recorded import BEGIN, Story, beside
from tests.support.runs import for_each

HOUR = timedelta(hours=1)
ENDED, GAVE_UP = 1, 2
MESSAGES = 72
"""In the record: 12 in each of 6 segments."""
MAPPING = '[tables.sent]\nfilter = "a/+"\nformat = "text"\n'


def record(folder: Path, gap: bool = False, runs: int = 1) -> list[Path]:
    """Six segments in two hours: subscriptions, publishes with their deliveries, and in the second a snapshot."""
    told = Story()
    told.subscribe("s", "a/#", qos=1)
    told.subscribe("t", "a/1", qos=1)
    written: list[Path] = []
    for part in range(6):
        told.now = BEGIN + timedelta(minutes=20 * part)
        if gap and part == 4:
            told.seq += 7
            told.gap(told.seq - 7, told.seq - 1, "crash")
        if part == 3 and runs == 2:
            told.run_id = "ffffffff"
            told.subscribe("s", "a/#", qos=1)
            told.subscribe("t", "a/1", qos=1)
        if part == 1:
            first = told.subscribe("s", "a/#", qos=1, reason="snapshot")
            told.subscribe("t", "a/1", qos=1, reason="snapshot")
            told.add("snapshot", ref_seq=first, n=2)
        for number in range(12):
            sent = told.publish("p", f"a/{number % 3}", b"%d" % number, qos=1)
            told.deliver("s", sent, 1)
            if number % 3 == 1:
                told.deliver("t", sent, 1)
        written += told.write(folder)
        told.events = []
    return written


def flip(segment: Path, column: str) -> None:
    """A bit of the last page of a column."""
    about = pq.ParquetFile(segment).metadata.row_group(0)
    chunk = next(each for each in map(about.column, range(about.num_columns)) if each.path_in_schema == column)
    content = bytearray(segment.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content[begin + chunk.total_compressed_size - 1] ^= 1
    segment.write_bytes(content)


def state(folder: Path, last: int, ended: int = ENDED) -> None:
    (folder / ".recorder").write_bytes(struct.pack("<qq", last, ended).ljust(4_096, b"\0"))


def last_of(folder: Path) -> int:
    return max(int(json.loads(path.read_text())["to_seq"]) for path in folder.rglob("seg-*.json"))


def noted(folder: Path) -> list[Path]:
    written = record(folder)
    state(folder, last_of(folder))
    return written


def forget(folder: Path, segment: Path) -> None:
    beside(folder, segment).unlink()
    segment.unlink()


def whole(folder: Path) -> None:
    noted(folder)


def deleted(folder: Path) -> None:
    noted(folder)[2].unlink()


def first_with_manifest(folder: Path) -> None:
    forget(folder, noted(folder)[0])


def middle_with_manifest(folder: Path) -> None:
    forget(folder, noted(folder)[2])


def last_with_manifest(folder: Path) -> None:
    forget(folder, noted(folder)[-1])


def last_of_a_copy(folder: Path) -> None:
    """A copy without hidden files: nothing in it tells that the record went on."""
    forget(folder, record(folder)[-1])


def truncated(folder: Path) -> None:
    segment = noted(folder)[2]
    segment.write_bytes(segment.read_bytes()[: segment.stat().st_size // 2])


def emptied(folder: Path) -> None:
    noted(folder)[2].write_bytes(b"")


def flipped(folder: Path) -> None:
    flip(noted(folder)[2], "payload")


def flipped_footer(folder: Path) -> None:
    segment = noted(folder)[2]
    content = bytearray(segment.read_bytes())
    content[-20] ^= 1
    segment.write_bytes(content)


def moved(folder: Path) -> None:
    segment = noted(folder)[2]
    elsewhere = folder / "date=2026-11-21/hour=23" / segment.name
    elsewhere.parent.mkdir()
    segment.rename(elsewhere)


def hidden(folder: Path) -> None:
    segment = noted(folder)[2]
    segment.rename(segment.with_name(f".{segment.name}"))


def a_folder_in_its_place(folder: Path) -> None:
    segment = noted(folder)[2]
    segment.unlink()
    segment.mkdir()


def copied(folder: Path, name: str = "seg-0a1b2c3d-000000000000900.parquet") -> Path:
    segment = noted(folder)[2]
    return Path(shutil.copy(segment, segment.with_name(name)))


def copied_to_another_hour(folder: Path) -> None:
    segment = noted(folder)[2]
    elsewhere = folder / "date=2026-11-21/hour=23" / segment.name
    elsewhere.parent.mkdir()
    shutil.copy(segment, elsewhere)


def linked(folder: Path) -> None:
    segment = noted(folder)[2]
    elsewhere = folder / "date=2026-11-21/hour=23" / segment.name
    elsewhere.parent.mkdir()
    elsewhere.symlink_to(segment)


def copied_with_manifest(folder: Path) -> None:
    copy = copied(folder)
    shutil.copy(beside(folder, copy.with_name("seg-0a1b2c3d-000000000000062.parquet")), beside(folder, copy))


def without_manifest(folder: Path) -> None:
    beside(folder, noted(folder)[2]).unlink()


def cut_manifest(folder: Path) -> None:
    path = beside(folder, noted(folder)[2])
    path.write_text(path.read_text()[:40])


def manifest_of_lists(folder: Path) -> None:
    path = beside(folder, noted(folder)[2])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bytes": [], "run_id": []}))


def wrong_rows(folder: Path) -> None:
    path = beside(folder, noted(folder)[2])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rows": 20}))


def no_manifests(folder: Path) -> None:
    noted(folder)
    shutil.rmtree(folder / "_manifests")


def swapped(folder: Path) -> None:
    _, one, two, *_ = noted(folder)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def rewritten_with_fewer_rows(folder: Path) -> None:
    """Whole, as large as before, and not what the recorder wrote."""
    segment = noted(folder)[2]
    path = beside(folder, segment)
    pq.write_table(pq.ParquetFile(segment).read().slice(0, 20), segment, write_page_checksum=True)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bytes": segment.stat().st_size}))


def foreign_file(folder: Path) -> None:
    segment = noted(folder)[2]
    pq.write_table(pa.table({"a": [1, 2]}), segment.with_name("other.parquet"))


def mixed(folder: Path) -> None:
    """Two records in one folder; a segment of one is gone, and the other has its numbers."""
    gone = noted(folder)[2]
    other = Story("eeeeeeee", begin=BEGIN)
    for _ in range(200):
        other.publish("q", "b/1", b"other")
    other.write(folder)
    forget(folder, gone)


def gave_up(folder: Path) -> None:
    noted(folder)
    state(folder, last_of(folder) + 50, GAVE_UP)


def notes_that_are_none(folder: Path) -> None:
    """Somebody wrote lines among those of retention."""
    noted(folder)
    lines = [{"segment": "x.parquet", "from_seq": 1, "to_seq": 2, **more} for more in ({"rows": "x"}, {"gaps": [1]})]
    (folder / "_manifests/removed.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))


def crash_gap(folder: Path) -> None:
    record(folder, gap=True)


def two_runs(folder: Path) -> None:
    record(folder, runs=2)


def removed_by_retention(folder: Path) -> None:
    newest = record(folder)
    assert retention.run(str(folder), None, keep_bytes=sum(each.stat().st_size for each in newest[1:])).removed


def compacted(folder: Path) -> None:
    record(folder)
    assert compact.run(str(folder), HOUR, 1 << 20, HOUR, now=NOW).merged


def compacted_and_flipped(folder: Path) -> None:
    compacted(folder)
    flip(next(folder.rglob("merged-*.parquet")), "topic")


def compacted_and_deleted(folder: Path) -> None:
    record(folder)
    assert compact.run(str(folder), HOUR, 1 << 20, timedelta(0), now=NOW).removed
    sorted(folder.rglob("merged-*.parquet"))[-1].unlink()


@dataclass(frozen=True)
class Row:
    """A damage and the exit codes: of `record verify`, of the jobs, of `tables`; with what kind of finding."""

    do: Callable[[Path], Any]
    verify: int
    jobs: int
    tables: int
    kind: str = ""
    messages: int = MESSAGES
    rows: int = MESSAGES
    """Of the table; messages and rows only where there are any."""
    said: str = ""
    short: bool = False
    """In `make test`, too."""


ROWS = [
    Row(whole, 0, 0, 0, said="the record is complete:"),
    Row(deleted, 1, 3, 3, "missing", 60, 60),
    Row(first_with_manifest, 1, 3, 3, "hole", 60, 60),
    Row(middle_with_manifest, 1, 3, 3, "hole", 60, 60),
    Row(last_with_manifest, 1, 3, 3, "hole", 60, 60),
    Row(last_of_a_copy, 0, 0, 0, messages=60, rows=60, said="complete up to number"),
    Row(truncated, 1, 1, 1),
    Row(emptied, 1, 1, 1),
    Row(flipped, 1, 1, 1, said=".parquet: not what its manifest's checksum says", short=True),
    Row(flipped_footer, 1, 1, 1),
    Row(moved, 1, 3, 3, "moved", said="NOT IN ORDER"),
    Row(hidden, 1, 3, 3, "missing", 60, 60, short=True),
    Row(a_folder_in_its_place, 1, 3, 3, "missing", 60, 60),
    Row(copied, 1, 3, 3, "copy", said="NOT IN ORDER"),
    Row(copied_to_another_hour, 1, 3, 3, "copy", said="NOT IN ORDER"),
    Row(linked, 1, 3, 3, "copy", said="NOT IN ORDER"),
    Row(copied_with_manifest, 1, 3, 3, "copy", said="NOT IN ORDER"),
    Row(without_manifest, 1, 3, 3, "no manifest", rows=60),
    Row(cut_manifest, 1, 3, 3, "no manifest", rows=60),
    Row(manifest_of_lists, 1, 3, 3, "no manifest", rows=60),
    Row(wrong_rows, 1, 3, 3, "hole"),
    Row(no_manifests, 1, 3, 2, "no manifest"),
    Row(swapped, 1, 1, 1),
    Row(rewritten_with_fewer_rows, 1, 1, 1, short=True),
    Row(foreign_file, 1, 3, 3, "strange", said="NOT IN ORDER"),
    Row(mixed, 1, 3, 3, "hole", 260, 60, said="are there twice", short=True),
    Row(gave_up, 1, 3, 3, "unfinished"),
    Row(notes_that_are_none, 0, 0, 0, short=True),
    Row(two_runs, 0, 0, 0),
    Row(crash_gap, 0, 3, 3, "gap", said="the recorder lost numbers"),
    Row(removed_by_retention, 0, 0, 0, messages=60, rows=60, said="retention removed", short=True),
    Row(compacted, 0, 0, 0),
    Row(compacted_and_flipped, 1, 1, 1),
    Row(compacted_and_deleted, 1, 3, 3, "missing", 48, 48, short=True),
]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.do.__name__, marks=[] if row.short else pytest.mark.long) for row in ROWS],
)
def test_every_command_says_the_same_of_a_damage(row: Row, tmp_path: Path) -> None:
    """Spark says of a damaged record what DuckDB says: tests/pipeline/runtime/test_engines.py."""
    source, out = tmp_path / "record", tmp_path / "out"
    row.do(source)
    (tmp_path / "mapping.toml").write_text(MAPPING)

    verified = run("record", "verify", source)
    assert verified.exit_code == row.verify, verified.output
    code = row.jobs
    for job in ("rollup", "oracle"):
        old = out / job / "summary.json"
        old.parent.mkdir(parents=True)
        old.write_text('{"complete": true}')
        said = run("pipeline", job, "--engine", "duckdb", "--input", source, "--output", out / job)
        assert said.exit_code == code, f"{job}: {said.output}"
        assert row.said in said.stderr
        if code == 1:
            assert not old.exists(), job
            continue
        found = json.loads(old.read_text())
        assert found["coverage"]["complete"] is (code == 0)
        assert row.kind in {*found["coverage"]["kinds"], ""}, found["coverage"]
        if job == "rollup":
            assert found["messages"] == row.messages
        if code == 3:
            assert ("since the record is not in order" in said.stderr) is ("NOT IN ORDER" in said.stderr)
            again = run("pipeline", job, "--engine", "duckdb", "--input", source, "--output", out / job, "--allow-gaps")
            assert again.exit_code == 0, f"{job}: {again.output}"
    arguments = ["--input", source, "--output", out / "tables", "--mapping", tmp_path / "mapping.toml"]
    said = run("pipeline", "tables", *arguments)
    assert said.exit_code == row.tables, f"tables: {said.output}"
    summary = out / "tables" / "summary.json"
    if row.tables in (0, 3):
        found = json.loads(summary.read_text())
        assert (found["rows"]["sent"], found["coverage"]["complete"]) == (row.rows, row.tables == 0)
    else:
        assert not summary.exists()


@for_each("second", ["link", "copy", "copy without manifests", "merged copy"])
def test_one_record_under_two_inputs_is_a_mistake(tmp_path: Path, second: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    whole(one)
    if second == "link":
        two.symlink_to(one)
    else:
        shutil.copytree(one, two)
    if second == "copy without manifests":
        shutil.rmtree(two / "_manifests")
    if second == "merged copy":
        merged = ["--older-than", "1h", "--target-size", "1m", "--remove-after", "1s"]
        assert run("pipeline", "compact", "--input", two, *merged).exit_code == 0
        assert [*two.rglob("merged-*.parquet")]
    for job in ("rollup", "oracle"):
        said = run("pipeline", job, "--engine", "duckdb", "--input", one, "--input", two, "--output", tmp_path / job)
        assert said.exit_code == 2, said.output
        assert "the same record under two inputs" in said.stderr
