"""Writes record batches as the segments of one run.

Owns the rotation of segments, their drafts, and the updates of a Delta Lake table. Blocks; it runs in the recorder's
thread.

Promises: a finished segment never changes.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from canopy_mqtt.record.files.drafts import Draft
from canopy_mqtt.record.files.folder import reason, why_not_written
from canopy_mqtt.record.files.segment import Segment
from canopy_mqtt.record.schema import SCHEMA
from canopy_mqtt.record.unpack import KINDS, Rows

if TYPE_CHECKING:
    from canopy_mqtt.record.files.delta_follower import DeltaFollower


@dataclass(frozen=True)
class Options:
    """The events to record, and their place. Sizes in bytes, times in seconds."""

    directory: Path
    filters: Sequence[str] = ("#",)
    payloads: bool = True
    deliveries: bool = False
    segment_bytes: int = 134_217_728
    segment_seconds: float = 60.0
    queue_events: int = 200_000
    queue_bytes: int = 67_108_864
    snapshot_seconds: float = 3_600.0
    draft_seconds: float = 1.0
    table: str = "files"
    """`files`, or `delta`: the segments are a Delta Lake table, too."""
    when_full: str = "drop"
    hold_timeout: float = 10.0


class TableLog:
    """Logs the state of the table: each new reason why it is behind, and its recovery."""

    def __init__(self, log: Any) -> None:
        self.failure = ""
        """The reason why the table lacks segments; empty: it is up to date."""
        self._log = log

    def tell(self, why: str) -> None:
        """Take a report of `Writer`, on the event loop."""
        if why and why != self.failure:
            self._log.error("recorder's table is behind", reason=why, the_record_goes_on=True)
        elif self.failure and not why:
            self._log.info("recorder's table has caught up")
        self.failure = why


class Writer:
    """Writes one run after the other, each from `begin` to `finish` or `abandon`."""

    def __init__(self, options: Options, tell: Callable[[str], None]) -> None:
        """`tell` gets the reason why the table lacks segments, and an empty text when it is up to date again."""
        self.options = options
        # What is in finished segments.
        self.segments = 0
        self.events = 0
        self.bytes = 0
        self._tell = tell
        self._run_id = ""
        self._segment: Segment | None = None
        self._draft: Draft | None = None
        self._table: DeltaFollower | None = None

    def begin(self, run_id: str) -> None:
        self._run_id = run_id
        if self.options.table == "delta":
            from canopy_mqtt.record.files.delta_follower import DeltaFollower

            self._table = DeltaFollower(self.options.directory)
            self._follow(None)

    def write(self, batch: Any) -> None:
        """Write rows. Raises OSError."""
        segment = self._segment
        if segment is None:
            first_seq, first_ts = batch.column("seq")[0].as_py(), batch.column("ts")[0].value
            segment = self._segment = Segment(self.options.directory, self._run_id, first_seq, first_ts)
            if self.options.draft_seconds:
                self._draft = Draft(segment.path, self.options.draft_seconds)
        segment.add(batch)
        if self._draft is not None:
            self._draft.add(batch)
        if segment.size >= self.options.segment_bytes:
            self.finish()

    def seconds_left(self) -> float | None:
        """Seconds until the open segment has to be finished or its draft written; None without one."""
        segment = self._segment
        if segment is None:
            return None
        left = max(0.0, segment.opened_at + self.options.segment_seconds - time.monotonic())
        waits = None if self._draft is None else self._draft.seconds_left()
        return left if waits is None else min(left, waits)

    def finish_due(self) -> None:
        """Finish the open segment, or write its draft, if it is due. Raises OSError."""
        segment, draft = self._segment, self._draft
        if segment is not None and time.monotonic() >= segment.opened_at + self.options.segment_seconds:
            self.finish()
        elif draft is not None and draft.seconds_left() == 0.0:
            draft.write()

    def finish(self) -> None:
        """Finish the open segment, if there is one. Raises OSError."""
        segment = self._segment
        if segment is not None:
            segment.finish()
            self._segment = None
            if self._draft is not None:
                self._draft.discard()
                self._draft = None
            self._follow(segment)
            self.segments += 1
            self.events += segment.contents.rows
            self.bytes += segment.path.stat().st_size

    def abandon(self) -> None:
        """Discard the open segment."""
        if self._segment is not None:
            self._segment.abandon()
            self._segment = None
        if self._draft is not None:
            self._draft.discard()
            self._draft = None

    def why_not(self, error: Exception) -> str:
        return why_not_written(self.options.directory, error)

    def _follow(self, segment: Segment | None) -> None:
        """Update the table with a finished segment; the record does not depend on it."""
        table = self._table
        if table is None:
            return
        before, why = table.behind, ""
        try:
            table.follow(None if segment is None else segment.manifest)
        except Exception as error:
            # Whatever it is: the segment is whole, and its manifest beside it.
            why = reason(error)
        if why or before:
            with contextlib.suppress(RuntimeError):
                # The loop may be gone, and with it who would read this.
                self._tell(why)


_FULL: Final = frozenset(
    {"seq", "kind", "ts", "recv_ns", "run_id", "client_id", "topic", "payload", "size", "qos", "retain", "ref_seq"}
)


# Here, and not beside the schema: `pa.array` imports pandas, where that is installed, and most jobs need neither.
_KINDS: Final[Any] = pa.array(KINDS, pa.string())


def _kinds(codes: bytes) -> Any:
    """Make the column `kind` from codes (indexes of `KINDS`)."""
    indices = pa.Array.from_buffers(pa.int8(), len(codes), [None, pa.py_buffer(codes)])
    return pa.DictionaryArray.from_arrays(indices, _KINDS).cast(pa.string())


def _numbers(values: list[int], code: str, kind: Any) -> Any:
    """Make a column of numbers without nulls, through `array`, which takes half the memory of a list."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])


