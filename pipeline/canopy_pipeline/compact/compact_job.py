"""Merge small segments while the recorder writes and others read.

Owns: which segments are merged: finished, vouched for, in a folder whose hour is over for `older_than`, smaller than
the target, never the newest of all, and never one that is merged already.

Promises: every segment's checksum and number of rows is checked before it is replaced, and rows stay in the order of
their sequence numbers. A merged segment is in force from when its manifest is there, renamed into place: before that
readers ignore it, and from then on what it replaces. A run that breaks off anywhere leaves the same rows to be read;
the next one goes on.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from canopy_mqtt.record.files.current_files import is_merged
from canopy_mqtt.record.files.row_groups import RowGroups
from canopy_mqtt.record.files.segment import Contents
from canopy_mqtt.words import counted
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.record.chosen_files import choose
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.manifests import erasures
from canopy_pipeline.record.record_folder import (
    UNFINISHED,
    RecordFolder,
    Segment,
    hour_end,
    manifest_of,
    record_folders,
)
from canopy_pipeline.record.segments import Say, unsaid


@dataclass
class CompactOutcome:
    merged: list[tuple[str, int]] = field(default_factory=list)
    """Merged segments, each with the number of segments that it replaces."""
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    removed: int = 0
    """Replaced segments that were removed."""
    refused: int = 0
    """Groups that could not be merged; the job has named each."""
    coverage: Coverage = field(default_factory=Coverage)
    """The missing parts of the record, without the gaps that the recorder named."""

    def line(self, dry_run: bool) -> str:
        count = sum(number for _, number in self.merged)
        would = "would merge" if dry_run else "merged"
        after = "" if dry_run else f" -> {self.bytes_after:,}"
        removed = "would remove" if dry_run else "removed"
        return (
            f"{would} {counted(count, 'segment')} into {len(self.merged):,} "
            f"({counted(self.rows, 'row')}, {self.bytes_before:,}{after} bytes); "
            f"{removed} {self.removed:,} that are replaced"
        )


def run(
    path: str,
    older_than: timedelta,
    target: int,
    remove_after: timedelta,
    dry_run: bool = False,
    say: Say = unsaid,
    now: datetime | None = None,
) -> CompactOutcome:
    """Merge small segments of each folder of a record, and remove those that were replaced long enough ago: readers
    may have listed them before.

    Raises:
        MisuseError: there is no such folder.
        PipelineError: another job is at work there, or a manifest cannot be read.
    """
    outcome = CompactOutcome(coverage=Coverage(ignored=frozenset({"gap"})))
    moment = now or datetime.now(UTC)
    for record in record_folders(path):
        with record.locked():
            if not dry_run:
                record.settle("compact")
                tidy(record)
            said = record.told()
            record.cover(outcome.coverage, said)
            segments = [each for each in record.segments() if each.place not in said.gone]
            for group in groups(segments, moment, older_than, target):
                try:
                    _merge(record, group, outcome, dry_run, now)
                except PipelineError as error:
                    outcome.refused += 1
                    say(str(error))
            if not dry_run:
                record.settle("compact")
            _remove(record, outcome, dry_run, moment - remove_after)
    return outcome


def groups(segments: Sequence[Segment], now: datetime, older_than: timedelta, target: int) -> list[list[Segment]]:
    """Return the segments in force to merge, in groups: neighbours of a folder, in order, up to the target size."""
    newest = max(segments, key=lambda segment: segment.to_seq).place if segments else ""
    found: list[list[Segment]] = []
    group: list[Segment] = []
    for segment in segments:
        end = hour_end(segment.place)
        old = end is not None and max(end, segment.last) <= now - older_than
        small = old and segment.bytes < target and not merged(segment) and segment.place != newest
        full = sum(each.bytes for each in group) + segment.bytes > target
        if group and (not small or full or segment.folder != group[-1].folder):
            # What stays as it is ends a merged segment: that one holds no numbers of others in its midst.
            found.append(group)
            group = []
        if small:
            group.append(segment)
    found.append(group)
    return [each for each in found if len(each) > 1]


def merged(segment: Segment) -> bool:
    """Return True if a segment is made of several, and not of a single one that had events erased."""
    return segment.merged and not segment.said.get("single")


def tidy(record: RecordFolder) -> None:
    """Remove the unfinished files of an interrupted run, which no reader looks at."""
    for place in record.unfinished():
        record.storage.remove(place)
    there = record.files()
    # Some were moved, and count where they are.
    moved = choose(record.told(), there, record.storage).origins
    vouched = {segment.place for segment in record.segments()}
    for place in there:
        if is_merged(place) and place not in vouched and place not in moved:
            record.storage.remove(place)


def _merge(
    record: RecordFolder, group: list[Segment], outcome: CompactOutcome, dry_run: bool, now: datetime | None
) -> None:
    for earlier, later in pairwise(group):
        if later.from_seq <= earlier.to_seq:
            raise PipelineError(
                f"{record.path}/{later.place}: its sequence numbers reach into those of {earlier.place}; not merged"
            )
    place = merged_name(group)
    if not dry_run:
        outcome.bytes_after += put(record, group, place, _rows(record, group), {}, now or datetime.now(UTC))
    outcome.rows += sum(segment.rows for segment in group)
    outcome.bytes_before += sum(segment.bytes for segment in group)
    outcome.merged.append((f"{record.name}{place}", len(group)))


def merged_name(group: Sequence[Segment]) -> str:
    """Return the place of the segment that takes the place of others."""
    marked = hashlib.sha256("\n".join(segment.place for segment in group).encode()).hexdigest()[:8]
    return f"{group[0].folder}/merged-{group[0].from_seq:015d}-{group[-1].to_seq:015d}-{marked}.parquet"


def put(
    record: RecordFolder,
    group: Sequence[Segment],
    place: str,
    rows: Iterator[pa.Table],
    about: dict[str, Any],
    now: datetime,
) -> int:
    """Write a segment that takes the place of others from when its manifest is there; return its size in bytes.

    `about` goes into the manifest beside what is known of the others.
    """
    draft = record.storage.draft(place, UNFINISHED)
    first, contents = next(rows), Contents()
    with record.storage.open(draft) as stream, RowGroups(stream, first.schema) as written:
        for table in chain([first], rows):
            written.add(table)
            contents.add(table)
    content = record.storage.read(draft)
    runs = (run for segment in group for run in segment.said.get("runs") or [segment.said.get("run_id")])
    erased = [note for segment in group for note in erasures(segment.said)]
    said = {
        **contents.manifest(place, len(content), hashlib.sha256(content).hexdigest()),
        "runs": list(dict.fromkeys(runs)),
        # What one of them replaces must not come back when that one is gone.
        "replaces": [place for segment in group for place in (*segment.replaces, segment.place)],
        "merged_at": now.isoformat(timespec="microseconds"),
        **({"erased": erased} if erased else {}),
        **about,
    }
    record.storage.publish(draft, place)
    record.storage.write(manifest_of(place), json.dumps(said).encode())
    return len(content)


def _rows(record: RecordFolder, group: Sequence[Segment]) -> Iterator[pa.Table]:
    files = [opened(record, segment) for segment in group]
    try:
        schema = pa.unify_schemas([file.schema_arrow for file in files])
    except pa.ArrowException as error:
        raise PipelineError(f"{record.path}/{group[0].folder}: segments of different columns: {error}") from error
    for segment, file in zip(group, files, strict=True):
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number)
            seq = rows.column("seq").combine_chunks()
            if len(seq) > 1 and not pc.all(pc.less(seq[:-1], seq[1:])).as_py():
                raise PipelineError(f"{record.path}/{segment.place}: its rows are not in order; left as it is")
            # Columns that an older segment lacks are null.
            yield pa.concat_tables([schema.empty_table(), rows], promote_options="default")


def opened(record: RecordFolder, segment: Segment) -> Any:
    """Open a segment after checking it against its manifest."""
    where = f"{record.path}/{segment.place}"
    try:
        content = record.storage.read(segment.place)
    except OSError as error:
        raise PipelineError(f"{where}: cannot be read ({error}); left as it is") from error
    if hashlib.sha256(content).hexdigest() != segment.said.get("sha256"):
        raise PipelineError(f"{where}: not what its manifest's checksum says; left as it is")
    try:
        file = pq.ParquetFile(io.BytesIO(content))
    except pa.ArrowException as error:
        raise PipelineError(f"{where}: not a whole Parquet file; left as it is") from error
    if file.metadata.num_rows != segment.rows:
        raise PipelineError(
            f"{where}: {file.metadata.num_rows} rows, and its manifest says {segment.rows}; left as it is"
        )
    return file


def _remove(record: RecordFolder, outcome: CompactOutcome, dry_run: bool, before: datetime) -> None:
    """Remove segments that merged ones have replaced since before then."""
    there = record.files()
    for merged in record.segments():
        if merged.merged_at is None or merged.merged_at > before:
            continue
        going = [place for place in merged.replaces if place in there]
        if not dry_run:
            record.drop(*going)
        outcome.removed += len(going)
