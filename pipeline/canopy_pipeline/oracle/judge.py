"""Find the runs of the broker that can be judged, and their judgeable parts.

The recorder numbers all events of a run without a break, and names what it lost. So the numbers themselves tell what
the oracle may rely on (`runs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_pipeline.matching import is_shared
from canopy_pipeline.record.events_schema import ARRIVE, DELIVER, DROP, EVICT, FORWARD, GAP, PUBLISH, SNAPSHOT
from canopy_pipeline.runtime.engine import f

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column, DataFrame

BLOCK: Final = 65_536
"""Sequence numbers that are counted together, to find the blocks with unnamed holes."""
SLACK: Final = 1_000
"""Events before a gap among which the broker's last publish is looked for, where the last one does not tell it."""


def counts(events: DataFrame, *parts: Column) -> DataFrame:
    """Count the events of each kind in each block of numbers, or in `parts` of it: (run_id, block, kind, cause, low,
    high, rows, n, receipts, ref_low, ref_high, grouped).

    `cause`: of drops. `receipts`: deliveries and drops of a publish, whose number is from `ref_low` to `ref_high`;
    `grouped`: one of them is a share group's.
    """
    kind, ref_seq = f.col("kind"), f.col("ref_seq")
    receipt = kind.isin(DELIVER, DROP, FORWARD) & ref_seq.isNotNull()
    of = f.when(receipt, ref_seq)
    return events.groupBy(
        "run_id",
        f.floor(f.col("seq") / BLOCK).alias("block"),
        "kind",
        f.when(kind == DROP, f.coalesce("reason", f.lit("unknown"))).alias("cause"),
        *parts,
    ).agg(
        f.min("seq").alias("low"),
        f.max("seq").alias("high"),
        f.count("*").alias("rows"),
        f.sum(f.coalesce("n", f.lit(1))).alias("n"),
        f.count(of).alias("receipts"),
        f.min(of).alias("ref_low"),
        f.max(of).alias("ref_high"),
        f.max(receipt & is_shared(f.col("topic_filter"))).alias("grouped"),
    )


def blocks(counted: DataFrame) -> DataFrame:
    """Count the events in each block of numbers: (run_id, block, low, high, rows)."""
    return counted.groupBy("run_id", "block").agg(
        f.min("low").alias("low"), f.max("high").alias("high"), f.sum("rows").alias("rows")
    )


def gaps(events: DataFrame) -> DataFrame:
    """The gaps that the recorder named: (run_id, seq, from_seq, to_seq, reason, n)."""
    named = events.where((f.col("kind") == GAP) & f.col("from_seq").isNotNull() & f.col("to_seq").isNotNull())
    return named.select("run_id", "seq", "from_seq", "to_seq", f.coalesce("reason", f.lit("")).alias("reason"), "n")


def snapshots(events: DataFrame) -> DataFrame:
    """Return the snapshots of all subscriptions: (run_id, low, start), from the number `low` to `start`."""
    told = events.where((f.col("kind") == SNAPSHOT) & f.col("ref_seq").isNotNull())
    return told.select("run_id", f.col("ref_seq").alias("low"), f.col("seq").alias("start"))


def runs(
    counted: DataFrame, named: DataFrame, unnamed: DataFrame, told_again: DataFrame, cut: bool = False
) -> DataFrame:
    """The runs: (run_id, first_seq, last_seq, whole, known_from, known_until).

    `whole`: its beginning is there. Publishes between `known_from` and `known_until` can be judged; the one is 0 where
    that is from the beginning on; the other is 0 where nothing can be, and beyond the last event where nothing ended
    what is known. `unnamed`: of `holes`. `cut`: the events are those of a time, and begin anywhere.

    - A run whose first event is not the first there was (older segments were deleted, or are not asked for) has
      subscriptions that nobody knows, up to a snapshot of them.
    - Numbers that are missing and that no `gap` names (a segment was deleted, or left out as corrupt), or a gap whose
      reason ends in `+state`: from there on nobody knows the subscriptions, up to the next snapshot or the run's end.
    - Of the stretches in which they are known the longest one is judged.
    - A gap whose reason says no such thing lost publishes and deliveries. A delivery of a publish that is in a gap
      cannot be judged, nor the absence of one where the broker was at that publish when the gap began: at the gap's
      `edge`. The end of what was recorded counts as such a gap: the broker may have been killed, or may still be
      running.
    """
    ends = _ends(counted)
    before = ends.select(f.col("run_id").alias("earlier"), (f.col("last_seq") + 1).alias("first_seq"))
    followed = before.groupBy("first_seq").agg(f.count("*").alias("predecessors"))
    # A run that begins with the news of what a crash cost continues the numbers of the lost ones.
    news = named.where(f.col("to_seq") + 1 == f.col("seq"))
    if cut:
        # A full queue is told in the midst of a run too.
        news = news.where(~f.col("reason").startswith("queue-full"))
    told = news.select("run_id", f.col("seq").alias("first_seq")).distinct().withColumn("told", f.lit(True))
    whole = (f.col("first_seq") <= 1) | f.col("predecessors").isNotNull() | f.col("told").isNotNull()
    # Runs are few, and so is what there is to say of each: these tables go to where the others are.
    begun = (
        ends.join(f.broadcast(followed), "first_seq", "left")
        .join(f.broadcast(told), ["run_id", "first_seq"], "left")
        .select("run_id", "first_seq", "last_seq", whole.alias("whole"))
    )
    return begun.join(f.broadcast(_known(begun, _breaks(unnamed, named, begun), told_again)), "run_id", "left").select(
        "run_id",
        "first_seq",
        "last_seq",
        "whole",
        f.coalesce("known.start", f.lit(0)).cast("long").alias("known_from"),
        f.coalesce("known.until", f.lit(0)).cast("long").alias("known_until"),
    )


