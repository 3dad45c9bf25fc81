"""What a stream remembers: the cells that each batch added, and sums of the hours that take no more.

Promises: a batch writes what it adds, and of the tables the ten minutes that it touches; hours and their publishers are
made from the cells when they are asked for. A batch that is done twice, or broke off anywhere, comes to the same: no
file is removed that could be wanted again, and what a batch left that was not done is removed before the next.

Bounds: an hour's cells go when it takes no more; a part of an hour has at most `MERGE` files; the page reads the sums
of what is over, and the hours that are open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from pipeline.rollup.tables import HOURS, MINUTES, PARTITION, PUBLISHERS, STATE, Shown, Tables, partition
from pipeline.rollup.transforms import CELLS, SUMMARY, added, publishers, summary, united
from pipeline.runtime.storage import parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MERGE: Final = 16
"""Files of a part of an hour, above which the next batch makes one of them."""
CLOSED: Final = f"{STATE}/closed.json"
BY_TOPIC: Final = "by-topic"
BY_HOUR: Final = "by-hour"
IN_MINUTES: Final = timedelta(hours=26)
"""A page shows minutes of a record up to that long."""

_FILE: Final = re.compile(r"(cells|whole)-(\d{12})\.parquet")


@dataclass(frozen=True)
class Folded:
    """What a batch did: the hours that it changed (date=…/hour=…), and messages for hours that take no more."""

    hours: list[str]
    late: int


@dataclass(frozen=True)
class Closed:
    """Hours that take no more, added up."""

    through: str = ""
    """The first hour that is not among them."""
    tag: str = ""
    """Their sums' folders are named so; empty where there is no such hour."""
    rows: int = 0
    """Their rows of the table of minutes."""


