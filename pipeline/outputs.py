"""Where a job leaves its tables and small files: a folder of this machine, or of storage that Spark's Hadoop clients
reach.

Owns: `Results`, which is what most jobs need, and `Folder` beneath it: move, list, remove, small texts. Moving a file
replaces the one that is there: at once on this machine, as deletion and renaming elsewhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.errors import MisuseError, PipelineError
from pipeline.segments import record_of
from pipeline.storage import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Folder(Protocol):
    """A place that is written to; all paths are relative to it."""

    def path(self, place: str) -> str:
        """As Spark takes it."""

    def names(self, place: str) -> list[str]:
        """What is in a folder, sorted; nothing where there is none."""

    def move(self, place: str, to: str) -> None:
        """Put a file under another name, in place of what is there."""

    def remove(self, place: str) -> None:
        """Delete a file or a whole folder; no matter if it is gone."""

    def text(self, place: str) -> str | None:
        """A small file, or None where there is none."""

    def write(self, place: str, text: str) -> None:
        """A small file, whole or not at all."""


def folder(spark: SparkSession, path: str) -> Folder:
    """The folder that a path names; without a scheme it is this machine's."""
    local = local_path(path)
    return RemoteFolder(spark, path) if local is None else LocalFolder(local)


def check(inputs: Sequence[str], output: str, option: str = "--output") -> None:
    """Refuse a folder that cannot be written to, or that is part of an input: its tables would be read as events.

    Raises:
        MisuseError: it is a file, or lies in an input.
        PipelineError: it cannot be written to.
    """
    place = local_path(output)
    for path in inputs:
        root = local_path(record_of(path)[0])
        if place is not None and root is not None:
            inside = place.resolve().is_relative_to(root.resolve())
        else:
            inside = f"{output.rstrip('/')}/".startswith(f"{path.rstrip('/')}/")
        if inside:
            raise MisuseError(f"{option} {output}: lies in --input {path} and would be read as events; give another")
    if place is None:
        return
    # The folder itself is made with its first table.
    there = next(above for above in (place, *place.absolute().parents) if above.exists())
    if not there.is_dir():
        raise MisuseError(f"{option} {output}: {there} is a file; give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PipelineError(f"{option} {output}: {there} cannot be written to; give another, or its permission")


class Results:
    """The output folder of one job: tables that are replaced as a whole, and small files beside them."""

    def __init__(self, spark: SparkSession, output: str) -> None:
        self._output = output
        self._folder = folder(spark, output)

    def path(self, name: str) -> str:
        """As Spark takes it."""
        return self._folder.path(name)

    def table(self, frame: DataFrame, name: str) -> None:
        """Replace a table; it is there with its columns even when it has no row."""
        frame.write.mode("overwrite").parquet(self.path(name))

    def read(self, name: str) -> str | None:
        """A small file, or None where there is none."""
        return self._folder.text(name)

    def text(self, name: str, text: str) -> None:
        """Put a small file in its place.

        Raises:
            PipelineError: the folder cannot be written.
        """
        try:
            self._folder.write(name, text)
        except OSError as error:
            raise PipelineError(f"--output {self._output}: {error.strerror or error}") from error


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def path(self, place: str) -> str:
        return f"file:{self.root / place}"

    def names(self, place: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / place))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def move(self, place: str, to: str) -> None:
        target = self.root / to
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.root / place, target)

    def remove(self, place: str) -> None:
        target = self.root / place
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def text(self, place: str) -> str | None:
        try:
            return (self.root / place).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, place: str, text: str) -> None:
        target = self.root / place
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.part")
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)


class RemoteFolder:
    """A folder that Hadoop's clients reach."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        context: Any = spark.sparkContext
        self._hadoop: Any = context._jvm.org.apache.hadoop
        self._utils: Any = context._jvm.org.apache.commons.io.IOUtils
        self._root = path.rstrip("/")
        self._system: Any = self._at("").getFileSystem(context._jsc.hadoopConfiguration())

    def _at(self, place: str) -> Any:
        return self._hadoop.fs.Path(f"{self._root}/{place}" if place else self._root)

    def path(self, place: str) -> str:
        return f"{self._root}/{place}"

    def names(self, place: str) -> list[str]:
        where = self._at(place)
        if not self._system.exists(where):
            return []
        return sorted(str(status.getPath().getName()) for status in self._system.listStatus(where))

    def move(self, place: str, to: str) -> None:
        target = self._at(to)
        self._system.mkdirs(target.getParent())
        if not self._system.exists(self._at(place)):
            raise FileNotFoundError(f"{self.path(place)}: no such file")
        self._system.delete(target, False)
        if not self._system.rename(self._at(place), target):
            raise OSError(f"{self.path(place)}: cannot be moved to {self.path(to)}")

    def remove(self, place: str) -> None:
        self._system.delete(self._at(place), True)

    def text(self, place: str) -> str | None:
        where = self._at(place)
        if not self._system.exists(where):
            return None
        stream = self._system.open(where)
        try:
            return str(self._utils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, place: str, text: str) -> None:
        # Object stores show a file when it is closed; renaming would copy it.
        stream = self._system.create(self._at(place), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
