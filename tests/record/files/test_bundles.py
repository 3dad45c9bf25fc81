"""Bundles of manifests: written where an hour is over, and never in the way."""

from __future__ import annotations

import json
from pathlib import Path

from canopy_mqtt.record.files.bundles import bundle
from canopy_mqtt.record.files.folder import Folder
from tests.pipeline.folder import record


def lines(folder: Path, hour: int) -> list[str]:
    path = folder / "_manifests" / "date=2026-11-21" / f"hour={hour}.jsonl"
    return [json.loads(line)["segment"] for line in path.read_text().splitlines()]


def test_it_has_all_manifests_of_its_hour_in_order(tmp_path: Path) -> None:
    written = record(tmp_path)
    bundle(tmp_path, "date=2026-11-21/hour=17")
    assert lines(tmp_path, 17) == [path.relative_to(tmp_path).as_posix() for path in written[4:8]]


def test_what_cannot_be_read_or_written_leaves_none(tmp_path: Path) -> None:
    record(tmp_path)
    next((tmp_path / "_manifests").rglob("hour=16/*.json")).write_text("{")
    bundle(tmp_path, "date=2026-11-21/hour=16")
    bundle(tmp_path / "nowhere", "date=2026-11-21/hour=16")
    assert not list(tmp_path.rglob("*.jsonl*"))


def test_a_start_writes_that_of_the_last_hour(tmp_path: Path) -> None:
    record(tmp_path)
    folder = Folder(tmp_path)
    folder.open()
    folder.close(ended=None)
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == ["hour=18.jsonl"]
    assert len(lines(tmp_path, 18)) == 4
