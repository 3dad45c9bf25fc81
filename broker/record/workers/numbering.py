"""Events of several workers as one record: in the order of their time, with numbers of one counter.

Owns the new numbers. Each worker counts by itself; here every row gets the next number, and a `gap` event as many more
as it names. Pure: no thread, no file.

Promises: every number is in a row, or a gap names it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.core.tap import NOTE
from broker.record.batches import batch
from broker.record.schema import SCHEMA
from broker.record.unpack import Rows

PIECE: Final = 8_192
"""Rows that are written at a time."""

REMEMBERED: Final = 4_096
"""Places of a worker's numbers that are remembered, one for each second or so."""

APART: Final = 1_000_000_000
"""Nanoseconds between two of these places."""

_SEQ, _RUN_ID = SCHEMA.get_field_index("seq"), SCHEMA.get_field_index("run_id")
_FROM, _TO = SCHEMA.get_field_index("from_seq"), SCHEMA.get_field_index("to_seq")


class Numbering:
    """The counter of one run."""

    def __init__(self, last: int, run_id: str) -> None:
        """`last`: the last number that was given before."""
        self.last = last
        self._run_id = run_id

    def give(self, batches: Sequence[Any], several: bool) -> list[Any]:
        """The rows of these batches with new numbers, as batches. `several`: they are of several workers, and are put
        in the order of their time; those of one stay as they are."""
        table = pa.Table.from_batches(batches, SCHEMA).combine_chunks()
        if several:
            # Stable: what one worker did at the same time stays in its order.
            table = table.take(pc.sort_indices(table, [("recv_ns", "ascending")]))
        return [self._numbered(each) for each in table.combine_chunks().to_batches(PIECE)]

    def gap(self, missing: int, reason: str, recv_ns: int, offset_us: int) -> Any:
        """An event that names so many numbers, which are given now, as missing."""
        row = {"from_seq": 1, "to_seq": missing, "n": missing, "reason": reason}
        return self._numbered(self._note("gap", row, recv_ns, offset_us))

    def snapshot(self, first: int, count: int, recv_ns: int, offset_us: int) -> Any:
        """An event that says from which number on all subscriptions were told."""
        return self._numbered(self._note("snapshot", {"ref_seq": first, "n": count}, recv_ns, offset_us))

    def _note(self, kind: str, row: dict[str, Any], recv_ns: int, offset_us: int) -> Any:
        rows = Rows(False)
        rows.fill([(NOTE, 0, recv_ns, kind, row)], 0, 1)
        return batch(rows, self._run_id, offset_us)

    def _numbered(self, rows: Any) -> Any:
        count = rows.num_rows
        run_id = pa.repeat(pa.scalar(self._run_id), count)
        if rows.column(_FROM).null_count == count:
            seq = array("q", range(self.last + 1, self.last + count + 1))
            self.last += count
            return _with(rows, {_SEQ: _numbers(seq), _RUN_ID: run_id})
        seq, begins, ends = array("q"), [], []
        for first, last in zip(rows.column(_FROM).to_pylist(), rows.column(_TO).to_pylist(), strict=True):
            lost = 0 if first is None else last - first + 1
            begins.append(self.last + 1 if lost else None)
            ends.append(self.last + lost if lost else None)
            self.last += lost + 1
            seq.append(self.last)
        own = {_FROM: pa.array(begins, pa.int64()), _TO: pa.array(ends, pa.int64())}
        return _with(rows, {_SEQ: _numbers(seq), _RUN_ID: run_id, **own})


class Walks:
    """The snapshots of the subscriptions of all workers, as one.

    Each worker tells its own subscriptions again by itself; when each has, all have been told.
    """

    def __init__(self) -> None:
        self._told: dict[object, tuple[int, int]] = {}
        self._since = 0

    def note(self, worker: object, first: int, count: int) -> None:
        """A worker has told so many subscriptions again, from this number of the record on."""
        if first > self._since:
            self._told[worker] = first, count

    def forget(self, worker: object) -> None:
        """A worker has ended, and its sessions are others'."""
        self._told.pop(worker, None)

    def lost(self, last: int) -> None:
        """Subscriptions ended that nobody told of: what was told up to this number does not count."""
        self._told.clear()
        self._since = last

    def all_of(self, workers: Sequence[object]) -> tuple[int, int] | None:
        """Where all of these have told: from which number on, and how many subscriptions."""
        if not workers or any(worker not in self._told for worker in workers):
            return None
        told = [self._told[worker] for worker in workers]
        self._told.clear()
        return min(first for first, _ in told), sum(count for _, count in told)


class Places:
    """Where a worker's numbers came to stand in the record, in steps of a second."""

    def __init__(self) -> None:
        self._places: deque[tuple[int, int]] = deque(maxlen=REMEMBERED)
        self._noted = -APART

    def note(self, own: int, number: int, now: int) -> None:
        """The worker's number `own` and what follows it stand at `number` or behind."""
        if now - self._noted >= APART:
            self._noted = now
            self._places.append((own if self._places else 0, number))

    def of(self, own: int) -> int:
        """A number of the record that is not behind the worker's number `own`; 0 where none is remembered."""
        return next((number for first, number in reversed(self._places) if first <= own), 0)


def _numbers(values: array[int]) -> Any:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _with(rows: Any, columns: dict[int, Any]) -> Any:
    made = [columns.get(at, column) for at, column in enumerate(rows.columns)]
    return pa.record_batch(made, schema=SCHEMA)
