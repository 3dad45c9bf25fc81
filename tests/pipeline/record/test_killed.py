"""SIGKILL at each change that a job makes of a record, which may be a Delta table, too: each row is there once."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from canopy_mqtt.record.files.current_files import current_files
from canopy_mqtt.record.files.delta_follower import DeltaFollower
from canopy_pipeline.compact import compact_job as compact
from tests.pipeline.folder import NOW, manifests, record, seen
from tests.pipeline.mortal import environment
from tests.pipeline.record.dying import JOBS

pytestmark = pytest.mark.timeout(300)

HOUR = timedelta(hours=1)


def held(folder: Path) -> list[int]:
    """The numbers in the table, as often as it has them; each file is there."""
    read: Any = DeltaTable(folder).to_pyarrow_table(columns=["seq"])
    return sorted(pa.table(read)["seq"].to_pylist())


def killed(job: str, whole: Path, tmp_path: Path) -> tuple[list[Path], list[str]]:
    """Folders of killed jobs, in the order of their deaths, and last that of one which lived; what it changed."""
    copies = tmp_path / "copies"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.pipeline.record.dying", job, str(whole), str(copies)],
        check=False, capture_output=True, text=True, timeout=240, env=environment(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made: list[str] = json.loads(done.stdout)
    folders = sorted(copies.iterdir(), key=lambda each: int(each.name))
    assert len(folders) == len(made) + 1
    return folders, made


def found(folder: Path) -> list[list[int]]:
    """The numbers that each reader finds, as often as it does: the jobs, `canopy record files`, and Delta Lake's."""
    files = [pq.ParquetFile(folder / place).read(["seq"])["seq"].to_pylist() for place in current_files(folder)]
    of_delta = [held(folder)] if DeltaTable.is_deltatable(str(folder)) else []
    return [seen(folder), sorted(seq for each in files for seq in each), *of_delta]


@pytest.mark.parametrize("job", ["compact", "retention"])
@pytest.mark.parametrize("delta", [False, pytest.param(True, marks=pytest.mark.long)])
def test_each_row_is_there_once_and_the_next_run_ends_it(tmp_path: Path, job: str, delta: bool) -> None:
    whole = tmp_path / "whole"
    record(whole, hours=2, segments=3)
    if delta:
        DeltaFollower(whole).follow(None)
    if job == "retention":
        # What a merged segment has replaced does not come back.
        compact.run(str(whole), HOUR, 1 << 20, HOUR, now=NOW)
    before = seen(whole)
    after = [seq for seq in before if seq > 15] if job == "retention" else before
    folders, made = killed(job, whole, tmp_path)
    assert {"open", "os.remove"} | ({"before", "after"} if delta else set()) <= {each.split()[0] for each in made}
    for folder in folders:
        assert all(each in (before, after) for each in found(folder)), (folder.name, made)
        JOBS[job](folder)
        assert all(each == after for each in found(folder)), (folder.name, made)
        assert len(list(folder.rglob("*.parquet"))) == len(manifests(folder)) == (3 if job == "compact" else 4)
        assert not list(folder.rglob("*.inprogress"))
        notes = folder / "_manifests/removed.jsonl"
        said = [json.loads(line) for line in notes.read_text().splitlines()] if job == "retention" else []
        assert {(each["from_seq"], each["to_seq"]) for each in said} <= {(1, 15)}


@pytest.mark.long
def test_the_recorders_commit(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    record(whole, hours=2, segments=3)
    folders, made = killed("follow", whole, tmp_path)
    assert {"before commit", "after commit"} <= set(made)
    for folder in folders:
        # All of a commit, or nothing of it.
        if DeltaTable.is_deltatable(str(folder)):
            assert held(folder) in ([], seen(whole)), folder.name
        DeltaFollower(folder).follow(None)
        assert held(folder) == seen(folder) == seen(whole), folder.name
