"""`--records`: every message that was sent and every one that came, as rows of Parquet, written while the run goes on.

Owns: the columns of `sent-*.parquet` and `received-*.parquet`, and ``Recorder``, which a process of the generator hands
its rows to. What the account needs beside them is in ``record_tables``.

Promises: memory is bounded: rows are integers in arrays, `BATCH` of them go to a thread that writes them, and where the
disk cannot keep up the generator waits for it (its lateness shows that). A file that stands under its name is whole:
it is hidden until then. Times of all processes are of one clock. Rows of one process are in the order in which things
happened: `number` counts what came, and that order is the one in which the judge saw it.

What the judge knew when a message came (its session, its connection) stands in the row.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadtest.load.engine.job import Place

BATCH: Final = 32_768
"""Rows handed to the thread at a time."""
WAITING: Final = 8
"""Batches that wait for the thread at most, some 3 MB each."""
FILE_ROWS: Final = 2_000_000
"""Rows of a file at the most."""

RETAIN: Final = 4
DUP: Final = 8
ALTERED: Final = 16
WHOLE: Final = 32
"""In the flags of a row, beside the QoS in the two lowest bits."""

UNANSWERED: Final = -1
"""Of a message with QoS 0: there is no acknowledgement."""
NO_STAGE: Final = -1

MOMENT: Final = pa.timestamp("us", tz="UTC")

SENT: Final = pa.schema(
    [
        ("run", pa.string()),
        ("stream", pa.int64()),
        ("sequence", pa.int64()),
        ("group", pa.string()),
        ("publisher", pa.string()),
        ("topic", pa.string()),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("size", pa.int32()),
        ("intended_us", pa.int64()),
        ("sent_us", pa.int64()),
        ("ts", MOMENT),
        ("stage", pa.int16()),
        ("acknowledged", pa.bool_()),
        ("acknowledged_us", pa.int64()),
    ]
)
RECEIVED: Final = pa.schema(
    [
        ("run", pa.string()),
        ("process", pa.int32()),
        ("number", pa.int64()),
        ("stream", pa.int64()),
        ("sequence", pa.int64()),
        ("publisher", pa.string()),
        ("subscriber", pa.string()),
        ("topic", pa.string()),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("dup", pa.bool_()),
        ("altered", pa.bool_()),
        ("size", pa.int32()),
        ("intended_us", pa.int64()),
        ("recv_us", pa.int64()),
        ("ts", MOMENT),
        ("stage", pa.int16()),
        ("during", pa.int16()),
        ("whole", pa.bool_()),
        ("epoch", pa.int64()),
        ("absence", pa.int64()),
    ]
)

Names = Callable[[int], tuple[str, ...]]


class RecordsError(Exception):
    """Records could not be written; the message is one line for people."""


def wall() -> int:
    """What `Place.wall` is now."""
    return (time.time_ns() - time.monotonic_ns()) // 1000


class Recorder:
    """The rows of process `index`. `stream` gives group, publisher and topic of a stream, `subscriber` a name."""

    def __init__(self, where: Place, run: str, index: int, stream: Names, subscriber: Callable[[int], str]) -> None:
        self._series = {
            "sent": _Series(where, run, index, "sent", SENT, stream, subscriber),
            "received": _Series(where, run, index, "received", RECEIVED, stream, subscriber),
        }
        self._sent = array("q")
        self._received = array("q")
        self._sent_full = BATCH * _WIDTHS["sent"]
        self._received_full = BATCH * _WIDTHS["received"]
        self._stage = NO_STAGE
        self._begins: list[int] = []
        self._since = 0
        self._queue: queue.Queue[tuple[str, array[int]] | None] = queue.Queue(WAITING)
        self._failure = ""
        self._thread = threading.Thread(target=self._write, name="canopy-records", daemon=True)
        self._thread.start()

    # -- what happens --------------------------------------------------------------------------------------------------

    def enter(self, stage: int, at: int) -> None:
        """A stage begins, by its number; `NO_STAGE`: the drain does."""
        self._stage = stage
        self._begins.append(at)
        self._since = at

    def noted(self, stream: int, sequence: int, intended: int, now: int, size: int, kind: int) -> tuple[int, ...]:
        """A message is sent: its row, but for its acknowledgement. `kind`: the QoS and `RETAIN`."""
        return stream, sequence, intended, now, size, kind, self._stage

    def settled(self, row: tuple[int, ...], acknowledged: int) -> None:
        """It is acknowledged (1), is not going to be (0), or needs not be (`UNANSWERED`)."""
        rows = self._sent
        rows.extend(row)
        rows.append(acknowledged)
        rows.append(time.monotonic_ns() // 1000 if acknowledged > 0 else 0)
        if len(rows) >= self._sent_full:
            self._sent = array("q")
            self._hand_over("sent", rows)

    def received(
        self,
        stream: int,
        sequence: int,
        subscriber: int,
        intended: int,
        now: int,
        size: int,
        flags: int,
        epoch: int,
        absence: int,
    ) -> None:
        """A message came."""
        stage = self._stage
        if 0 < intended < self._since:
            stage = max(0, bisect_right(self._begins, intended) - 1)
        rows = self._received
        rows.extend((stream, sequence, subscriber, intended, now, size, flags, epoch, absence, stage, self._stage))
        if len(rows) >= self._received_full:
            self._received = array("q")
            self._hand_over("received", rows)

    def close(self) -> None:
        """Write what there is, and put the files under their names. Blocks.

        Raises:
            RecordsError: something could not be written.
        """
        self._hand_over("sent", self._sent)
        self._hand_over("received", self._received)
        self._queue.put(None)
        self._thread.join()
        if self._failure:
            raise RecordsError(self._failure)

    def _hand_over(self, series: str, rows: array[int]) -> None:
        if rows:
            self._queue.put((series, rows))

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        while (found := self._queue.get()) is not None:
            if self._failure:
                continue
            name, rows = found
            try:
                self._series[name].write(rows)
            except Exception as error:  # whatever it is: nobody else empties the queue
                self._failure = failure(self._series[name].folder, error)
        for series in self._series.values():
            try:
                series.close(keep=not self._failure)
            except Exception as error:
                self._failure = self._failure or failure(series.folder, error)


_WIDTHS: Final = {"sent": 9, "received": 11}


class _Series:
    """Files of one kind, one after the other."""

    def __init__(
        self,
        where: Place,
        run: str,
        index: int,
        kind: str,
        schema: Any,
        stream: Names,
        subscriber: Callable[[int], str],
    ) -> None:
        self.folder = Path(where.folder)
        self._wall = where.wall
        self._run = run
        self._index = index
        self._kind = kind
        self._schema = schema
        self._stream = stream
        self._subscriber = subscriber
        self._file: Any = None
        self._files = 0
        self._rows = 0
        self._total = 0

    def write(self, rows: array[int]) -> None:
        """Some rows, as integers one after the other. Raises OSError, ArrowException."""
        width = _WIDTHS[self._kind]
        count = len(rows) // width
        columns = [_integers(rows[at::width]) for at in range(width)]
        made = self._sent(columns) if self._kind == "sent" else self._received(columns, count)
        made["run"] = pa.repeat(pa.scalar(self._run), count)
        if self._file is None:
            self._file = pq.ParquetWriter(self._place(hidden=True), self._schema, compression="zstd", version="2.6")
        arrays = [made[each.name].cast(each.type) for each in self._schema]
        self._file.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._total += count
        self._rows += count
        if self._rows >= FILE_ROWS:
            self.close(keep=True)

    def close(self, keep: bool) -> None:
        """End the file, if there is one; it stands under its name then, or is gone. Raises OSError, ArrowException."""
        if self._file is None:
            return
        file, self._file = self._file, None
        file.close()
        hidden = self._place(hidden=True)
        if keep:
            os.replace(hidden, self._place(hidden=False))
        else:
            os.unlink(hidden)
        self._files += 1
        self._rows = 0

    def _place(self, hidden: bool) -> str:
        name = f"{self._kind}-{self._index:03d}-{self._files:04d}.parquet"
        return str(self.folder / (f".{name}.inprogress" if hidden else name))

    def _sent(self, columns: Sequence[Any]) -> dict[str, Any]:
        stream, sequence, intended, now, size, kind, stage, acknowledged, at = columns
        return {
            **self._named(stream),
            "sequence": sequence,
            "qos": pc.bit_wise_and(kind, 3),
            "retain": _set(kind, RETAIN),
            "size": size,
            "intended_us": _unless(intended, 0),
            "sent_us": now,
            "ts": pc.add(now, self._wall),
            "stage": stage,
            "acknowledged": _unless(acknowledged, UNANSWERED).cast(pa.bool_()),
            "acknowledged_us": _unless(at, 0),
        }

    def _received(self, columns: Sequence[Any], count: int) -> dict[str, Any]:
        stream, sequence, subscriber, intended, now, size, flags, epoch, absence, stage, during = columns
        return {
            **self._named(stream),
            "process": pa.repeat(pa.scalar(self._index), count),
            "number": _integers(array("q", range(self._total, self._total + count))),
            "sequence": sequence,
            "subscriber": _looked_up(subscriber, self._subscriber),
            "qos": pc.bit_wise_and(flags, 3),
            "retain": _set(flags, RETAIN),
            "dup": _set(flags, DUP),
            "altered": _set(flags, ALTERED),
            "whole": _set(flags, WHOLE),
            "size": size,
            "intended_us": _unless(intended, 0),
            "recv_us": now,
            "ts": pc.add(now, self._wall),
            "stage": stage,
            "during": during,
            "epoch": epoch,
            "absence": absence,
        }

    def _named(self, stream: Any) -> dict[str, Any]:
        encoded = stream.dictionary_encode()
        known = [self._stream(each) for each in encoded.dictionary.to_pylist()]
        found = {"stream": stream}
        for at, name in enumerate(("group", "publisher", "topic")):
            found[name] = pa.array([each[at] for each in known], pa.string()).take(encoded.indices)
        return found


def failure(folder: Path, error: BaseException) -> str:
    """In a line, why records cannot be written."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
    return f"{folder}: the records cannot be written ({why.lower()})"


def _integers(values: array[int]) -> Any:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _looked_up(column: Any, name: Callable[[int], str]) -> Any:
    encoded = column.dictionary_encode()
    return pa.array([name(each) for each in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)


def _set(flags: Any, bit: int) -> Any:
    return pc.not_equal(pc.bit_wise_and(flags, bit), 0)


def _unless(column: Any, nothing: int) -> Any:
    """The column, null where it says that there is nothing."""
    return pc.if_else(pc.equal(column, nothing), pa.scalar(None, pa.int64()), column)
