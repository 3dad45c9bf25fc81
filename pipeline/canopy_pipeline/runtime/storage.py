"""The places of records and outputs: a folder of this machine, or what pyarrow has a file system for.

Owns: listing, reading and writing of small files, on the driver, by pyarrow's clients of s3:// (s3a://), gs://,
abfss:// and hdfs://. The rows are Spark's to read; `parquet` tells it from where.

Promises: hidden files (`.…`) and folders of metadata (`_…`) are not listed, as Spark itself does not. A listing costs
calls by folders and by thousands of files, never one for each file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):")
_PATTERN: Final = re.compile(r"[\\{}\[\]*?]")
_S3: Final = frozenset({"s3", "s3a", "s3n"})
_OBJECTS: Final = _S3 | {"gs", "gcs", "abfs", "abfss", "wasb", "wasbs"}
MANIFESTS: Final = "_manifests"
PATIENCE: Final = 30.0
"""Seconds without an answer of an object store, after which a call is tried again."""

CALLS: Final = 32
"""Calls that are under way at once where each costs a way over the network."""
CHUNK: Final = 8 * 1024 * 1024
"""Bytes of a file that are copied at once; object stores take parts of at least 5 MiB."""


@dataclass(frozen=True)
class File:
    """A file: its path as Spark takes it, its place under the folder that was listed, its size in bytes."""

    path: str
    place: str
    size: int


def local_path(path: str) -> Path | None:
    """The file or folder of this machine that a path names: one without a scheme, or file:. None: it is elsewhere."""
    plain = re.sub(r"^file:(//)?(?=/)", "", path)
    return None if _SCHEME.match(plain) else Path(plain)


def address(path: str) -> str:
    """Return the address of a place elsewhere, by one of the schemes that name it (s3:, not s3a:)."""
    scheme, _, rest = path.partition(":")
    return f"{'s3' if scheme.lower() in _S3 else scheme.lower()}://{rest.strip('/')}"


def parquet(reader: DataFrameReader | DataStreamReader, *paths: str) -> DataFrame:
    """The rows of files or folders of Parquet, by their names: Spark's readers look for patterns in them, its writers
    do not."""
    # A flipped bit is refused where who wrote the page put its checksum beside it.
    checked: Any = reader.option("parquet.page.verify-checksum.enabled", "true")
    read = checked.parquet  # that of a stream takes a single path
    rows: DataFrame = read(*(_PATTERN.sub(r"\\\g<0>", path) for path in paths))
    return rows


def storage(spark: SparkSession | None, path: str) -> Storage:
    """The storage that a path names; without a scheme it is this machine's.

    Raises:
        OSError: nothing here reaches such a place.
    """
    local = local_path(path)
    return Local(local) if local is not None else Storage(path, *_system(spark, path))


def _system(spark: SparkSession | None, path: str) -> tuple[Any, str]:
    """The file system of a path, and the path in it."""
    from pyarrow import fs

    scheme, _, rest = path.partition(":")
    if scheme.lower() in _S3:
        root = rest.strip("/")
        if not root:
            raise OSError(f"{path}: names no bucket; give {scheme}://BUCKET/PREFIX")
        return _s3(root.partition("/")[0], _s3_settings(spark)), root
    try:
        system, root = fs.FileSystem.from_uri(path)
    except ValueError as error:
        raise OSError(f"{path}: nothing here reaches such a place ({error})") from error
    return system, root


def _s3_settings(spark: SparkSession | None) -> tuple[tuple[str, str], ...]:
    """Return Spark's settings of S3 in pyarrow's words: both read the same place. AWS's own chain fills in the rest."""

    def told(name: str) -> str | None:
        conf = getattr(spark, "conf", None)  # DuckDB has none
        return None if conf is None else conf.get(f"spark.hadoop.fs.s3a.{name}", None)

    settings = {
        "endpoint_override": told("endpoint")
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL"),
        "region": told("endpoint.region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
    }
    if (key := told("access.key")) and (secret := told("secret.key")):
        settings |= {"access_key": key, "secret_key": secret, "session_token": told("session.token")}
    return tuple((name, value) for name, value in settings.items() if value)


@cache
def _s3(bucket: str, settings: tuple[tuple[str, str], ...]) -> Any:
    """Return an S3 client: one for each bucket and its settings."""
    from pyarrow import fs

    options: dict[str, Any] = dict(settings)
    if not options.keys() & {"endpoint_override", "region"}:
        # Nobody could be asked: the client's own guess.
        with suppress(OSError, ValueError):
            options["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(request_timeout=PATIENCE, connect_timeout=PATIENCE, **options)


class Storage:
    """A folder; all paths are relative to it. Raises OSError if it cannot be reached."""

    def __init__(self, path: str, system: Any, root: str) -> None:
        """`root`: the path as the file system `system` has it."""
        from pyarrow import fs

        self.path = path.rstrip("/")
        self.calls = CALLS
        """How many calls may be under way at once: more than 1 where each costs a way over the network."""
        self.local: Path | None = None
        # An object is there when it is closed, whole; a file as soon as it is opened.
        found = _SCHEME.match(path)
        self._objects = found is not None and found[1].lower() in _OBJECTS
        self.fs: Any = fs.SubTreeFileSystem(root, system)
        self._system = system
        self._root = root
        self.s3 = f"s3://{root}" if found is not None and found[1].lower() in _S3 else None
        """The address of a place in S3, by the scheme that all but Hadoop know."""

    # -- reading -------------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        from pyarrow import fs

        return bool(self._system.get_file_info(self._root).type != fs.FileType.NotFound)

    def is_folder(self) -> bool:
        """Return True if there is a folder, or on an object store something below that name."""
        from pyarrow import fs

        return bool(self._system.get_file_info(self._root).type == fs.FileType.Directory)

    def files(self, suffix: str | tuple[str, ...], under: str = "") -> list[File]:
        """All files whose names end so, below the folder (`under`: a part of it), sorted by place."""
        about = self._system.get_file_info(self._root)
        if about.is_file:
            # Somebody named it: whatever it is called.
            return [] if under else [File(self.path, self.path.rpartition("/")[2], int(about.size))]
        return [File(self.at(place), place, size) for place, size in self.listed(suffix, under).items()]

    def listed(self, suffix: str | tuple[str, ...], under: str = "", hidden: bool = False) -> dict[str, int]:
        """The files whose names end so, sorted, and how large each is; or those whose names are `hidden`."""
        from pyarrow import fs

        def infos(folder: str, recursive: bool) -> list[Any]:
            found: list[Any] = self.fs.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=recursive))
            return found

        top = infos(under, False)
        folders = [each.path for each in top if not each.is_file and not _hides(each.base_name)]
        with ThreadPoolExecutor(self.calls) as pool:
            below = [each for found in pool.map(lambda folder: infos(folder, True), folders) for each in found]
        made: dict[str, int] = {}
        for info in (*top, *below):
            place = str(info.path).lstrip("/")
            if not info.is_file or not place.endswith(suffix):
                continue
            *above, name = place.removeprefix(f"{under}/" if under else "").split("/")
            if any(map(_hides, above)) or (name.startswith(".") if hidden else _hides(name)) is not hidden:
                continue
            made[place] = int(info.size or 0)
        return dict(sorted(made.items()))

    def names(self, place: str) -> list[str]:
        """Return the names in a folder, sorted; an empty list if there is no such folder."""
        from pyarrow import fs

        return sorted(each.base_name for each in self.fs.get_file_info(fs.FileSelector(place, allow_not_found=True)))

    def size(self, place: str) -> int | None:
        """Return the size of a file in bytes; None if it is not there."""
        size: int | None = self.fs.get_file_info(place).size
        return size

    def at(self, place: str) -> str:
        """A place as Spark takes it."""
        return f"{self.path}/{place}"

    def read(self, place: str) -> bytes:
        with self.fs.open_input_stream(place) as stream:
            return bytes(stream.read())

    def text(self, place: str) -> str:
        return self.read(place).decode()

    def sha256(self, place: str) -> str:
        """Return the checksum of a file of this machine; empty elsewhere, where it would need a read of the whole file.

        Raises:
            OSError: it cannot be read.
        """
        del place
        return ""

    def ends(self, file: File) -> bytes:
        """Return the first four bytes of a file and its last four; fewer if it is shorter."""
        with self._system.open_input_file(self._root + file.path.removeprefix(self.path)) as opened:
            head = bytes(opened.read(4))
            opened.seek(max(0, file.size - 4))
            return head + bytes(opened.read(4))

    def fetch(self, file: File, to: str) -> None:
        """Copy a file to one of this machine. Raises OSError."""
        with (
            self._system.open_input_stream(self._root + file.path.removeprefix(self.path)) as source,
            open(to, "wb") as target,
        ):
            shutil.copyfileobj(source, target, CHUNK)

    # -- writing: each is one step that happens or does not ------------------------------------------------------------

    def draft(self, place: str, ending: str) -> str:
        """The name under which a file is written that `publish` gives its own."""
        folder, slash, name = place.rpartition("/")
        return place if self._objects else f"{folder}{slash}.{name}{ending}"

    def open(self, place: str) -> Any:
        """A file to be written to, as pyarrow has them; its folder is made."""
        self._make_folder(place)
        return self.fs.open_output_stream(place)

    def publish(self, draft: str, place: str) -> None:
        """Rename a draft to its name, durably, in place of the file there."""
        if draft != place:
            self.move(draft, place)

    def write(self, place: str, content: bytes) -> None:
        draft = self.draft(place, ".part")
        with self.open(draft) as stream:
            stream.write(content)
        self.publish(draft, place)

    def append(self, place: str, line: str) -> None:
        """Add a line to a file, durably."""
        before = b""
        with suppress(FileNotFoundError):
            before = self.read(place)
        self.write(place, before + line.encode() + b"\n")

    def move(self, place: str, to: str) -> None:
        """Rename a file, in place of the one there; atomically where the storage can."""
        self._make_folder(to)
        self.fs.move(place, to)

    def _make_folder(self, place: str) -> None:
        """The folder of a file; there are none in an object store, whose root need not be there either."""
        if not self._objects:
            self._system.create_dir(f"{self._root}/{place}".rpartition("/")[0], recursive=True)

    def remove(self, place: str) -> None:
        """Delete a file or a whole folder; no matter if it is gone."""
        from pyarrow import fs

        about = self.fs.get_file_info(place)
        with suppress(FileNotFoundError):
            if about.is_file:
                self.fs.delete_file(place)
            elif about.type == fs.FileType.Directory:
                self.fs.delete_dir(place)


