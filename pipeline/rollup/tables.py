"""Where the rollup's tables lie, and how an hour of them is replaced.

Promises: an hour of a table is one file (of the table of minutes: one for each ten of them), written aside and moved
into its place, so that a reader of this machine finds the old one or the new one.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame

from pipeline.errors import PipelineError
from pipeline.outputs import Folder, folder
from pipeline.rollup.transforms import CELLS, SUMMARY, publishers, summary
from pipeline.runtime.engine import f, nothing
from pipeline.runtime.storage import parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTES: Final = "minutes"
HOURS: Final = "hours"
PUBLISHERS: Final = "publishers"
STATE: Final = "_state"
NOTE: Final = "_rollup.json"
STAGING: Final = "_staging-"
FORMAT: Final = 2
"""Of a stream's memory and of the names of its files."""

PARTITION: Final = ("date", "hour", "part")
PART: Final = 10
"""Minutes of a part of an hour: a stream writes such parts again, not hours, and several tasks write an hour."""


@dataclass(frozen=True)
class Shown:
    """What a page is made of. `by_hour` and `by_topic` are like the table `hours`; it is enough that the one adds up by
    time, and the other by topic."""

    minutes: DataFrame
    """Of a short record, which is shown by the minute, all of them."""
    by_hour: DataFrame
    by_topic: DataFrame
    rows: int
    """Rows of the table of minutes."""


class Tables:
    """The tables of one output folder.

    OUT/minutes/date=2026-11-21/hour=16/minutes-3.parquet     topic and minute, 16:30 to 16:39
    OUT/hours/date=2026-11-21/hour=16/hours.parquet           topic and hour
    OUT/publishers/date=2026-11-21/hour=16/publishers.parquet topic, client and hour
    OUT/_state/…                                              a stream's memory (`pipeline.rollup.memory`)
    OUT/_rollup.json                                          which stream writes here, if one does
    OUT/_staging-…/                                           being written; nobody reads it
    """

    def __init__(self, spark: SparkSession, output: str) -> None:
        self.spark = spark
        self.output = output
        self.folder: Folder = folder(spark, output)
        self._staging = f"{STAGING}{uuid.uuid4().hex[:8]}"

    def note(self) -> dict[str, Any] | None:
        """What is said of the output: which stream writes it; None where nothing is.

        Raises:
            PipelineError: it cannot be read.
        """
        text = self.folder.text(NOTE)
        if text is None:
            return None
        try:
            found = json.loads(text)
        except ValueError as error:
            raise PipelineError(f"{self.output}/{NOTE}: no JSON; give another --output") from error
        return dict(found)

    def describe(self, note: dict[str, Any]) -> None:
        """Say whose the output is."""
        self.folder.write(NOTE, json.dumps({"format": FORMAT, **note}) + "\n")

    def tidy(self) -> None:
        """Remove what an earlier run left half done, and this one's."""
        for name in self.folder.names(""):
            if name.startswith(STAGING):
                self.folder.remove(name)

    def rows(self, table: str, places: Sequence[str] | None = None) -> DataFrame:
        """A table, as it was published; or these hours of it."""
        reader = self.spark.read.schema(SUMMARY)
        if places is None:
            return parquet(reader, self.folder.path(table))
        if not places:
            return nothing(self.spark, SUMMARY)
        return parquet(reader, *(self.folder.path(f"{table}/{place}") for place in places))

    def shown(self) -> Shown | None:
        """What the page of these tables is made of; None where there is no hour."""
        if not self.folder.names(HOURS):
            return None
        minutes, hours = self.rows(MINUTES), self.rows(HOURS)
        return Shown(minutes, hours, hours, minutes.count())

    def replace(self, cells: DataFrame) -> None:
        """Publish the tables of these cells, and nothing else: what was there before goes."""
        where = self.folder.path(f"{self._staging}/cells")
        cells.write.mode("overwrite").option("compression", "zstd").parquet(where)
        whole = parquet(self.spark.read.schema(CELLS), where)
        for table, files in self._publish(whole).items():
            for place in self.places(table):
                if not any(file.startswith(f"{place}/") for file in files):
                    self.folder.remove(f"{table}/{place}")
                    continue
                for name in self.folder.names(f"{table}/{place}"):
                    if name.endswith(".parquet") and f"{place}/{name}" not in files:
                        self.folder.remove(f"{table}/{place}/{name}")
        self.folder.remove(STATE)

    def _publish(self, cells: DataFrame) -> dict[str, set[str]]:
        """Put these tables in place of what is there; the files of each."""
        timed = bool(cells.where(f.col("bucket").isNotNull()).limit(1).collect())
        hours = {HOURS: summary(cells, "hour", timed), PUBLISHERS: publishers(cells)}
        minutes = self.write(summary(cells, "minute", timed), MINUTES, "start", PARTITION)
        staged = {table: self.write(rows, table, "start") for table, rows in hours.items()}
        found = {table: self.move(files, table) for table, files in staged.items()}
        return {MINUTES: self.move(minutes, MINUTES), **found}

    def write(self, rows: DataFrame, table: str, at: str, by: Sequence[str] = ("date", "hour")) -> dict[str, str]:
        """Write rows aside, one file for each hour, or part of one, of their time `at`; the files by their places."""
        where = f"{self._staging}/{table}"
        (
            rows.withColumns(dict(zip(PARTITION, partition(at), strict=True)))
            .drop(*(name for name in PARTITION if name not in by))
            .repartition(*by)
            .sortWithinPartitions(*by, "topic", at)
            .write.mode("overwrite")
            .option("compression", "zstd")
            .partitionBy(*by)
            .parquet(self.folder.path(where))
        )
        found: dict[str, str] = {}
        for place in self.places(where, parts="part" in by):
            names = [name for name in self.folder.names(f"{where}/{place}") if name.endswith(".parquet")]
            names = [name for name in names if not name.startswith((".", "_"))]
            if len(names) != 1:
                raise PipelineError(f"{self.folder.path(where)}/{place}: Spark wrote {len(names)} files, not one")
            found[place] = f"{where}/{place}/{names[0]}"
        return found

    def places(self, table: str, since: str = "", parts: bool = False) -> list[str]:
        """The hours (date=…/hour=…) of a table from one on, or their parts (…/part=…)."""
        found = [
            f"{date}/{hour}"
            for date in self.folder.names(table)
            if date.startswith("date=") and date >= since[: len(date)]
            for hour in self.folder.names(f"{table}/{date}")
            if hour.startswith("hour=") and f"{date}/{hour}" >= since
        ]
        if not parts:
            return found
        return [
            f"{hour}/{part}"
            for hour in found
            for part in self.folder.names(f"{table}/{hour}")
            if part.startswith("part=")
        ]

    def move(self, files: dict[str, str], table: str) -> set[str]:
        """Put files that were written aside into their places, in place of what is there; as they are called there."""
        found = set()
        for place, file in files.items():
            hour, _, part = place.partition("/part=")
            name = f"{hour}/{table}-{part}.parquet" if part else f"{hour}/{table}.parquet"
            self.folder.move(file, f"{table}/{name}")
            found.add(name)
        return found

    def cleared(self) -> None:
        """Remove what was written aside."""
        self.folder.remove(self._staging)


def partition(at: str) -> Sequence[Column]:
    """Where a row has its place, by its time: `PARTITION`."""
    minutes = f.floor(f.minute(at) / PART)
    return f.date_format(at, "yyyy-MM-dd"), f.date_format(at, "HH"), minutes
