"""The plan's view of recorded events: distinct topic filters, and traffic by topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_pipeline.matching import matches, unshared
from canopy_pipeline.record.events_schema import NODES, PUBLISH, SUBSCRIBE
from canopy_pipeline.runtime.engine import f
from canopy_pipeline.runtime.table_schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CURVE: Final = Schema(
    {
        "broker": "string",
        "filters": "int",
        "over_bytes": "bigint",
        "over_messages": "bigint",
        "wanted_bytes": "bigint",
        "wanted_messages": "bigint",
        "recommended": "boolean",
    }
)
"""Columns of the table `curve`: a row for each number of filters that folding passed through."""


def subscribed(events: DataFrame) -> DataFrame:
    """Return the distinct topic filters, without `$share/name/`: (filter). What other nodes and workers ask for is in
    records of theirs."""
    kept = events.where((f.col("kind") == SUBSCRIBE) & f.col("topic_filter").isNotNull())
    kept = kept.where(~f.coalesce(f.col("client_id").startswith(NODES), f.lit(False)))
    return kept.select(unshared(f.col("topic_filter")).alias("filter")).distinct()


def traffic(events: DataFrame) -> DataFrame:
    """Count the publishes of each topic: (topic, messages, bytes), bytes being those of topic and payload.

    Topics that begin with `$` are a broker's own; no broker forwards them.
    """
    published = events.where((f.col("kind") == PUBLISH) & ~f.col("topic").startswith("$"))
    size = f.coalesce("size", f.lit(0)).cast("long") + f.octet_length("topic")
    return published.groupBy("topic").agg(f.count("*").alias("messages"), f.sum(size).alias("bytes"))


def matched(topics: DataFrame, filters: DataFrame) -> DataFrame:
    """The rows of `topics` that at least one of the filters matches."""
    found = matches(topics.select("topic"), filters).select("topic").distinct()
    return topics.join(found, "topic", "left_semi")


def unmatched(topics: DataFrame, filters: DataFrame) -> DataFrame:
    """The rows of `topics` that none of the filters matches."""
    found = matches(topics.select("topic"), filters).select("topic").distinct()
    return topics.join(found, "topic", "left_anti")


def cut(filters: DataFrame, depth: int) -> DataFrame:
    """Cut filters with more than `depth` levels there, with a `#`; equal ones become one."""
    levels = f.split("filter", "/")
    short = f.concat(f.array_join(f.slice(levels, 1, depth), "/"), f.lit("/#"))
    return filters.select(
        f.when(f.size(levels) > depth + 1, short).otherwise(f.col("filter")).alias("filter")
    ).distinct()
