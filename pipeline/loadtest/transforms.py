"""From rows to accounts: what came of each stream at each subscriber, and of each pair.

Owns: the rules by which a delivery is a first one or a copy, late or in order, and by which what is missing counts as
lost, unconfirmed or unjudged. They are those of docs/load.md ("Counts"), found by windows over the order in which
messages came, where the load tester keeps a running account.

Promises: pure transforms; no row is collected. expected = received + lost + unconfirmed for each pair.

Terms: a message *advances* its stream when its number is above all that came before it; those it jumps over are
*skipped*. They are *away* when the subscriber's session ended in between (with QoS 0: its connection), so that nobody
can say whether they were due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.loadtest.tables import COUNTS
from pipeline.runtime.engine import Window, f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pipeline.loadtest.tables import Records

KEY: Final = ("run", "stream", "subscriber")
PAIR: Final = ("run", "publisher", "subscriber")

NEEDED: Final = (
    *KEY, "number", "sequence", "qos", "retain", "dup", "altered", "intended_us", "recv_us", "stage", "during", "whole",
    "epoch", "absence",
)  # fmt: skip
"""Of a row of what came: names and topics are in the small tables, and need not be moved."""

LOST_SESSION: Final = 3
"""A QoS that no subscription has: nothing is continuous."""


def judged(received: DataFrame) -> DataFrame:
    """Each delivery with what it was: `live` (not retained), `arrived` (the first copy), `advances`, `late`, `copied`,
    `again` (a copy that QoS 1 allows), `skipped` and `away` of what it jumped over, `settled_away` of the gap it
    filled."""
    in_order = Window.partitionBy(*KEY).orderBy("number")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    falling = Window.partitionBy(*KEY, "live").orderBy(f.col("sequence").desc(), f.col("number").desc())
    until_here = falling.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    began_whole = f.first("whole").over(in_order)
    rows = received.select(*NEEDED).withColumns(
        {
            "live": ~f.col("retain"),
            "first_epoch": f.when(began_whole, f.first("epoch").over(in_order)).otherwise(-1),
            "first_absence": f.when(began_whole, 0).otherwise(-1),
        }
    )
    highest = f.max(f.when(f.col("live"), f.col("sequence"))).over(before)
    rows = rows.withColumn("next", f.coalesce(highest + 1, f.lit(0)))
    rows = rows.withColumn("advances", f.col("live") & (f.col("sequence") >= f.col("next")))

    def last_advance(name: str) -> Column:
        return f.last(f.when(f.col("advances"), f.col(name)), ignorenulls=True).over(before)

    rows = rows.withColumns(
        {
            "last_epoch": f.coalesce(last_advance("epoch"), f.col("first_epoch")),
            "last_absence": f.coalesce(last_advance("absence"), f.col("first_absence")),
        }
    )
    new_connection = f.col("absence") != f.col("last_absence")
    new_session = f.col("epoch") != f.col("last_epoch")
    rows = rows.withColumns(
        {
            "skipped": f.when(f.col("advances"), f.col("sequence") - f.col("next")).otherwise(0),
            "away": f.col("advances") & (new_session | ((f.col("qos") == 0) & new_connection)),
            "returned": f.when(f.col("advances") & new_connection, f.col("next")),
        }
    )
    followed = f.lead("sequence").over(falling)
    rows = rows.withColumns(
        {
            "due_before": f.coalesce(f.last("returned", ignorenulls=True).over(before), f.lit(0)),
            "arrived": f.col("live") & (followed.isNull() | (followed != f.col("sequence"))),
            "settled_away": f.last(f.when(f.col("advances"), f.col("away")), ignorenulls=True).over(until_here),
        }
    )
    allowed = f.col("dup") | new_connection | (f.col("sequence") < f.col("due_before"))
    return rows.withColumns(
        {
            "late": f.col("arrived") & ~f.col("advances"),
            "copied": f.col("live") & ~f.col("arrived"),
            "again": f.col("live") & ~f.col("arrived") & (f.col("qos") == 1) & allowed,
        }
    ).drop("retain", "dup", "whole", "next", "last_epoch", "last_absence", "returned", "due_before")


def receipts(rows: DataFrame) -> DataFrame:
    """What came of each stream at each subscriber, from `judged` rows."""
    advanced = f.when(f.col("advances"), f.col("number"))

    def total(condition: Column) -> Column:
        return f.sum(condition.cast("long"))

    def gap(away: Column, late_away: Column) -> Column:
        return f.sum(f.when(away, f.col("skipped")).otherwise(0)) - total(f.col("late") & late_away)

    return rows.groupBy(*KEY).agg(
        total(f.col("arrived")).alias("received"),
        total(f.col("late")).alias("late"),
        total(f.col("copied") & ~f.col("again")).alias("copies"),
        total(f.col("again")).alias("again"),
        total(f.col("live") & f.col("altered")).alias("altered"),
        total(~f.col("live")).alias("retained"),
        gap(~f.col("away"), ~f.col("settled_away")).alias("missing"),
        gap(f.col("away"), f.col("settled_away")).alias("doubtful"),
        f.coalesce(f.max(f.when(f.col("live"), f.col("sequence"))) + 1, f.lit(0)).alias("next"),
        f.coalesce(f.max_by("epoch", advanced), f.max("first_epoch")).alias("last_epoch"),
        f.coalesce(f.max_by("absence", advanced), f.max("first_absence")).alias("last_absence"),
    )


def unconfirmed(rows: DataFrame, expected: DataFrame, uncertain: DataFrame) -> DataFrame:
    """Messages that did not come, and of which nobody knows whether the broker took them, by stream and subscriber:
    `open_gap` of those that were jumped over, `open_end` of those after the last that came."""
    numbers = uncertain.select("run", "stream", f.explode(f.sequence("first", "last")).alias("sequence")).distinct()
    heard = rows.where("arrived").select(*KEY, "sequence", "advances", "away", f.lit(False).alias("absent"))
    due = numbers.join(expected.select(*KEY), ["run", "stream"])
    absent = due.join(heard, [*KEY, "sequence"], "left_anti").select(
        *KEY, "sequence", f.lit(False).alias("advances"), f.lit(False).alias("away"), f.lit(True).alias("absent")
    )
    concerned = absent.select(*KEY).distinct()
    falling = Window.partitionBy(*KEY).orderBy(f.col("sequence").desc())
    jump = f.last(f.when(f.col("advances"), f.col("away")), ignorenulls=True).over(
        falling.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    settled = heard.where("advances").join(concerned, [*KEY], "left_semi").unionByName(absent).withColumn("jump", jump)
    return (
        settled.where("absent")
        .groupBy(*KEY)
        .agg(
            f.sum((~f.coalesce("jump", f.lit(True))).cast("long")).alias("open_gap"),
            f.sum(f.col("jump").isNull().cast("long")).alias("open_end"),
        )
    )


def accounts(rows: DataFrame, found: Records) -> DataFrame:
    """The account of each stream at each subscriber that should have heard it: KEY, `publisher`, `group`, `frozen`, and
    `COUNTS` (told_lost is 0: losses are told to a subscriber, not of a publisher)."""
    subscribers = found.subscribers.select(
        "run", "subscriber", "group", "frozen", "shared", "open", "whole", "epoch", "absence"
    )
    table = (
        found.expected.join(found.streams.select("run", "stream", "sent", "resent"), ["run", "stream"])
        .join(subscribers, ["run", "subscriber"])
        .join(receipts(rows).withColumn("seen", f.lit(True)), [*KEY], "left")
        .join(unconfirmed(rows, found.expected, found.uncertain), [*KEY], "left")
        .fillna(False, ["seen"])
        .fillna(
            0,
            [
                "received", "late", "copies", "again", "altered", "retained", "missing", "doubtful", "next", "open_gap",
                "open_end",
            ],
        )
    )  # fmt: skip
    from_qos = (
        f.when(f.col("last_epoch") != f.col("epoch"), LOST_SESSION)
        .when(f.col("last_absence") != f.col("absence"), 1)
        .otherwise(0)
    )
    never_gone = f.col("whole") & ((f.col("qos") > 0) | (f.col("absence") == 0))
    continuous = f.col("open") & f.when(f.col("seen"), f.col("qos") >= from_qos).otherwise(never_gone)
    rest = f.greatest(f.col("sent") - f.col("next"), f.lit(0))
    table = table.withColumns(
        {
            "unconfirmed": f.col("open_gap") + f.when(continuous, f.col("open_end")).otherwise(0),
            "absent": f.col("missing") + f.when(continuous, rest).otherwise(0),
            "unjudged": f.col("doubtful") + f.when(continuous, 0).otherwise(rest),
            # A filter that comes and goes makes a copy when it is there.
            "filters": f.col("filters") + ((f.col("copies") > 0) & f.col("churned")).cast("int"),
        }
    )
    table = table.withColumn("overlapping", f.least("copies", f.col("received") * (f.col("filters") - 1)))
    table = table.withColumn("resent_copies", f.least(f.col("copies") - f.col("overlapping"), f.col("resent")))
    return table.select(
        *KEY,
        "publisher",
        "group",
        "frozen",
        (f.col("received") + f.col("absent")).alias("expected"),
        "received",
        (f.col("absent") - f.col("unconfirmed")).alias("lost"),
        (f.col("copies") - f.col("overlapping") - f.col("resent_copies")).alias("duplicates"),
        (f.col("again") + f.col("resent_copies")).alias("redelivered"),
        "overlapping",
        f.when(f.col("shared"), 0).otherwise(f.col("late")).alias("reordered"),
        "altered",
        "unconfirmed",
        "unjudged",
        "retained",
        f.lit(0).cast("long").alias("told_lost"),
    )


def pairs(table: DataFrame) -> DataFrame:
    """The account of each publisher and subscriber, from `accounts`."""
    return table.groupBy(*PAIR, "group", "frozen").agg(*(f.sum(name).alias(name) for name in COUNTS))


def groups(table: DataFrame, subscribers: DataFrame) -> DataFrame:
    """The account of each group of subscribers, with what it was told of losses, and its `pairs`."""
    told = subscribers.groupBy("group", "frozen").agg(f.sum("told_lost").alias("told"))
    counted = table.groupBy("group", "frozen").agg(
        f.count("*").alias("pairs"), *(f.sum(name).alias(name) for name in COUNTS)
    )
    joined = told.join(counted, ["group", "frozen"], "left").fillna(0, ["pairs", *COUNTS])
    return joined.withColumn("told_lost", f.col("told_lost") + f.col("told")).drop("told")


def strays(rows: DataFrame, found: Records) -> DataFrame:
    """How many messages came to subscribers who should not have heard them, as `strays`; where filters come and go
    nobody can say."""
    settled = found.subscribers.where("not churns").select("run", "subscriber")
    came = rows.groupBy(*KEY).agg(f.sum(f.col("arrived").cast("long")).alias("received"))
    astray = came.join(settled, ["run", "subscriber"], "left_semi").join(
        found.expected.select(*KEY), [*KEY], "left_anti"
    )
    return astray.agg(f.coalesce(f.sum("received"), f.lit(0)).alias("strays"))
