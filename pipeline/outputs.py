"""Where a job leaves its tables and small files: any place that `storage` reaches.

Owns: `Results`, which is what most jobs need, and `Folder` beneath it: move, list, remove, small texts. Moving a file
replaces the one that is there: at once on this machine, as copy and deletion elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pipeline.errors import MisuseError, PipelineError
from pipeline.record.segments import record_of
from pipeline.runtime.storage import Storage, local_path, storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY: Final = "summary.json"
PAGE: Final = "index.html"


class Folder:
    """A place that is written to; all paths are relative to it."""

    def __init__(self, place: Storage) -> None:
        self._place = place

    def path(self, place: str) -> str:
        """As Spark takes it."""
        return self._place.at(place)

    def names(self, place: str) -> list[str]:
        """What is in a folder, sorted; nothing where there is none."""
        return self._place.names(place)

    def move(self, place: str, to: str) -> None:
        """Put a file under another name, in place of what is there."""
        self._place.move(place, to)

    def remove(self, place: str) -> None:
        """Delete a file or a whole folder; no matter if it is gone."""
        self._place.remove(place)

    def text(self, place: str) -> str | None:
        """A small file, or None where there is none."""
        try:
            return self._place.text(place)
        except FileNotFoundError:
            return None

    def write(self, place: str, text: str) -> None:
        """A small file, whole or not at all."""
        self._place.write(place, text.encode())


def folder(spark: SparkSession | None, path: str) -> Folder:
    """The folder that a path names; without a scheme it is this machine's."""
    return Folder(storage(spark, path))


def begin(place: Folder) -> None:
    """Take away what an earlier run said of its tables. Whoever reads them goes by the summary, which comes last: a run
    that breaks off leaves none."""
    for name in (SUMMARY, PAGE):
        place.remove(name)


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

    def begin(self) -> None:
        """As `begin`."""
        begin(self._folder)

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
