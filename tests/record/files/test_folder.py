"""Segments and manifests, and what a folder comes to after a run that ended in disorder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from canopy_mqtt.command.record_verify import check_part as verify
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.record.files.folder import ENDED, GAVE_UP, Folder, RecorderError, mend, segments
from tests.record.scenes import HOUR, RUN_ID, STATE, Tape, manifest_of, messages, stored
from tests.support.runs import for_each


def running(root: Path, last: int) -> None:
    """The state that a recorder leaves that was killed after this number."""
    (root / STATE).write_bytes(struct.pack("<qq", last, 0).ljust(4_096, b"\0"))


@for_each("umask", [0, 0o022, 0o077])
def test_all_of_it_is_for_the_broker_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """It holds what everybody published."""
    root = tmp_path / "above" / "record"
    earlier = os.umask(umask)
    try:
        folder = Folder(root)
        folder.open()
        for _ in range(2):
            tape = Tape()
            messages(tape, 3)
            draft = tape.open(root)
            modes(root)
            draft.finish()
        folder.close(ended=ENDED)
        Folder(root).open()
    finally:
        os.umask(earlier)
    assert modes(root) > 4
    assert (tmp_path / "above").stat().st_mode & 0o777 == 0o700


def modes(root: Path) -> int:
    """How many files and folders there are; each is its owner's alone."""
    found = [root, *root.rglob("*")]
    for path in found:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    return len(found)


