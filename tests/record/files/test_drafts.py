"""What a killed recorder left unfinished becomes a segment, as far as it is whole."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from canopy_mqtt.command.record_verify import app
from canopy_mqtt.command.record_verify import check_part as verify
from canopy_mqtt.record.files.drafts import Draft, recover
from canopy_mqtt.record.files.folder import ENDED, RUNNING, Folder, noted
from canopy_mqtt.record.files.segment import Segment
from tests.record.files.test_folder import running
from tests.record.scenes import Tape, messages, stored
from tests.record.test_recorder import join, recording
from tests.support import waiting
from tests.support.runs import for_each


def killed(root: Path, messages_each: int = 3, batches: int = 4) -> Path:
    """A folder in which a recorder was killed that had begun a segment; its draft."""
    tape = Tape()
    made: Segment | None = None
    draft: Draft | None = None
    for _ in range(batches):
        messages(tape, messages_each)
        for batch in tape.record_batch():
            if made is None:
                made = Segment(root, tape.run_id, 1, batch.column("ts").cast("int64")[0].as_py())
                draft = Draft(made.path, 1.0)
            assert draft is not None
            made.add(batch)
            draft.add(batch)
            draft.write()
    assert made is not None
    assert draft is not None
    running(root, messages_each * batches + 2)
    copy = draft.path.with_name("copy")
    shutil.copy(draft.path, copy)
    draft.discard()
    made.abandon()
    return copy.rename(draft.path)


def test_a_draft_becomes_a_segment_and_only_what_came_later_is_missing(tmp_path: Path) -> None:
    draft = killed(tmp_path)
    folder = Folder(tmp_path)
    left = folder.open()
    folder.close(ENDED)
    [made] = left.recovered
    assert (made.rows, made.from_seq, made.to_seq) == (12, 1, 12)
    assert left.missing == (13, 14)
    assert not draft.exists()
    assert [row["seq"] for row in stored(tmp_path)] == list(range(1, 13))
    assert verify(tmp_path).faults == ["numbers 13 to 14 are missing, and the recorder had written them"]
    # Once, and never again.
    assert recover(tmp_path) == []


@for_each("part", [0, 1, 20, 45, 60, 80, 99])
def test_one_that_breaks_off_is_read_up_to_there(tmp_path: Path, part: int) -> None:
    draft = killed(tmp_path)
    content = draft.read_bytes()
    draft.write_bytes(content[: len(content) * part // 100])
    made = recover(tmp_path)
    rows = stored(tmp_path)
    assert len(rows) % 3 == 0
    assert len(rows) < 12
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert sum(each.rows for each in made) == len(rows)
    assert part < 80 or rows
    assert not draft.exists()


def test_zeros_that_a_machine_left_are_no_events(tmp_path: Path) -> None:
    draft = killed(tmp_path)
    content = draft.read_bytes()
    draft.write_bytes(content[: len(content) // 2] + bytes(len(content) // 2))
    recover(tmp_path)
    assert 0 < len(stored(tmp_path)) < 12
    assert verify(tmp_path).kinds.keys() == {"publish"}


def test_a_draft_whose_segment_was_finished_is_not_wanted(tmp_path: Path) -> None:
    draft = killed(tmp_path)
    kept = draft.read_bytes()
    recover(tmp_path)
    draft.write_bytes(kept)
    assert recover(tmp_path) == []
    assert not draft.exists()
    assert len(stored(tmp_path)) == 12


def test_one_that_cannot_be_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = killed(tmp_path)

    def full(_: Segment) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "finish", full)
        with pytest.raises(OSError, match="No space left"):
            recover(tmp_path)
    assert draft.exists()
    [made] = recover(tmp_path)
    assert made.rows == 12


def test_the_command(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["verify", "--repair", str(tmp_path)])
    assert (refused.exit_code, refused.stderr) == (
        2,
        f"canopy: {tmp_path}: no recorder's folder: it has no .recorder\n",
    )
    killed(tmp_path)
    told = CliRunner().invoke(app, ["verify", "--repair", str(tmp_path)])
    first, second, *_ = told.stdout.splitlines()
    assert first.startswith("recovered: 1..12, 12 events, in date=2026-11-21/hour=16/seg-")
    assert second == "missing: 13..14 (the recorder's next start names them)"
    assert noted(tmp_path) == (14, RUNNING)
    assert "recovered" not in CliRunner().invoke(app, ["verify", "--repair", str(tmp_path)]).stdout


async def test_a_recorder_that_is_killed_leaves_a_draft_of_all_but_the_last_moment(tmp_path: Path) -> None:
    root, after = tmp_path / "record", tmp_path / "after"
    async with recording(root, draft_seconds=0.01) as broker:
        peer = await join(broker)
        await peer.subscribe("a/#")

        def drafted() -> bool:
            """Whether a kill now would lose none of these events."""
            shutil.rmtree(after, ignore_errors=True)
            shutil.copytree(root, after)
            return any(made.to_seq >= 2 for made in recover(after))

        async with asyncio.timeout(waiting.PATIENCE):
            while not await asyncio.to_thread(drafted):
                pass
    rows = await asyncio.to_thread(stored, after)
    assert [row["kind"] for row in rows][:2] == ["connect", "subscribe"]
    # In order: all is in segments.
    assert not list(root.rglob(".*.arrows"))
