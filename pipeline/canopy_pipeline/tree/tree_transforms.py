"""From publishes to the topic tree. DataFrames only, no files.

A prefix is a topic, or the first levels of one. The root is depth 0 and an empty text; the first level of "/a" is empty
too, so that depth and text together name a prefix. Publishes are counted by topic first, and only these few rows are
laid out by prefix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_pipeline.runtime.engine import f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLICES: Final = 8

TREE: Final = (
    "depth",
    "prefix",
    "parent",
    "level",
    "messages",
    "bytes",
    "messages_per_s",
    "bytes_per_s",
    "own_messages",
    "topics",
    "children",
    "first_ts",
    "last_ts",
)
"""`own_messages`: published to this very topic; `topics`: distinct ones at and below it; rates: over the whole time."""

HOT: Final = ("topic", "messages", "share", "bytes", "messages_per_s", "first_ts", "last_ts")

EXPLOSIONS: Final = (
    "depth",
    "prefix",
    "why",
    "children",
    "messages",
    "per_child",
    "bytes",
    "topics",
    "new_children",
    "growing",
    "examples",
)
"""`new_children`: how many were first seen in each eighth of the time; `examples`: the first and the last of
them by name, and the one with the most messages."""

PUBLISHES: Final = ("kind", "ts", "topic", "size")


PER_CHILD: Final = 10.0
"""A topic explosion is a prefix with many children that carry little each, such as one topic for each request, or an
identifier that is new each time: at most this many messages for each child, and either ..."""
MANY: Final = 1000
"""... this many children or more ("many"), ..."""
GROWING: Final = 100
"""... or this many or more, of which new ones came in at least `STEADY` of the parts of the time ("growing"): a fleet
that was there from the beginning does not grow, and is none."""
STEADY: Final = 6
"""Of the `SLICES` equal parts of the time that the events span."""


def by_topic(publishes: DataFrame) -> DataFrame:
    """The publishes, counted by topic."""
    return publishes.groupBy("topic").agg(
        f.count(f.lit(1)).alias("messages"),
        f.sum(f.coalesce("size", f.lit(0))).alias("bytes"),
        f.min("ts").alias("first_ts"),
        f.max("ts").alias("last_ts"),
    )


def tree(topics: DataFrame, seconds: float) -> DataFrame:
    """Every prefix of these topics; `seconds`: how long the events span, for the rates."""
    levels = topics.withColumn("levels", f.split("topic", "/"))
    nodes = (
        levels.withColumn("depth", f.explode(f.sequence(f.lit(0), f.size("levels"))))
        .withColumn("prefix", f.array_join(f.slice("levels", f.lit(1), f.col("depth")), "/"))
        .groupBy("depth", "prefix")
        .agg(
            f.sum("messages").alias("messages"),
            f.sum("bytes").alias("bytes"),
            f.coalesce(f.sum(f.when(f.col("depth") == f.size("levels"), f.col("messages"))), f.lit(0)).alias(
                "own_messages"
            ),
            f.count(f.lit(1)).alias("topics"),
            f.min("first_ts").alias("first_ts"),
            f.max("last_ts").alias("last_ts"),
        )
        .withColumn("level", f.element_at(f.split("prefix", "/"), -1))
        .withColumn("parent", f.expr("substring(prefix, 1, length(prefix) - length(level) - 1)"))
        .withColumns({name: f.when(f.col("depth") > 0, f.col(name)) for name in ("parent", "level")})
    )
    children = (
        nodes.where(f.col("depth") > 0)
        .groupBy((f.col("depth") - 1).alias("depth"), f.col("parent").alias("prefix"))
        .agg(f.count(f.lit(1)).alias("children"))
    )
    return (
        nodes.join(children, ["depth", "prefix"], "left")
        # An engine that counts depths in 64 bits writes the same table.
        .withColumn("depth", f.col("depth").cast("int"))
        .withColumn("children", f.coalesce("children", f.lit(0)))
        .withColumn("messages_per_s", f.col("messages") / f.lit(seconds))
        .withColumn("bytes_per_s", f.col("bytes") / f.lit(seconds))
        .select(*TREE)
    )


def hot(topics: DataFrame, number: int, seconds: float, messages: int) -> DataFrame:
    """Return so many topics with the most messages; `messages`: of all topics."""
    return (
        topics.orderBy(f.desc("messages"), "topic")
        .limit(number)
        .withColumn("share", f.col("messages") / f.lit(float(max(messages, 1))))
        .withColumn("messages_per_s", f.col("messages") / f.lit(seconds))
        .select(*HOT)
        .orderBy(f.desc("messages"), "topic")
    )


def explosions(nodes: DataFrame, first_us: int, seconds: float) -> DataFrame:
    """The prefixes of a tree where topics explode; `first_us`: when the events begin, microseconds since 1970."""
    per_child = f.col("messages") / f.col("children")
    large = nodes.where((f.col("children") >= GROWING) & (per_child <= PER_CHILD)).withColumn("per_child", per_child)
    slice_ = f.least(
        f.lit(SLICES - 1), f.floor((f.unix_micros("first_ts") - first_us) / f.lit(seconds * 1e6 / SLICES))
    ).cast("int")
    grown = (
        nodes.where(f.col("depth") > 0)
        .select(
            (f.col("depth") - 1).alias("depth"),
            f.col("parent").alias("prefix"),
            "level",
            "messages",
            slice_.alias("at"),
        )
        # Large prefixes are few: their children alone are looked at.
        .join(f.broadcast(large.select("depth", "prefix")), ["depth", "prefix"], "left_semi")
        .groupBy("depth", "prefix")
        .agg(
            f.array(*(f.count(f.when(f.col("at") == number, True)) for number in range(SLICES))).alias("new_children"),
            f.array(f.min("level"), f.max("level"), f.max_by("level", f.struct("messages", "level"))).alias("examples"),
        )
    )
    parts = f.size(f.filter("new_children", lambda each: each > 0))
    growing = parts >= STEADY
    many = f.col("children") >= MANY
    return (
        large.join(grown, ["depth", "prefix"])
        .withColumn("growing", growing)
        .withColumn("examples", f.array_sort(f.array_distinct("examples")))
        .where(many | f.col("growing"))
        .withColumn("why", f.when(many & f.col("growing"), "many, growing").when(many, "many").otherwise("growing"))
        .select(*EXPLOSIONS)
        .orderBy(f.desc("children"), "depth", "prefix")
    )
