"""Captured messages as Parquet: one row for each PUBLISH that came, in the order in which they came.

Owns: the columns, ``Writer`` (whole files only), and ``rows``, which reads any capture back in batches.

Promises: a file that stands under its name is whole: it is written under another one and renamed at the end. Memory is
bounded by one batch, for reading and for writing. A file that is no capture is a ``CaptureError`` with one line for
people.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from canopy_load.errors import LoadError
from canopy_mqtt.record.files.current_files import current_files
from canopy_mqtt.record.files.folder import RecorderError
from canopy_mqtt.record.files.parts import parts

FORMAT: Final = 1
"""Version of the format; it grows when a column changes its meaning."""

PREFIX: Final = "canopy.capture."
BATCH: Final = 65_536
"""Rows read at a time."""

PUBLISH: Final = "publish"
"""The kind of a recorder's events that are messages."""

_PAIR: Final = pa.struct([("key", pa.string()), ("value", pa.string())])
COLUMNS: Final = {
    "ts": pa.timestamp("us", tz="UTC"),
    "recv_ns": pa.int64(),
    "topic": pa.string(),
    "payload": pa.binary(),
    "size": pa.int32(),
    "qos": pa.int8(),
    "retain": pa.bool_(),
    "dup": pa.bool_(),
    "properties": pa.list_(_PAIR),
    "payload_format": pa.int8(),
    "content_type": pa.string(),
    "response_topic": pa.string(),
    "correlation_data": pa.binary(),
    "message_expiry": pa.int64(),
}


class CaptureError(LoadError):
    """A capture that cannot be written or read."""


def schema(sizes_only: bool) -> Any:
    """The Arrow schema of a capture, without `payload` where sizes only are kept.

    Columns: `ts` (UTC, microseconds), `recv_ns` (monotonic, since the capture began), `topic`, `payload` (absent when
    sizes only were wanted), `size` (bytes of the payload), `qos`, `retain`, `dup`, `properties` (user properties in
    their order), and of MQTT 5.0 `payload_format`, `content_type`, `response_topic`, `correlation_data`,
    `message_expiry` (seconds); null where a message has none. The file's metadata, under `canopy.capture.`: `format`,
    `broker`, `target`, `mqtt`, `filters` (JSON), `begun` (ISO 8601, UTC), `count`.
    """
    return pa.schema([(name, kind) for name, kind in COLUMNS.items() if name != "payload" or not sizes_only])


