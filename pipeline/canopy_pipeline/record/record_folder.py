"""A recorder's folder for the jobs that change it: `compact` and `retention`. No Spark, no Java.

Owns: manifests, sizes, the lock between these jobs, and the order in which things appear and go. The folder is this
machine's, or what pyarrow reaches (s3://, gs://, hdfs://).

Promises: nothing is seen half written: hidden name, fsync, rename. A manifest goes before its segment, so that no
manifest names what is not there. What the recorder writes is never touched: a segment counts from when its manifest is
there, and the newest one is left alone by those who use this.

Refuses: two jobs at once. On this machine the lock is the kernel's and ends with its process; elsewhere it is a file
that a dead job leaves behind, and the message names it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from canopy_mqtt.record.files.current_files import is_merged
from canopy_mqtt.record.files.segment import read_moment
from canopy_pipeline.errors import MisuseError, PipelineError, in_a_line
from canopy_pipeline.record.account import account
from canopy_pipeline.record.chosen_files import choose
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.manifests import Manifests, manifests
from canopy_pipeline.record.parts import own, parts
from canopy_pipeline.runtime.locks import alone_with
from canopy_pipeline.runtime.storage import MANIFESTS, storage

LOCK: Final = f"{MANIFESTS}/.lock"
UNFINISHED: Final = ".inprogress"
LOG: Final = "_delta_log"

_FOLDER: Final = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/[^/]+")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)
_LARGEST: Final = 1 << 62
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(text: str, option: str) -> int:
    """A number of bytes as people write it (500k, 128m, 10g; 1k is 1024).

    Raises:
        MisuseError: it is none, or more than any disk has.
    """
    found = _SIZE.fullmatch(text.strip())
    number = 0.0 if found is None else float(found[1]) * _UNITS[found[2].lower()]
    if found is None or number > _LARGEST:
        raise MisuseError(f"{option} {text}: must be a size, such as 500k, 128m or 10g")
    return int(number)


@dataclass(frozen=True)
class Segment:
    """A finished segment, as its manifest says."""

    place: str
    rows: int
    from_seq: int
    to_seq: int
    first: datetime
    last: datetime
    bytes: int
    replaces: tuple[str, ...]
    merged_at: datetime | None
    said: dict[str, Any]
    """The manifest itself."""

    @property
    def merged(self) -> bool:
        return is_merged(self.place)

    @property
    def folder(self) -> str:
        """date=…/hour=…"""
        return self.place.rpartition("/")[0]


def manifest_of(place: str) -> str:
    """Return the place of a segment's manifest."""
    return f"{MANIFESTS}/{place.removesuffix('.parquet')}.json"


def hour_end(place: str) -> datetime | None:
    """Return the end of the hour of a segment's folder; None if the folder is not an hour's."""
    found = _FOLDER.fullmatch(place)
    # A folder that somebody made may have the name of an hour that no calendar has.
    with suppress(ValueError, OverflowError):
        return None if found is None else datetime.fromisoformat(f"{found[1]}T{found[2]}:00Z") + timedelta(hours=1)
    return None


def record_folders(path: str) -> list[RecordFolder]:
    """Return the folders of a record: see `parts`.

    Raises:
        MisuseError: there is no such folder.
        PipelineError: it cannot be reached.
    """
    RecordFolder(path)
    folders = parts(None, path)
    return [
        RecordFolder(folder, f"{folder.rpartition('/')[2]}/" if folder != path and len(folders) > 1 else "")
        for folder in folders
    ]


