"""The matching of topic filters and topic names (MQTT 5.0, section 4.7) as equi-joins.

Filters of one shape (how many levels, at which of them a `+`, whether a `#` ends them) match a topic exactly if the
levels that the shape leaves over are the same: a key on either side. So distinct topics and distinct filters meet in
joins on (shape, key), without a cross join and without Python in the executors.

Promises: every level is told apart from every other, empty ones included; `a/#` matches `a`; a topic that begins with
`$` is matched by no filter that begins with a wildcard.

Topic filters are not checked: what a broker granted is taken to be well-formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from canopy_pipeline.runtime.engine import f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHARE: Final = "$share/"

_SHAPE: Final = ("tail", "depth", "pluses")


def is_shared(topic_filter: Column) -> Column:
    """Return true for the filter of a shared subscription as the client wrote it (section 4.8.2); false for null."""
    return f.coalesce(topic_filter.startswith(SHARE), f.lit(False))


def unshared(topic_filter: Column) -> Column:
    """Return the filter without `$share/name/`."""
    return f.when(is_shared(topic_filter), f.regexp_replace(topic_filter, r"(?s)^\$share/[^/]*/", f.lit(""))).otherwise(
        topic_filter
    )


def matches(topics: DataFrame, filters: DataFrame, within: Sequence[str] = ()) -> DataFrame:
    """Return the pairs of a topic and a filter that matches it.

    `topics` has a column `topic`, `filters` a column `filter` (without `$share/name/`); both have the columns `within`,
    and are matched only where these are equal. Each of the two must be distinct. Gives (*within, topic, filter).
    """
    shaped = filters.select(*within, "filter", *_shape(f.col("filter")))
    shapes = shaped.select(*_SHAPE).distinct()
    levels = f.split("topic", "/")
    # A filter with `#` matches by any beginning of the topic, none of its levels and all of them included.
    cut = topics.select(*within, "topic", levels.alias("levels")).withColumn(
        "end",
        f.explode(
            f.concat(
                f.array(f.struct(f.lit(False).alias("tail"), f.size("levels").alias("depth"))),
                f.transform(
                    f.sequence(f.lit(0), f.size("levels")),
                    lambda depth: f.struct(f.lit(True).alias("tail"), depth.alias("depth")),
                ),
            )
        ),
    )
    begins_wild = f.array_contains("pluses", 0) | (f.col("depth") == 0)
    keyed = (
        cut.select(*within, "topic", "levels", "end.tail", "end.depth")
        .join(f.broadcast(shapes), ["tail", "depth"])
        .where(~(f.col("topic").startswith("$") & begins_wild))
        .withColumn("key", _key(f.slice("levels", 1, f.col("depth")), f.col("pluses")))
    )
    return keyed.join(shaped, [*within, *_SHAPE, "key"]).select(*within, "topic", "filter")


def _shape(topic_filter: Column) -> list[Column]:
    """`tail`, `depth`, `pluses` (their positions) and `key` of a filter."""
    levels = f.split(topic_filter, "/")
    tail = f.element_at(levels, -1) == "#"
    depth = f.size(levels) - tail.cast("int")
    body = f.slice(levels, 1, depth)
    pluses = f.filter(f.sequence(f.lit(0), f.size(levels)), lambda at: f.get(levels, at) == "+")
    return [tail.alias("tail"), depth.alias("depth"), pluses.alias("pluses"), _key(body, pluses).alias("key")]


def _key(levels: Column, pluses: Column) -> Column:
    """Return the levels that a shape leaves over. No level has a slash, and the shape says where each of them
    stands."""
    return f.array_join(f.filter(levels, lambda _, at: ~f.array_contains(pluses, at)), "/")
