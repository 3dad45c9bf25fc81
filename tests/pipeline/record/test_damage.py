"""Damaged records: every job of a report refuses them or names what is missing, and counts what is there.

What is there is counted by DuckDB, by distinct sequence numbers: it knows neither manifests nor what replaces what.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.compact import job as compact
from pipeline.retention import job as retention
from tests.pipeline.folder import NOW
from tests.pipeline.recorded import BEGIN, Story

HOUR = timedelta(hours=1)
NONE = timedelta(0)
JOBS = ("rollup", "tree", "oracle", "plan")


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


def manifest(folder: Path, segment: Path) -> Path:
    return folder / "_manifests" / segment.relative_to(folder).with_suffix(".json")


def flip(segment: Path, column: str) -> None:
    """A bit of the last page of a column."""
    about = pq.ParquetFile(segment).metadata.row_group(0)
    chunk = next(each for each in map(about.column, range(about.num_columns)) if each.path_in_schema == column)
    content = bytearray(segment.read_bytes())
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    content[begin + chunk.total_compressed_size - 1] ^= 1
    segment.write_bytes(content)


def deleted(folder: Path) -> None:
    record(folder)[2].unlink()


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
    assert compact.run(str(folder), HOUR, 1 << 20, NONE, now=NOW).removed
    next(folder.rglob("merged-*.parquet")).unlink()


@dataclass(frozen=True)
class Damage:
    """What was done to a record, and what the jobs are to make of it."""

    do: Callable[[Path], None]
    code: int
    kind: str = ""
    """How the coverage names it; empty where nothing is missing."""
    named: str = ""
    """What stands in the last lines, in each JSON and on each page."""
    refused: bool = False
    """What reads it gives no figure, and names the file."""


DAMAGES = [
    Damage(two_runs, 0),
    Damage(compacted, 0),
    Damage(removed_by_retention, 0),
    Damage(crash_gap, 3, "gap", "the recorder lost numbers"),
    Damage(deleted, 3, "missing", "is not there"),
    Damage(compacted_and_deleted, 3, "missing", "is not there"),
    Damage(compacted_and_flipped, 1, named="merged-", refused=True),
]


def there(folder: Path) -> dict[str, int]:
    """What is in the files: publishes, their bytes and topics, deliveries."""
    rows = f"""(select distinct on (seq) seq, kind, size, topic
                from read_parquet('{folder}/date=*/hour=*/*.parquet'))"""
    with duckdb.connect() as session:
        [(messages, size, topics, delivered)] = session.sql(
            f"""select count(*) filter (kind = 'publish'), sum(size) filter (kind = 'publish'),
                count(distinct topic) filter (kind = 'publish'), count(*) filter (kind = 'deliver') from {rows}"""
        ).fetchall()
    return {"messages": messages, "bytes": size, "topics": topics, "delivered": delivered}


def told(out: Path, job: str = "") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / job / "summary.json").read_text())
    return found


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.do.__name__)
def test_every_job_counts_what_is_there_and_names_what_is_not(damage: Damage, tmp_path: Path) -> None:
    source, out = tmp_path / "record", tmp_path / "out"
    damage.do(source)

    said = CliRunner().invoke(app, ["report", "--engine", "duckdb", "--input", str(source), "--output", str(out)])

    if damage.refused:
        assert said.exit_code == damage.code, said.output
        assert damage.named in said.stderr
        wrong = [name for name, job in told(out)["jobs"].items() if job["fine"] is False] if out.exists() else JOBS
        assert "rollup" in wrong
        assert not [name for name in wrong if (out / name / "summary.json").exists()]
        return
    assert said.exit_code == damage.code, said.output
    counts = there(source)
    figures = {"rollup": ("messages", "bytes", "topics"), "tree": ("messages", "topics")}
    for name, which in figures.items():
        found = told(out, name)
        assert {figure: found[figure] for figure in which} == {figure: counts[figure] for figure in which}, name
    oracle = told(out, "oracle")
    assert (oracle["publishes"], oracle["delivered"]) == (counts["messages"], counts["delivered"])
    assert (oracle["missing"], oracle["unexpected"], oracle["wrong"]) == (0, 0, 0)
    # Up to a hole of which nobody knows what was in it.
    assert (0 < oracle["judged"] < oracle["publishes"]) is (damage.kind in ("missing", "hole")), oracle
    for name in ("", "rollup", "tree", "plan", "oracle"):
        coverage = told(out, name)["coverage"]
        assert list(coverage["kinds"]) == ([damage.kind] if damage.kind else []), name
        assert coverage["complete"] is not bool(damage.kind)
        if damage.kind:
            assert damage.named in coverage["findings"][0]["said"]
            assert damage.named in (out / name / "index.html").read_text()
    assert bool(damage.kind) == (damage.named in said.stderr if damage.named else False)