class RecordFolder:
    def __init__(self, path: str, name: str = "") -> None:
        """`name`: the path below the record's directory, for people: empty, or `w0/`."""
        self.path = path
        self.name = name
        try:
            self.storage = storage(None, path)
        except OSError as error:
            raise MisuseError(f"--input {error}") from error
        try:
            there = self.storage.is_folder()
        except OSError as error:
            raise PipelineError(f"--input {path}: {in_a_line(error)}") from error
        if not there:
            raise MisuseError(f"--input {path}: no such folder")
        self.local = self.storage.local
        self.is_table = bool(self.storage.names(LOG))
        """True if it is a Delta table, too."""
        # Manifests that were read: they do not change.
        self._known: dict[str, dict[str, Any]] = {}

    def told(self) -> Manifests:
        """Read the manifests, each once, and return their contents as far as they can be read.

        Raises:
            PipelineError: that of a merged segment cannot be read.
        """
        said = manifests(self.storage, self._known)
        self._known = said.said
        return said

    def settle(self, why: str) -> None:
        """Commit the segments that count to the Delta table, if there is one; `why` stands in the commit. Call it only
        under the lock. Files that the table no longer has may be removed afterwards, and not before.

        Raises:
            PipelineError: that could not be done.
        """
        if self.is_table:
            said, there = self.told(), self.files()
            gone = said.gone | {str(entry.get("segment")) for entry in said.removed}
            in_force = [place for place in said.said if place in there and place not in gone]
            self.commit(in_force, gone, said.said.__getitem__, why)

    def commit(
        self, in_force: Iterable[str], gone: Collection[str], manifest: Callable[[str], dict[str, Any]], why: str
    ) -> None:
        """Commit the changes to the Delta table."""
        if self.local is None:
            raise PipelineError(
                f"{self.path}: a copy of a Delta table; it is merged and removed where the recorder writes it"
            )
        try:
            from canopy_mqtt.delta import Table, TableError
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "deltalake":
                raise
            raise PipelineError(
                f"{self.path}: a Delta table: needs deltalake 1.6: in a clone of Canopy pip install '.[delta]'"
            ) from error
        try:
            Table(self.local).settle(in_force, gone, manifest, why)
        except TableError as error:
            raise PipelineError(str(error)) from error

    def cover(self, coverage: Coverage, said: Manifests) -> None:
        """Add what is missing in this folder to a coverage."""
        there = self.files()
        if there or said.said:
            account(coverage, self.path, choose(said, there, self.storage), self.local)

    def segments(self) -> list[Segment]:
        """Return the segments with a manifest, by sequence number, without those that are not whole.

        Raises:
            PipelineError: a manifest cannot be read.
        """
        said = self.told()
        for place in said.spoilt:
            raise PipelineError(f"{self.path}/{manifest_of(place)}: not a manifest; move it away")
        there = self.files()
        found = [self._segment(place, about) for place, about in said.said.items() if place in there]
        return sorted(found, key=lambda segment: (segment.from_seq, segment.to_seq))

    def files(self) -> dict[str, int]:
        """Return all finished segments with their sizes in bytes."""
        return own(self.storage.listed(".parquet"))

    def unfinished(self) -> list[str]:
        """Return the unfinished merged segments; under the lock no process writes them any more."""
        hidden = own(self.storage.listed(UNFINISHED, hidden=True))
        return [place for place in hidden if place.rpartition("/")[2].startswith(".merged-")]

    def _segment(self, place: str, said: dict[str, Any]) -> Segment:
        try:
            merged_at = said.get("merged_at")
            return Segment(
                place=place,
                rows=int(said["rows"]),
                from_seq=int(said["from_seq"]),
                to_seq=int(said["to_seq"]),
                first=read_moment(said["first_ts"]),
                last=read_moment(said["last_ts"]),
                bytes=int(said["bytes"]),
                replaces=tuple(str(name) for name in said.get("replaces") or ()),
                merged_at=None if merged_at is None else read_moment(merged_at),
                said=said,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PipelineError(f"{self.path}/{manifest_of(place)}: not a manifest ({error}); move it away") from error

    def drop(self, *places: str) -> None:
        """Delete segments in this order, all their manifests first; over a network several at a time."""
        with ThreadPoolExecutor(self.storage.calls) if self.storage.calls > 1 else nullcontext() as pool:
            for names in ([manifest_of(place) for place in places], places):
                list((map if pool is None else pool.map)(self.storage.remove, names))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other jobs of this kind out of the folder within the block.

        Raises:
            PipelineError: another job is at work.
        """
        if self.local is None:
            with suppress(FileNotFoundError):
                holder = self.storage.read(LOCK).decode(errors="replace")
                raise PipelineError(f"{self.path}/{LOCK}: another job is at work ({holder}); delete it if it is dead")
            self.storage.write(LOCK, f"{socket.gethostname()}, since {datetime.now(UTC):%Y-%m-%dT%H:%MZ}".encode())
            try:
                yield
            finally:
                self.storage.remove(LOCK)
            return
        with alone_with(self.local / LOCK, f"{self.path}: another compact or retention is at work here"):
            yield
