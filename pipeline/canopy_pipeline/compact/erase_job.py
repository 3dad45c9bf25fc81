"""Erase events from a record: those of some topics or clients, and nothing else.

Owns: which events go: publishes whose topics match, all events of a client, and the deliveries and drops of a publish
that goes.

Promises: an erased event keeps its number, times and run, and is of the kind `erased`, so that its number is not taken
for a lost one; all other columns are null. A segment with such events is written anew and replaced by way of its
manifest, which says who erased how many, when, and by which filter; the old one is removed at once. A run that breaks
off anywhere leaves each event in one segment; the next one goes on.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import matches, validate_filter
from canopy_mqtt.record.files.folder import at_work
from canopy_mqtt.words import counted
from canopy_pipeline.compact.compact_job import merged, merged_name, opened, put, tidy
from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.events_schema import ALWAYS, ARRIVE, DELIVER, DROP, ERASED, FORWARD, GAP, PUBLISH
from canopy_pipeline.record.manifests import erasures, recorded_gaps
from canopy_pipeline.record.number_set import Numbers
from canopy_pipeline.record.parts import the_only
from canopy_pipeline.record.record_folder import RecordFolder, Segment

COPIES: Final = (
    "copies and backups of this record, results of other jobs (rollup, tree, oracle, plan), and payload "
    "tables that --tables does not name"
)


BATCH: Final = 65_536
"""Rows that are read at a time."""
CHOSEN_BY: Final = ["seq", "kind", "ts", "client_id", "topic", "ref_seq"]


@dataclass(frozen=True)
class Chosen:
    """The events to erase."""

    topics: tuple[str, ...] = ()
    """Topic filters."""
    clients: tuple[str, ...] = ()
    """Client identifiers."""

    def check(self) -> None:
        """Raises MisuseError if one of them is none."""
        for each in self.topics:
            try:
                validate_filter(each)
                if each.startswith("$share/"):
                    raise ValueError("a shared subscription; leave $share/NAME/ out")
            except (ProtocolError, ValueError) as error:
                raise MisuseError(f"--erase {each}: {error}") from error
        if "" in self.clients:
            raise MisuseError("--erase-client: give a client identifier")

    def mask(self, rows: pa.RecordBatch, gone: Numbers) -> Any:
        """Return for each event whether it goes; `gone` has the numbers of the events before that are erased."""
        publish = _in(rows["kind"], (PUBLISH, ARRIVE))
        topics = [topic for topic in rows["topic"].unique().to_pylist() if topic is not None]
        named = [topic for topic in topics if any(matches(each, topic) for each in self.topics)]
        mine = pc.or_(_in(rows["client_id"], self.clients), pc.and_(publish, _in(rows["topic"], named)))
        refs = rows["ref_seq"].fill_null(0)
        here = Numbers.of(rows["seq"].filter(pc.and_(mine, publish)))
        of_them = pc.and_(_in(rows["kind"], (DELIVER, DROP, FORWARD)), pc.or_(gone.mask(refs), here.mask(refs)))
        return pc.and_(pc.or_(mine, of_them), pc.invert(_in(rows["kind"], (ERASED, GAP))))


@dataclass
class EraseOutcome:
    segments: int = 0
    """Segments that were written anew."""
    events: int = 0
    """Events that were erased in them."""
    erased: Numbers = field(default_factory=Numbers)
    """The numbers of all erased events of the record, those of earlier runs included."""
    arrived: int = 0
    """Messages of other nodes or workers that stay."""
    times: list[pa.RecordBatch] = field(default_factory=list)
    """`seq` and `ts` of these events."""
    reached: Numbers = field(default_factory=Numbers)
    """The numbers of all events that were looked at, and those that the recorder lost."""
    unreached: list[str] = field(default_factory=list)
    """Lines: the parts of the record that may still hold such events."""
    coverage: Coverage = field(default_factory=Coverage)

    def line(self, dry_run: bool) -> str:
        would = "would erase" if dry_run else "erased"
        return f"{would} {counted(self.events, 'event')} in {counted(self.segments, 'segment')}"


def run(path: str, chosen: Chosen, dry_run: bool = False, now: datetime | None = None) -> EraseOutcome:
    """Erase events from all finished segments.

    Raises:
        MisuseError: there is no such folder, or a filter is none.
        PipelineError: another job is at work there, or a manifest cannot be read.
    """
    chosen.check()
    root = path.rstrip("/")
    path = the_only(None, path, f"erase from each of them: --input {root}/w0, and so on")
    record = RecordFolder(path)
    outcome = EraseOutcome(coverage=Coverage(ignored=frozenset({"gap"})))
    moment = now or datetime.now(UTC)
    with record.locked():
        if not dry_run:
            record.settle("erase")
            tidy(record)
        said = record.told()
        record.cover(outcome.coverage, said)
        segments = [each for each in record.segments() if each.place not in said.gone]
        for place in record.files():
            if place not in said.said and place not in said.gone:
                outcome.unreached.append(f"{path}/{place}: it has no manifest")
        recording = record.local is not None and at_work(record.local)
        if recording and segments:
            # The recorder may be about to name it in a table.
            last = segments.pop()
            outcome.unreached.append(f"{path}/{last.place}: the newest segment of a recorder that is at work")
        if recording or record.storage.listed((".inprogress", ".arrows"), hidden=True):
            outcome.unreached.append(f"{path}: events that are in no finished segment yet")
        for segment in segments:
            try:
                _erase(record, segment, chosen, outcome, dry_run, moment)
            except PipelineError as error:
                outcome.unreached.append(str(error))
        if outcome.arrived and chosen.clients:
            outcome.unreached.append(
                f"{path}: {counted(outcome.arrived, 'message')} that another node or worker brought: who published "
                "them is not recorded here; erase them by their topics"
            )
        if not dry_run:
            record.settle("erase")
            there = record.files()
            for segment in record.segments():
                if erasures(segment.said):
                    record.drop(*(place for place in segment.replaces if place in there))
    return outcome


def _erase(
    record: RecordFolder, segment: Segment, chosen: Chosen, outcome: EraseOutcome, dry_run: bool, now: datetime
) -> None:
    file = opened(record, segment)
    lost = [(first, last) for first, last, _ in recorded_gaps(segment.said)]
    outcome.reached.extend(sorted([*lost, (segment.from_seq, segment.to_seq)]))
    masks = []
    for batch in file.iter_batches(BATCH, columns=CHOSEN_BY):
        mask = chosen.mask(batch, outcome.erased)
        erased = pc.or_(mask, pc.equal(batch["kind"], ERASED))
        outcome.erased.extend(Numbers.of(batch["seq"].filter(erased)))
        outcome.times.append(batch.select(["seq", "ts"]).filter(erased))
        outcome.arrived += pc.and_(pc.equal(batch["kind"], ARRIVE), pc.invert(mask)).true_count
        masks.append(mask)
    mask = pa.concat_arrays(masks)
    if not mask.true_count:
        return
    outcome.segments += 1
    outcome.events += mask.true_count
    if dry_run:
        return
    note = {
        "erased_at": now.isoformat(timespec="microseconds"),
        "by": _who(),
        "events": mask.true_count,
        "topics": list(chosen.topics),
        "clients": list(chosen.clients),
    }
    about = {"erased": [*erasures(segment.said), note], "single": not merged(segment)}
    put(record, [segment], merged_name([segment]), _blank(file, mask), about, now)


def _blank(file: Any, mask: Any) -> Iterator[pa.Table]:
    """Yield the rows of a segment, of which those of a mask have lost all but what places them in the record."""
    begin = 0
    for batch in file.iter_batches(BATCH):
        gone = mask.slice(begin, batch.num_rows)
        begin += batch.num_rows
        # By an index that is null, since lists have no if_else.
        kept = pc.if_else(gone, pa.scalar(None, pa.int64()), pa.array(range(batch.num_rows), pa.int64()))
        columns = [batch[name] if name in ALWAYS else batch[name].take(kept) for name in batch.schema.names]
        columns[batch.schema.names.index("kind")] = pc.if_else(gone, ERASED, batch["kind"])
        yield pa.Table.from_arrays(columns, schema=batch.schema)


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A container's user has no name.
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def _in(values: Any, wanted: Sequence[str]) -> Any:
    return pc.is_in(values, value_set=pa.array(wanted, pa.string()), skip_nulls=True)