class Writer:
    """A capture being written. Leaving the block without an error gives the file its name.

    Raises:
        CaptureError: the file exists already, or its folder cannot be written to.
    """

    def __init__(self, path: Path, sizes_only: bool) -> None:
        self.path = path
        self.schema = schema(sizes_only)
        self.count = 0
        if path.exists():
            raise CaptureError(f"{path}: exists already; give another name")
        with _writing(path):
            number, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".part", dir=path.parent)
            os.close(number)
        self._draft = Path(name)
        self._file = pq.ParquetWriter(
            name, self.schema, compression="zstd", use_dictionary=["topic", "content_type", "response_topic"]
        )

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write a batch, given as values by column, as a row group. Blocks.

        Raises:
            CaptureError: it cannot be written.
        """
        rows = pa.record_batch(
            [pa.array(columns[each.name], each.type) for each in self.schema], schema=self.schema
        )  # fmt: skip
        with _writing(self.path):
            self._file.write_batch(rows)
        self.count += rows.num_rows

    def finish(self, metadata: Mapping[str, str]) -> None:
        """Write the metadata and close the file. Blocks.

        Raises:
            CaptureError: it cannot be written.
        """
        about = {"format": str(FORMAT), "count": str(self.count), **metadata}
        with _writing(self.path):
            self._file.add_key_value_metadata({PREFIX + name: value for name, value in about.items()})
            self._file.close()
            # A temporary file is its owner's alone; a capture is as readable as other files are.
            mask = os.umask(0)
            os.umask(mask)
            self._draft.chmod(0o666 & ~mask)
            self._draft.replace(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._draft.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CaptureError(f"{path}: cannot be written ({_reason(error)})") from error


@dataclass(frozen=True)
class About:
    """The metadata of a capture, as far as it has any."""

    files: tuple[Path, ...]
    filters: tuple[str, ...] = ()
    """The topic filters that were subscribed to."""
    values: dict[str, str] = field(default_factory=dict)
    """Everything under `canopy.capture.` in the first file."""


def about(path: Path) -> About:
    """Look at a capture: a file or a folder of them.

    Raises:
        CaptureError: there is none, or one of the files is no capture.
    """
    files = _files(path)
    values: dict[str, str] = {}
    for number, file in enumerate(files):
        with _opened(file) as opened:
            _check_columns(file, opened.schema_arrow, several=len(files) > 1)
            if not number:
                found = opened.metadata.metadata or {}
                values = {
                    key.decode().removeprefix(PREFIX): value.decode("utf-8", "replace")
                    for key, value in found.items()
                    if key.decode("utf-8", "replace").startswith(PREFIX)
                }
    if values.get("format", str(FORMAT)) != str(FORMAT):
        raise CaptureError(f"{files[0]}: is of format {values['format']}, and this Canopy reads format {FORMAT}")
    filters: Any = []
    with contextlib.suppress(ValueError):
        filters = json.loads(values.get("filters", "[]"))
    whole = isinstance(filters, list) and all(isinstance(each, str) for each in filters)
    return About(files, tuple(filters) if whole else (), values)


def rows(found: About) -> Iterator[Any]:
    """Yield all messages in batches of at most `BATCH` rows with the columns `time` (nanoseconds, never falling),
    `topic`, `size`, `qos` and `retain`; the last two 0 and false where the capture does not have them. Blocks.

    Columns are found by name: a reader needs `topic`, one of `recv_ns` and `ts`, and one of `size` and `payload`;
    others that it does not know it leaves alone. A folder is read as its `.parquet` files in the order of their names,
    by `ts`, since `recv_ns` begins anew in each. A folder of the broker's recorder is read too, as far as its segments
    are in force; of the rows, those of the kind `publish` are messages.

    Raises:
        CaptureError: a file cannot be read to its end, or holds what no message can be.
    """
    last: int | None = None
    by_clock = len(found.files) > 1
    for file in found.files:
        with _opened(file) as opened:
            names = opened.schema_arrow.names
            wanted = [name for name in ("topic", "qos", "retain") if name in names]
            # A merged segment may hold several runs of a broker, each with a clock of its own.
            runs = "run_id" in names and "ts" in names
            wanted.append("ts" if by_clock or runs or "recv_ns" not in names else "recv_ns")
            wanted.append("size" if "size" in names else "payload")
            # A recorder's events: messages, and what else happened.
            wanted += ["kind"] if "kind" in names else []
            try:
                for batch in opened.iter_batches(BATCH, columns=wanted):
                    messages = batch
                    if "kind" in names:
                        messages = batch.filter(pc.equal(batch.column("kind"), PUBLISH))
                    if messages.num_rows:
                        plain, last = _plain(messages, last)
                        yield plain
            except (pa.ArrowException, OSError, ValueError) as error:
                raise CaptureError(f"{file}: cannot be read to its end ({_reason(error)})") from error


def _plain(batch: Any, last: int | None) -> tuple[Any, int]:
    """The columns that `rows` promises, and the last time."""
    count = batch.num_rows
    names = batch.schema.names
    if "recv_ns" in names:
        time = batch.column("recv_ns").cast(pa.int64())
    else:
        time = batch.column("ts").cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64())
    size = batch.column("size") if "size" in names else pc.binary_length(batch.column("payload").cast(pa.binary()))
    columns = {
        "time": time,
        "topic": batch.column("topic").cast(pa.string()),
        "size": size.cast(pa.int64()),
        "qos": batch.column("qos").cast(pa.int64()) if "qos" in names else pa.repeat(pa.scalar(0, pa.int64()), count),
        "retain": batch.column("retain") if "retain" in names else pa.repeat(pa.scalar(False), count),
    }
    for name, column in columns.items():
        if column.null_count:
            raise ValueError(f"a message without {name}")
    for name, top in (("qos", 2), ("size", 268_435_455)):
        low, high = pc.min_max(columns[name]).values()
        if low.as_py() < 0 or high.as_py() > top:
            raise ValueError(f"{name} {low.as_py() if low.as_py() < 0 else high.as_py()}: not from 0 to {top}")
    # Clocks are set back now and then.
    if last is not None:
        columns["time"] = pc.max_element_wise(columns["time"], pa.scalar(last, pa.int64()))
    columns["time"] = pc.cumulative_max(columns["time"])
    return pa.record_batch(list(columns.values()), names=list(columns)), columns["time"][count - 1].as_py()


def _files(path: Path) -> tuple[Path, ...]:
    if path.is_dir():
        files: tuple[Path, ...] = ()
        if not path.absolute().name.startswith(("date=", "hour=")):
            files = tuple(sorted(each for each in path.glob("[!._]*.parquet") if each.is_file()))
        files = files or _segments(path)
        if not files:
            raise CaptureError(f"{path}: no .parquet file in this folder")
        return files
    if not path.is_file():
        raise CaptureError(f"{path}: no such file or folder")
    return (path,)


def _segments(folder: Path) -> tuple[Path, ...]:
    """A recorder's segments that count, in the order of their events: all of them, or those of a day or an hour."""
    folder = root = folder.absolute()
    while root.name.startswith(("date=", "hour=")):
        root = root.parent
    if (found := parts(root)) != [root]:
        # Their times overlap.
        raise CaptureError(f"{folder}: the record of several workers: give one of its folders, such as {found[-1]}")
    try:
        return tuple(root / place for place in current_files(root) if (root / place).is_relative_to(folder))
    except RecorderError as error:
        raise CaptureError(str(error)) from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        opened = pq.ParquetFile(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, PermissionError):
            raise CaptureError(f"{path}: cannot be read ({_reason(error)})") from error
        raise CaptureError(f"{path}: not a whole Parquet file ({_reason(error)})") from error
    with opened:
        yield opened


def _check_columns(path: Path, found: Any, several: bool) -> None:
    names = found.names
    times = ("ts",) if several else ("recv_ns", "ts")
    for wanted in (("topic",), times, ("size", "payload")):
        if not any(name in names for name in wanted):
            raise CaptureError(f"{path}: no capture: it has no column {' or '.join(wanted)}")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno and error.strerror:
        return error.strerror.lower()
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
