"""A spool: received messages on disk, numbered, until Spark no longer needs them.

Owns: a folder of segments. MQTT has no offsets: a message's offset is its number here, counted from 0 over all
restarts.

Promises: when ``append`` returns, the rows survive a kill and a loss of power: the file was fsynced, renamed, and the
folder fsynced. A row keeps its offset for good. ``commit`` notes the offset before it unlinks anything, so that numbers
are never given twice, even when no segment is left. All methods may be called from any thread. Nothing is written after
``close``, which releases the lock only when no thread writes any more.

Refuses: a second query in the same folder, a folder of another client identifier, and one with a hole.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from canopy_pipeline.errors import PipelineError
from canopy_pipeline.mqtt.rows import placed
from canopy_pipeline.runtime.locks import held
from canopy_pipeline.runtime.storage import Local

FORMAT: Final = 1

_NAME: Final = re.compile(r"seg-(\d{18})-(\d+)\.arrow")


class SpoolError(PipelineError):
    """The spool cannot be used; the message is one line with the folder."""


@dataclass(frozen=True)
class Segment:
    """A finished file: its rows are numbered `first` … `end` - 1."""

    path: Path
    first: int
    end: int
    size: int
    """Bytes."""


@dataclass(frozen=True)
class Slice:
    """Some rows of a segment, for a task to read."""

    path: str
    skip: int
    rows: int
    first: int = 0
    """The number of its first row."""


class Spool:
    """The spool of one query, locked until ``close``. `wait`: seconds that another one has to leave it.

        lock                           held (flock) by the one query that uses the folder
        state.json                     whose it is, what was committed, what is subscribed
        seg-<first>-<rows>.arrow       rows first … first+rows-1, an Arrow IPC file; named so only when it is whole
        .seg-….part                    being written; thrown away at the next start, since nobody had it acknowledged

    Raises:
        SpoolError: it is in use, belongs to another client identifier, has a hole, or cannot be read or written.
    """

    def __init__(self, folder: Path, client_id: str, wait: float = 0.0) -> None:
        self.folder = folder
        self._appending = threading.Lock()
        self._mutex = threading.Lock()
        self._closed = False
        self._place = Local(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            busy = f"{folder}: another query uses this spool; give each query its own option 'spool'"
            self._lock = held(folder / "lock", busy, wait)
            try:
                self._recover(client_id)
            except BaseException:
                os.close(self._lock)
                raise
        except OSError as error:
            raise SpoolError(f"{folder}: cannot be used as a spool ({error.strerror or error})") from error

    def _recover(self, client_id: str) -> None:
        state = self._read_state(client_id)
        self._state = state
        self._committed: int = state["committed"]
        self._segments: list[Segment] = []
        for path in self.folder.glob(".seg-*.part"):
            path.unlink()
        for path in sorted(self.folder.iterdir()):
            if (found := _NAME.fullmatch(path.name)) is None:
                continue
            first = int(found[1])
            segment = Segment(path, first, first + int(found[2]), path.stat().st_size)
            if segment.end <= self._committed:
                # It died between the note and the unlinking.
                segment.path.unlink()
            else:
                self._segments.append(segment)
        expected = self._segments[0].first if self._segments else self._committed
        if expected > self._committed:
            self._hole(self._committed, expected)
        for segment in self._segments:
            if segment.first != expected:
                self._hole(expected, segment.first)
            expected = segment.end
        self._next = expected
        self._bytes = sum(each.size for each in self._segments)
        self._save()

    def _hole(self, first: int, end: int) -> None:
        raise SpoolError(
            f"{self.folder}: rows {first} to {end - 1} are missing, somebody deleted a segment; "
            "move the folder away and start with a new checkpoint"
        )

    def _read_state(self, client_id: str) -> dict[str, Any]:
        path = self.folder / "state.json"
        try:
            state = json.loads(path.read_text())
            if state["format"] != FORMAT or not isinstance(state["committed"], int):
                raise ValueError
            owner: str = state["client_id"]
        except FileNotFoundError:
            return {"format": FORMAT, "client_id": client_id, "committed": 0, "filters": []}
        except (ValueError, KeyError, TypeError):
            raise SpoolError(
                f"{path}: is no state of a spool; move the folder away and start with a new checkpoint"
            ) from None
        if owner != client_id:
            raise SpoolError(
                f"{self.folder}: is the spool of client id {owner!r}; give {client_id!r} its own option 'spool'"
            )
        return dict(state)

    def _save(self) -> None:
        self._state["committed"] = self._committed
        (self.folder / ".state.json.part").write_text(json.dumps(self._state))
        self._place.publish(".state.json.part", "state.json")

    @property
    def committed(self) -> int:
        """The offset up to which rows are committed."""
        return self._committed

    @property
    def next(self) -> int:
        """The offset that the next row gets; all before it are on disk."""
        return self._next

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def filters(self) -> tuple[str, ...]:
        """The topic filters last noted as subscribed."""
        return tuple(self._state["filters"])

    @property
    def lost(self) -> int:
        """Messages that the broker said it lost, as last noted."""
        return int(self._state.get("lost", 0))

    @property
    def session(self) -> int:
        """The number of sessions at the broker; each after the first replaces a lost one."""
        return int(self._state.get("session", 0))

    def note(self, name: str, value: object) -> None:
        """Remember `lost`, `session` or `filters` (what is subscribed: a later start may have to unsubscribe it).

        Raises:
            SpoolError: it cannot be written, or is closed.
        """
        with self._mutex, self._told():
            self._refuse_closed()
            self._state[name] = value
            self._save()

    def append(self, rows: Any) -> int:
        """Write a RecordBatch as one segment; it is durable on return. The new ``next``.

        Raises:
            SpoolError: it cannot be written, or is closed.
        """
        with self._appending:
            return self._append(rows)

    def _append(self, rows: Any) -> int:
        self._refuse_closed()
        with self._told():
            # Nobody else moves `next`, and the mutex is free: readers need not wait for the disk.
            first = self._next
            end = first + int(rows.num_rows)
            name = f"seg-{first:018d}-{rows.num_rows}.arrow"
            draft = f".{name}.part"
            # Not by `Local.open`, which would make a folder that is gone anew.
            with (self.folder / draft).open("wb") as file:
                with pa.ipc.new_file(file, rows.schema) as writer:
                    writer.write_batch(rows)
                size = file.tell()
            self._place.publish(draft, name)
        with self._mutex:
            self._segments.append(Segment(self.folder / name, first, end, size))
            self._bytes += size
            self._next = end
            return end

    def commit(self, end: int) -> None:
        """Note that rows before `end` are committed; unlink segments that have no others.

        Raises:
            SpoolError: the folder cannot be written to, or the spool is closed.
        """
        with self._mutex, self._told():
            self._refuse_closed()
            if end <= self._committed:
                return
            self._committed = min(end, self._next)
            self._save()
            while self._segments and self._segments[0].end <= self._committed:
                done = self._segments.pop(0)
                done.path.unlink(missing_ok=True)
                self._bytes -= done.size

    def slices(self, start: int, end: int) -> list[Slice]:
        """Return the slices of rows `start` … `end` - 1, in their order.

        Raises:
            SpoolError: they are not all there.
        """
        with self._mutex:
            if start < self._committed or end > self._next:
                raise SpoolError(
                    f"{self.folder}: has rows {self._committed} to {self._next}, and the checkpoint asks for "
                    f"{start} to {end}: they do not belong together; give the right option 'spool', or a new checkpoint"
                )
            return [
                Slice(
                    str(each.path),
                    max(start - each.first, 0),
                    min(end, each.end) - max(start, each.first),
                    max(start, each.first),
                )
                for each in self._segments
                if each.first < end and each.end > start
            ]

    def close(self) -> None:
        """Release the lock once the segment being written is on disk. A second call does nothing."""
        with self._appending, self._mutex:
            if not self._closed:
                self._closed = True
                os.close(self._lock)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SpoolError(f"{self.folder}: is closed, and may be another query's by now")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SpoolError(f"{self.folder}: cannot be written ({error.strerror or error})") from error


def read(piece: Slice) -> Any:
    """The rows of a slice, as Arrow RecordBatches. Needs no ``Spool``: tasks run in other processes.

    Raises:
        SpoolError: the file is not there, or is no segment.
    """
    try:
        with pa.memory_map(piece.path) as file, pa.ipc.open_file(file) as reader:
            table = reader.read_all().slice(piece.skip, piece.rows)
    except FileNotFoundError:
        raise SpoolError(
            f"{piece.path}: is not there; option 'spool' must be a folder that every executor reaches under "
            "the same path"
        ) from None
    except (OSError, pa.ArrowInvalid) as error:
        raise SpoolError(f"{piece.path}: cannot be read ({error})") from error
    if table.num_rows != piece.rows:
        raise SpoolError(f"{piece.path}: has fewer rows than its name says")
    at = piece.first
    placed_batches = []
    for each in table.to_batches():
        placed_batches.append(placed(each, at))
        at += each.num_rows
    return placed_batches
