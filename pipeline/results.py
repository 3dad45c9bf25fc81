"""What a job leaves in its output folder: tables as Parquet, and small files beside them.

Promises: works on this machine's folders and on whatever storage Spark's Hadoop clients reach. A table is replaced as a
whole; a small file is written under a hidden name and renamed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")


class Results:
    """The output folder of one job."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        # What has no scheme is this machine's, whatever Spark's default file system is.
        local = re.sub(r"^file:(//)?(?=/)", "", folder)
        self._local = None if _SCHEME.match(local) else Path(local).absolute()
        self.folder = folder.rstrip("/") if self._local is None else f"file:{self._local}"

    def table(self, frame: DataFrame, name: str) -> None:
        """Replace a table; it is there with its columns even when it has no row."""
        frame.write.mode("overwrite").parquet(f"{self.folder}/{name}")

    def text(self, name: str, text: str) -> None:
        """Put a small file in its place.

        Raises:
            PipelineError: the folder cannot be written.
        """
        if self._local is None:
            self._remote(name, text)
            return
        try:
            self._local.mkdir(parents=True, exist_ok=True)
            draft = self._local / f".{name}.part"
            draft.write_text(text, encoding="utf-8")
            os.replace(draft, self._local / name)
        except OSError as error:
            raise PipelineError(f"--output {self._local}: {error.strerror or error}") from error

    def _remote(self, name: str, text: str) -> None:
        context: Any = self._spark.sparkContext
        paths: Any = context._jvm.org.apache.hadoop.fs.Path
        path = paths(self.folder, name)
        # Object stores show a file when it is closed; renaming would copy it.
        stream = path.getFileSystem(context._jsc.hadoopConfiguration()).create(path, True)
        try:
            stream.write(bytearray(text, "utf-8"))
        finally:
            stream.close()
