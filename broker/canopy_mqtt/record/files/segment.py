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


class Segment:
    def __init__(self, root: Path, run_id: str, first_seq: int, first_ts_us: int) -> None:
        """Open it. Raises OSError."""
        begun = datetime.fromtimestamp(first_ts_us / 1e6, UTC)
        self.place = f"date={begun:%Y-%m-%d}/hour={begun:%H}/seg-{run_id}-{first_seq:015d}.parquet"
        self.path = root / self.place
        self._root = root
        self._run_id = run_id
        self._draft = self.path.with_name(f".{self.path.stem}{UNFINISHED}")
        make_folder(self._draft.parent)
        self._file = open(self._draft, "wb", opener=opener)  # noqa: SIM115  it outlives this function
        try:
            self._rows = RowGroups(self._file, SCHEMA)
        except BaseException:
            self._discard()
            raise
        self.opened_at = time.monotonic()
        self.rows = 0
        self.from_seq = first_seq
        self.to_seq = first_seq
        self._first_ts = first_ts_us
        self._last_ts = first_ts_us
        self._kinds: dict[str, int] = {}
        self._gaps: list[list[int]] = []
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
        self.rows += batch.num_rows
        self.to_seq = batch.column("seq")[-1].as_py()
        span = pc.min_max(batch.column("ts").cast(pa.int64()))
        self._first_ts = min(self._first_ts, span["min"].as_py())
        self._last_ts = max(self._last_ts, span["max"].as_py())
        for count in pc.value_counts(batch.column("kind")).to_pylist():
            self._kinds[count["values"]] = self._kinds.get(count["values"], 0) + count["counts"]
        if batch.column("from_seq").null_count < batch.num_rows:
            gaps = batch.filter(pc.is_valid(batch.column("from_seq")))
            self._gaps += [[row["from_seq"], row["to_seq"], row["n"]] for row in gaps.to_pylist()]
        self._rows.add(batch)

    def finish(self) -> None:
        """Rename the file to its final name, and write its manifest. Raises OSError."""
        self._rows.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._draft.rename(self.path)
        sync_folders(self._root, self.path)
        self.manifest = manifest(
            self.place,
            self.path,
            self._run_id,
            self.rows,
            (self.from_seq, self.to_seq),
            (self._first_ts, self._last_ts),
            self._kinds,
            self._gaps,
        )
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


def manifest(
    place: str,
    path: Path,
    run_id: str,
    rows: int,
    seqs: tuple[int, int],
    times_us: tuple[int, int],
    kinds: Mapping[str, int],
    gaps: list[list[int]],
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "segment": place,
        "run_id": run_id,
        "rows": rows,
        "from_seq": seqs[0],
        "to_seq": seqs[1],
        "first_ts": moment(times_us[0]),
        "last_ts": moment(times_us[1]),
        "kinds": dict(sorted(kinds.items())),
        "bytes": path.stat().st_size,
        "sha256": checksum(path),
        "gaps": gaps,
    }


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
