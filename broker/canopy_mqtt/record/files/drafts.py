"""Drafts keep the rows of an unfinished segment, so that a killed process loses a second of them and not a minute.

Owns the draft, an Arrow IPC stream beside the unfinished Parquet file, which gets new rows at intervals; and the
recovery of a segment from it. A draft survives the process, not the machine: nothing is synced.

Promises: recovery takes the rows of a draft up to the first incomplete one. Blocks.
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

from canopy_mqtt.record.files.private import opener
from canopy_mqtt.record.files.segment import Segment
from canopy_mqtt.record.schema import SCHEMA

SUFFIX: Final = ".arrows"
_OPTIONS: Final[Any] = pa.ipc.IpcWriteOptions(compression="lz4")


class Draft:
    """The draft of one segment, from its first rows to `discard`."""

    def __init__(self, segment: Path, seconds: float) -> None:
        """`seconds`: the longest time that rows wait. Raises OSError."""
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

    def seconds_left(self) -> float | None:
        """Seconds until waiting rows have to be written; None if there are none."""
        return max(0.0, self._since + self._seconds - time.monotonic()) if self._waiting else None

    def write(self) -> None:
        """Write the waiting rows. Raises OSError."""
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
    """A segment that was recovered from a draft."""

    place: str
    rows: int
    from_seq: int
    to_seq: int


def draft_of(segment: Path) -> Path:
    return segment.with_name(f".{segment.stem}{SUFFIX}")


def left_drafts(root: Path) -> list[Path]:
    """Return the drafts in the folder: that of a running recorder, or those of killed ones."""
    return sorted(root.glob(f"date=*/hour=*/.seg-*{SUFFIX}"))


def recover(root: Path) -> list[Recovered]:
    """Make segments of the drafts of a killed recorder. The caller has to hold the folder's lock.

    Raises OSError, ArrowException: a segment cannot be written; its draft stays.
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
    found = made.contents
    return Recovered(made.place, found.rows, found.from_seq, found.to_seq)


def _whole(path: Path) -> Iterator[Any]:
    """Yield the batches of a draft, up to one that is cut off or foreign."""
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