class Local(Storage):
    """A folder, or a single file, of this machine: written files survive a power failure."""

    def __init__(self, root: Path) -> None:
        from pyarrow import fs

        super().__init__(f"file:{root.absolute()}", fs.LocalFileSystem(), str(root.absolute()))
        self.calls = 1
        self.local: Path = root.absolute()

    def listed(self, suffix: str | tuple[str, ...], under: str = "", hidden: bool = False) -> dict[str, int]:
        made: dict[str, int] = {}
        for path in _walk(self.local / under, hidden):
            if path.endswith(suffix):
                # It may go while the folder is looked at.
                with suppress(FileNotFoundError):
                    made[os.path.relpath(path, self.local)] = os.stat(path).st_size
        return dict(sorted(made.items()))

    def names(self, place: str) -> list[str]:
        try:
            return sorted(os.listdir(self.local / place))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def sha256(self, place: str) -> str:
        path = str(self.local / place)
        about = os.stat(path)
        return _digest(path, about.st_ino, about.st_size, about.st_mtime_ns)

    def publish(self, draft: str, place: str) -> None:
        _sync(self.local / draft)
        self.move(draft, place)
        _sync((self.local / place).parent)

    def append(self, place: str, line: str) -> None:
        with open(self.local / place, "ab+") as opened:
            opened.seek(max(0, opened.tell() - 1))
            # A line that broke off spoils no other.
            torn = opened.read(1) not in (b"", b"\n")
            opened.write((b"\n" if torn else b"") + line.encode() + b"\n")
            opened.flush()
            os.fsync(opened.fileno())

    def move(self, place: str, to: str) -> None:
        self._make_folder(to)
        os.replace(self.local / place, self.local / to)

    def link(self, places: Sequence[str], folder: str) -> None:
        """Give files a second name each, the same one in another folder of the same disk."""
        (self.local / folder).mkdir(parents=True, exist_ok=True)
        for place in places:
            os.link(self.local / place, self.local / folder / place.rpartition("/")[2])
        _sync(self.local / folder)

    def remove(self, place: str) -> None:
        target = self.local / place
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


@lru_cache(maxsize=65_536)
def _digest(path: str, *version: int) -> str:
    """The checksum of a file as it is now; the jobs of a report ask for it one after the other."""
    del version
    with open(path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _hides(name: str) -> bool:
    return name.startswith((".", "_"))


def _walk(top: Path, hidden: bool) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if not _hides(name)]
        for name in names:
            if name.startswith(".") if hidden else not _hides(name):
                yield os.path.join(folder, name)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
