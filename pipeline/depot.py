"""A recorder's folder, as the jobs see it that change it: `compact` and `retention`. No Spark, no Java.

Owns: manifests, sizes, the lock between these jobs, and the order in which things appear and go. The folder is this
machine's, or what pyarrow reaches (s3://, gs://, hdfs://).

Promises: nothing is seen half written: hidden name, fsync, rename. A manifest goes before its segment, so that no
manifest names what is not there. What the recorder writes is never touched: a segment counts from when its manifest is
there, and the newest one is left alone by those who use this.

Refuses: two jobs at once. On this machine the lock is the kernel's and ends with its process; elsewhere it is a file
that a dead job leaves behind, and the message names it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pyarrow import fs

from pipeline.errors import MisuseError, PipelineError
from pipeline.manifests import is_merged
from pipeline.storage import MANIFESTS, local_path

LOCK: Final = f"{MANIFESTS}/.lock"
REMOVED: Final = f"{MANIFESTS}/removed.jsonl"
UNFINISHED: Final = ".inprogress"

_FOLDER: Final = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/[^/]+")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", re.IGNORECASE)
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def size(text: str, option: str) -> int:
    """A number of bytes as people write it (500k, 128m, 10g; 1k is 1024).

    Raises:
        MisuseError: it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise MisuseError(f"{option} {text}: a size is wanted, as in 500k, 128m or 10g")
    return int(float(found[1]) * _UNITS[found[2].lower()])


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
        """Whether it stands for others."""
        return is_merged(self.place)

    @property
    def folder(self) -> str:
        """date=…/hour=…"""
        return self.place.rpartition("/")[0]


def manifest_of(place: str) -> str:
    """Where the manifest of a segment is."""
    return f"{MANIFESTS}/{place.removesuffix('.parquet')}.json"


def hour_end(place: str) -> datetime | None:
    """When the hour of a segment's folder is over; None of a folder that is no hour's."""
    found = _FOLDER.fullmatch(place)
    if found is None:
        return None
    return datetime.fromisoformat(f"{found[1]}T{found[2]}:00:00+00:00") + timedelta(hours=1)


class Depot:
    """One recorder's folder."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.local = local_path(path)
        if self.local is not None:
            self.local = self.local.absolute()
            if not self.local.is_dir():
                raise MisuseError(f"--input {path}: no such folder")
            self.fs: Any = fs.SubTreeFileSystem(str(self.local), fs.LocalFileSystem())
            return
        try:
            system, root = fs.FileSystem.from_uri(re.sub(r"^s3[an]:", "s3:", path))
            self.fs = fs.SubTreeFileSystem(root, system)
            there = self.fs.get_file_info("").type
        except (OSError, ValueError) as error:
            raise MisuseError(f"--input {path}: {error}") from error
        if there == fs.FileType.NotFound:
            raise MisuseError(f"--input {path}: no such folder")

    def segments(self) -> list[Segment]:
        """What is vouched for, by sequence number; what is not whole or has no manifest yet is not in it.

        Raises:
            PipelineError: a manifest cannot be read.
        """
        there = self.files()
        found = []
        for place in self.listed(MANIFESTS, ".json"):
            about = self._manifest(place)
            if about.place in there:
                found.append(about)
        return sorted(found, key=lambda segment: (segment.from_seq, segment.to_seq))

    def files(self) -> dict[str, int]:
        """All finished segments, and how large each is."""
        return self.listed("", ".parquet")

    def unfinished(self) -> list[str]:
        """Merged segments that nobody writes any more; only under the lock is that so."""
        hidden = self.listed("", UNFINISHED, hidden=True)
        return [place for place in hidden if place.rpartition("/")[2].startswith(".merged-")]

    def _manifest(self, place: str) -> Segment:
        try:
            said = json.loads(self.read(place))
            merged_at = said.get("merged_at")
            return Segment(
                place=place.removeprefix(f"{MANIFESTS}/").removesuffix(".json") + ".parquet",
                rows=int(said["rows"]),
                from_seq=int(said["from_seq"]),
                to_seq=int(said["to_seq"]),
                first=_moment(said["first_ts"]),
                last=_moment(said["last_ts"]),
                bytes=int(said["bytes"]),
                replaces=tuple(str(name) for name in said.get("replaces") or ()),
                merged_at=None if merged_at is None else _moment(merged_at),
                said=said,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PipelineError(f"{self.path}/{place}: not a manifest ({error}); move it away") from error

    def listed(self, under: str, suffix: str, hidden: bool = False) -> dict[str, int]:
        """Files below a folder whose names end so, and how large each is."""
        chosen = fs.FileSelector(under, recursive=True, allow_not_found=True)
        found: dict[str, int] = {}
        for info in self.fs.get_file_info(chosen):
            place = str(info.path).removeprefix("/")
            *folders, name = place.removeprefix(f"{under}/" if under else "").split("/")
            if any(each.startswith((".", "_")) for each in folders) or name.startswith(".") is not hidden:
                continue
            if info.is_file and name.endswith(suffix):
                found[place] = int(info.size or 0)
        return dict(sorted(found.items()))

    def read(self, place: str) -> bytes:
        """A file, whole. Raises OSError."""
        with self.fs.open_input_stream(place) as stream:
            return bytes(stream.read())

    # What changes the folder; each is one step that happens or does not.

    def write(self, place: str, content: bytes) -> None:
        """A file, whole or not at all."""
        folder, _, name = place.rpartition("/")
        draft = f"{folder}/.{name}.part"
        self.fs.create_dir(folder, recursive=True)
        with self.fs.open_output_stream(draft) as stream:
            stream.write(content)
        self.publish(draft, place)

    def publish(self, draft: str, place: str) -> None:
        """Give what is written its name, durably."""
        if self.local is None:
            self.fs.move(draft, place)
            return
        _sync(self.local / draft)
        os.replace(self.local / draft, self.local / place)
        _sync((self.local / place).parent)

    def remove(self, place: str) -> None:
        """Delete a file; no matter if it is gone."""
        try:
            self.fs.delete_file(place)
        except FileNotFoundError:
            return

    def drop(self, place: str) -> None:
        """Delete a segment, its manifest first."""
        self.remove(manifest_of(place))
        self.remove(place)

    def append(self, place: str, line: str) -> None:
        """Add a line to a file, durably."""
        if self.local is None:
            before = self.read(place) if self.fs.get_file_info(place).is_file else b""
            self.write(place, before + line.encode() + b"\n")
            return
        with open(self.local / place, "ab+") as opened:
            opened.seek(max(0, opened.tell() - 1))
            # A line that broke off spoils no other.
            torn = opened.read(1) not in (b"", b"\n")
            opened.write((b"\n" if torn else b"") + line.encode() + b"\n")
            opened.flush()
            os.fsync(opened.fileno())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with the folder, as far as these jobs go.

        Raises:
            PipelineError: another job is at work.
        """
        if self.local is None:
            if self.fs.get_file_info(LOCK).is_file:
                holder = self.read(LOCK).decode(errors="replace")
                raise PipelineError(f"{self.path}/{LOCK}: another job is at work ({holder}); delete it if it is dead")
            self.write(LOCK, f"{socket.gethostname()}, since {datetime.now(UTC):%Y-%m-%dT%H:%MZ}".encode())
            try:
                yield
            finally:
                self.remove(LOCK)
            return
        try:
            (self.local / MANIFESTS).mkdir(exist_ok=True)
            lock = os.open(self.local / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise PipelineError(f"{self.path}/{LOCK}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise PipelineError(f"{self.path}: another compact or retention is at work here") from error
        finally:
            os.close(lock)


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
