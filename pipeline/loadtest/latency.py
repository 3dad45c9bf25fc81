"""Latencies and the course of a run, from rows.

Owns: the buckets in which latencies are counted, percentiles from them, and one row for each second.

Promises: the figures of the load tester's report to the last digit. It counts latencies to three significant digits
(powers of two: below 2,048 µs exactly, then in steps of 2, 4, 8 … µs, 1,024 of them for each factor of two), and so do
the buckets here; a percentile is the upper end of the bucket in which it falls, as HdrHistogram has it. So p50 is at
most a thousandth above the true one, and minimum, mean and maximum are those of the buckets' lower ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pipeline.runtime.engine import Window, f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pipeline.loadtest.tables import Records

HIGHEST: Final = 3_600_000_000
"""Microseconds: what takes longer counts as an hour in percentiles."""
BITS: Final = 11
"""Significant bits that are kept of a latency."""
PERCENTILES: Final[Mapping[str, float]] = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
SECOND: Final = 1_000_000
"""Microseconds."""


def bucket(name: str) -> Column:
    """The lower end of the bucket in which a column of microseconds falls; below 0 is 0."""
    value = f"greatest({name}, 0L)"
    return f.expr(f"shiftleft(shiftright({value}, {_spare(value)}), {_spare(value)})")


def _upper(name: str) -> Column:
    """The upper end of the bucket that begins at a column of microseconds, as percentiles count it."""
    value = f"least(greatest({name}, 1L), {HIGHEST}L)"
    return f.expr(f"shiftleft(shiftright({value}, {_spare(value)}) + 1L, {_spare(value)}) - 1L")


def _spare(value: str) -> str:
    # The digits of the binary number are exact where a logarithm is not.
    return f"greatest(length(bin({value})) - {BITS}, 0)"


def timed(rows: DataFrame, found: Records) -> DataFrame:
    """First copies with a time (wills have none), each beside the message that was sent: `us` from the intended time,
    `waited` from the sending (null: nobody sent such a message), the subscriber's `group` and `frozen`, and whether the
    message was meant for a `measured` stage."""
    stages = found.stages.select("run", "stage", "measured")
    subscribers = found.subscribers.select("run", "subscriber", "group", "frozen")
    sent = found.sent.select("run", "stream", "sequence", "sent_us")
    came = rows.where(f.col("arrived") & f.col("intended_us").isNotNull())
    return (
        came.select("run", "stream", "sequence", "subscriber", "stage", "intended_us", "recv_us")
        .join(sent, ["run", "stream", "sequence"], "left")
        .withColumns(
            {
                "latency": f.col("recv_us") - f.col("intended_us"),
                "waiting": f.col("recv_us") - f.col("sent_us"),
            }
        )
        .withColumns({"us": bucket("latency"), "waited": bucket("waiting")})
        .drop("latency", "waiting")
        .join(f.broadcast(stages), ["run", "stage"], "left")
        .join(subscribers, ["run", "subscriber"])
        .fillna(False, ["measured"])
    )


def buckets(deliveries: DataFrame, *keys: str, at: str = "us") -> DataFrame:
    """How many latencies there are in each bucket, from `timed` rows: keys, `us`, `count`."""
    return deliveries.groupBy(*keys, f.col(at).alias("us")).agg(f.count("*").alias("count"))


def distributions(counted: DataFrame, *keys: str) -> DataFrame:
    """Count, minimum, mean, percentiles and maximum in microseconds for each key, from `buckets`."""
    by_key = Window.partitionBy(*keys)
    passed = f.sum("count").over(by_key.orderBy("us").rowsBetween(Window.unboundedPreceding, Window.currentRow))
    table = counted.withColumns({"passed": passed, "total": f.sum("count").over(by_key), "upper": _upper("us")})

    def percentile(percent: float) -> Column:
        wanted = f.greatest(f.floor(f.lit(percent) * f.col("total") / 100 + 0.5), f.lit(1))
        return f.min(f.when(f.col("passed") >= wanted, f.col("upper"))).cast("double")

    return table.groupBy(*keys).agg(
        f.sum("count").alias("count"),
        f.min("us").cast("double").alias("min"),
        (f.sum(f.col("us") * f.col("count")) / f.sum("count")).alias("mean"),
        *(percentile(percent).alias(name) for name, percent in PERCENTILES.items()),
        f.max("us").cast("double").alias("max"),
    )


def seconds(deliveries: DataFrame, found: Records) -> DataFrame:
    """The course of the run: for each second, counted from the first message that was meant to be sent, the messages
    meant for it (`sent`), their deliveries that were `due` and came (`received`), what is `missing` (lost, unconfirmed
    or not to be judged), and the latencies. Subscribers that read slowly or freeze are left out."""
    begun = found.sent.groupBy("run").agg(f.min("intended_us").alias("begun"))

    def second(table: DataFrame) -> DataFrame:
        since = f.col("intended_us") - f.col("begun")
        return table.join(f.broadcast(begun), "run").withColumn("second", f.floor(since / SECOND))

    reading = found.subscribers.where("not frozen").select("run", "subscriber")
    expected = found.expected.join(reading, ["run", "subscriber"], "left_semi")
    hearers = expected.groupBy("run", "stream").agg(f.count("*").alias("hearers"))
    meant = (
        second(found.sent.where("intended_us is not null"))
        .groupBy("run", "second", "stream")
        .agg(f.count("*").alias("sent"))
        .join(hearers, ["run", "stream"], "left")
        .groupBy("run", "second")
        .agg(f.sum("sent").alias("sent"), f.sum(f.col("sent") * f.coalesce("hearers", f.lit(0))).alias("due"))
    )
    heard = second(
        deliveries.where("not frozen").join(
            expected.select("run", "stream", "subscriber"), ["run", "stream", "subscriber"], "left_semi"
        )
    )
    came = distributions(buckets(heard, "run", "second"), "run", "second").withColumnRenamed("count", "received")
    return (
        meant.join(came, ["run", "second"], "left")
        .fillna(0, ["received"])
        .withColumn("missing", f.col("due") - f.col("received"))
        .select("run", "second", "sent", "due", "received", "missing", "p50", "p90", "p99", "p999", "max")
    )
