"""What is in a segment that is not finished, so that a killed process loses a second of it and not a minute.

Owns the draft: an Arrow IPC stream beside the unfinished Parquet file, to which rows are added every so often, and how
a segment is made of it when its writer is gone. It outlives the process, not the machine: nothing of it is synced.

Promises: rows are taken from a draft up to the first that is not whole. Blocks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.record.files.private import opener
from broker.record.files.segment import Segment
from broker.record.schema import SCHEMA

SUFFIX: Final = ".arrows"
_OPTIONS: Final[Any] = pa.ipc.IpcWriteOptions(compression="lz4")


class Draft:
    """The draft of one segment, from its first rows to `discard`."""

    def __init__(self, segment: Path, seconds: float) -> None:
        """`seconds`: for how long rows may wait. Raises OSError."""
        self.path = draft_of(segment)
        self._seconds = seconds
        self._waiting: list[Any] = []
        self._since = 0.0
        self._file = open(self.path, "wb", buffering=0, opener=opener)  # noqa: SIM115  it outlives this function
        self._stream: Any = pa.ipc.new_stream(self._file, SCHEMA, options=_OPTIONS)

    def add(self, batch: Any) -> None:
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append(batch)

    def patience(self) -> float | None:
        """Seconds until what waits is to be written; None where nothing does."""
        return max(0.0, self._since + self._seconds - time.monotonic()) if self._waiting else None

    def write(self) -> None:
        """Write what waits. Raises OSError."""
        self._stream.write_table(pa.Table.from_batches(self._waiting, SCHEMA).combine_chunks())
        self._waiting = []

    def discard(self) -> None:
        self._waiting = []
        with contextlib.suppress(OSError, pa.ArrowException):
            self._stream.close()
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Recovered:
    """A segment that was made of a draft."""

    place: str
    rows: int
    from_seq: int
    to_seq: int


def draft_of(segment: Path) -> Path:
    return segment.with_name(f".{segment.stem}{SUFFIX}")


def left_drafts(root: Path) -> list[Path]:
    """The drafts that there are: the one of a recorder at work, or those that killed ones left."""
    return sorted(root.glob(f"date=*/hour=*/.seg-*{SUFFIX}"))


def recover(root: Path) -> list[Recovered]:
    """Make segments of the drafts that a killed recorder left. Only for who holds the folder's lock.

    Raises OSError, ArrowException: one cannot be written; its draft stays.
    """
    found = []
    for path in left_drafts(root):
        segment = path.with_name(f"{path.name.removesuffix(SUFFIX)[1:]}.parquet")
        # Where it was finished in its last moment, all is in it.
        if not segment.exists():
            made = _finished(root, path)
            if made is not None:
                found.append(made)
        path.unlink()
    return found


def _finished(root: Path, path: Path) -> Recovered | None:
    made: Segment | None = None
    try:
        for batch in _whole(path):
            if made is None:
                first = batch.slice(0, 1).to_pylist()[0]
                begun = batch.column("ts").cast(pa.int64())[0].as_py()
                made = Segment(root, first["run_id"], first["seq"], begun)
            made.add(batch)
        if made is None:
            return None
        made.finish()
    except BaseException:
        if made is not None:
            made.abandon()
        raise
    return Recovered(made.place, made.rows, made.from_seq, made.to_seq)


def _whole(path: Path) -> Iterator[Any]:
    """The batches of a draft, up to one that breaks off or is not what a recorder writes."""
    last = 0
    with contextlib.suppress(pa.ArrowException, OSError), pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_stream(file)
        while reader.schema == SCHEMA:
            try:
                batch = reader.read_next_batch()
                batch.validate(full=True)
            except StopIteration:
                return
            seq = batch.column("seq")
            if not batch.num_rows or seq.null_count or seq[0].as_py() <= last:
                return
            if batch.num_rows > 1 and not pc.all(pc.less(seq[:-1], seq[1:])).as_py():
                return
            last = seq[-1].as_py()
            yield batch
