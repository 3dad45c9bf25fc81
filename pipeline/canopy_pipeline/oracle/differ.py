"""The differences between expected and recorded deliveries, their reasons, and those that cannot be judged.

Only rows that do not agree come here. In a broker that routes correctly they are what lies at the edge of a gap
(`torn`).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from canopy_pipeline.runtime.engine import f
from canopy_pipeline.runtime.table_schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MISSING: Final = "missing"
UNEXPECTED: Final = "unexpected"
WRONG: Final = "wrong"
UNJUDGED: Final = "unjudged"

NOTHING_CAME: Final = "no deliver and no drop"
NO_SUBSCRIPTION: Final = "no matching subscription"
NO_LOCAL: Final = "No Local: the client's own message"
NO_MEMBER: Final = "not a member of the share group"
NO_PUBLISH: Final = "no such publish"
DOUBLED: Final = "doubled"
QOS: Final = "QoS"
IN_GAP: Final = "the publish is in a gap"
AT_EDGE: Final = "a gap, or the end of the recording, begins at this publish"

DIFFERENCES: Final = Schema(
    {
        "run_id": "string",
        "seq": "bigint",
        "topic": "string",
        "client_id": "string",
        "topic_filter": "string",
        "why": "string",
        "qos": "int",
        "expected_qos": "int",
        "copies": "int",
    }
)
"""Columns of the tables: `seq` is the publish's, `qos` the delivered one."""

_FOUND: Final = ("run_id", "seq", "client_id", "topic_filter", "outcome", "why", "qos", "expected_qos", "copies")


def named(sessions: DataFrame | None, groups: DataFrame | None) -> DataFrame:
    """Return each difference as a row of its own: (run_id, seq, client_id, topic_filter, outcome, why, qos, …, copies).
    Of the sessions and the share groups that do not agree one may be None: there are none."""
    parts = [_of_sessions(sessions)] if sessions is not None else []
    parts += _of_groups(groups) if groups is not None else []
    return reduce(lambda one, other: one.unionByName(other), parts)


def _of_sessions(odd: DataFrame) -> DataFrame:
    copies, expected, nothing = f.col("delivers") + f.col("drops"), f.col("expected"), f.lit(None)
    wrong_qos = (f.col("low") != f.col("want")) | (f.col("high") != f.col("want"))
    # Of two deliveries the one that is off.
    off = f.when(f.col("low") != f.col("want"), f.col("low")).otherwise(f.col("high"))
    return _exploded(
        odd,
        f.col("client_id"),
        [
            f.when(expected & (copies == 0), _finding(MISSING, NOTHING_CAME, nothing, f.col("want"), copies)),
            f.when(expected & (copies > 1), _finding(WRONG, DOUBLED, f.col("high"), f.col("want"), copies)),
            f.when(
                expected & (f.col("delivers") > 0) & f.coalesce(wrong_qos, f.lit(True)),
                _finding(WRONG, QOS, off, f.col("want"), copies),
            ),
            f.when(
                ~expected & (copies > 0) & f.col("topic_filter").isNotNull(),
                _finding(UNEXPECTED, NO_LOCAL, f.col("high"), nothing, copies),
            ),
            f.when(
                ~expected & (copies > 0) & f.col("topic_filter").isNull(),
                _finding(UNEXPECTED, NO_SUBSCRIPTION, f.col("high"), nothing, copies),
            ),
        ],
    )


def _of_groups(odd: DataFrame) -> list[DataFrame]:
    copies, expected, nothing = f.col("delivers") + f.col("drops"), f.col("expected"), f.lit(None)
    chosen = f.array_join(f.array_sort(f.array_distinct(f.transform("got", lambda each: each.client_id))), ", ")
    stray = f.when(expected, f.lit(NO_MEMBER)).otherwise(f.lit(NO_SUBSCRIPTION))
    first_off = f.get("off", f.lit(0))
    groups = _exploded(
        odd,
        f.when(chosen != "", chosen),
        [
            f.when(expected & (copies == 0), _finding(MISSING, NOTHING_CAME, nothing, nothing, copies)),
            f.when(expected & (copies > 1), _finding(WRONG, DOUBLED, nothing, nothing, copies)),
            f.when(
                expected & (f.size("off") > 0),
                _finding(WRONG, QOS, first_off.qos, f.least(f.col("pub_qos"), first_off.granted), copies),
            ),
            f.when(~expected & (copies > 0), _finding(UNEXPECTED, NO_SUBSCRIPTION, nothing, nothing, copies)),
        ],
    )
    strangers = odd.select(
        "run_id", "seq", "topic_filter", stray.alias("why"), f.explode("strangers").alias("stranger")
    ).select(
        "run_id",
        "seq",
        "stranger.client_id",
        "topic_filter",
        f.lit(UNEXPECTED).alias("outcome"),
        "why",
        "stranger.qos",
        f.lit(None).cast("int").alias("expected_qos"),
        f.lit(1).alias("copies"),
    )
    return [groups, strangers]


def _finding(outcome: str, why: str, qos: Column, expected_qos: Column, copies: Column) -> Column:
    return f.struct(
        f.lit(outcome).alias("outcome"),
        f.lit(why).alias("why"),
        qos.cast("int").alias("qos"),
        expected_qos.cast("int").alias("expected_qos"),
        copies.cast("int").alias("copies"),
    )


def _exploded(frame: DataFrame, client: Column, findings: list[Column]) -> DataFrame:
    return (
        frame.withColumn("client_id", client)
        .select(
            "run_id", "seq", "client_id", "topic_filter", f.explode(f.array_compact(f.array(*findings))).alias("at")
        )
        .select("run_id", "seq", "client_id", "topic_filter", "at.*")
        .select(*_FOUND)
    )


def torn(found: DataFrame, edges: DataFrame, published: DataFrame) -> DataFrame:
    """Return the differences with their topics; one that a gap may explain has the outcome `unjudged`: (outcome,
    *DIFFERENCES)."""
    edged = edges.select("run_id", f.col("from_seq").alias("seq"), "to_seq", "edge")
    asked = found.select("run_id", "seq").distinct().withColumn("asked", f.lit(True))
    line = "PARTITION BY run_id ORDER BY seq NULLS FIRST RANGE BETWEEN"
    before = f.expr(f"max(to_seq) OVER ({line} UNBOUNDED PRECEDING AND CURRENT ROW)")
    after = f.expr(f"min(edge) OVER ({line} CURRENT ROW AND UNBOUNDED FOLLOWING)")
    about = (
        asked.unionByName(edged, allowMissingColumns=True)
        .withColumn("in_gap", f.coalesce(before >= f.col("seq"), f.lit(False)))
        .withColumn("at_edge", f.coalesce(after <= f.col("seq"), f.lit(False)))
        .where("asked")
        .select("run_id", "seq", "in_gap", "at_edge")
    )
    there = published.select("run_id", "seq", "topic", f.lit(True).alias("there"))
    joined = found.join(about, ["run_id", "seq"]).join(there, ["run_id", "seq"], "left")
    lost = f.col("there").isNull() & f.col("in_gap")
    cut = (f.col("outcome") == MISSING) & f.col("at_edge")
    why = f.when(lost, IN_GAP).when(cut, AT_EDGE).when(f.col("there").isNull(), NO_PUBLISH).otherwise(f.col("why"))
    return joined.select(
        f.when(lost | cut, UNJUDGED).otherwise(f.col("outcome")).alias("outcome"),
        *(f.col(name) if name != "why" else why.alias("why") for name in DIFFERENCES),
    )
