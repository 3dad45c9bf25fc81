"""From publishes to the tables of minutes and hours. DataFrames only, no files.

Two aggregates of the publishes hold all that the tables need: one by minute, topic and publisher (`counters`), one by
minute, topic and bucket of the latency (`latencies`). Together they are much smaller than one by publisher and bucket.
A minute is a number here, in seconds since 1970: times with a zone are slow to cut and to compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_pipeline.rollup.latency import HISTOGRAM, timed
from canopy_pipeline.runtime.engine import f
from canopy_pipeline.runtime.table_schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MINUTE: Final = 60
HOUR: Final = 3_600

_SUMS: Final = ("messages", "bytes", "qos0", "qos1", "qos2", "retained")

SUMMARY: Final = Schema(
    {
        "start": "timestamp",
        "topic": "string",
        "messages": "bigint",
        "bytes": "bigint",
        "size_min": "int",
        "size_max": "int",
        "qos0": "bigint",
        "qos1": "bigint",
        "qos2": "bigint",
        "retained": "bigint",
        "first_ts": "timestamp",
        "last_ts": "timestamp",
        "publishers": "bigint",
        "latency_count": "bigint",
        "latency_min_us": "bigint",
        "latency_max_us": "bigint",
        "latency_sum_us": "bigint",
        "latency": HISTOGRAM,
    }
)
"""A row of the tables `minutes` and `hours`."""

PUBLISHES: Final = ("kind", "ts", "client_id", "topic", "size", "qos", "retain")
"""Columns that every rollup reads; those of the latency come to them."""


def _counted(condition: Column) -> Column:
    return f.count(f.when(condition, True))


def _cut(seconds: Column, unit: int) -> Column:
    """The beginning of the unit (in seconds) that a time lies in."""
    return f.floor(seconds / unit) * unit


def counters(publishes: DataFrame) -> DataFrame:
    """Count the publishes of each minute, topic and publisher (null: the broker itself)."""
    start = _cut(f.unix_seconds("ts"), MINUTE).alias("start")
    size = f.coalesce("size", f.lit(0)).alias("size")
    return (
        publishes.select(start, "topic", "client_id", size, "qos", "retain", f.unix_micros("ts").alias("us"))
        .groupBy("start", "topic", "client_id")
        .agg(
            f.count(f.lit(1)).alias("messages"),
            f.sum("size").alias("bytes"),
            f.min("size").alias("size_min"),
            f.max("size").alias("size_max"),
            _counted(f.col("qos") == 0).alias("qos0"),
            _counted(f.col("qos") == 1).alias("qos1"),
            _counted(f.col("qos") == 2).alias("qos2"),
            _counted(f.col("retain")).alias("retained"),
            f.min("us").alias("first_us"),
            f.max("us").alias("last_us"),
        )
    )


def latencies(publishes: DataFrame, mode: str) -> DataFrame:
    """Count the publishes of each minute, topic and bucket of the latency; `mode` says where their time of sending is
    (`canopy_pipeline.rollup.latency`). Those without one are left out."""
    start = _cut(f.unix_seconds("ts"), MINUTE).alias("start")
    return (
        timed(publishes, mode)
        .where(f.col("bucket").isNotNull())
        .select(start, "topic", "bucket", "latency")
        .groupBy("start", "topic", "bucket")
        .agg(
            f.count(f.lit(1)).alias("n"),
            f.min("latency").alias("latency_min_us"),
            f.max("latency").alias("latency_max_us"),
            f.sum("latency").alias("latency_sum_us"),
        )
    )


def by_hour(counted: DataFrame) -> DataFrame:
    """The counters of each hour, topic and publisher, out of those of minutes."""
    at = counted.withColumn("start", _cut(f.col("start"), HOUR))
    return at.groupBy("start", "topic", "client_id").agg(*_together())


def _together() -> list[Column]:
    """Return the sums of counters."""
    return [
        *(f.sum(name).alias(name) for name in _SUMS),
        f.min("size_min").alias("size_min"),
        f.max("size_max").alias("size_max"),
        f.min("first_us").alias("first_us"),
        f.max("last_us").alias("last_us"),
    ]


def summary(counted: DataFrame, aged: DataFrame, unit: int) -> DataFrame:
    """The rows of a table.

    `counted`: the counters by `start`, topic and publisher, a row for each publisher. `aged`: the latencies by minute.
    `unit`: the length of a `start`, in seconds.
    """
    # What the broker itself publishes has no client: it counts as no publisher.
    rows = counted.groupBy("start", "topic").agg(*_together(), f.count("client_id").alias("publishers"))
    if unit != MINUTE:
        at = aged.withColumn("start", _cut(f.col("start"), unit)).groupBy("start", "topic", "bucket")
        aged = at.agg(f.sum("n").alias("n"), *_ages())
    histograms = aged.groupBy("start", "topic").agg(
        f.sum("n").alias("latency_count"),
        *_ages(),
        f.sort_array(f.collect_list(f.struct("bucket", "n"))).alias("latency"),
    )
    # Topics are not null in publishes: an equi-join is safe.
    return (
        rows.join(histograms, ["start", "topic"], "left")
        .withColumns(
            {
                "start": f.timestamp_seconds("start"),
                "first_ts": f.timestamp_micros("first_us"),
                "last_ts": f.timestamp_micros("last_us"),
                "latency_count": f.coalesce("latency_count", f.lit(0)),
                "latency": f.coalesce("latency", f.array().cast(HISTOGRAM)),
            }
        )
        .select(*SUMMARY)
    )


def _ages() -> list[Column]:
    return [
        f.min("latency_min_us").alias("latency_min_us"),
        f.max("latency_max_us").alias("latency_max_us"),
        f.sum("latency_sum_us").alias("latency_sum_us"),
    ]


def publishers(hours: DataFrame) -> DataFrame:
    """The messages and bytes of each hour, topic and publisher (null: the broker itself)."""
    return hours.select(f.timestamp_seconds("start").alias("start"), "topic", "client_id", "messages", "bytes")