def _or_null(column: Any, lacks: bool) -> Any:
    return pc.if_else(pc.less(column, 0), None, column) if lacks else column


def batch(rows: Rows, run_id: str, offset_us: int) -> Any:
    """Make a record batch of the rows.

    `offset_us`: the offset of the wall clock (µs, UTC) from the monotonic one.
    """
    count = rows.count
    recv_ns = _numbers(rows.recv_ns, "q", pa.int64())
    ts = pc.add(pc.divide(recv_ns, 1000), offset_us).cast(pa.timestamp("us", tz="UTC"))
    columns: dict[str, Any] = {
        "seq": _numbers(rows.seq, "q", pa.int64()),
        "kind": _kinds(bytes(rows.kind)),
        "ts": ts,
        "recv_ns": recv_ns,
        "run_id": pa.repeat(pa.scalar(run_id), count),
        "client_id": pa.array(rows.client_id, pa.string()),
        # Every topic was validated when it came: what a cast would do again.
        "topic": pa.array(rows.topic, pa.binary()).cast(pa.string()),
        "payload": pa.array(rows.payload, pa.binary()),
        "size": _or_null(_numbers(rows.size, "i", pa.int32()), rows.lacks),
        "qos": _or_null(_numbers(rows.qos, "b", pa.int8()), rows.lacks),
        "retain": _or_null(_numbers(rows.retain, "b", pa.int8()), rows.lacks).cast(pa.bool_()),
        "ref_seq": _or_null(_numbers(rows.ref_seq, "q", pa.int64()), True)
        if rows.refers
        else pa.nulls(count, pa.int64()),
    }
    for field in SCHEMA:
        if field.name in _FULL:
            continue
        found = rows.rare.get(field.name)
        if found is None:
            columns[field.name] = pa.nulls(count, field.type)
        else:
            columns[field.name] = pa.array([found.get(row) for row in range(count)], field.type)
    return pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)