def asked(known: DataFrame, events: DataFrame, since: datetime | None) -> DataFrame:
    """The runs that have events of a time, with `asked_from`: the last number before it, up to which none is judged."""
    if since is None:
        return known.withColumn("asked_from", f.lit(0).cast("long"))
    before = events.where(f.col("ts") < f.lit(since)).groupBy("run_id").agg(f.max("seq").alias("asked_from"))
    return (
        known.join(f.broadcast(before), "run_id", "left")
        .withColumn("asked_from", f.coalesce("asked_from", f.lit(0)).cast("long"))
        .where(f.col("last_seq") > f.col("asked_from"))
        .withColumn("known_from", f.greatest("known_from", "asked_from"))
    )


def _breaks(unnamed: DataFrame, named: DataFrame, begun: DataFrame) -> DataFrame:
    """Return the stretches in which subscriptions got lost: (run_id, lost_from, lost_to)."""
    own = named.join(f.broadcast(begun), "run_id").where(f.col("from_seq") >= f.col("first_seq"))
    lost_state = _at_own_begin(named, begun).unionByName(own.select("run_id", "from_seq", "to_seq", "reason"))
    return (
        lost_state.where(f.col("reason").endswith("+state"))
        .select("run_id", f.col("from_seq").alias("lost_from"), f.col("to_seq").alias("lost_to"))
        .unionByName(unnamed.select("run_id", f.col("low").alias("lost_from"), f.col("high").alias("lost_to")))
    )


def _known(begun: DataFrame, broken: DataFrame, told_again: DataFrame) -> DataFrame:
    """The longest stretch of each run in which the subscriptions are known: (run_id, known: (start, until))."""
    starts = (
        begun.where("whole")
        .select("run_id", f.lit(0).cast("long").alias("low"), f.lit(0).cast("long").alias("start"), "last_seq")
        .unionByName(
            told_again.join(f.broadcast(begun), "run_id")
            .where(f.col("low") >= f.col("first_seq"))
            .select("run_id", "low", "start", "last_seq")
        )
    )
    spoilt = (f.col("start") > 0) & (f.col("lost_from") <= f.col("start")) & (f.col("lost_to") >= f.col("low"))
    after = f.when(f.col("lost_from") > f.col("start"), f.col("lost_from"))
    stretches = (
        starts.join(f.broadcast(broken), "run_id", "left")
        .groupBy("run_id", "start", "last_seq")
        .agg(f.max(f.coalesce(spoilt, f.lit(False))).alias("spoilt"), f.min(after).alias("lost"))
        .where("not spoilt")
        .select("run_id", "start", f.coalesce("lost", f.col("last_seq") + 1).alias("until"))
    )
    known = f.struct("start", "until")
    return stretches.groupBy("run_id").agg(f.max_by(known, f.col("until") - f.col("start")).alias("known"))


def _at_own_begin(named: DataFrame, begun: DataFrame) -> DataFrame:
    """Gaps before a run's first event that are its own: its queue was full before the first event was written."""
    return (
        named.join(f.broadcast(begun), "run_id")
        .where((f.col("from_seq") < f.col("first_seq")) & f.col("reason").startswith("queue-full"))
        .select("run_id", "from_seq", "to_seq", "reason")
    )


def short(counted: DataFrame, named: DataFrame) -> DataFrame:
    """The blocks of a run that lack numbers no gap names, as far as the run has them: (run_id, block, low, high)."""
    ends = _ends(counted)
    first_block, last_block = (f.floor(f.col(name) / BLOCK) for name in ("first_seq", "last_seq"))
    lost = _lost(named, ends).groupBy("run_id", "block").agg(f.sum(f.col("high") - f.col("low") + 1).alias("lost"))
    return (
        ends.withColumn("block", f.explode(f.sequence(first_block, last_block)))
        .join(counted.select("run_id", "block", "rows"), ["run_id", "block"], "left")
        .join(lost, ["run_id", "block"], "left")
        .withColumn("low", f.greatest("first_seq", f.col("block") * BLOCK))
        .withColumn("high", f.least("last_seq", f.col("block") * BLOCK + (BLOCK - 1)))
        .where(f.coalesce("rows", f.lit(0)) + f.coalesce("lost", f.lit(0)) < f.col("high") - f.col("low") + 1)
        .select("run_id", "block", "low", "high")
    )


