"""The deliveries that should have been, those that were, and both side by side.

A session gets one copy of a publish, however many of its filters match (3.3.4), with the lower of the publish's QoS and
the highest that was granted to the filters that count; one with No Local does not count for the client's own publishes
(3.8.3.1). A share group gets one as a whole (4.8.2), with the lower of the publish's QoS and the one granted to the
member that was chosen. So sessions and groups are compared apart: by (publish, client), and by (publish, group).

What the recorder says to that are receipts: a `deliver`, or a `drop` of that very message. A receipt of a share
group names the group in `topic_filter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from canopy_pipeline.matching import is_shared, matches
from canopy_pipeline.oracle.subscription_spans import inside
from canopy_pipeline.record.events_schema import ARRIVE, DELIVER, DROP, FORWARD, NODES, PUBLISH
from canopy_pipeline.runtime.engine import f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def publishes(events: DataFrame, known: DataFrame) -> DataFrame:
    """The publishes that can be judged: (run_id, seq, topic, publisher, pub_qos, stays).

    What another worker has brought is one here, but for one share group alone (`stays`: it goes to no other worker).
    So, too, does not all that the broker itself publishes.
    """
    return (
        events.where(f.col("kind").isin(PUBLISH, ARRIVE) & f.col("topic_filter").isNull())
        .join(f.broadcast(known.select("run_id", "known_from", "known_until")), "run_id")
        .where((f.col("seq") > f.col("known_from")) & (f.col("seq") < f.col("known_until")))
        .select(
            "run_id",
            "seq",
            "topic",
            f.col("client_id").alias("publisher"),
            f.col("qos").cast("int").alias("pub_qos"),
            ((f.col("kind") == ARRIVE) | f.col("client_id").isNull()).alias("stays"),
        )
    )


def receipts(events: DataFrame, known: DataFrame) -> DataFrame:
    """Return the deliveries and drops of judged publishes: (run_id, event, seq, client_id, topic_filter, dropped, qos).

    `seq` is the publish's; `topic_filter` null where no share group chose the client.
    """
    group = f.when(is_shared(f.col("topic_filter")), f.col("topic_filter"))
    return (
        events.where(f.col("kind").isin(DELIVER, DROP, FORWARD) & f.col("ref_seq").isNotNull())
        .join(f.broadcast(known.select("run_id", "known_from", "known_until")), "run_id")
        .where((f.col("ref_seq") > f.col("known_from")) & (f.col("ref_seq") < f.col("known_until")))
        .select(
            "run_id",
            f.col("seq").alias("event"),
            f.col("ref_seq").alias("seq"),
            f.coalesce("client_id", f.lit("")).alias("client_id"),
            group.alias("topic_filter"),
            (f.col("kind") == DROP).alias("dropped"),
            f.col("qos").cast("int").alias("qos"),
        )
    )


def is_node(client: Column) -> Column:
    """Return whether a client is another node of the cluster, or another worker."""
    return f.coalesce(client.startswith(NODES), f.lit(False))


def without_own(all_receipts: DataFrame, published: DataFrame) -> DataFrame:
    """Leave out what other workers got of the broker's own messages: some of these are each worker's own."""
    own = published.where(f.col("publisher").isNull()).select("run_id", "seq")
    nodes = is_node(f.col("client_id"))
    return all_receipts.where(~nodes).unionByName(
        all_receipts.where(nodes).join(own, ["run_id", "seq"], "left_anti").select(*all_receipts.columns)
    )


def not_arrived(all_receipts: DataFrame, published: DataFrame, events: DataFrame) -> DataFrame:
    """Return the topics of which less has arrived at other workers than has gone there: (topic, messages)."""
    gone = (
        all_receipts.where(is_node(f.col("client_id")) & ~f.col("dropped") & f.col("topic_filter").isNull())
        .join(published.select("run_id", "seq", "topic"), ["run_id", "seq"])
        .groupBy("topic")
        .agg(f.count("*").alias("gone"))
    )
    came = events.where(f.col("kind") == ARRIVE).groupBy("topic").agg(f.count("*").alias("came"))
    left = f.col("gone") - f.coalesce("came", f.lit(0))
    return gone.join(came, "topic", "left").select("topic", left.alias("messages")).where("messages > 0")


def matching(published: DataFrame, all_spans: DataFrame) -> DataFrame:
    """Return the filters that match each topic in each run: (run_id, topic, filter)."""
    return matches(
        published.select("run_id", "topic").distinct(), all_spans.select("run_id", "filter").distinct(), ["run_id"]
    )


def for_sessions(published: DataFrame, matched: DataFrame, plain: DataFrame) -> DataFrame:
    """Return the copies that each session should get: (run_id, seq, client_id, topic_filter, expected, want).

    `expected` is false where only filters with No Local match the client's own publish; `want` is the QoS, and
    `topic_filter` the first one, in alphabetical order, of those that matched.
    """
    points = published.join(matched, ["run_id", "topic"]).drop("topic")
    found = inside(points, plain, ["run_id", "filter"]).where(~(f.col("stays") & is_node(f.col("client_id"))))
    counts = ~(f.col("no_local") & f.col("client_id").eqNullSafe(f.col("publisher")))
    return found.groupBy("run_id", "seq", "client_id").agg(
        f.coalesce(f.min(f.when(counts, f.col("topic_filter"))), f.min("topic_filter")).alias("topic_filter"),
        f.max(counts).alias("expected"),
        f.least(f.max("pub_qos"), f.max(f.when(counts, f.col("qos")))).alias("want"),
    )


def for_groups(published: DataFrame, matched: DataFrame, active: DataFrame) -> DataFrame:
    """Return the copies that each share group should get: (run_id, seq, topic_filter, expected, pub_qos)."""
    points = published.join(matched, ["run_id", "topic"]).select("run_id", "seq", "pub_qos", "filter")
    found = inside(points, active, ["run_id", "filter"])
    return found.select("run_id", "seq", "topic_filter", f.lit(True).alias("expected"), "pub_qos")


def of_sessions(all_receipts: DataFrame) -> DataFrame:
    """Return the receipts of each session: (run_id, seq, client_id, delivers, drops, low, high), the last two QoS."""
    kept = all_receipts.where(f.col("topic_filter").isNull())
    return kept.groupBy("run_id", "seq", "client_id").agg(
        f.sum((~f.col("dropped")).cast("int")).alias("delivers"),
        f.sum(f.col("dropped").cast("int")).alias("drops"),
        f.min(f.when(~f.col("dropped"), f.col("qos"))).alias("low"),
        f.max(f.when(~f.col("dropped"), f.col("qos"))).alias("high"),
    )


def of_groups(all_receipts: DataFrame, members: DataFrame) -> DataFrame:
    """Return the receipts of each share group: (run_id, seq, topic_filter, delivers, drops, got, strangers).

    `got`: of each delivery to a member (client_id, qos, granted); `strangers`: receipts of clients that were no
    members, as (client_id, qos); they are not counted.
    """
    kept = all_receipts.where(f.col("topic_filter").isNotNull())
    granted = (
        inside(
            kept,
            members.select("run_id", "client_id", "topic_filter", "begin", "end", f.col("qos").alias("granted")),
            ["run_id", "client_id", "topic_filter"],
            left=True,
        )
        .groupBy("run_id", "event", "seq", "client_id", "topic_filter", "dropped", "qos")
        .agg(f.max("granted").alias("granted"))
        # The queue of the group has the group's name, and takes any QoS.
        .withColumn("granted", f.when(f.col("client_id") == f.col("topic_filter"), 2).otherwise(f.col("granted")))
    )
    member, dropped = f.col("granted").isNotNull(), f.col("dropped")
    return granted.groupBy("run_id", "seq", "topic_filter").agg(
        _count(member & ~dropped).alias("delivers"),
        _count(member & dropped).alias("drops"),
        # A group has one receipt for each publish, save in what is to be found here.
        f.collect_list(f.when(member & ~dropped, f.struct("client_id", "qos", "granted"))).alias("got"),
        f.collect_list(f.when(~member, f.struct("client_id", "qos"))).alias("strangers"),
    )


def _count(condition: Column) -> Column:
    return f.sum(condition.cast("int"))


def _beside(wanted: DataFrame, got: DataFrame, whose: str) -> DataFrame:
    both = wanted.join(got, ["run_id", "seq", whose], "full")
    none = {"expected": False, "delivers": 0, "drops": 0}
    return both.withColumns({name: f.coalesce(name, f.lit(each)) for name, each in none.items()})


def beside_sessions(wanted: DataFrame, got: DataFrame) -> DataFrame:
    """Join expected and recorded copies of each session; `agrees` is true if they are the same."""
    both = _beside(wanted, got, "client_id")
    right_qos = (f.col("delivers") == 0) | ((f.col("low") == f.col("want")) & (f.col("high") == f.col("want")))
    fine = (f.col("delivers") + f.col("drops") == f.col("expected").cast("int")) & right_qos
    return both.withColumn("agrees", f.coalesce(fine, f.lit(False)))


def beside_groups(wanted: DataFrame, got: DataFrame) -> DataFrame:
    """Join expected and recorded copies of each share group; `agrees` is true if they are the same; `off`: deliveries
    with a wrong QoS."""
    both = _beside(wanted, got, "topic_filter")
    off = f.filter("got", lambda each: each.qos != f.least(f.col("pub_qos"), each.granted))
    fine = (
        (f.col("delivers") + f.col("drops") == f.col("expected").cast("int"))
        & (f.coalesce(f.size("off"), f.lit(0)) <= 0)
        & (f.coalesce(f.size("strangers"), f.lit(0)) <= 0)
    )
    return both.withColumn("off", off).withColumn("agrees", f.coalesce(fine, f.lit(False)))
