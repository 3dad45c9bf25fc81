"""What the manifests of a record say of what is missing from it; no Spark is needed for that."""

from __future__ import annotations

import fcntl
import struct
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from canopy_pipeline.cli import app
from canopy_pipeline.compact import compact_job as compact
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.record.coverage import LISTED, SHOWN, Coverage, Finding
from canopy_pipeline.record.segments import Choice, covering, find
from tests.pipeline.folder import NOW, record
from tests.pipeline.recorded import Story, beside, write_segment

HOURS = timedelta(hours=1)


def covered(folder: Path, choice: Choice | None = None) -> Coverage:
    made, session = covering(choice or Choice()), None
    # A folder of this machine needs no session.
    there: Any = session
    find(there, [str(folder)], made)
    return made


def state(folder: Path, last: int, ended: int) -> None:
    (folder / ".recorder").write_bytes(struct.pack("<qq", last, ended))


def test_a_hole_that_was_merged_over_is_still_one(tmp_path: Path) -> None:
    gone = record(tmp_path)[2]
    beside(tmp_path, gone).unlink()
    gone.unlink()
    outcome = compact.run(str(tmp_path), HOURS, 1 << 20, timedelta(0), now=NOW)
    assert dict(outcome.coverage.kinds) == {"hole": 1}
    compact.run(str(tmp_path), HOURS, 1 << 20, timedelta(0), now=NOW + HOURS)
    found = covered(tmp_path)
    assert dict(found.kinds) == {"hole": 1, "gap": 1}
    assert found.missing == 15


def test_a_draft_is_open_while_its_recorder_is_at_work_and_abandoned_after(tmp_path: Path) -> None:
    record(tmp_path, hours=1)
    state(tmp_path, 25, 0)
    with open(tmp_path / ".recorder", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = covered(tmp_path)
        assert found.complete
        assert found.open == 5
        assert "5 are in no finished segment yet" in found.headline()
    found = covered(tmp_path)
    assert dict(found.kinds) == {"unfinished": 1}
    assert found.missing == 5
    assert "numbers 21 to 25 are in no finished segment, and no recorder is at work" in found.lines()[1]
    state(tmp_path, 25, 2)
    assert "the recorder gave up" in covered(tmp_path).lines()[1]


def test_the_newest_segment_of_a_recorder_at_work_may_wait_for_its_manifest(tmp_path: Path) -> None:
    newest = record(tmp_path, hours=1)[-1]
    beside(tmp_path, newest).unlink()
    state(tmp_path, 20, 0)
    with open(tmp_path / ".recorder", "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert covered(tmp_path).complete
    assert covered(tmp_path).kinds["no manifest"] == 1


def test_only_what_was_asked_for_is_missed(tmp_path: Path) -> None:
    segments = record(tmp_path)
    segments[0].unlink()
    assert covered(tmp_path, Choice(since="2026-11-21T17:00")).kinds == {"gap": 1}
    assert covered(tmp_path, Choice(since="2026-11-21T18:00")).complete
    assert covered(tmp_path, Choice(until="2026-11-21T16:05")).kinds == {"missing": 1}


def test_a_queue_that_was_full_in_the_midst_of_a_segment_is_a_gap_and_no_hole(tmp_path: Path) -> None:
    told = Story()
    told.publish("p", "a")
    told.seq += 7
    told.gap(2, 8)
    told.publish("p", "a")
    write_segment(tmp_path, told.events)
    found = covered(tmp_path)
    assert (dict(found.kinds), found.missing) == ({"gap": 1}, 7)


def test_what_is_kept_and_told_is_bounded() -> None:
    found = Coverage()
    for number in range(LISTED + 10):
        found.add(Finding("hole", None, number, number, 1, f"hole {number}"))
    assert len(found.findings) == LISTED
    assert found.missing == LISTED + 10
    assert len(found.lines()) == SHOWN + 2
    assert found.lines()[-1] == f"hole: {LISTED + 10 - SHOWN:,} more"


def test_compact_names_what_is_missing_and_ends_with_3(tmp_path: Path) -> None:
    segments = record(tmp_path)
    assert CliRunner().invoke(app, ["compact", "--input", str(tmp_path), "--dry-run"]).exit_code == 0
    segments[1].unlink()
    said = CliRunner().invoke(app, ["compact", "--input", str(tmp_path), "--dry-run"])
    assert said.exit_code == 3
    assert segments[1].name in said.stderr
    allowed = CliRunner().invoke(app, ["compact", "--input", str(tmp_path), "--dry-run", "--allow-gaps"])
    assert (allowed.exit_code, segments[1].name in allowed.stderr) == (0, True)


def test_a_spoilt_manifest_of_a_merged_segment_stops_everything(tmp_path: Path) -> None:
    record(tmp_path)
    compact.run(str(tmp_path), HOURS, 1 << 20, HOURS, now=NOW)
    next((tmp_path / "_manifests").rglob("merged-*.json")).write_text("[]")
    with pytest.raises(PipelineError, match="not a manifest of a merged segment"):
        covered(tmp_path)


def test_what_was_lost_when_segments_were_merged_may_come_back(tmp_path: Path) -> None:
    """Its numbers lie in the midst of those of the merged one, which does not hold them; other numbers do."""
    gone = record(tmp_path, hours=1, segments=6)[2]
    manifest = beside(tmp_path, gone)
    kept, about = gone.read_bytes(), manifest.read_text()
    gone.unlink()
    manifest.unlink()
    later = Story(first_seq=31)
    later.pause(5_400)
    later.publish("p", "a")
    later.write(tmp_path)
    compact.run(str(tmp_path), HOURS, 1 << 20, timedelta(0), now=NOW)
    assert dict(covered(tmp_path).kinds) == {"hole": 1}
    gone.write_bytes(kept)
    manifest.write_text(about)
    assert covered(tmp_path).complete
    # Once more: now they are there twice.
    other = Story(first_seq=11, run_id="eeeeeeee")
    for _ in range(5):
        other.publish("p", "other")
    other.write(tmp_path)
    found = covered(tmp_path)
    assert (set(found.kinds), found.missing) == ({"twice"}, 0)
    assert found.twice >= 5
