"""A recorder's folder: its segments, its manifests, its lock, and the cleaning up after an earlier run.

Owns the state file (`.recorder`): the last number that was given, which the event loop writes after each batch into a
mapped page, so that it survives the process; the end of the last run; and the lock that keeps a second recorder out.

Promises: opening a folder removes unfinished files, writes missing manifests, and finds the missing numbers. Blocks;
never call it in an event loop.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from canopy_mqtt.record.files.drafts import Recovered, recover
from canopy_mqtt.record.files.private import make_folder, opener
from canopy_mqtt.record.files.segment import (
    COUNTED,
    MANIFESTS,
    UNFINISHED,
    Contents,
    checksum,
    manifest_path,
    write_manifest,
)
from canopy_mqtt.record.schema import SCHEMA

STATE: Final = ".recorder"
STATE_BYTES: Final = 4_096

# The last number; how the run ended.
_STATE: Final = Struct("<qq")
_NUMBER: Final = Struct("<q")
RUNNING: Final = 0
ENDED: Final = 1
"""The run ended in order: all events are in finished segments."""
GAVE_UP: Final = 2
"""The recorder could not write; the broker went on without it."""

_NEEDED: Final[dict[str, type]] = {
    "segment": str,
    "rows": int,
    "from_seq": int,
    "to_seq": int,
    "first_ts": str,
    "last_ts": str,
    "kinds": dict,
    "bytes": int,
    "gaps": list,
}
"""The required keys of a manifest, and their types."""

NAME: Final = re.compile(r"(?:seg-[0-9a-f]+|merged)-(\d+)")
"""The beginning of a segment's name; the number is that of its first event."""


class RecorderError(Exception):
    """The reason in one line why nothing can be recorded, or a folder cannot be read."""


