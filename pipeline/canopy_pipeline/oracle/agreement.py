"""Find the blocks of publishes in which every session got its copies, by a fingerprint, before any comparison.

A block's fingerprint is the number of copies, and the exclusive or of their hashes. Where those that were expected and
those that came do not make the same one, the block is doubtful, and is compared copy by copy (`expect`, `differ`). All
expected copies differ: so nothing is lost, doubled or misdirected where the two are equal, unless hashes of 64 bits
happen to cancel each other out. A block with drops is doubtful, since a drop has no QoS.
Promises: no row of a publish or a delivery is shuffled where the audience of all topics can be sent to the tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_pipeline.oracle.expect import is_node
from canopy_pipeline.runtime.engine import f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BLOCK: Final = 4_096
"""Sequence numbers that are judged together: the more, the fewer fingerprints, the more is compared for a fault."""
SPANS: Final = 16
"""Times that a client may have subscribed to one filter; the topics of a client with more are doubtful."""
SENT: Final = 200_000
"""Pairs of a topic and a client up to which all of them are sent to every task: some 20 MB."""


def audience(matched: DataFrame, plain: DataFrame) -> DataFrame:
    """Return the subscribers of each topic: (run_id, topic, client_id, spans); `spans` null: the topic is doubtful."""
    often = f.expr("count(*) OVER (PARTITION BY run_id, `filter`, client_id)")
    counted = plain.withColumn("plain", (often <= SPANS) & f.col("qos").isNotNull())
    heard = matched.join(counted, ["run_id", "filter"])
    span = f.when(f.col("plain"), f.struct("begin", "end", "qos", "no_local"))
    return heard.groupBy("run_id", "topic", "client_id").agg(
        f.when(f.min("plain"), f.collect_list(span)).alias("spans")
    )


def doubtful(published: DataFrame, receipts: DataFrame, heard: DataFrame) -> DataFrame:
    """Return the blocks to be compared: (run_id, block). `heard`: the result of `audience`."""
    own = f.col("client_id").eqNullSafe(f.col("publisher"))

    def granted(span: Column) -> Column:
        """Return the QoS granted by a span; null if the span does not hold for this publish."""
        holds = (span["begin"] < f.col("seq")) & (f.col("seq") < span["end"]) & ~(span["no_local"] & own)
        return f.when(holds, span["qos"])

    none = f.lit(None).cast("int")
    of_many = f.aggregate("spans", none, lambda best, span: f.greatest(best, granted(span)))
    # What stands for one span alone is compiled, and for most there is one.
    best = f.when(f.size("spans") == 1, granted(f.get("spans", f.lit(0)))).otherwise(of_many)
    expected = (
        published.join(heard, ["run_id", "topic"])
        .where(~(f.col("stays") & is_node(f.col("client_id"))))
        .withColumn("best", best)
        .where(f.col("best").isNotNull() | f.col("spans").isNull())
        .select(
            "run_id",
            *_copy(f.lit(1), f.least("pub_qos", "best")),
            f.col("spans").isNull().alias("unknown"),
        )
    )
    came = receipts.where(f.col("topic_filter").isNull()).select(
        "run_id",
        *_copy(f.lit(-1), f.when(~f.col("dropped"), f.coalesce("qos", f.lit(-1)))),
        f.lit(False).alias("unknown"),
    )
    return (
        expected.unionByName(came)
        .groupBy("run_id", "block")
        .agg(
            f.sum("n").alias("n"), f.bit_xor("who").alias("who"), f.bit_xor("qos").alias("qos"),
            f.max("unknown").alias("unknown"),
        )
        .where("n != 0 or who != 0 or qos != 0 or unknown")
        .select("run_id", "block")
    )  # fmt: skip


def _copy(n: Column, qos: Column) -> list[Column]:
    """Return the columns that a copy adds to its block's fingerprint; a copy without QoS adds none for the QoS."""
    who = f.xxhash64("seq", "client_id")
    told = f.xxhash64(who, qos.cast("int"))
    return [
        block(),
        n.alias("n"),
        who.alias("who"),
        f.when(qos.isNull(), f.lit(0).cast("long")).otherwise(told).alias("qos"),
    ]


def block() -> Column:
    """The block of a publish, by its `seq`."""
    return f.floor(f.col("seq") / BLOCK).alias("block")


def within(rows: DataFrame, blocks: DataFrame) -> DataFrame:
    """The rows of these blocks; they have `run_id` and a publish's `seq`."""
    return rows.withColumn("block", block()).join(f.broadcast(blocks), ["run_id", "block"], "left_semi").drop("block")
