"""Where a job leaves its tables and small files: any place that `storage` reaches.

Owns: what may be an output, and `Results`: tables that are replaced as a whole, and small files beside them.
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


def begin(place: Storage) -> None:
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
        self._place = storage(spark, output)

    def begin(self) -> None:
        """As `begin`."""
        begin(self._place)

    def path(self, name: str) -> str:
        """As Spark takes it."""
        return self._place.at(name)

    def table(self, frame: DataFrame, name: str) -> None:
        """Replace a table; it is there with its columns even when it has no row."""
        frame.write.mode("overwrite").parquet(self.path(name))

    def read(self, name: str) -> str | None:
        """A small file, or None where there is none."""
        try:
            return self._place.text(name)
        except FileNotFoundError:
            return None

    def text(self, name: str, text: str) -> None:
        """Put a small file in its place.

        Raises:
            PipelineError: the folder cannot be written.
        """
        try:
            self._place.write(name, text.encode())
        except OSError as error:
            raise PipelineError(f"--output {self._output}: {error.strerror or error}") from error
