"""One rollup: tables, page and summary.

Promises: with `update` only the hours of the chosen time are replaced, so that a timer can go through a growing record:
done twice, it comes to the same. Page and summary are of the chosen time alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.words import counted
from canopy_pipeline.errors import MisuseError
from canopy_pipeline.outputs import PAGE, begin, check, finish
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.events_schema import GAP, PUBLISH
from canopy_pipeline.record.segments import Choice, Say, covering, events, moment, reading, unsaid
from canopy_pipeline.rollup.latency import AUTO, NONE, columns, timed
from canopy_pipeline.rollup.rollup_page import Totals, by_second, page
from canopy_pipeline.rollup.rollup_tables import TABLES, Hours, PageRows, Tables
from canopy_pipeline.rollup.rollup_transforms import PUBLISHES, counters, latencies
from canopy_pipeline.runtime.engine import f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHORT_RECORD: Final = 600
"""Seconds: the page of a record that is no longer shows single ones."""


@dataclass(frozen=True)
class RollupOutcome:
    output: str
    messages: int
    bytes: int
    topics: int
    rows: int
    """Rows of the table of minutes."""
    latencies: int
    """Messages that carried a time of sending."""
    coverage: Coverage

    def summary(self) -> dict[str, Any]:
        about = {name: getattr(self, name) for name in ("messages", "bytes", "topics", "rows", "latencies")}
        return {**about, "coverage": self.coverage.summary()}

    def line(self) -> str:
        return (
            f"{counted(self.messages, 'message')} ({self.bytes:,} bytes) in {counted(self.topics, 'topic')}, "
            f"{counted(self.rows, 'row')} of topic and minute, {self.latencies:,} with a latency: {self.output}/{PAGE}"
        )


def run(
    spark: SparkSession,
    inputs: Sequence[str],
    output: str,
    latency: str = AUTO,
    choice: Choice | None = None,
    say: Say = unsaid,
    update: bool = False,
) -> RollupOutcome:
    """Write the tables and the page of all publishes. `update`: keep the tables of other hours.

    Raises:
        MisuseError: an option is wrong.
        PipelineError: there is nothing to read, or it cannot be read.
    """
    wanted = columns(latency)
    check(inputs, output, TABLES)
    tables = Tables(spark, output)
    hours = _hours(choice or Choice()) if update else Hours()
    only = replace(choice or Choice(), kinds=(PUBLISH, GAP))
    coverage = covering(only)
    begin(tables.folder)
    read = events(spark, inputs, only, (*PUBLISHES, *wanted), coverage)
    publishes = read.where(f.col("kind") == PUBLISH)
    with reading():
        tables.tidy()
        try:
            tables.replace(counters(publishes), latencies(publishes, latency), hours)
        finally:
            tables.tidy()
        gaps = read.where(f.col("kind") == GAP) if coverage.kinds["gap"] else None
        outcome = _finish(tables, tables.shown(hours), coverage, _told(publishes, latency), gaps)
    if outcome.messages == 0:
        say("no messages: the tables are empty")
    elif outcome.latencies == 0 and latency not in (AUTO, NONE):
        say(f"--latency {latency}: no message carries a time of sending there, or none that can be true")
    return outcome


def _hours(choice: Choice) -> Hours:
    """The hours of the chosen time.

    Raises:
        MisuseError: it has no beginning, is no full hours, or leaves out events of them.
    """
    if choice.since is None or choice.run:
        raise MisuseError("--update replaces all that is known of some hours: give --since, and no --run")
    found = []
    for text, option in ((choice.since, "--since"), (choice.until, "--until")):
        if text is None:
            continue
        at = moment(text, option).astimezone(UTC)
        if (at.minute, at.second, at.microsecond) != (0, 0, 0):
            raise MisuseError(f"{option} {text}: with --update it must be a full hour, such as 2026-11-21T16:00")
        found.append(f"date={at:%Y-%m-%d}/hour={at:%H}")
    return Hours(*found)


def _told(publishes: DataFrame, latency: str) -> DataFrame:
    """Select the columns of publishes that the rollup aggregates by second."""
    size = f.coalesce("size", f.lit(0)).alias("size")
    return timed(publishes, latency).select(f.unix_seconds("ts").alias("start"), size, "retain", "bucket")


def _finish(
    tables: Tables, shown: PageRows | None, coverage: Coverage, told: DataFrame, gaps: DataFrame | None
) -> RollupOutcome:
    """Write the page and `summary.json` of the tables.

    `told`: the messages themselves, for a page by the second where the record is short. `gaps`: events that name gaps.
    """
    if shown is None:
        outcome = RollupOutcome(tables.output, 0, 0, 0, 0, 0, coverage)
        finish(tables.folder, outcome.summary())
        return outcome
    sums = shown.hours.agg(
        f.sum("messages").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.count_distinct("topic").alias("topics"),
        f.sum("latency_count").alias("latencies"),
        f.min(f.unix_micros("first_ts")).alias("first_us"),
        f.max(f.unix_micros("last_ts")).alias("last_us"),
    ).collect()[0]
    totals = Totals(**sums.asDict())
    short = totals.last_us - totals.first_us < SHORT_RECORD * 1_000_000
    drawn = page(shown, totals, coverage, by_second(told) if short else None, gaps)
    outcome = RollupOutcome(
        tables.output, totals.messages, totals.bytes, totals.topics, shown.rows, totals.latencies, coverage
    )
    finish(tables.folder, outcome.summary(), drawn.html())
    return outcome
