"""`canopy record`: what verify finds, what ls and cat print, and how each of them fails."""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from canopy_mqtt.command.cli import app
from canopy_mqtt.command.record_verify import check_part as verify
from canopy_mqtt.record import reader
from canopy_mqtt.record.files import folder
from canopy_mqtt.record.files.folder import Folder, RecorderError, describe
from tests.pipeline.recorded import Story, beside, write_segment
from tests.record.files.test_folder import merge
from tests.record.scenes import STATE, Tape, manifest_of, messages
from tests.support.runs import for_each


def record(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["record", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def story() -> Story:
    """Ten events, the fourth of which names three that are missing before it."""
    made = Story()
    made.add("connect", client_id="c", address="h:1", protocol=5, clean_start=True, session_present=False)
    made.subscribe("c", "a/#", 1)
    made.publish("c", "a/1", b"text", 1)
    made.seq += 3
    made.gap(4, 6)
    made.publish("p", "a/2", b"\xff\0", properties=[{"key": "k", "value": "v"}], correlation_data=b"\xfe")
    made.publish("p", "b", b"", retain=True)
    made.pause(3600)
    made.publish("p", "a/1", "ü€".encode())
    made.drop("c", "full-messages", 3)
    made.unsubscribe("c", "a/#", "session-ended")
    made.add("evict", client_id="c", address="h:1", reason="stalled")
    return made


Damage = Callable[[Path, list[Path]], object]


def change_a_byte(_: Path, paths: list[Path]) -> None:
    """In a payload, where Parquet itself finds nothing wrong."""
    data = paths[0].read_bytes()
    assert b"text" in data
    paths[0].write_bytes(data.replace(b"text", b"tent"))


def say(root: Path, path: Path, **changes: Any) -> None:
    about = manifest_of(root, path.relative_to(root).as_posix())
    beside(root, path).write_text(json.dumps(about | changes))


def again(root: Path, from_seq: int, count: int = 1) -> None:
    """The same numbers once more, in another segment."""
    other = Story("ffffffff", from_seq)
    for _ in range(count):
        other.publish("p", "again")
    other.write(root)


def forget(root: Path, path: Path) -> None:
    path.unlink()
    beside(root, path).unlink()


def state(root: Path, last: int, ended: int) -> None:
    (root / STATE).write_bytes(struct.pack("<qq", last, ended).ljust(4_096, b"\0"))


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (change_a_byte, "sha256 = "),
        (lambda _, paths: paths[1].unlink(), "is not there (numbers 9 to 13)"),
        (lambda _, paths: paths[1].write_bytes(paths[1].read_bytes()[:-20]), "cannot be read"),
        (lambda root, paths: beside(root, paths[0]).unlink(), "it has no manifest"),
        (lambda root, paths: beside(root, paths[0]).write_text("{"), "its manifest cannot be read"),
        (lambda root, paths: say(root, paths[0], rows=9), "its manifest says rows = 9, and it is 5"),
        (lambda root, paths: say(root, paths[1], kinds={}), "its manifest says kinds = {}"),
        (lambda root, paths: say(root, paths[0], gaps=[]), "its manifest says gaps = []"),
        (lambda root, paths: say(root, paths[0], last_ts="2026"), "its manifest says last_ts = '2026'"),
        (lambda root, paths: say(root, paths[0], format=2), "is of format 2"),
        (lambda root, paths: forget(root, paths[0]), "numbers 1 to 8 are missing, and no gap names them"),
        (lambda root, _: again(root, 9), "number 9 is in it, and in "),
        (lambda root, _: again(root, 5), "holds 1 events of number 5 that are named as lost"),
        (lambda root, _: again(root, 15), "number 14 is missing, and no gap names them"),
        (lambda root, _: state(root, 14, 1), "number 14 is missing, and the recorder had written them"),
    ],
)  # fmt: skip
def test_verify_finds(tmp_path: Path, story: Story, damage: Damage, fault: str) -> None:
    """Each in one line that names the place; exit code 1."""
    paths = story.write(tmp_path, 2)
    assert verify(tmp_path).faults == []
    damage(tmp_path, paths)
    result = record("verify", tmp_path)
    assert result.exit_code == 1
    faults = [line for line in result.stderr.splitlines() if line.startswith("fault: ")]
    assert any(fault in line for line in faults), result.stderr
    assert result.stderr.splitlines()[-1] == f"canopy: {len(faults)} fault{'s' if len(faults) > 1 else ''}"
    assert "Traceback" not in result.output


