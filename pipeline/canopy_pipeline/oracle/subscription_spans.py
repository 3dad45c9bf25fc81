"""The times of subscriptions, and the publishes that fall into them.

A span is open on both sides: a subscription counts for publishes with `begin` < seq < `end`. The spans of one client
and topic filter never overlap: a further SUBSCRIBE replaces the options (MQTT 5.0, 3.8.4), which ends one span and
begins another.

`inside` joins points with spans. An equi-join on the keys alone would make every pair of a busy topic and a filter
whose clients come and go; so a span gets a level by its length, and at its level the buckets of sequence numbers that
it touches, of which there are two or three. A point looks into one bucket for each level that its key has: what
is compared there is a small multiple of what is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from canopy_pipeline.matching import is_shared, unshared
from canopy_pipeline.record.events_schema import SUBSCRIBE, UNSUBSCRIBE
from canopy_pipeline.runtime.engine import f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def spans(events: DataFrame, runs: DataFrame) -> DataFrame:
    """All subscriptions with their times: (run_id, client_id, topic_filter, filter, qos, no_local, begin, end).

    `filter` is the topic filter without `$share/name/`; `qos` the granted one. What was not unsubscribed lasts until
    the run's last event.
    """
    following = f.expr("lead(seq) OVER (PARTITION BY run_id, client_id, topic_filter ORDER BY seq)")
    changes = events.where(f.col("kind").isin(SUBSCRIBE, UNSUBSCRIBE)).select(
        "run_id", "client_id", "topic_filter", "kind", "qos", "no_local", "seq", following.alias("next")
    )
    return (
        changes.where(f.col("kind") == SUBSCRIBE)
        .join(f.broadcast(runs.select("run_id", "last_seq")), "run_id")
        .select(
            "run_id",
            "client_id",
            "topic_filter",
            unshared(f.col("topic_filter")).alias("filter"),
            f.col("qos").cast("int").alias("qos"),
            f.coalesce("no_local", f.lit(False)).alias("no_local"),
            f.col("seq").alias("begin"),
            f.coalesce("next", f.col("last_seq") + 1).alias("end"),
        )
    )


def ordinary(all_spans: DataFrame) -> DataFrame:
    """The spans of subscriptions that are not shared."""
    return all_spans.where(~is_shared(f.col("topic_filter")))


def shared(all_spans: DataFrame) -> DataFrame:
    """The spans of members of share groups."""
    return all_spans.where(is_shared(f.col("topic_filter")))


def groups(members: DataFrame) -> DataFrame:
    """Return the times in which a share group had members: (run_id, topic_filter, filter, begin, end), never
    overlapping."""
    by_begin = "PARTITION BY run_id, topic_filter ORDER BY `begin`, `end`"
    before = f.expr(f"max(`end`) OVER ({by_begin} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)")
    opened = f.coalesce(f.col("begin") > before, f.lit(True)).cast("int")
    return (
        members.select("run_id", "topic_filter", "filter", "begin", "end", opened.alias("opened"))
        .withColumn("island", f.expr(f"sum(opened) OVER ({by_begin})").cast("long"))
        .groupBy("run_id", "topic_filter", "filter", "island")
        .agg(f.min("begin").alias("begin"), f.max("end").alias("end"))
        .drop("island")
    )


def inside(points: DataFrame, among: DataFrame, on: Sequence[str], left: bool = False) -> DataFrame:
    """Points (`seq`) joined with the spans in which they lie; both have the columns `on`.

    With `left`, points outside all spans stay, with nulls; a point may then come several times, at most once with a
    span where the spans of its key do not overlap.
    """
    length = f.greatest(f.col("end") - f.col("begin"), f.lit(1))
    level = f.ceil(f.log2(length) / 2).cast("int")
    leveled = among.withColumn("level", level)
    levels = leveled.select(*on, "level").distinct()
    bucketed = leveled.withColumn(
        "bucket", f.explode(f.sequence(_bucket(f.col("begin")), _bucket(f.greatest("begin", f.col("end") - 1))))
    )
    how = "left" if left else "inner"
    looking = points.join(levels, [*on], how).withColumn("bucket", _bucket(f.col("seq")))
    mine, theirs = looking.alias("mine"), bucketed.alias("theirs")
    same = [f.col(f"mine.{name}") == f.col(f"theirs.{name}") for name in (*on, "level", "bucket")]
    within = (f.col("theirs.begin") < f.col("mine.seq")) & (f.col("mine.seq") < f.col("theirs.end"))
    condition = within
    for each in same:
        condition = condition & each
    taken = [f.col(f"mine.{name}") for name in points.columns]
    given = [f.col(f"theirs.{name}") for name in among.columns if name not in on]
    return mine.join(theirs, condition, how).select(*taken, *given)


def _bucket(seq: Column) -> Column:
    """The bucket of a number at the row's `level`: numbers of 4 ** level to a bucket."""
    return f.call_function("shiftright", seq.cast("long"), f.col("level") * 2)
