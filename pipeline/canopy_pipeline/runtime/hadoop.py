"""A file system of pyarrow's on Spark's Hadoop clients: for storages that only these reach, or have the keys of.

Owns the way over py4j: what is asked of many files goes in one call for a folder. Needs a Spark whose Java machine is
in reach.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyarrow import fs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ADDRESS: Final = re.compile(r"[^:/]+:(?://[^/]*)?")
_STATUS: Final = re.compile(r"(?:^\{|,)\w+\{path=([^;]*); isDirectory=(true|false)(?:; length=(\d+))?")
"""In a list of Hadoop's FileStatus."""
CALLS: Final = 32
"""Folders that are listed at once."""


def parts(path: str) -> tuple[str, str]:
    """The address of a storage, as in hdfs://host, and the path in it."""
    found = _ADDRESS.match(path)
    address = found[0] if found is not None else ""
    return address, path[len(address) :]


class HadoopHandler(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """A file system for pyarrow over Hadoop's client; for small files."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        # The session's own gateway: the jobs' classes are loaded there, and so are the credentials.
        context: Any = spark.sparkContext
        self._hadoop: Any = context._jvm.org.apache.hadoop
        self._arrays: Any = context._jvm.org.apache.commons.lang3.ArrayUtils
        self._address = address
        self._system: Any = self._at("/").getFileSystem(context._jsc.hadoopConfiguration())

    def _at(self, path: str) -> Any:
        return self._hadoop.fs.Path(self._address + path)

    def get_type_name(self) -> str:
        return "hadoop"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> Any:
        try:
            with _told():
                status = self._system.getFileStatus(self._at(path))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)
        if status.isDirectory():
            return fs.FileInfo(path, fs.FileType.Directory)
        return fs.FileInfo(path, fs.FileType.File, size=int(status.getLen()))

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        found: list[Any] = []
        folders = [selector.base_dir]
        with ThreadPoolExecutor(CALLS) as pool:
            while folders:
                try:
                    listed = [each for listing in pool.map(self._listed, folders) for each in listing]
                except FileNotFoundError:
                    if not selector.allow_not_found:
                        raise
                    break
                found += listed
                folders = [each.path for each in listed if not each.is_file] if selector.recursive else []
        return found

    def _listed(self, folder: str) -> list[Any]:
        with _told():
            statuses = self._system.listStatus(self._at(folder))
            # As one text: to ask for each by itself costs five calls a file.
            told = _STATUS.findall(str(self._arrays.toString(statuses)))
            if len(told) != len(statuses):
                told = [
                    (str(each.getPath().toString()), "true" if each.isDirectory() else "false", str(each.getLen()))
                    for each in statuses
                ]
        return [
            fs.FileInfo(parts(path)[1], fs.FileType.Directory)
            if is_folder == "true"
            else fs.FileInfo(parts(path)[1], fs.FileType.File, size=int(size))
            for path, is_folder, size in told
        ]

    def open_input_stream(self, path: str) -> Any:
        with _told():
            stream = self._system.open(self._at(path))
            try:
                return pa.BufferReader(bytes(stream.readAllBytes()))
            finally:
                stream.close()

    def open_input_file(self, path: str) -> Any:
        with _told():
            return pa.PythonFile(
                _Reading(self._system.open(self._at(path)), int(self._system.getFileStatus(self._at(path)).getLen())),
                mode="r",
            )

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        del metadata
        with _told():
            return pa.PythonFile(_Writing(self._system.create(self._at(path), True)), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        del metadata
        raise OSError(f"{self._address}{path}: cannot be added to")

    def create_dir(self, path: str, recursive: bool) -> None:
        del recursive
        with _told():
            self._system.mkdirs(self._at(path))

    def delete_dir(self, path: str) -> None:
        with _told():
            self._system.delete(self._at(path), True)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        del missing_dir_ok
        for each in self._listed(path):
            self.delete_dir(each.path)

    def delete_root_dir_contents(self) -> None:
        raise OSError(f"{self._address}: not all of it")

    def delete_file(self, path: str) -> None:
        with _told():
            self._system.delete(self._at(path), False)

    def move(self, src: str, dest: str) -> None:
        with _told():
            if not self._system.exists(self._at(src)):
                raise FileNotFoundError(f"{self._address}{src}: no such file")
            self._system.delete(self._at(dest), False)
            if not self._system.rename(self._at(src), self._at(dest)):
                raise OSError(f"{self._address}{src}: cannot be moved to {dest}")

    def copy_file(self, src: str, dest: str) -> None:
        with self.open_input_stream(src) as read, self.open_output_stream(dest, None) as written:
            written.write(read.read())


class _Reading(io.RawIOBase):
    def __init__(self, stream: Any, size: int) -> None:
        self._stream = stream
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = begin + offset
        with _told():
            self._stream.seek(self._at)
        return self._at

    def readinto(self, buffer: Any) -> int:
        with _told():
            read = bytes(self._stream.readNBytes(len(buffer)))
        buffer[: len(read)] = read
        self._at += len(read)
        return len(read)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class _Writing(io.RawIOBase):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _told():
            self._stream.write(bytearray(data))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            with _told():
                self._stream.close()
        super().close()


@contextmanager
def _told() -> Iterator[None]:
    """Raise the errors of a Hadoop client as Python's own."""
    try:
        yield
    except Py4JJavaError as error:
        text = str(error.java_exception.toString())
        raise (FileNotFoundError(text) if "FileNotFoundException" in text else OSError(text)) from error
