"""Where segments lie: a folder of this machine, or whatever storage Spark's Hadoop clients reach (s3a://, hdfs:// …).

Owns: listing, and reading of small files and file ends, on the driver. The rows are Spark's to read; `parquet` tells it
from where.

Promises: hidden files (`.…`) and folders of metadata (`_…`) are not listed, as Spark itself does not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

try:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
except ModuleNotFoundError:  # Jobs that need no Spark read this machine's folders alone.
    Py4JJavaError = OSError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")
_STATUS: Final = re.compile(r"(?:^\{|,)\w+\{path=([^;]*); isDirectory=(true|false)(?:; length=(\d+))?")
"""In a list of Hadoop's FileStatus."""
_PATTERN: Final = re.compile(r"[\\{}\[\]*?]")
MANIFESTS: Final = "_manifests"


@dataclass(frozen=True)
class File:
    """A file: its path as Spark takes it, its place under the folder that was listed, its size in bytes."""

    path: str
    place: str
    size: int


class Storage(Protocol):
    """One place that is read from."""

    calls: int
    """How many calls may be under way at once: more than 1 where each costs a way over the network."""

    def exists(self) -> bool:
        """Whether there is something."""

    def files(self, suffix: str, under: str = "") -> list[File]:
        """All files whose names end so, below the folder (`under`: a part of it), sorted by place."""

    def text(self, place: str) -> str:
        """A small file, whole. Raises OSError."""

    def ends(self, file: File) -> bytes:
        """The first four bytes of a file and its last four; fewer where it is shorter. Raises OSError."""


def storage(spark: SparkSession, path: str) -> Storage:
    """The storage that a path names; without a scheme it is this machine's."""
    local = local_path(path)
    return Remote(spark, path) if local is None else Local(local)


def local_path(path: str) -> Path | None:
    """The file or folder of this machine that a path names: one without a scheme, or file:. None: it is elsewhere."""
    plain = re.sub(r"^file:(//)?(?=/)", "", path)
    return None if _SCHEME.match(plain) else Path(plain)


def parquet(reader: DataFrameReader | DataStreamReader, *paths: str) -> DataFrame:
    """The rows of files or folders of Parquet, by their names: Spark's readers look for patterns in them, its writers
    do not."""
    # A flipped bit is refused where who wrote the page put its checksum beside it.
    checked: Any = reader.option("parquet.page.verify-checksum.enabled", "true")
    read = checked.parquet  # that of a stream takes a single path
    rows: DataFrame = read(*(_PATTERN.sub(r"\\\g<0>", path) for path in paths))
    return rows


class Local:
    """A folder, or a single file, of this machine."""

    calls: int = 1

    def __init__(self, root: Path) -> None:
        self.root = root

    def exists(self) -> bool:
        return self.root.exists()

    def files(self, suffix: str, under: str = "") -> list[File]:
        if self.root.is_file():
            # Somebody named it: whatever it is called.
            return [] if under else [self._file(self.root, self.root.parent)]
        top = self.root / under
        return sorted((self._file(Path(path), self.root) for path in _walk(top, suffix)), key=lambda file: file.place)

    def _file(self, path: Path, base: Path) -> File:
        # As Spark takes it: nothing in it is escaped.
        return File(f"file:{path.absolute()}", path.relative_to(base).as_posix(), path.stat().st_size)

    def text(self, place: str) -> str:
        return (self.root / place).read_text(encoding="utf-8")

    def ends(self, file: File) -> bytes:
        with open(file.path.removeprefix("file:"), "rb") as opened:
            head = opened.read(4)
            opened.seek(max(0, file.size - 4))
            return head + opened.read(4)


def _walk(top: Path, suffix: str) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in names:
            if name.endswith(suffix) and not name.startswith((".", "_")):
                yield os.path.join(folder, name)


class Remote:
    """A folder, or a file, that Hadoop's clients reach."""

    calls: int = 32

    def __init__(self, spark: SparkSession, path: str) -> None:
        # The session's own gateway: the jobs' classes are loaded there, and so are the credentials.
        context: Any = spark.sparkContext
        self._jvm: Any = context._jvm
        self._path = self._jvm.org.apache.hadoop.fs.Path(path)
        self._system: Any = self._path.getFileSystem(context._jsc.hadoopConfiguration())
        self._root = str(self._system.makeQualified(self._path).toString())

    def exists(self) -> bool:
        return bool(self._system.exists(self._path))

    def files(self, suffix: str, under: str = "") -> list[File]:
        top = self._jvm.org.apache.hadoop.fs.Path(self._path, under) if under else self._path
        if not self._system.exists(top):
            return []
        if self._system.getFileStatus(top).isFile():
            return [] if under else [self._file(self._system.getFileStatus(top), top.getName())]
        found: list[File] = []
        folders = [str(self._system.makeQualified(top).toString())]
        with ThreadPoolExecutor(self.calls) as pool:
            while folders:
                listed = [each for listing in pool.map(self._listed, folders) for each in listing]
                listed = [each for each in listed if not each[0].rpartition("/")[2].startswith((".", "_"))]
                folders = [path for path, size in listed if size is None]
                for path, size in listed:
                    if size is not None and path.endswith(suffix):
                        found.append(File(path, path[len(self._root) :].lstrip("/"), size))
        return sorted(found, key=lambda file: file.place)

    def _listed(self, folder: str) -> list[tuple[str, int | None]]:
        """What is in a folder, and how large it is; None of a folder."""
        try:
            statuses = self._system.listStatus(self._jvm.org.apache.hadoop.fs.Path(folder))
        except Py4JJavaError as error:
            raise _as_system_error(error) from error
        # As one text: to ask for each by itself costs five calls a file.
        told = _STATUS.findall(str(self._jvm.org.apache.commons.lang3.ArrayUtils.toString(statuses)))
        if len(told) == len(statuses):
            return [(path, None if is_folder == "true" else int(size)) for path, is_folder, size in told]
        return [
            (str(each.getPath().toString()), None if each.isDirectory() else int(each.getLen())) for each in statuses
        ]

    def _file(self, status: Any, place: str) -> File:
        return File(str(status.getPath().toString()), place, int(status.getLen()))

    def text(self, place: str) -> str:
        try:
            stream = self._open(self._jvm.org.apache.hadoop.fs.Path(self._path, place))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise _as_system_error(error) from error

    def ends(self, file: File) -> bytes:
        stream = self._open(self._jvm.org.apache.hadoop.fs.Path(file.path))
        try:
            head = bytes(stream.readNBytes(4))
            stream.seek(max(0, file.size - 4))
            return head + bytes(stream.readNBytes(4))
        finally:
            stream.close()

    def _open(self, path: Any) -> Any:
        return self._system.open(path)


def _as_system_error(error: Py4JJavaError) -> OSError:
    """What a Hadoop client threw, as Python has it."""
    text = str(error.java_exception.toString())
    return FileNotFoundError(text) if "FileNotFoundException" in text else OSError(text)
