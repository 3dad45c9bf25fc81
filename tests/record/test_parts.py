"""A record of several workers: its folders are one record to every command."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from canopy_mqtt.command.cli import app
from canopy_mqtt.record.files.folder import noted
from canopy_mqtt.record.files.parts import is_in_part, parts
from canopy_mqtt.record.left_parts import left_parts, settle
from canopy_mqtt.record.writer import Options
from tests.pipeline.recorded import Story, write_segment
from tests.record.scenes import STATE


def record(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["record", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two workers between which a message crossed, and one process before them."""
    alone = Story("00000000")
    alone.publish("p", "a", b"before")
    write_segment(tmp_path, alone.events)
    first, second = Story("0a0a0a0a"), Story("0b0b0b0b")
    for story in (first, second):
        story.pause(60)
    first.add("forward", client_id="$node/w1", qos=0, ref_seq=first.publish("p", "a", b"x"))
    second.pause(0.001)
    came = second.add("arrive", client_id="$node/w0", topic="a", payload=b"x", size=1, qos=0, retain=False)
    second.add("deliver", client_id="s", qos=0, ref_seq=came)
    second.seq += 2
    second.gap(3, 4)
    for name, story in (("w0", first), ("w1", second)):
        write_segment(tmp_path / name, story.events)
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], [""]),
        (["date=2026-11-21"], [""]),
        (["w0", "w10", "w2"], ["w0", "w2", "w10"]),
        (["w0", "_manifests"], ["", "w0"]),
        # Another's.
        (["w00", "w100", "web"], [""]),
    ],
)
def test_which_folders_are_a_record(tmp_path: Path, names: list[str], expected: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    assert parts(tmp_path) == [tmp_path / name for name in expected]


@pytest.mark.parametrize(
    ("place", "expected"), [("w3/date=1/x", True), ("date=1/w3/x", False), ("w3", False), ("w03/x", False)]
)
def test_what_belongs_to_a_part(place: str, expected: bool) -> None:
    assert is_in_part(place) is expected


def test_each_part_is_verified_with_its_own_gaps(root: Path) -> None:
    found = record("verify", root)
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert lines[0].startswith("w1: gap: 3..4, 2 events at most")
    assert lines[1].startswith("3 segments, 6 events (1 arrive, 1 deliver, 1 forward, 1 gap, 2 publish)")
    assert lines[2] == "complete up to number 1, 2 in w0, 5 in w1 but for 1 gap, named above"


def test_a_fault_is_named_with_its_part(root: Path) -> None:
    [segment] = (root / "w1").glob("date=*/hour=*/*.parquet")
    segment.unlink()
    found = record("verify", root)
    assert found.exit_code == 1
    assert f"w1: fault: {segment.relative_to(root / 'w1')}: is not there" in found.output


def test_a_message_that_crossed_is_counted_once(root: Path) -> None:
    summary = json.loads(record("stats", "--json", root).output)
    assert (summary["messages"], summary["topics"], summary["clients"], summary["gaps"]) == (2, 1, 2, 1)


def test_events_come_in_the_order_of_their_times(root: Path) -> None:
    told = [json.loads(line) for line in record("cat", root).output.splitlines()]
    assert [each["kind"] for each in told] == ["publish", "publish", "forward", "arrive", "deliver", "gap"]
    assert [each["payload"] for each in told if each["kind"] == "publish"] == ["before", "x"]


def test_all_files_are_listed(root: Path) -> None:
    listed = [Path(line).relative_to(root).parts[0] for line in record("files", root).output.splitlines()]
    assert [name[:5] for name in listed] == ["date=", "w0", "w1"]
    segments = [line.split()[0][:5] for line in record("ls", root).output.splitlines() if ".parquet" in line]
    assert segments == ["date=", "w0/da", "w1/da"]


def ended(root: Path, last: int, how: int) -> None:
    """A recorder has given that number last; 0: it was killed."""
    (root / STATE).write_bytes(struct.pack("<qq", last, how).ljust(4_096, b"\0"))


class Log:
    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda event, **fields: self.told.append((event, fields.get("reason")))


def test_the_part_of_a_worker_that_is_no_more_names_what_was_lost(root: Path) -> None:
    ended(root / "w0", 2, 1)
    ended(root / "w1", 9, 0)
    log = Log()
    settle([root / "w0", root / "w1"], Options(root), log)
    assert log.told == [("recorder lost events", "crash")]
    assert noted(root / "w1") == (10, 1)
    found = record("verify", root)
    assert found.exit_code == 0
    assert "w1: gap: 6..9, 4 events at most (crash)" in found.output


def test_a_part_that_cannot_be_put_in_order_stops_nothing(root: Path) -> None:
    ended(root / "w1", 9, 0)
    [segment] = (root / "w1").glob("date=*/hour=*/*.parquet")
    (root / "w1" / "_manifests" / segment.relative_to(root / "w1")).with_suffix(".json").unlink()
    segment.write_bytes(b"no Parquet")
    log = Log()
    settle([root / "w1"], Options(root), log)
    [(event, reason)] = log.told
    assert event == "part of the record not put in order"
    assert str(segment.relative_to(root / "w1")) in reason
    # The next start tries again.
    assert noted(root / "w1") == (9, 0)


def test_the_first_worker_has_the_parts_that_none_has(root: Path) -> None:
    (root / "w2").mkdir()
    assert left_parts(root / "w0", 2, 0) == [root, root / "w2"]
    assert left_parts(root / "w1", 2, 1) == []
    assert left_parts(root, 1, 0) == [root / "w0", root / "w1", root / "w2"]
