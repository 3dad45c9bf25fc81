"""Remove whole old segments while the recorder writes: from all folders of a record, which workers have, together.

Owns: which go: those whose last event is older than `keep`; then the oldest, until the others fit in `keep_bytes`.
Never the newest of a folder, never one that is unfinished or not vouched for by a manifest.

Promises: what goes is written down first, a line for each in `_manifests/removed.jsonl` (sequence numbers, rows, times,
checksum, why), so that removed is told from lost. Then the manifest goes, then the segment. What a merged segment
replaced goes before it, or its rows would come back. A run that breaks off is finished by the next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from canopy_mqtt.record.files.folder import json_lines
from canopy_mqtt.words import counted
from canopy_pipeline.errors import MisuseError
from canopy_pipeline.record.manifests import REMOVED
from canopy_pipeline.record.record_folder import RecordFolder, Segment, record_folders

AGE: Final = "age"
BYTES: Final = "bytes"
KEPT: Final = (
    "segment", "run_id", "runs", "rows", "from_seq", "to_seq", "first_ts", "last_ts", "kinds", "sha256", "gaps",
    "erased",
)  # fmt: skip
"""What a line keeps of a manifest."""
TOGETHER: Final = 1_000
"""Segments that are listed in one write where a write is expensive: the whole file is written again, or a commit goes
with it."""


@dataclass
class RetentionOutcome:
    """The segments that a run removed, or would remove."""

    of: dict[str, list[tuple[Segment, str]]] = field(default_factory=dict)
    """Segments, and why, by the folder of the record: empty, or `w0/`."""
    left: int = 0
    """Bytes of the segments that stay."""

    @property
    def removed(self) -> list[tuple[Segment, str]]:
        """All of them."""
        return [each for some in self.of.values() for each in some]

    def lines(self, dry_run: bool) -> list[str]:
        """Return lines for people: the removed sequence numbers, and a sum."""
        would = "would remove" if dry_run else "removed"
        told = [
            f"{name.replace('/', ': ')}{would} {first:,} to {last:,}: {counted(rows, 'row')} in "
            f"{counted(number, 'segment')}"
            for name in self.of
            for first, last, rows, number in self.ranges(name)
        ]
        rows = sum(segment.rows for segment, _ in self.removed)
        size = sum(segment.bytes for segment, _ in self.removed)
        segments = counted(len(self.removed), "segment")
        told.append(f"{would} {segments} ({counted(rows, 'row')}, {size:,} bytes); {self.left:,} bytes stay")
        return told

    def ranges(self, name: str = "") -> list[tuple[int, int, int, int]]:
        """Return the removed stretches of a folder without a break: first and last number, rows, segments of each."""
        found: list[tuple[int, int, int, int]] = []
        for segment, _ in sorted(self.of[name], key=lambda each: each[0].from_seq):
            if found and segment.from_seq <= found[-1][1] + 1:
                first, last, rows, number = found.pop()
                found.append((first, max(last, segment.to_seq), rows + segment.rows, number + 1))
            else:
                found.append((segment.from_seq, segment.to_seq, segment.rows, 1))
        return found


def run(
    path: str,
    keep: timedelta | None,
    keep_bytes: int | None = None,
    dry_run: bool = False,
    now: datetime | None = None,
) -> RetentionOutcome:
    """Remove segments older than `keep`, and the oldest of those beyond `keep_bytes`.

    Raises:
        MisuseError: there is no such folder, or nothing says what to keep.
        PipelineError: another job is at work there, or a manifest cannot be read.
    """
    if keep is None and keep_bytes is None:
        raise MisuseError("--keep or --keep-bytes: one of them must say what stays")
    records = record_folders(path)
    moment = now or datetime.now(UTC)
    with ExitStack() as locks:
        for record in records:
            locks.enter_context(record.locked())
            if not dry_run:
                record.settle("retention")
                finish(record)
        there = {record.name: record.segments() for record in records}
        going = chosen(there, moment, keep, keep_bytes)
        outcome = RetentionOutcome(
            going,
            sum(each.bytes for segments in there.values() for each in segments)
            - sum(each.bytes for each, _ in (one for some in going.values() for one in some)),
        )
        if not dry_run:
            for record in records:
                if going[record.name]:
                    remove(record, going[record.name], moment)
    return outcome


def remove(record: RecordFolder, going: Sequence[tuple[Segment, str]], now: datetime) -> None:
    """Remove segments of a folder, after they were written down."""
    together = 1 if record.local is not None and not record.is_table else TOGETHER
    for at in range(0, len(going), together):
        going_now = going[at : at + together]
        record.storage.append(REMOVED, "\n".join(_line(segment, why, now) for segment, why in going_now))
        record.settle("retention")
        record.drop(*(name for each, _ in going_now for name in each.replaces))
        record.drop(*(each.place for each, _ in going_now))
    _empty(record, now)


def chosen(
    folders: Mapping[str, Sequence[Segment]], now: datetime, keep: timedelta | None, keep_bytes: int | None
) -> dict[str, list[tuple[Segment, str]]]:
    """Return the segments to remove from each folder of a record, the oldest first, each with the reason."""
    found: dict[str, list[tuple[Segment, str]]] = {name: [] for name in folders}
    live: list[tuple[str, Segment]] = []
    sizes: dict[tuple[str, str], int] = {}
    for name, segments in folders.items():
        replaced = {place for segment in segments for place in segment.replaces}
        newest = max((each.to_seq for each in segments), default=0)
        live += [(name, each) for each in segments if each.place not in replaced and each.to_seq != newest]
        sizes |= {(name, each.place): each.bytes for each in segments}
    # What is replaced takes room too, until it goes.
    room = sum(sizes.values())
    for name, segment in sorted(live, key=lambda each: (each[1].last, each[1].to_seq)):
        if keep is not None and segment.last < now - keep:
            why = AGE
        elif keep_bytes is not None and room > keep_bytes:
            why = BYTES
        else:
            continue
        room -= segment.bytes + sum(sizes.get((name, place), 0) for place in segment.replaces)
        found[name].append((segment, why))
    return found


def _line(segment: Segment, why: str, now: datetime) -> str:
    told = {name: segment.said[name] for name in KEPT if name in segment.said}
    told["segment"] = segment.place
    more = {"replaces": list(segment.replaces)} if segment.replaces else {}
    return json.dumps({"removed_at": now.isoformat(timespec="microseconds"), "why": why, **told, **more})


def finish(record: RecordFolder) -> None:
    """Remove segments that an interrupted run listed and did not remove."""
    there = record.files()
    try:
        lines = json_lines(record.storage.read(REMOVED).decode(errors="replace"))
    except FileNotFoundError:
        return
    for said in lines:
        try:
            place, replaces = str(said["segment"]), [str(name) for name in said.get("replaces") or ()]
        except (KeyError, TypeError):
            continue
        if place in there or any(name in there for name in replaces):
            record.drop(*replaces)
            record.drop(place)


def _empty(record: RecordFolder, now: datetime) -> None:
    """Remove the folders of hours long over that have become empty; the recorder makes no more files in them."""
    if record.local is None:
        return
    today = f"date={now - timedelta(days=1):%Y-%m-%d}"
    for top in (record.local, record.local / "_manifests"):
        for date in top.glob("date=*"):
            if date.name >= today:
                continue
            for folder in (*date.glob("hour=*"), date):
                try:
                    folder.rmdir()
                except OSError:
                    # There is something in it.
                    continue
