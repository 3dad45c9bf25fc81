"""The folders of the rollup's tables, and the replacement of an hour.

Promises: an hour of a table is one file (of the table of minutes: one for each ten of them), written aside and moved
into its place, so that a reader of this machine finds the old one or the new one.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from canopy_pipeline.errors import PipelineError
from canopy_pipeline.rollup.rollup_transforms import HOUR, MINUTE, SUMMARY, by_hour, publishers, summary
from canopy_pipeline.runtime.engine import f
from canopy_pipeline.runtime.storage import Storage, parquet, storage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MINUTES: Final = "minutes"
HOURS: Final = "hours"
PUBLISHERS: Final = "publishers"
TABLES: Final = (MINUTES, HOURS, PUBLISHERS)
STAGING: Final = "_staging-"

PARTITION: Final = ("date", "hour", "part")
PART_MINUTES: Final = 10
"""Minutes of a part of an hour: several tasks write an hour."""


@dataclass(frozen=True)
class Hours:
    """Full hours, by the names of their folders: from `since` on, and before `until`."""

    since: str = ""
    until: str = "~"

    def has(self, place: str) -> bool:
        """Return True if an hour (date=…/hour=…) is one of them."""
        return self.since <= place < self.until


@dataclass(frozen=True)
class PageRows:
    """The rows that a page is made of."""

    minutes: DataFrame
    hours: DataFrame
    rows: int
    """Rows of the table of minutes."""


class Tables:
    """The tables of one output folder.

    OUT/minutes/date=2026-11-21/hour=16/minutes-3.parquet     topic and minute, 16:30 to 16:39
    OUT/hours/date=2026-11-21/hour=16/hours.parquet           topic and hour
    OUT/publishers/date=2026-11-21/hour=16/publishers.parquet topic, client and hour
    OUT/_staging-…/                                           being written; nobody reads it
    """

    def __init__(self, spark: SparkSession, output: str) -> None:
        self.spark = spark
        self.output = output
        self.folder: Storage = storage(spark, output)
        self._staging = f"{STAGING}{uuid.uuid4().hex[:8]}"

    def tidy(self) -> None:
        """Remove unfinished files of an earlier run, and of this one."""
        for name in self.folder.names(""):
            if name.startswith(STAGING):
                self.folder.remove(name)

    def shown(self, hours: Hours) -> PageRows | None:
        """Return the rows for the page of these hours; None if the tables have none of them."""
        minutes, whole = (self._rows(table, hours) for table in (MINUTES, HOURS))
        return None if minutes is None or whole is None else PageRows(minutes, whole, minutes.count())

    def _rows(self, table: str, hours: Hours) -> DataFrame | None:
        paths = [self.folder.at(f"{table}/{place}") for place in self.places(table) if hours.has(place)]
        return parquet(self.spark.read.schema(SUMMARY.ddl), *paths) if paths else None

    def replace(self, counted: DataFrame, aged: DataFrame, hours: Hours) -> None:
        """Replace these hours in the tables; `counted` and `aged` are the counters and latencies of their minutes."""
        for table, files in self._publish(counted, aged).items():
            for place in filter(hours.has, self.places(table)):
                if not any(file.startswith(f"{place}/") for file in files):
                    self.folder.remove(f"{table}/{place}")
                    continue
                for name in self.folder.names(f"{table}/{place}"):
                    if name.endswith(".parquet") and f"{place}/{name}" not in files:
                        self.folder.remove(f"{table}/{place}/{name}")

    def _publish(self, counted: DataFrame, aged: DataFrame) -> dict[str, set[str]]:
        """Replace the files of the tables; return the new ones."""
        kept = [counted.persist(), aged.persist()]
        try:
            kept.append(by_hour(kept[0]).persist())
            rows = {
                MINUTES: summary(kept[0], kept[1], MINUTE),
                HOURS: summary(kept[2], kept[1], HOUR),
                PUBLISHERS: publishers(kept[2]),
            }
            staged = {
                table: self.write(each, table, "start", PARTITION if table == MINUTES else PARTITION[:2])
                for table, each in rows.items()
            }
        finally:
            for frame in kept:
                frame.unpersist()
        return {table: self.move(files, table) for table, files in staged.items()}

    def write(self, rows: DataFrame, table: str, at: str, by: Sequence[str]) -> dict[str, str]:
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
            .parquet(self.folder.at(where))
        )
        found: dict[str, str] = {}
        for file in self.folder.listed(".parquet", where):
            place = file.rpartition("/")[0].removeprefix(f"{where}/")
            if place in found:
                raise PipelineError(f"{self.folder.at(where)}/{place}: several files were written, not one")
            found[place] = file
        return found

    def places(self, table: str) -> list[str]:
        """The hours (date=…/hour=…) of a table."""
        files = self.folder.listed(".parquet", table)
        return list(dict.fromkeys(file.rpartition("/")[0].removeprefix(f"{table}/") for file in files))

    def move(self, files: dict[str, str], table: str) -> set[str]:
        """Move staged files into their places, in place of the old ones; return their new names."""
        found = set()
        for place, file in files.items():
            hour, _, part = place.partition("/part=")
            name = f"{hour}/{table}-{part}.parquet" if part else f"{hour}/{table}.parquet"
            self.folder.move(file, f"{table}/{name}")
            found.add(name)
        return found


def partition(at: str) -> Sequence[Column]:
    """Return the columns `PARTITION`, which give a row its place by its time."""
    minutes = f.floor(f.minute(at) / PART_MINUTES)
    return f.date_format(at, "yyyy-MM-dd"), f.date_format(at, "HH"), minutes
