"""From publishes to cells, and from cells to the tables of minutes and hours. DataFrames only, no files.

A cell is what all publishes of one minute, topic, publisher and latency bucket come to. Minutes and hours are made of
cells alone (`summary`), the distinct publishers too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_pipeline.rollup.latency import HISTOGRAM, bucket, latency
from canopy_pipeline.runtime.engine import f
from canopy_pipeline.runtime.table_schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SUMS: Final = ("messages", "bytes", "qos0", "qos1", "qos2", "retained")

_COUNTERS: Final = {
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
}

CELLS: Final = Schema(
    {
        "minute": "timestamp",
        "topic": "string",
        "client_id": "string",
        "bucket": "int",
        **_COUNTERS,
        "latency_min_us": "bigint",
        "latency_max_us": "bigint",
        "latency_sum_us": "bigint",
    }
)
"""`client_id` is null for what the broker itself published, `bucket` for what carries no time of sending."""

SUMMARY: Final = Schema(
    {
        "start": "timestamp",
        "topic": "string",
        **_COUNTERS,
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


def cells(publishes: DataFrame, mode: str) -> DataFrame:
    """Return the cells of publishes; `mode` says where their time of sending is (`canopy_pipeline.rollup.latency`)."""
    size = f.coalesce("size", f.lit(0))
    told = publishes.select(
        f.date_trunc("minute", "ts").alias("minute"),
        "topic", "client_id", "ts", size.alias("size"), "qos", "retain", latency(mode).alias("latency"),
    )  # fmt: skip
    return (
        told.withColumn("bucket", bucket(f.col("latency")))
        .groupBy("minute", "topic", "client_id", "bucket")
        .agg(
            f.count(f.lit(1)).alias("messages"),
            f.sum("size").alias("bytes"),
            f.min("size").alias("size_min"),
            f.max("size").alias("size_max"),
            _counted(f.col("qos") == 0).alias("qos0"),
            _counted(f.col("qos") == 1).alias("qos1"),
            _counted(f.col("qos") == 2).alias("qos2"),
            _counted(f.col("retain")).alias("retained"),
            f.min("ts").alias("first_ts"),
            f.max("ts").alias("last_ts"),
            f.min("latency").alias("latency_min_us"),
            f.max("latency").alias("latency_max_us"),
            f.sum("latency").alias("latency_sum_us"),
        )
    )


def _together() -> list[Column]:
    """Return the sums of cells' counters."""
    return [
        *(f.sum(name).alias(name) for name in _SUMS),
        f.min("size_min").alias("size_min"),
        f.max("size_max").alias("size_max"),
        f.min("first_ts").alias("first_ts"),
        f.max("last_ts").alias("last_ts"),
        f.min("latency_min_us").alias("latency_min_us"),
        f.max("latency_max_us").alias("latency_max_us"),
        f.sum("latency_sum_us").alias("latency_sum_us"),
    ]


def summary(some: DataFrame, unit: str, timed: bool = True) -> DataFrame:
    """The rows of a table: cells by topic and `unit` (minute, hour or day). `timed`: some may have a latency."""
    # Brought together once, for the distinct publishers, the histograms and the join of both.
    at = some.withColumn("start", f.date_trunc(unit, "minute")).repartition("start", "topic")
    # What the broker itself publishes has no client: it counts as no publisher.
    counted = at.groupBy("start", "topic").agg(*_together(), f.count_distinct("client_id").alias("publishers"))
    none = f.array().cast(HISTOGRAM)
    if not timed:
        untimed = {"latency_count": f.lit(0).cast("long"), "latency": none}
        return counted.withColumns(untimed).select(*SUMMARY)
    buckets = (
        at.where(f.col("bucket").isNotNull())
        .groupBy("start", "topic", "bucket")
        .agg(f.sum("messages").alias("n"))
        .groupBy("start", "topic")
        .agg(
            f.sum("n").alias("latency_count"),
            f.sort_array(f.collect_list(f.struct("bucket", "n"))).alias("latency"),
        )
    )
    # Topics are not null in publishes: an equi-join is safe.
    return (
        counted.join(buckets, ["start", "topic"], "left")
        .withColumn("latency_count", f.coalesce("latency_count", f.lit(0)))
        .withColumn("latency", f.coalesce("latency", none))
        .select(*SUMMARY)
    )


def publishers(some: DataFrame) -> DataFrame:
    """Count messages and bytes by hour, topic and publisher (null: the broker itself)."""
    return (
        some.groupBy(f.date_trunc("hour", "minute").alias("start"), "topic", "client_id")
        .agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
        .select("start", "topic", "client_id", "messages", "bytes")
    )
