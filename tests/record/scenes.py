"""Recorded folders for tests, written by the recorder's own parts without a broker, a loop or a thread.

`Tape` tells a tap what happens; `Tape.write` puts it in one segment, as the recorder's thread does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from canopy_mqtt.record.files.segment import Segment
from canopy_mqtt.record.unpack import Rows
from canopy_mqtt.record.writer import batch
from tests.record.taps import Listening

RUN_ID: Final = "0a1b2c3d"
HOUR: Final = 1_795_276_800_000_000
"""2026-11-21 16:00 UTC, in µs."""

STATE: Final = ".recorder"


class Tape(Listening):
    """A tap whose clock stands where the test puts it, ns since `HOUR`."""

    def __init__(self, payloads: bool = True, run_id: str = RUN_ID, begin_us: int = HOUR) -> None:
        super().__init__(True)
        self.payloads = payloads
        self.run_id = run_id
        self.begin_us = begin_us
        self.tap.clock = lambda: self.time

    def record_batch(self, most: int = 1 << 30) -> list[Any]:
        """What was told since the last call, as record batches of so many rows or some more."""
        self.take()
        entries, self.entries = self.entries, []
        made, at = [], 0
        while at < len(entries):
            rows = Rows(self.payloads)
            at = rows.fill(entries, at, most)
            made.append(batch(rows, self.run_id, self.begin_us))
        return made

    def table(self, most: int = 1 << 30) -> list[dict[str, Any]]:
        """The same as rows, without the columns that are null."""
        return [row for each in self.record_batch(most) for row in without_nulls(each.to_pylist())]

    def open(self, root: Path) -> Segment:
        """A segment with what was told since the last one; not finished."""
        batches = self.record_batch()
        first = batches[0]
        segment = Segment(
            root, self.run_id, first.column("seq")[0].as_py(), first.column("ts").cast("int64")[0].as_py()
        )
        for each in batches:
            segment.add(each)
        return segment

    def write(self, root: Path) -> str:
        """A finished segment; its place."""
        segment = self.open(root)
        segment.finish()
        return segment.place


def messages(tape: Tape, count: int, topic: str = "t") -> None:
    """So many messages of QoS 0, one by one."""
    for at in range(count):
        payload = b"%d" % at
        tape.tap.frames(
            bytes((0x30, 2 + len(topic) + len(payload), 0, len(topic))) + topic.encode() + payload, 1, False, "p"
        )


def without_nulls(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def stored(root: Path) -> list[dict[str, Any]]:
    """All rows of all finished segments, by number."""
    found: list[dict[str, Any]] = []
    for path in root.glob("date=*/hour=*/[!.]*.parquet"):
        with pq.ParquetFile(path) as file:
            found += without_nulls(file.read().to_pylist())
    return sorted(found, key=lambda row: int(row["seq"]))


def manifest_of(root: Path, place: str) -> dict[str, Any]:
    found = json.loads((root / "_manifests" / place).with_suffix(".json").read_text())
    assert isinstance(found, dict)
    return found
