"""Writes one segment: a Parquet file from its first row to its manifest.

Owns the order of the steps: the file is written under a hidden name, flushed to disk, renamed; then its manifest in the
same way. Blocks; it runs in the recorder's thread.

Promises: a file without a leading dot is complete, even if the machine stops. A manifest without a leading dot belongs
to an existing file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from canopy_mqtt.record.files.private import make_folder, opener
from canopy_mqtt.record.files.row_groups import RowGroups
from canopy_mqtt.record.schema import FORMAT, SCHEMA

MANIFESTS: Final = "_manifests"
UNFINISHED: Final = ".inprogress"
CHUNK: Final = 1 << 20
COUNTED: Final = ["seq", "kind", "ts", "run_id", "from_seq", "to_seq", "n"]
"""The columns that a manifest is made of."""


class Contents:
    """The facts about the rows of a segment that its manifest has."""

    def __init__(self) -> None:
        self.rows = 0
        self.from_seq = self.to_seq = 0
        self._run_id = ""
        self._first_ts = self._last_ts = 0
        self._kinds: Counter[str] = Counter()
        self._gaps: list[list[int]] = []

    def add(self, batch: Any) -> None:
        """Count the rows of a record batch or a table, which have at least the columns `COUNTED`."""
        seq, ts = (pc.min_max(batch.column(name).cast(pa.int64())).as_py() for name in ("seq", "ts"))
        if not self.rows:
            self._run_id = batch.column("run_id")[0].as_py()
            self.from_seq, self._first_ts = seq["min"], ts["min"]
        self.rows += batch.num_rows
        self.from_seq, self.to_seq = min(self.from_seq, seq["min"]), max(self.to_seq, seq["max"])
        self._first_ts, self._last_ts = min(self._first_ts, ts["min"]), max(self._last_ts, ts["max"])
        self._kinds.update(
            {each["values"]: each["counts"] for each in pc.value_counts(batch.column("kind")).to_pylist()}
        )
        if batch.column("from_seq").null_count < batch.num_rows:
            gaps = batch.filter(pc.is_valid(batch.column("from_seq")))
            self._gaps += [[row["from_seq"], row["to_seq"], row["n"]] for row in gaps.to_pylist()]

    def manifest(self, place: str, size: int, digest: str) -> dict[str, Any]:
        """Return the manifest of a file of `size` bytes that has these rows; `digest`: its SHA-256."""
        return {
            "format": FORMAT,
            "segment": place,
            "run_id": self._run_id,
            "rows": self.rows,
            "from_seq": self.from_seq,
            "to_seq": self.to_seq,
            "first_ts": moment(self._first_ts),
            "last_ts": moment(self._last_ts),
            "kinds": dict(sorted(self._kinds.items())),
            "bytes": size,
            "sha256": digest,
            "gaps": self._gaps,
        }


class Segment:
    def __init__(self, root: Path, run_id: str, first_seq: int, first_ts_us: int) -> None:
        """Open it. Raises OSError."""
        begun = datetime.fromtimestamp(first_ts_us / 1e6, UTC)
        self.place = f"date={begun:%Y-%m-%d}/hour={begun:%H}/seg-{run_id}-{first_seq:015d}.parquet"
        self.path = root / self.place
        self._root = root
        self._draft = self.path.with_name(f".{self.path.stem}{UNFINISHED}")
        make_folder(self._draft.parent)
        self._file = open(self._draft, "wb", opener=opener)  # noqa: SIM115  it outlives this function
        try:
            self._rows = RowGroups(self._file, SCHEMA)
        except BaseException:
            self._discard()
            raise
        self.opened_at = time.monotonic()
        self.contents = Contents()
        self.manifest: dict[str, Any] = {}
        """Its manifest, when it is finished."""

    @property
    def folder(self) -> str:
        return self.place.rpartition("/")[0]

    @property
    def size(self) -> int:
        """The bytes so far, including uncompressed rows in memory."""
        return int(self._file.tell()) + self._rows.waiting_bytes

    def add(self, batch: Any) -> None:
        """Add rows, in order. Raises OSError."""
        self.contents.add(batch)
        self._rows.add(batch)

    def finish(self) -> None:
        """Rename the file to its final name, and write its manifest. Raises OSError."""
        self._rows.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._draft.rename(self.path)
        sync_folders(self._root, self.path)
        self.manifest = self.contents.manifest(self.place, self.path.stat().st_size, checksum(self.path))
        write_manifest(self._root, self.place, self.manifest)

    def abandon(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self._rows.abandon()
        self._discard()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._draft.unlink(missing_ok=True)


def moment(us: int) -> str:
    """Format microseconds since 1970 as ISO 8601, UTC."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).replace(microsecond=us % 1_000_000).isoformat(
        timespec="microseconds"
    )  # fmt: skip


def read_moment(text: str) -> datetime:
    """Read a time of a manifest; UTC if it names no zone. Raises ValueError, TypeError."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def manifest_path(root: Path, place: str) -> Path:
    return root / MANIFESTS / Path(place).with_suffix(".json")


def write_manifest(root: Path, place: str, about: Mapping[str, Any]) -> None:
    """Write a manifest under a hidden name, and rename it. Raises OSError."""
    path = manifest_path(root, place)
    make_folder(path.parent)
    draft = path.with_name(f".{path.name}{UNFINISHED}")
    with open(draft, "w", encoding="utf-8", opener=opener) as file:
        json.dump(about, file)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync_folders(root, path)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


def sync_folders(root: Path, path: Path) -> None:
    """Sync the file's folder and the folders from `root` down to it, so that the name survives a power failure."""
    folder = path
    while folder != root:
        folder = folder.parent
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