class Memory:
    """A stream's cells below OUT/_state, and its tables.

    date=2026-11-21/hour=16/part=2/cells-000000000007.parquet  what batch 7 added to 16:20 to 16:29
    date=2026-11-21/hour=16/part=2/whole-000000000009.parquet  all that these minutes have, up to batch 9
    closed.json, by-topic-TAG/, by-hour-TAG/                   the sums of hours that are over
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.spark = tables.spark
        self.folder = tables.folder

    # -- batches -------------------------------------------------------------------------------------------------------

    def fold(self, cells: DataFrame, version: int, since: str = "") -> Folded:
        """Remember a batch's cells, as the given version (from 1), and publish the minutes that they change.

        Hours before `since` (date=…/hour=…) take no more: what comes for them is counted as late.
        """
        found = cells.withColumns(dict(zip(PARTITION, partition("minute"), strict=True))).persist()
        try:
            counts = {
                f"date={row['date']}/hour={row['hour']}/part={row['part']}": int(row["n"])
                for row in found.groupBy(*PARTITION).agg(f.sum("messages").alias("n")).collect()
            }
            touched = [place for place in counts if place >= since]
            late = sum(n for place, n in counts.items() if place < since)
            if not touched:
                return Folded([], late)
            some = found.where(f.concat(f.lit("date="), "date", f.lit("/hour="), "hour") >= since) if late else found
            some = some.select(*CELLS.names)
            before = {place: self._in_force(place, version) for place in touched}
            many = {place: names for place, names in before.items() if len(names) >= MERGE}
            if many:
                some = added(some.unionByName(self._cells(many)))
            for place, file in self.tables.write(some, "cells", "minute", PARTITION).items():
                kind = "whole" if place in many else "cells"
                self.folder.move(file, f"{STATE}/{place}/{kind}-{version:012d}.parquet")
        finally:
            found.unpersist()
        now = {place: self._in_force(place, version + 1) for place in touched}
        minutes = summary(self._cells(now), "minute")
        self.tables.move(self.tables.write(minutes, MINUTES, "start", PARTITION), MINUTES)
        self.tables.cleared()
        return Folded(sorted({_hour(place) for place in touched}), late)

    def publish(self, hours: Iterable[str]) -> None:
        """The tables of hours and of publishers, of these hours; but for those that are over: they were published, and
        their cells go."""
        cells, through = {}, self.closed().through
        for hour in hours:
            if hour < through:
                continue
            for part in self.folder.names(f"{STATE}/{hour}"):
                cells[f"{hour}/{part}"] = self._in_force(f"{hour}/{part}")
        if not cells:
            return
        some = self._cells(cells)
        for table, rows in ((HOURS, summary(some, "hour")), (PUBLISHERS, publishers(some))):
            self.tables.move(self.tables.write(rows, table, "start"), table)
        self.tables.cleared()

    def settle(self, version: int, hours: Iterable[str]) -> None:
        """A batch is done, and will not be done again: of these hours, what counts after it stays, and nothing else."""
        for hour in hours:
            for part in self.folder.names(f"{STATE}/{hour}"):
                place = f"{STATE}/{hour}/{part}"
                stay = set(self._in_force(f"{hour}/{part}", version + 1))
                for name in self.folder.names(place):
                    if _FILE.fullmatch(name) and name not in stay:
                        self.folder.remove(f"{place}/{name}")

    def open(self) -> list[str]:
        """The hours of which there are cells."""
        return self.tables.places(STATE)

    def _in_force(self, place: str, below: int | None = None) -> list[str]:
        """The files that make up a part of an hour, of the versions below one."""
        found = [
            (int(match[2]), match[1], match[0])
            for match in map(_FILE.fullmatch, self.folder.names(f"{STATE}/{place}"))
            if match and (below is None or int(match[2]) < below)
        ]
        start = max((version for version, kind, _ in found if kind == "whole"), default=0)
        return [name for version, kind, name in sorted(found) if version > start or (version, kind) == (start, "whole")]

    def _cells(self, files: dict[str, list[str]]) -> DataFrame:
        paths = [self.folder.path(f"{STATE}/{place}/{name}") for place, names in files.items() for name in names]
        return parquet(self.spark.read.schema(CELLS), *paths)

    # -- hours that are over -------------------------------------------------------------------------------------------

    def closed(self) -> Closed:
        """What was added up."""
        text = self.folder.text(CLOSED)
        return Closed(**json.loads(text)) if text is not None else Closed()

    def close(self, since: str) -> None:
        """Add up the hours before one, which take no more, and forget their cells. They must have been published."""
        before = self.closed()
        if since > before.through:
            places = [place for place in self.tables.places(HOURS, before.through) if place < since]
            now = Closed(since, before.tag, before.rows)
            if places:
                now = Closed(since, re.sub("[a-z=]", "", since).replace("/", "-"), before.rows + self._minutes(places))
                hours = self.tables.rows(HOURS, places)
                for name, by in ((BY_TOPIC, "topic"), (BY_HOUR, "start")):
                    some = hours.unionByName(self._sums(name, before)) if before.tag else hours
                    sums = _like_hours(united(some, by), by)
                    # In force once `closed.json` names it; of a run that broke off it is overwritten, or cleared.
                    to = self.folder.path(f"{STATE}/{name}-{now.tag}")
                    sums.write.mode("overwrite").option("compression", "zstd").parquet(to)
            self.folder.write(CLOSED, json.dumps(asdict(now)) + "\n")
        self._clear_sums()
        for hour in self.open():
            if hour < since:
                self.folder.remove(f"{STATE}/{hour}")

    def _clear_sums(self) -> None:
        """Remove the sums that are not in force: those before, and what a run left that was killed."""
        in_force = [f"{each}-{self.closed().tag}" for each in (BY_TOPIC, BY_HOUR)]
        for name in self.folder.names(STATE):
            if name.startswith((BY_TOPIC, BY_HOUR)) and name not in in_force:
                self.folder.remove(f"{STATE}/{name}")

    def _sums(self, name: str, closed: Closed) -> DataFrame:
        return parquet(self.spark.read.schema(SUMMARY), self.folder.path(f"{STATE}/{name}-{closed.tag}"))

    def _minutes(self, places: list[str]) -> int:
        return self.tables.rows(MINUTES, places).count()

    def shown(self) -> Shown | None:
        """What the page is made of: the sums, and the hours that are open; None where there is no hour."""
        closed = self.closed()
        places = self.tables.places(HOURS, closed.through)
        if not places and not closed.tag:
            return None
        hours = self.tables.rows(HOURS, places)
        by_hour = by_topic = hours
        if closed.tag:
            by_hour = hours.unionByName(self._sums(BY_HOUR, closed))
            by_topic = hours.unionByName(self._sums(BY_TOPIC, closed))
        newest = max(places, default=closed.through)
        minutes = self.tables.rows(MINUTES, self.tables.places(MINUTES, earlier(newest, IN_MINUTES)))
        return Shown(minutes, by_hour, by_topic, closed.rows + self._minutes(places))


def _hour(place: str) -> str:
    return place.rpartition("/")[0]


def _like_hours(rows: DataFrame, by: str) -> DataFrame:
    """Sums by one column, with the columns of the table `hours`."""
    none = {"start": f.lit(None).cast("timestamp"), "topic": f.lit(""), "publishers": f.lit(None).cast("long")}
    return rows.withColumns({name: none[name] for name in none if name != by}).select(*SUMMARY.names)


def earlier(hour: str, time: timedelta) -> str:
    """The place of the hour that was so long before another."""
    return f"{datetime.strptime(hour, 'date=%Y-%m-%d/hour=%H') - time:date=%Y-%m-%d/hour=%H}"  # noqa: DTZ007  UTC