def test_a_link_in_the_place_of_its_state_is_not_followed(tmp_path: Path) -> None:
    """Whoever may write the folder would have the broker write any file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "record").mkdir()
    (tmp_path / "record" / STATE).symlink_to(victim)
    with pytest.raises(RecorderError, match="cannot be written to"):
        Folder(tmp_path / "record").open()
    assert victim.read_text() == "precious"


class TestSegment:
    """One file, from its first row to its manifest."""

    def test_hidden_until_finished(self, tmp_path: Path) -> None:
        tape = Tape()
        messages(tape, 3)
        segment = tape.open(tmp_path)
        assert segments(tmp_path) == []
        assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [f".seg-{RUN_ID}-{1:015d}.inprogress"]
        segment.finish()
        assert segments(tmp_path) == [f"date=2026-11-21/hour=16/seg-{RUN_ID}-{1:015d}.parquet"]
        assert not list(tmp_path.rglob(".*"))

    def test_manifest(self, tmp_path: Path) -> None:
        tape = Tape()
        tape.tap.gap(1, 2, "crash")
        tape.time = 1_500_000
        messages(tape, 4)
        tape.tap.gap(7, 9, "queue-full+state")
        place = tape.write(tmp_path)
        path = tmp_path / place
        assert manifest_of(tmp_path, place) == {
            "format": 1, "segment": place, "run_id": RUN_ID, "rows": 6, "from_seq": 1, "to_seq": 6,
            "first_ts": "2026-11-21T16:00:00.000000+00:00", "last_ts": "2026-11-21T16:00:00.001500+00:00",
            "kinds": {"gap": 2, "publish": 4}, "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "gaps": [[1, 2, 2], [7, 9, 3]],
        }  # fmt: skip
        assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"

    def test_midnight_and_a_clock_that_is_set_back(self, tmp_path: Path) -> None:
        """A segment stands where its first event does; its times are the least and the greatest in it."""
        tape = Tape(begin_us=HOUR + 8 * 3_600_000_000 - 1)
        messages(tape, 1)
        tape.time = 2_000
        messages(tape, 1)
        batches = tape.record_batch()
        tape.begin_us -= 3_600_000_000
        messages(tape, 1)
        segment = tape.open(tmp_path / "other")
        segment.abandon()
        messages(tape, 1)
        batches += tape.record_batch()
        tape.begin_us = HOUR + 8 * 3_600_000_000 - 1
        tape.time = 0
        messages(tape, 1)
        segment = tape.open(tmp_path)
        for each in batches:
            segment.add(each)
        segment.finish()
        assert segment.place.startswith("date=2026-11-21/hour=23/")
        about = manifest_of(tmp_path, segment.place)
        assert (about["first_ts"], about["last_ts"]) == (
            "2026-11-21T23:00:00.000001+00:00",
            "2026-11-22T00:00:00.000001+00:00",
        )

    def test_abandoned(self, tmp_path: Path) -> None:
        tape = Tape()
        messages(tape, 3)
        tape.open(tmp_path).abandon()
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    @for_each("size", [1, 1_000_000])
    def test_a_disk_that_is_full(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        """It says so at the latest when the segment is finished; nothing is left behind, no open file either.

        Whether it is what Parquet writes that does not fit, or what is still in the file's buffer.
        """
        tape = Tape()
        tape.tap.message(Message(b"t", os.urandom(size), 1, False, b"", 0.0, "p"), 0.0)
        draft = tmp_path / "date=2026-11-21" / "hour=16" / f".seg-{RUN_ID}-{1:015d}.inprogress"
        draft.parent.mkdir(parents=True)
        monkeypatch.setattr(os, "O_NOFOLLOW", 0)
        draft.symlink_to("/dev/full")
        before = set(os.listdir("/proc/self/fd"))
        segment = tape.open(tmp_path)
        with pytest.raises(OSError, match="No space left") as caught:
            segment.finish()
        assert caught.value.errno == errno.ENOSPC
        segment.abandon()
        del segment
        assert set(os.listdir("/proc/self/fd")) == before
        assert not [path for path in tmp_path.rglob("*") if path.is_file() or path.is_symlink()]


class TestFolder:
    """Opening it puts it in order."""

    def test_a_first_run_and_the_next(self, tmp_path: Path) -> None:
        root = tmp_path / "new" / "er"
        folder = Folder(root)
        left = folder.open()
        assert (left.last_seq, left.missing) == (0, None)
        tape = Tape()
        messages(tape, 5)
        tape.write(root)
        assert folder.memo is not None
        struct.pack_into("<q", folder.memo, 0, 5)
        folder.close(ENDED)
        folder.close(ENDED)
        left = folder.open()
        assert (left.last_seq, left.missing) == (5, None)
        folder.close(ENDED)

    def test_a_crash(self, tmp_path: Path) -> None:
        """Drafts go, a manifest that is missing is made, and what is in no segment has its numbers named."""
        tape = Tape()
        messages(tape, 5)
        tape.write(tmp_path)
        tape.tap.connected("c", "h:1", None, 5, True, False)
        tape.tap.gap(3, 3, "stopped")
        second = tape.write(tmp_path)
        said = manifest_of(tmp_path, second)
        (tmp_path / "_manifests" / second).with_suffix(".json").unlink()
        messages(tape, 4)
        torn = tape.open(tmp_path)
        torn_draft = (tmp_path / "_manifests" / second).with_name(".seg-x.json.inprogress")
        torn_draft.write_text("{")
        running(tmp_path, 11)
        folder = Folder(tmp_path)
        left = folder.open()
        folder.close(GAVE_UP)
        assert (left.last_seq, left.missing, left.why) == (11, (8, 11), "crash")
        assert manifest_of(tmp_path, second) == said
        assert not list(tmp_path.rglob(".*.inprogress"))
        torn.abandon()
        # That one gave up.
        folder = Folder(tmp_path)
        left = folder.open()
        folder.close(ENDED)
        assert (left.last_seq, left.missing, left.why) == (11, (8, 11), "stopped")
        assert verify(tmp_path).faults[-1:] == ["numbers 8 to 11 are missing, and the recorder had written them"]

    def test_a_state_file_that_is_gone(self, tmp_path: Path) -> None:
        """The segments know how far it went."""
        tape = Tape()
        messages(tape, 5)
        tape.write(tmp_path)
        for left_over in (None, b"", b"abc"):
            if left_over is not None:
                (tmp_path / STATE).write_bytes(left_over)
            folder = Folder(tmp_path)
            left = folder.open()
            folder.close(None)
            (tmp_path / STATE).unlink()
            if left_over != b"abc":
                assert (left.last_seq, left.missing) == (5, None)

    def test_drafts_of_others_stay(self, tmp_path: Path) -> None:
        """Who merges segments may be at it."""
        tape = Tape()
        messages(tape, 5)
        place = tape.write(tmp_path)
        drafts = [
            (tmp_path / place).with_name(".merged-1-5-x.parquet.inprogress"),
            (tmp_path / "_manifests" / place).with_name(".merged-1-5-x.json.inprogress"),
        ]
        for draft in drafts:
            draft.write_bytes(b"")
        mend(tmp_path)
        assert all(draft.exists() for draft in drafts)

    def test_merged_and_removed(self, tmp_path: Path) -> None:
        """Numbers do not begin anew when the last segments were merged, half of what they replace is gone, or all."""
        tape = Tape()
        places = []
        for _ in range(3):
            messages(tape, 5)
            places.append(tape.write(tmp_path))
        merged = merge(tmp_path, places)
        assert mend(tmp_path) == 15
        # As whoever removes them stands between two: its manifest first, or the file.
        for place in (places[2], places[0], places[1]):
            (tmp_path / "_manifests" / place).with_suffix(".json").unlink()
            (tmp_path / place).unlink()
            assert mend(tmp_path) == 15
        (tmp_path / merged).unlink()
        (tmp_path / "_manifests" / merged).with_suffix(".json").unlink()
        (tmp_path / "_manifests" / "removed.jsonl").write_text('{"from_seq": 1, "to_seq": 15}\nnonsense\n')
        assert mend(tmp_path) == 15

    def test_a_second_recorder(self, tmp_path: Path) -> None:
        first, second = Folder(tmp_path), Folder(tmp_path)
        first.open()
        for _ in range(2):
            with pytest.raises(RecorderError, match="another broker records there"):
                second.open()
        first.close(ENDED)
        second.open()
        second.close(ENDED)

    def test_folders_that_cannot_be_written_to(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/canopy")):
            with pytest.raises(RecorderError, match="cannot be written to"):
                Folder(place).open()

    @for_each("text", ["", "[]", "{}", '{"segment": "x", "to_seq": "9"}', "\udcff"])
    def test_a_manifest_that_is_none(self, tmp_path: Path, text: str) -> None:
        """One line with the file, and no second one for the state that it was left in."""
        tape = Tape()
        messages(tape, 5)
        place = tape.write(tmp_path)
        beside = (tmp_path / "_manifests" / place).with_suffix(".json")
        beside.write_text(text, errors="surrogateescape")
        for _ in range(2):
            with pytest.raises(RecorderError, match=r"seg-.*\.json: not a manifest"):
                Folder(tmp_path).open()

    def test_a_segment_that_is_none(self, tmp_path: Path) -> None:
        bad = tmp_path / "date=2026-11-21" / "hour=16" / f"seg-{RUN_ID}-{1:015d}.parquet"
        bad.parent.mkdir(parents=True)
        bad.write_bytes(b"not Parquet")
        with pytest.raises(RecorderError, match="cannot be put in order") as caught:
            Folder(tmp_path).open()
        assert bad.name in str(caught.value)


def merge(root: Path, places: list[str]) -> str:
    """One segment for several, as the pipeline's `compact` leaves it: with a manifest that says what it replaces."""
    rows = stored(root)
    first, last = rows[0]["seq"], rows[-1]["seq"]
    folder = places[0].rpartition("/")[0]
    place = f"{folder}/merged-{first:015d}-{last:015d}-x.parquet"
    tables = [pq.read_table(root / each, partitioning=None) for each in places]
    pq.write_table(pa.concat_tables(tables), root / place)
    parts = [manifest_of(root, each) for each in places]
    kinds: dict[str, int] = {}
    for part in parts:
        for kind, count in part["kinds"].items():
            kinds[kind] = kinds.get(kind, 0) + count
    about = {
        **parts[0], "segment": place, "rows": len(rows), "to_seq": last, "last_ts": parts[-1]["last_ts"],
        "kinds": kinds, "bytes": (root / place).stat().st_size,
        "sha256": hashlib.sha256((root / place).read_bytes()).hexdigest(), "gaps": [], "replaces": places,
    }  # fmt: skip
    (root / "_manifests" / place).with_suffix(".json").write_text(json.dumps(about))
    return place