def reason(error: BaseException) -> str:
    """Describe an error of the system in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def why_not_written(root: Path, error: Exception) -> str:
    said = reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {reason(error)}"
    return f"{root}: cannot be written to ({said})"


@dataclass(frozen=True)
class Left:
    """The state after the last run: the last number that was given, and those that are in no segment."""

    last_seq: int
    missing: tuple[int, int] | None
    why: str
    recovered: tuple[Recovered, ...] = ()
    """Segments that were recovered from drafts."""
    held: bool = False
    """True if the recorder kept the folder after it gave up: its numbers went on."""

    def tell(self, log: Any, **where: str) -> None:
        for made in self.recovered:
            numbers = {"from_seq": made.from_seq, "to_seq": made.to_seq}
            log.warning("recorder recovered events", **numbers, events=made.rows, **where)
        if self.missing is not None:
            first, last = self.missing
            log.warning("recorder lost events", reason=self.why, from_seq=first, to_seq=last, **where)


class Folder:
    """A folder of a recorder, from `open` to `close`; between them it may be given up, and opened again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._number = -1
        self.memo: mmap.mmap | None = None

    def open(self) -> Left:
        """Lock the folder, unless it was kept, and clean it up.

        Raises:
            RecorderError: it cannot be written to, or another broker records there.
        """
        held = self.memo is not None
        if not held:
            self._take()
        assert self.memo is not None
        try:
            last_seq, ended = _STATE.unpack_from(self.memo)
            recovered = recover(self.root)
            durable = mend(self.root)
            if held:
                # Numbers are being given, and written there.
                self._say(RUNNING)
            else:
                _STATE.pack_into(self.memo, 0, max(last_seq, durable), RUNNING)
        except (OSError, ValueError, pa.ArrowException) as error:
            if not held:
                self.close(ended=None)
            raise RecorderError(f"{self.root}: cannot be put in order ({reason(error)})") from error
        missing = (durable + 1, last_seq) if last_seq > durable else None
        why = "stopped" if ended == GAVE_UP else "crash"
        return Left(max(last_seq, durable), missing, why, tuple(recovered), held)

    def _take(self) -> None:
        try:
            make_folder(self.root / MANIFESTS)
            self._number = opener(str(self.root / STATE), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise RecorderError(f"{self.root}: cannot be written to ({reason(error)})") from error
        try:
            fcntl.flock(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close(ended=None)
            raise RecorderError(f"{self.root}: another broker records there; give each its own folder") from error
        try:
            # Not a hole: a disk that is full shall say so now, and not by a signal when the page is written.
            os.posix_fallocate(self._number, 0, STATE_BYTES)
            self.memo = mmap.mmap(self._number, STATE_BYTES)
        except (OSError, ValueError) as error:
            self.close(ended=None)
            raise RecorderError(f"{self.root}: cannot be put in order ({reason(error)})") from error

    def gone(self) -> bool:
        """True if the path of the kept folder leads to another folder now."""
        try:
            ours, there = os.fstat(self._number), os.stat(self.root / STATE)
        except OSError:
            return True
        return (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino)

    def give_up(self) -> None:
        """Note that recording has stopped. The folder stays locked, and the numbers go on."""
        self._say(GAVE_UP)

    def _say(self, how: int) -> None:
        if self.memo is not None:
            _NUMBER.pack_into(self.memo, _NUMBER.size, how)

    def note(self, number: int) -> None:
        """Write the last number that was given; a tap does it by itself."""
        assert self.memo is not None
        _NUMBER.pack_into(self.memo, 0, number)

    def close(self, ended: int | None) -> None:
        """Unlock the folder; `ended`: the kind of end, None if nothing was recorded."""
        if self.memo is not None:
            if ended is not None:
                _STATE.pack_into(self.memo, 0, _STATE.unpack_from(self.memo)[0], ended)
                if ended == ENDED:
                    # Where the disk has failed there is no waiting for it: it will know as long as the machine does.
                    with contextlib.suppress(OSError):
                        self.memo.flush()
            self.memo.close()
            self.memo = None
        if self._number >= 0:
            os.close(self._number)
            self._number = -1


def noted(root: Path) -> tuple[int, int] | None:
    """Return the last number that a folder's recorder gave, and the end of its run: RUNNING, ENDED or GAVE_UP.

    None if there is no state file: in a copy of the segments, for example.
    """
    try:
        last_seq, ended = _STATE.unpack_from((root / STATE).read_bytes())
    except (OSError, StructError):
        return None
    return last_seq, ended


def at_work(root: Path) -> bool:
    """Return True if a recorder holds a folder's lock; tests it with a shared one, which is released at once."""
    try:
        number = opener(str(root / STATE), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(number)
    return False


def segments(root: Path) -> list[str]:
    """Return the paths of all finished segments, in the order of their first numbers."""
    found = [path.relative_to(root).as_posix() for path in root.glob("date=*/hour=*/[!.]*.parquet")]
    return sorted(found, key=by_number)


def by_number(place: str) -> tuple[int, str]:
    """Return the sort key of a path by first number; file systems and names have another order."""
    return first_seq(place), place


def first_seq(place: str) -> int:
    """Return the first number in the name of a segment; 0 if there is none."""
    found = NAME.match(place.rpartition("/")[2])
    return int(found[1]) if found is not None else 0


def mend(root: Path) -> int:
    """Remove unfinished files, write missing manifests, and return the last number in a segment.

    Raises OSError, ArrowException.
    """
    # Those of a recorder: who merges segments has drafts of its own, and may be at it.
    for place in (f"date=*/hour=*/.seg-*{UNFINISHED}", f"{MANIFESTS}/date=*/hour=*/.seg-*{UNFINISHED}"):
        for draft in root.glob(place):
            draft.unlink(missing_ok=True)
    merges = [read_manifest(path) for path in manifests(root) if path.name.startswith("merged-")]
    # A job removes the manifest of a segment first, and may be at it.
    going = {str(place) for about in merges for place in about.get("replaces") or ()}
    going.update(str(entry.get("segment")) for entry in removed(root))
    for place in segments(root):
        # A merged one is not there before its manifest is: that is the business of who merges.
        if place in going or place.rpartition("/")[2].startswith("merged-"):
            continue
        if not manifest_path(root, place).exists():
            try:
                about = describe(root, place)
            except (OSError, ValueError, pa.ArrowException) as error:
                raise ValueError(f"{place}: {reason(error)}; move it elsewhere") from error
            write_manifest(root, place, about)
    # Segments do not overlap, but for merged ones and what these replace: the last to begin is the last to end.
    begun = {path: first_seq(path.name) for path in manifests(root)}
    first = max(begun.values(), default=0)
    ends = [
        int(read_manifest(path)["to_seq"])
        for path, number in begun.items()
        if number == first or path.name.startswith("merged-")
    ]
    return max([*ends, *_removed(root)], default=0)


def manifests(root: Path) -> Iterator[Path]:
    return (root / MANIFESTS).glob("date=*/hour=*/[!.]*.json")


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest. Raises OSError, or ValueError if it is malformed."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not a manifest") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in _NEEDED.items()):
        raise ValueError(f"{path}: not a manifest")
    return found


def removed(root: Path) -> list[dict[str, Any]]:
    """Return the segments that were removed because of their age, from `_manifests/removed.jsonl`."""
    try:
        return json_lines((root / MANIFESTS / "removed.jsonl").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []


def json_lines(text: str) -> list[dict[str, Any]]:
    """Return the objects in lines of JSON, but for one that broke off when the machine went down."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                found.append(entry)
    return found


def _removed(root: Path) -> list[int]:
    return [int(entry["to_seq"]) for entry in removed(root) if isinstance(entry.get("to_seq"), int)]


def check_columns(file: Any) -> None:
    """Raise ValueError, with the columns, for a Parquet file without events."""
    has = file.schema_arrow
    # Later formats may bring columns; these are what an event cannot be without, and what a gap says.
    needed = [
        SCHEMA.field(name) for name in ("seq", "kind", "ts", "run_id", "topic", "from_seq", "to_seq", "n", "reason")
    ]
    wrong = [each.name for each in needed if each.name not in has.names or has.field(each.name).type != each.type]
    if wrong:
        raise ValueError(f"no recorded events: it has no column {', '.join(wrong)}, or another type of it")


def describe(root: Path, place: str) -> dict[str, Any]:
    """Make the manifest of a segment from its rows. Raises OSError, ArrowException."""
    path, found = root / place, Contents()
    with pq.ParquetFile(path) as file:
        check_columns(file)
        for batch in file.iter_batches(65_536, columns=COUNTED):
            found.add(batch)
    if not found.rows:
        raise ValueError(f"{path}: a segment without events")
    return found.manifest(place, path.stat().st_size, checksum(path))
