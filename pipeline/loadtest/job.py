"""The run of the job: records in, tables, summary and page out.

Owns: what is computed in which order.

Promises: the driver holds a row for each group and second, and a page of pairs; tables are written by Spark.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel

from pipeline.errors import MisuseError
from pipeline.loadtest import agreement, latency, tables, transforms
from pipeline.loadtest.outcome import Outcome
from pipeline.loadtest.page import Shown, page
from pipeline.loadtest.tables import COUNTS
from pipeline.outputs import Results, check
from pipeline.record.segments import Say, reading, unsaid
from pipeline.runtime.engine import f
from pipeline.runtime.progress import progress
from pipeline.runtime.storage import parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.loadtest.tables import Records, Report

GROUPS: Final = 10_000
"""Groups of clients that are told apart; no scenario has so many."""
SECONDS: Final = 4_000
"""Seconds that the page shows; all of them are in the table."""
BUCKETS: Final = 50_000
"""More than there are buckets up to an hour."""
ALL: Final = "all"
GROUP: Final = "group"
SENDING: Final = "since the sending"
WORST: Final = 100
"""Pairs that the page shows."""


def run(spark: SparkSession, source: str, output: str, skip_corrupt: bool = False, say: Say = unsaid) -> Outcome:
    """Find the account of a run again; write pairs, latency, seconds, differing, summary.json and index.html.

    Raises:
        MisuseError: there is no such folder, or `output` is the load tester's own.
        PipelineError: there are no records in it, or they cannot be read.
    """
    check([], output)
    if os.path.realpath(output) in (os.path.realpath(source), os.path.realpath(os.path.join(source, tables.RECORDS))):
        raise MisuseError(
            f"--output {output}: the load tester's own report lies there; give another, as {output}/account"
        )
    results = Results(spark, output)
    results.begin()
    with progress(spark, "loadtest"), reading():
        found = tables.records(spark, source, skip_corrupt, say)
        report = tables.report(spark, source)
        level = StorageLevel.MEMORY_AND_DISK
        rows = transforms.judged(found.received).persist(level)
        timed = latency.timed(rows, found).persist(level)
        pairs = transforms.pairs(transforms.accounts(rows, found)).persist(level)
        counted = latency.buckets(timed.where("measured"), "group", "frozen").persist(level)
        try:
            outcome = _outcome(found, rows, timed, pairs, counted)
            results.table(pairs, "pairs")
            results.table(counted.select("group", "frozen", "us", "count"), "latency")
            results.table(latency.seconds(timed, found), "seconds")
            outcome.coverage = found.coverage
            if report is not None:
                _compare(outcome, report, pairs, results, spark)
            results.text("summary.json", json.dumps(outcome.summary(), indent=2) + "\n")
            results.text("index.html", page(outcome, _shown(spark, results)).html())
        finally:
            for each in (rows, timed, pairs, counted):
                each.unpersist()
    return outcome


def _outcome(found: Records, rows: DataFrame, timed: DataFrame, pairs: DataFrame, counted: DataFrame) -> Outcome:
    stages = f.broadcast(found.stages.select("run", "stage", "measured"))
    runs = [row["run"] for row in found.stages.select("run").distinct().orderBy("run").limit(GROUPS).collect()]
    outcome = Outcome(runs)
    # A will is sent by the broker, and in no stage.
    in_time = (f.col("measured") & f.col("intended_us").isNotNull()).cast("long")
    sent_rows = found.sent.join(stages, ["run", "stage"], "left").groupBy("group")
    sent = {
        row["group"]: row
        for row in sent_rows.agg(f.count("*").alias("count"), f.sum(in_time).alias("in_time")).limit(GROUPS).collect()
    }
    outcome.rows_sent = sum(row["count"] for row in sent.values())
    outcome.sent = sum(row["in_time"] or 0 for row in sent.values())
    came = rows.drop("stage").withColumnRenamed("during", "stage").join(stages, ["run", "stage"], "left")
    in_time = (f.col("measured") & f.col("arrived")).cast("long")
    [row] = came.agg(f.count("*").alias("count"), f.sum(in_time).alias("in_time")).collect()
    outcome.rows_received, outcome.received = row["count"], row["in_time"] or 0
    outcome.strays = transforms.strays(rows, found).collect()[0]["strays"]
    outcome.unsent = timed.where("waited is null").count()

    times = _times(timed, counted)
    outcome.latency, outcome.from_sent = _said(times.get((ALL, ""))), _said(times.get((SENDING, "")))
    deliveries = transforms.groups(pairs, found.subscribers).orderBy("group").limit(GROUPS).collect()
    heard = {row["group"]: row for row in deliveries}
    outcome.pairs = sum(row["pairs"] for row in deliveries)
    outcome.deliveries = {name: sum(row[name] for row in deliveries if not row["frozen"]) for name in COUNTS}
    for name in dict.fromkeys((*sorted(sent), *heard)):
        outcome.groups.append(
            {
                "name": name,
                "sent": sent[name]["count"] if name in sent else 0,
                "deliveries": {each: heard[name][each] if name in heard else 0 for each in COUNTS},
                "latency": _said(times.get((GROUP, name))),
            }
        )
    return outcome


def _times(timed: DataFrame, counted: DataFrame) -> dict[tuple[str, str], Any]:
    """The distributions of everybody, of each group, and of everybody since the sending."""
    since_sent = latency.buckets(timed.where("measured and not frozen and waited is not null"), "run", at="waited")
    parts = [
        counted.select(f.lit(GROUP).alias("what"), "group", "us", "count"),
        counted.where("not frozen").select(f.lit(ALL).alias("what"), f.lit("").alias("group"), "us", "count"),
        since_sent.select(f.lit(SENDING).alias("what"), f.lit("").alias("group"), "us", "count"),
    ]
    table = parts[0].unionByName(parts[1]).unionByName(parts[2])
    summed = table.groupBy("what", "group", "us").agg(f.sum("count").alias("count"))
    rows = latency.distributions(summed, "what", "group").limit(GROUPS).collect()
    return {(row["what"], row["group"]): row for row in rows}


def _said(row: Any) -> dict[str, float | None]:
    """A distribution; of nothing, as the load tester says it."""
    if row is None:
        return {name: 0 if name == "count" else None for name in agreement.TIMES}
    return {name: row[name] for name in agreement.TIMES}


def _compare(outcome: Outcome, report: Report, pairs: DataFrame, results: Results, spark: SparkSession) -> None:
    here = outcome.summary()
    silent = {group["name"] for group in report.summary["groups"]} - {group["name"] for group in outcome.groups}
    for name in sorted(silent):
        # Nobody of it subscribed or sent anything.
        nothing: dict[str, Any] = {"deliveries": dict.fromkeys(COUNTS, 0), "latency": _said(None)}
        here["groups"].append({"name": name, "sent": 0, **nothing})
    figures = agreement.figures(here, report.summary)
    outcome.compared = len(figures)
    outcome.differing = [
        {"name": each.name, "here": each.here, "there": each.there} for each in figures if not each.agrees
    ]
    results.table(agreement.differing(pairs, report.pairs), "differing")
    outcome.pairs_differing = parquet(spark.read, results.path("differing")).count()


def _shown(spark: SparkSession, results: Results) -> Shown:
    """What the page shows, read back from the tables."""
    pairs, seconds = (parquet(spark.read, results.path(name)) for name in ("pairs", "seconds"))
    counted = parquet(spark.read, results.path("latency")).where("not frozen")
    faults = f.col("lost") + f.col("duplicates") + f.col("reordered") + f.col("altered")
    worst = pairs.withColumn("faults", faults).where("faults > 0").orderBy(f.desc("faults"), "publisher", "subscriber")
    histogram = counted.groupBy("us").agg(f.sum("count").alias("count")).orderBy("us").limit(BUCKETS).collect()
    return Shown(
        histogram=[(int(row["us"]), int(row["count"])) for row in histogram],
        seconds=[row.asDict() for row in seconds.orderBy("run", "second").limit(SECONDS).collect()],
        worst=[row.asDict() for row in worst.limit(WORST).collect()],
    )