def holes(lacking: DataFrame, events: DataFrame, named: DataFrame) -> DataFrame:
    """From the first to the last number that each of these blocks lacks: (run_id, block, low, high)."""
    numbers = events.select("run_id", f.floor(f.col("seq") / BLOCK).alias("block"), "seq", f.col("seq").alias("to"))
    named = _lost(
        named, lacking.groupBy("run_id").agg(f.min("low").alias("first_seq"), f.max("high").alias("last_seq"))
    )
    around = [
        lacking.select("run_id", "block", edge.alias("seq"), edge.alias("to"))
        for edge in (f.col("low") - 1, f.col("high") + 1)
    ]
    known = (
        numbers.unionByName(named.select("run_id", "block", f.col("low").alias("seq"), f.col("high").alias("to")))
        .join(f.broadcast(lacking.select("run_id", "block")), ["run_id", "block"], "left_semi")
        .unionByName(around[0])
        .unionByName(around[1])
    )
    before = "PARTITION BY run_id, block ORDER BY seq NULLS FIRST ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    return (
        known.withColumn("reached", f.expr(f"max(`to`) OVER ({before})"))
        .where(f.col("seq") > f.col("reached") + 1)
        .groupBy("run_id", "block")
        .agg(f.min(f.col("reached") + 1).alias("low"), f.max(f.col("seq") - 1).alias("high"))
    )


def _ends(counted: DataFrame) -> DataFrame:
    return counted.groupBy("run_id").agg(f.min("low").alias("first_seq"), f.max("high").alias("last_seq"))


def _lost(named: DataFrame, ends: DataFrame) -> DataFrame:
    """The numbers in gaps, within these ends and cut at blocks: (run_id, block, low, high)."""
    return (
        named.join(f.broadcast(ends), "run_id")
        .select(
            "run_id",
            f.greatest("from_seq", "first_seq").alias("low"),
            f.least("to_seq", "last_seq").alias("high"),
        )
        .where(f.col("low") <= f.col("high"))
        .withColumn("block", f.explode(f.sequence(f.floor(f.col("low") / BLOCK), f.floor(f.col("high") / BLOCK))))
        .withColumn("low", f.greatest("low", f.col("block") * BLOCK))
        .withColumn("high", f.least("high", f.col("block") * BLOCK + (BLOCK - 1)))
    )


def edges(events: DataFrame, named: DataFrame, unnamed: DataFrame, known: DataFrame) -> DataFrame:
    """Gaps, holes and the ends of runs: (run_id, from_seq, to_seq, edge).

    Deliveries of a publish with `edge` <= seq < `from_seq` may be among what was lost; the end of a run loses no
    publish, its `to_seq` is before its `from_seq`.
    """
    ends = known.select("run_id", (f.col("last_seq") + 1).alias("from_seq"), f.col("last_seq").alias("to_seq"))
    lacking = unnamed.select("run_id", f.col("low").alias("from_seq"), f.col("high").alias("to_seq"))
    all_gaps = named.select("run_id", "from_seq", "to_seq").unionByName(lacking).unionByName(ends)
    all_gaps = all_gaps.withColumn("at", f.col("from_seq") - 1)
    stretch = f.floor(f.col("at") / SLACK)
    looking = all_gaps.select("run_id", "at", f.explode(f.array(stretch, stretch - 1)).alias("stretch")).distinct()
    kind, ref_seq = f.col("kind"), f.col("ref_seq")
    # What queues shed is told at any time, and says nothing of the publish that is being routed.
    silent = (kind == EVICT) | ((kind == DROP) & ref_seq.isNull())
    last = (
        events.where(~silent)
        .select("run_id", "seq", "kind", "ref_seq", f.floor(f.col("seq") / SLACK).alias("stretch"))
        .join(f.broadcast(looking), ["run_id", "stretch"])
        .where(f.col("seq") <= f.col("at"))
        .groupBy("run_id", "at")
        .agg(f.max(f.struct("seq", "kind", "ref_seq")).alias("last"))
        .select("run_id", "at", "last.*")
    )
    # All events of a publish follow it before anything else happens.
    edge = (
        f.when(kind.isin(PUBLISH, ARRIVE), f.col("seq"))
        .when(kind.isin(DELIVER, DROP, FORWARD), ref_seq)
        .when(kind.isNull(), f.col("from_seq") - SLACK)
        .otherwise(f.col("from_seq"))
    )
    return all_gaps.join(last, ["run_id", "at"], "left").select("run_id", "from_seq", "to_seq", edge.alias("edge"))
