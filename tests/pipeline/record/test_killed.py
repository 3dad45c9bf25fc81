"""SIGKILL at each change that a job makes of a record that is a Delta table, too: each row is there once."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from canopy_mqtt.record.files.delta_follower import DeltaFollower
from canopy_pipeline.compact import compact_job as compact
from canopy_pipeline.retention import retention_job as retention
from tests.pipeline.folder import NOW, manifests, record, seen
from tests.pipeline.mortal import environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

HOUR = timedelta(hours=1)
NONE = timedelta(0)


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


def kinds(made: list[str]) -> set[str]:
    return {each.partition(" ")[0] for each in made}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    folder = tmp_path / "whole"
    record(folder, hours=2, segments=3)
    DeltaFollower(folder).follow(None)
    return folder


def test_a_merge(whole: Path, tmp_path: Path) -> None:
    before = held(whole)
    folders, made = killed("compact", whole, tmp_path)
    assert {"open", "os.rename", "os.remove", "before", "after"} <= kinds(made)
    for folder in folders:
        assert held(folder) == before == seen(folder), folder.name
        compact.run(str(folder), HOUR, 1 << 20, NONE, now=NOW)
        assert held(folder) == before == seen(folder), folder.name
        manifests(folder)
        assert len(list(folder.rglob("*.parquet"))) == 3, folder.name


def test_a_retention(whole: Path, tmp_path: Path) -> None:
    compact.run(str(whole), HOUR, 1 << 20, HOUR, now=NOW)
    before = held(whole)
    after = [seq for seq in before if seq > 15]
    folders, made = killed("retention", whole, tmp_path)
    assert {"open", "os.remove", "before", "after"} <= kinds(made)
    for folder in folders:
        assert held(folder) in (before, after), folder.name
        assert seen(folder) in (before, after), folder.name
        retention.run(str(folder), HOUR * 5, now=NOW)
        assert held(folder) == after == seen(folder), folder.name


def test_the_recorders_commit(whole: Path, tmp_path: Path) -> None:
    record_ = tmp_path / "plain"
    record(record_, hours=2, segments=3)
    folders, made = killed("follow", record_, tmp_path)
    assert {"before", "after"} <= kinds(made)
    for folder in folders:
        # All of a commit, or nothing of it.
        if DeltaTable.is_deltatable(str(folder)):
            assert held(folder) in ([], held(whole)), folder.name
        DeltaFollower(folder).follow(None)
        assert held(folder) == seen(folder) == held(whole), folder.name
