"""Where the rollup's tables lie, and how an hour of them is replaced.

Promises: an hour of a table is one file, written aside and moved into its place, so that a reader of this machine finds
the old one or the new one. A batch of a stream makes its hours' cells from the version before that batch, and no
version is removed that could be wanted again: a batch that is done twice, or broke off anywhere, comes to the same.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.errors import PipelineError
from pipeline.outputs import Folder, folder
from pipeline.rollup.transforms import CELLS, SUMMARY, added, publishers, summary
from pipeline.storage import parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTES: Final = "minutes"
HOURS: Final = "hours"
PUBLISHERS: Final = "publishers"
STATE: Final = "_state"
NOTE: Final = "_rollup.json"
STAGING: Final = "_staging-"

_VERSION: Final = re.compile(r"cells-(\d{12})\.parquet")


@dataclass(frozen=True)
class Folded:
    """What a batch did: the hours that it changed (date=…/hour=…), and messages for hours that take no more."""

    hours: list[str]
    late: int


class Tables:
    """The tables of one output folder.

    OUT/minutes/date=2026-11-21/hour=16/minutes.parquet       topic and minute
    OUT/hours/date=2026-11-21/hour=16/hours.parquet           topic and hour
    OUT/publishers/date=2026-11-21/hour=16/publishers.parquet topic, client and hour
    OUT/_state/date=2026-11-21/hour=16/cells-000000000007.parquet   a stream's memory, after batch 7
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
        self.folder.write(NOTE, json.dumps({"format": 1, **note}) + "\n")

    def tidy(self) -> None:
        """Remove what an earlier run left half done, and this one's."""
        for name in self.folder.names(""):
            if name.startswith(STAGING):
                self.folder.remove(name)

    def rows(self, table: str) -> DataFrame:
        """A table, as it was published."""
        return parquet(self.spark.read.schema(SUMMARY), self.folder.path(table))

    def replace(self, cells: DataFrame) -> None:
        """Publish the tables of these cells, and nothing else: what was there before goes."""
        self._write(cells, "cells", by_hour=False)
        whole = parquet(self.spark.read.schema(CELLS), self.folder.path(f"{self._staging}/cells"))
        for table, places in self._publish(whole).items():
            for place in self._hours(table):
                if place not in places:
                    self.folder.remove(f"{table}/{place}")
        self.folder.remove(STATE)

    def fold(self, cells: DataFrame, version: int, since: str = "") -> Folded:
        """Add a batch's cells to their hours, as the given version (from 1), and publish these hours.

        Hours before `since` (date=…/hour=…) take no more: what comes for them is counted as late.
        """
        found = cells.persist()
        try:
            hours = {
                f"date={row['date']}/hour={row['hour']}": int(row["n"])
                for row in found.groupBy(*_partition("minute")).agg(f.sum("messages").alias("n")).collect()
            }
            late = sum(n for place, n in hours.items() if place < since)
            touched = [place for place in hours if place >= since]
            if not touched:
                return Folded([], late)
            before = {place: self._latest(place, version) for place in touched}
            bases = [self.folder.path(f"{STATE}/{place}/{name}") for place, name in before.items() if name]
            whole = found
            if late:
                whole = whole.where(f.concat(*_place("minute")) >= since)
            if bases:
                whole = added(whole.unionByName(parquet(self.spark.read.schema(CELLS), *bases)))
            places = self._move(self._write(whole, "cells"), STATE, _name(version))
        finally:
            found.unpersist()
        now = [self.folder.path(f"{STATE}/{place}/{_name(version)}") for place in places]
        self._publish(parquet(self.spark.read.schema(CELLS), *now))
        self.folder.remove(self._staging)
        return Folded(touched, late)

    def settle(self, version: int, since: str) -> None:
        """A batch is done, and will not be done again: one version of each hour's cells stays, and none of those before
        `since`."""
        for place in self._hours(STATE):
            if place < since:
                self.folder.remove(f"{STATE}/{place}")
                continue
            latest = self._latest(place, version + 1)
            for name in self.folder.names(f"{STATE}/{place}"):
                if latest and _VERSION.fullmatch(name) and name < latest:
                    self.folder.remove(f"{STATE}/{place}/{name}")

    def _latest(self, place: str, version: int) -> str | None:
        """The newest state of an hour that is older than a version."""
        names = [name for name in self.folder.names(f"{STATE}/{place}") if _VERSION.fullmatch(name)]
        return max((name for name in names if name < _name(version)), default=None)

    def _publish(self, cells: DataFrame) -> dict[str, list[str]]:
        tables = {MINUTES: summary(cells, "minute"), HOURS: summary(cells, "hour"), PUBLISHERS: publishers(cells)}
        staged = {table: self._write(rows, table) for table, rows in tables.items()}
        return {table: self._move(files, table, f"{table}.parquet") for table, files in staged.items()}

    def _write(self, rows: DataFrame, table: str, by_hour: bool = True) -> dict[str, str]:
        """Write rows aside; by hour: the file of each, by its place."""
        where = f"{self._staging}/{table}"
        if not by_hour:
            rows.write.mode("overwrite").option("compression", "zstd").parquet(self.folder.path(where))
            return {}
        at = "minute" if table == "cells" else "start"
        order = ["topic", at]
        (
            rows.withColumns(dict(zip(("date", "hour"), _partition(at), strict=True)))
            .repartition("date", "hour")
            .sortWithinPartitions("date", "hour", *order)
            .write.mode("overwrite")
            .option("compression", "zstd")
            .partitionBy("date", "hour")
            .parquet(self.folder.path(where))
        )
        found: dict[str, str] = {}
        for place in self._hours(where):
            names = [name for name in self.folder.names(f"{where}/{place}") if name.endswith(".parquet")]
            names = [name for name in names if not name.startswith((".", "_"))]
            if len(names) != 1:
                raise PipelineError(f"{self.folder.path(where)}/{place}: Spark wrote {len(names)} files, not one")
            found[place] = f"{where}/{place}/{names[0]}"
        return found

    def _hours(self, table: str) -> list[str]:
        dates = [name for name in self.folder.names(table) if name.startswith("date=")]
        return [
            f"{date}/{hour}"
            for date in dates
            for hour in self.folder.names(f"{table}/{date}")
            if hour.startswith("hour=")
        ]

    def _move(self, files: dict[str, str], table: str, name: str) -> list[str]:
        for place, file in files.items():
            self.folder.move(file, f"{table}/{place}/{name}")
        return list(files)


def _name(version: int) -> str:
    return f"cells-{version:012d}.parquet"


def _place(at: str) -> Sequence[Any]:
    date, hour = _partition(at)
    return f.lit("date="), date, f.lit("/hour="), hour


def _partition(at: str) -> Sequence[Any]:
    return f.date_format(at, "yyyy-MM-dd").alias("date"), f.date_format(at, "HH").alias("hour")
