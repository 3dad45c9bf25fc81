"""Dropping segments: whole ones, the oldest, never the newest, and written down."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from canopy_pipeline.cli import app
from canopy_pipeline.retention import retention_job
from tests.pipeline.folder import NOW, manifests, record, seen
from tests.pipeline.recorded import beside

HOUR = timedelta(hours=1)


def removed(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "_manifests" / "removed.jsonl").read_text().splitlines() if line]


def test_what_is_old_goes_and_is_written_down(tmp_path: Path) -> None:
    written = record(tmp_path)
    before = seen(tmp_path)
    # What nobody vouches for is left, however old.
    orphan = written[0]
    beside(tmp_path, orphan).unlink()
    unfinished = orphan.with_name(".seg-0a1b2c3d-000000000099999.parquet.inprogress")
    unfinished.write_bytes(b"half")
    # 22:00: the first hour is 16:00 to 16:30, the second 17:00 to 17:30.
    keep = timedelta(hours=4, minutes=45)
    assert len(retention_job.run(str(tmp_path), keep, dry_run=True, now=NOW).removed) == 5
    assert seen(tmp_path) == before
    outcome = retention_job.run(str(tmp_path), keep, now=NOW)
    assert outcome.ranges() == [(6, 25, 20, 4), (36, 41, 6, 1)]
    gone = {*range(6, 26), *range(36, 42)}
    assert seen(tmp_path) == [seq for seq in before if seq not in gone]
    assert orphan.exists()
    assert unfinished.exists()
    lines = removed(tmp_path)
    assert [(line["from_seq"], line["to_seq"], line["rows"], line["why"]) for line in lines] == [
        (6, 10, 5, "age"), (11, 15, 5, "age"), (16, 20, 5, "age"), (21, 25, 5, "age"), (36, 41, 6, "age"),
    ]  # fmt: skip
    assert lines[-1]["gaps"] == [[26, 35, 10]]
    assert all(len(line["sha256"]) == 64 for line in lines)
    # All is old, and the newest stays.
    assert len(retention_job.run(str(tmp_path), timedelta(0), now=NOW).removed) == 5
    assert [said["to_seq"] for said in manifests(tmp_path)] == [max(before)]


def test_the_oldest_go_until_the_others_fit(tmp_path: Path) -> None:
    written = record(tmp_path)
    sizes = [path.stat().st_size for path in written]
    room = sum(sizes[-3:])
    outcome = retention_job.run(str(tmp_path), None, room, now=NOW)
    assert [why for _, why in outcome.removed] == ["bytes"] * 9
    assert outcome.left == room
    assert [path.exists() for path in written] == [False] * 9 + [True] * 3
    # Empty folders of days gone by go too, those of today stay: the recorder may be about to write there.
    assert written[0].parent.exists()
    assert len(retention_job.run(str(tmp_path), None, 1, now=NOW + timedelta(days=2)).removed) == 2
    assert not written[0].parent.exists()
    assert written[-1].exists()


def test_misuse_and_damage_are_one_line_each(tmp_path: Path) -> None:
    record(tmp_path)
    told = CliRunner().invoke(app, ["retention", "--input", str(tmp_path), "--keep-bytes", "1k", "--dry-run"])
    assert told.exit_code == 0
    assert "would remove 1 to 25: 25 rows in 5 segments" in told.stdout
    # A line that the machine did not come to write to its end was followed by no removal, and spoils no other.
    notes = tmp_path / "_manifests" / "removed.jsonl"
    notes.write_text('{"segment": "date=')
    assert len(retention_job.run(str(tmp_path), timedelta(hours=5), now=NOW).removed) == 4
    torn, *lines = notes.read_text().splitlines()
    assert torn == '{"segment": "date='
    assert [json.loads(line)["why"] for line in lines] == ["age"] * 4
    assert retention_job.run(str(tmp_path), timedelta(hours=5), now=NOW).removed == []