class TestVerify:
    """What is well."""

    def test_complete(self, tmp_path: Path, story: Story) -> None:
        story.write(tmp_path, 3)
        state(tmp_path, 13, 1)
        result = record("verify", tmp_path)
        assert result.exit_code == 0
        size = sum(path.stat().st_size for path in tmp_path.glob("date=*/*/*.parquet"))
        kinds = "1 connect, 1 drop, 1 evict, 1 gap, 4 publish, 1 subscribe, 1 unsubscribe"
        assert result.stdout.splitlines() == [
            "gap: 4..6, 3 events at most (queue-full)",
            f"3 segments, 10 events ({kinds}), {size / 1024:,.1f} KiB",
            "complete but for 1 gap, named above",
        ]

    def test_gaps_of_several_runs(self, tmp_path: Path) -> None:
        """In the order of their numbers, whatever the names of the runs."""
        for run_id, at in (("f" * 32, 0), ("0" * 32, 20)):
            tape = Tape(run_id=run_id)
            tape.tap.seq = at + 10
            tape.tap.gap(at + 1, at + 10, "crash")
            messages(tape, 10)
            tape.write(tmp_path)
        result = record("verify", tmp_path)
        assert [line.split(",")[0] for line in result.stdout.splitlines()[:2]] == ["gap: 1..10", "gap: 21..30"]

    def test_while_it_is_written(self, tmp_path: Path, story: Story) -> None:
        """Numbers after the last segment are no fault while the recorder runs: it says that they are open."""
        story.write(tmp_path)
        state(tmp_path, 20, 0)
        with open(tmp_path / STATE, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            result = record("verify", tmp_path)
        assert result.exit_code == 0
        assert "open: 14..20, in no segment yet" in result.stdout

    def test_after_it_was_killed(self, tmp_path: Path, story: Story) -> None:
        """Nobody holds the lock: what is in no finished segment is not going to be."""
        story.write(tmp_path)
        state(tmp_path, 20, 0)
        result = record("verify", tmp_path)
        assert result.exit_code == 1
        assert "fault: numbers 14 to 20 are in no finished segment, and no recorder is at work" in result.stderr

    def test_a_segment_that_is_finished_meanwhile(
        self, tmp_path: Path, story: Story, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the recorder runs, the newest may have no manifest yet, and another may come in between."""
        paths = story.write(tmp_path, 2)
        state(tmp_path, 13, 0)
        beside(tmp_path, paths[1]).unlink()

        def slow(root: Path, place: str) -> dict[str, Any]:
            again(root, 14)
            return describe(root, place)

        with monkeypatch.context() as patch, open(tmp_path / STATE, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            patch.setattr(folder, "describe", slow)
            found = verify(tmp_path)
        assert (found.faults, found.events, found.unfinished) == ([], 10, None)
        # By now that one is not the newest.
        assert [fault.partition(": ")[2][:20] for fault in verify(tmp_path).faults] == ["it has no manifest: "]

    def test_numbers_over_many_batches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A hole anywhere is found, also between two batches."""
        monkeypatch.setattr(reader, "BATCH", 8)
        story = Story()
        for _ in range(40):
            story.publish("p", "t")
        story.events = [event for event in story.events if event["seq"] not in (9, 10, 30)]
        write_segment(tmp_path, story.events)
        assert verify(tmp_path).faults == [
            "numbers 9 to 10 are missing, and no gap names them",
            "number 30 is missing, and no gap names them",
        ]

    def test_numbers_that_do_not_rise(self, tmp_path: Path, story: Story) -> None:
        story.events[2], story.events[1] = story.events[1], story.events[2]
        story.write(tmp_path)
        assert any("do not rise" in fault for fault in verify(tmp_path).faults)

    def test_merged(self, tmp_path: Path, story: Story) -> None:
        """A merged segment counts, and what it replaces does not, whether it is there still or not."""
        paths = story.write(tmp_path, 3)
        places = [path.relative_to(tmp_path).as_posix() for path in paths]
        merged = merge(tmp_path, places)
        manifest = beside(tmp_path, tmp_path / merged)
        text = manifest.read_text()
        say(tmp_path, tmp_path / merged, gaps=[[4, 6, 3]])
        found = verify(tmp_path)
        assert (found.faults, found.events, found.replaced) == ([], 10, 3)
        forget(tmp_path, paths[1])
        found = verify(tmp_path)
        assert (found.faults, found.events, found.replaced) == ([], 10, 2)
        # Without its manifest it is a draft: the others count.
        manifest.unlink()
        assert any("are missing" in fault for fault in verify(tmp_path).faults)
        manifest.write_text(text)
        for command in ("ls", "cat"):
            assert record(command, tmp_path).stdout.count("merged-") == (command == "ls")

    def test_removed(self, tmp_path: Path, story: Story) -> None:
        """What retention removed is listed, and missing in order."""
        paths = story.write(tmp_path, 2)
        forget(tmp_path, paths[0])
        listed = tmp_path / "_manifests" / "removed.jsonl"
        listed.write_text('{"from_seq": 1, "to_seq": 8}\n')
        result = record("verify", tmp_path)
        assert result.exit_code == 0, result.stderr
        assert "removed: 1..8" in result.stdout
        listed.write_text('{"from_seq": 1, "to_seq": 7}\n')
        assert record("verify", tmp_path).exit_code == 1


class TestLs:
    """One line for each segment."""

    def test_lines(self, tmp_path: Path, story: Story) -> None:
        paths = story.write(tmp_path, 2)
        beside(tmp_path, paths[1]).unlink()
        first, gap, second, total = record("ls", tmp_path).stdout.splitlines()
        assert first.startswith(f"{paths[0].relative_to(tmp_path)}  1..8  2026-11-21T16:00:00..16:00:00  ")
        assert first.endswith("1 connect, 1 gap, 2 publish, 1 subscribe")
        assert gap == "  gap: 4..6, 3 events"
        assert second.startswith(f"{paths[1].relative_to(tmp_path)}  9..13  2026-11-21T16:00:00..17:00:00  ")
        assert total.startswith("2 segments, 10 events, ")


class TestCat:
    """One JSON object for each event."""

    def test_events(self, tmp_path: Path, story: Story) -> None:
        story.write(tmp_path, 3)
        lines = [json.loads(line) for line in record("cat", tmp_path).stdout.splitlines()]
        assert [line["seq"] for line in lines] == [event["seq"] for event in story.events]
        assert lines[2] == {
            "seq": 3, "kind": "publish", "ts": "2026-11-21T16:00:00.000000+00:00", "recv_ns": 1_000_000_000,
            "run_id": "0a1b2c3d", "client_id": "c", "topic": "a/1", "payload": "text", "size": 4, "qos": 1,
            "retain": False,
        }  # fmt: skip
        assert base64.b64decode(lines[4]["payload_base64"]) == b"\xff\0"
        assert base64.b64decode(lines[4]["correlation_data_base64"]) == b"\xfe"
        assert lines[4]["properties"] == [["k", "v"]]
        assert lines[6]["payload"] == "ü€"

    @pytest.mark.parametrize(
        ("options", "numbers"),
        [
            (["--kind", "drop", "--kind", "gap"], [7, 11]),
            (["--topic", "a/+"], [3, 8, 10]),
            (["--topic", "#", "--limit", "2"], [3, 8]),
            (["--topic", "nobody"], []),
        ],
    )
    def test_choice(self, tmp_path: Path, story: Story, options: list[str], numbers: list[int]) -> None:
        story.write(tmp_path, 3)
        result = record("cat", tmp_path, *options)
        assert result.exit_code == 0
        assert [json.loads(line)["seq"] for line in result.stdout.splitlines()] == numbers

    @for_each(
        ("options", "said"),
        [
            (["--kind", "publsh"], "--kind publsh: one of publish, "),
            (["--topic", "a/#/b"], "--topic a/#/b: "),
            (["--topic", ""], "--topic : "),
        ],
    )
    def test_misuse(self, tmp_path: Path, options: list[str], said: str) -> None:
        result = record("cat", tmp_path, *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"canopy: {said}")
        assert result.stderr.count("\n") == 1

    def test_whoever_reads_has_had_enough(self, tmp_path: Path) -> None:
        story = Story()
        for _ in range(1_000):
            story.publish("p", "t", b"x" * 300)
        story.write(tmp_path)
        command = [sys.executable, "-P", "-m", "canopy_mqtt", "record", "cat", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith(b'{"seq": 1,')
            process.stdout.close()
            assert process.stderr.read() == b""
            process.wait(30)


class TestFailures:
    """One line each, and exit code 1."""

    def one_line(self, result: Result) -> str:
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr.startswith("canopy: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    @for_each("command", ["ls", "stats", "verify", "cat"])
    def test_no_folder(self, tmp_path: Path, command: str) -> None:
        assert "no such folder" in self.one_line(record(command, tmp_path / "nowhere"))

    @for_each("command", ["ls", "stats", "verify", "cat"])
    def test_a_folder_that_may_not_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
        """The administrator may read all folders: the tests' user may be one."""
        monkeypatch.setattr(os, "listdir", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
        assert f"{tmp_path}: cannot be read: Permission denied" in self.one_line(record(command, tmp_path))

    @for_each("command", ["ls", "stats", "verify", "cat"])
    def test_nothing_in_it(self, tmp_path: Path, command: str) -> None:
        assert "no segment in it" in self.one_line(record(command, tmp_path))

    @for_each("command", ["ls", "stats", "verify", "cat"])
    def test_a_draft_that_a_killed_recorder_left(self, tmp_path: Path, command: str) -> None:
        draft = tmp_path / "date=2026-01-01" / "hour=00" / ".seg-1-000000000000001.arrows"
        draft.parent.mkdir(parents=True)
        draft.touch()
        assert f"canopy record verify --repair {tmp_path}" in self.one_line(record(command, tmp_path))

    @for_each("command", ["ls", "stats", "verify", "cat"])
    def test_a_merged_manifest_that_is_none(self, tmp_path: Path, command: str, story: Story) -> None:
        paths = story.write(tmp_path, 2)
        place = merge(tmp_path, [path.relative_to(tmp_path).as_posix() for path in paths])
        beside(tmp_path, tmp_path / place).write_text("[]")
        assert "not a manifest" in self.one_line(record(command, tmp_path))

    @for_each("command", ["ls", "stats", "verify", "cat"])
    def test_without_pyarrow(self, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where it was never installed."""
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        monkeypatch.delitem(sys.modules, "canopy_mqtt.record.files.folder")
        assert self.one_line(record(command, tmp_path)).startswith("canopy: `canopy record` needs pyarrow")


@for_each("command", ["ls", "stats", "verify", "cat"])
def test_an_address_is_no_folder(command: str) -> None:
    result = record(command, "s3://plant/record")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("canopy: s3://plant/record: not a folder of this machine: copy it")


@pytest.mark.parametrize("command", ["ls", "cat"])
def test_a_segment_that_cannot_be_read(tmp_path: Path, command: str, story: Story) -> None:
    paths = story.write(tmp_path, 2)
    paths[1].write_bytes(b"no Parquet")
    beside(tmp_path, paths[1]).unlink()
    result = record(command, tmp_path)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"canopy: {paths[1]}: cannot be read (")
    assert result.stderr.count("\n") == 1


@for_each("command", ["ls", "cat", "verify"])
def test_parquet_that_holds_no_events(tmp_path: Path, command: str) -> None:
    path = tmp_path / "date=2026-11-21" / "hour=16" / "seg-0a1b2c3d-000000000000001.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"seq": ["1"]}), path)
    result = record(command, tmp_path)
    assert result.exit_code == 1
    assert "no recorded events: it has no column seq, kind" in result.stderr
    assert "Traceback" not in result.stderr
    # Nor does a recorder take such a folder.
    with pytest.raises(RecorderError, match="no recorded events"):
        Folder(tmp_path).open()
