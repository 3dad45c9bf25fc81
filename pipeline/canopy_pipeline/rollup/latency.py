"""The latency of a message to the broker, and histograms of it that add up exactly.

Owns: where the time of sending stands, the bounds of what is believed, and the buckets.

Buckets (microseconds): 0 to 31 are one value each; above, each power of two is cut into 16 equal buckets, so that a
value differs from its bucket's middle by at most 1/32 (3.2 %). With k the number of binary digits of v, its bucket is
32 + 16 (k - 6) + (v >> (k - 5)) - 16. They never depend on the data: histograms of any minutes, topics or batches add
up bucket by bucket, and give the histogram of them all.

Refuses: a time of sending that cannot be true (later than the receipt, or longer ago than the bounds). It gives no
latency, rather than a wrong one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_pipeline.errors import MisuseError
from canopy_pipeline.runtime.engine import f

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AUTO: Final = "auto"
MARK: Final = "mark"
NONE: Final = "none"
PROPERTY: Final = "property:"

MAX_MARK_LATENCY: Final = 3_600_000_000
"""Microseconds; a mark that says more is another machine's, or no mark."""
MAX_PROPERTY_LATENCY: Final = 30 * 86_400_000_000
"""Microseconds; devices that were offline send what is old."""

EXACT: Final = 32
PARTS: Final = 16

HISTOGRAM: Final = "array<struct<bucket:int,n:bigint>>"


def columns(mode: str) -> tuple[str, ...]:
    """The columns of the events that a latency is computed from.

    Raises:
        MisuseError: there is no such way.
    """
    if mode in (AUTO, MARK):
        return ("recv_ns", "payload")
    if mode == NONE:
        return ()
    if mode.startswith(PROPERTY) and len(mode) > len(PROPERTY):
        return ("properties",)
    raise MisuseError(f"--latency {mode}: must be auto, mark, none or property:NAME")


def timed(publishes: DataFrame, mode: str) -> DataFrame:
    """Add the columns `latency` and `bucket` to publishes: the microseconds from sending to receipt, as a long, and
    their bucket; both are null if the message has no time or an impossible one.

    Raises:
        MisuseError: there is no such way.
    """
    columns(mode)
    if mode == NONE:
        return publishes.withColumns({"latency": f.lit(None).cast("long"), "bucket": f.lit(None).cast("int")})
    if mode.startswith(PROPERTY):
        sent, longest = _sent(publishes, mode.removeprefix(PROPERTY)), MAX_PROPERTY_LATENCY
        age = f.unix_micros("ts") - f.col("sent")
    else:
        sent, longest = publishes.withColumn("sent", _marked()), MAX_MARK_LATENCY
        age = f.expr("recv_ns div 1000") - f.col("sent")
    # Each step is a column of its own: an expression that stands in several places is computed in each of them.
    aged = sent.withColumn("age", age).drop("sent")
    believed = f.when((f.col("age") >= 0) & (f.col("age") < longest), f.col("age"))
    return aged.withColumn("latency", believed).drop("age").withColumn("bucket", bucket(f.col("latency")))


def _marked() -> Column:
    """The time in the mark of `canopy load`, microseconds of the monotonic clock; null without a mark, or a time."""
    payload = f.col("payload")
    first = f.substring(payload, 1, 1) < f.expr("X'80'")
    binary = (f.length(payload) >= 16) & first & (f.substring(payload, 2, 1) >= f.expr("X'80'"))
    # In a template the mark is text: "mark:" and 32 hexadecimal digits, of which 5 to 16 are the time.
    text = f.regexp_extract(payload.cast("string"), r"mark:[0-7][0-9a-f][89a-f][0-9a-f]([0-9a-f]{12})[0-9a-f]{16}", 1)
    digits = f.when(binary, f.hex(f.substring(payload, 3, 6))).when(
        f.contains(payload, f.expr("cast('mark:' as binary)")), text
    )
    time = f.conv(f.nullif(digits, f.lit("")), 16, 10).cast("long")
    return f.nullif(time, f.lit(0))


def _sent(publishes: DataFrame, name: str) -> DataFrame:
    """Add the column `sent`: a user property as microseconds since 1970. Its magnitude tells seconds from milli-,
    micro- and nanoseconds."""
    first = f.get("properties", f.lit(0))
    found = f.get(f.filter("properties", lambda pair: pair["key"] == f.lit(name)), f.lit(0))
    # Most messages have no other property.
    value = f.when(first["key"] == f.lit(name), first["value"]).otherwise(found["value"])
    text, whole = f.col("text"), f.col("whole")
    # Numbers that fit a long are the usual ones, and quicker than decimals.
    is_whole = f.when(text.rlike(r"^[0-8]?\d{1,18}\z"), text).cast("long")
    number = f.when(whole.isNull() & text.rlike(r"^\d{1,19}(\.\d{1,9})?\z"), text).cast("decimal(28,9)")
    stepwise = publishes.withColumn("text", value).withColumn("whole", is_whole).withColumn("number", number)
    micros = f.when(whole.isNotNull(), _micros(whole, f.expr("whole div 1000"))).otherwise(
        f.floor(_micros(f.col("number"), f.col("number") / 1_000)).cast("long")
    )
    return stepwise.withColumn("sent", micros).drop("text", "whole", "number")


def _micros(number: Column, of_nanoseconds: Column) -> Column:
    return (
        f.when(number < 100_000_000_000, number * 1_000_000)
        .when(number < 100_000_000_000_000, number * 1_000)
        .when(number < 100_000_000_000_000_000, number)
        .otherwise(of_nanoseconds)
    )


def bucket(micros: Column) -> Column:
    """The bucket of a latency in microseconds, 0 or more; null for null."""
    # One digit less than the number has in the binary system. The half keeps the logarithm of a power of two, and of
    # the number before it, clear of a whole one.
    power = f.floor(f.log2(micros + 0.5)).cast("int")
    # A shift by a column has no name in Python.
    high = f.call_function("shiftright", micros, power - 4)
    return f.when(micros < EXACT, micros).otherwise(EXACT + PARTS * (power - 5) + high - PARTS).cast("int")


def lowest(number: int) -> int:
    """The least value of a bucket, in microseconds."""
    if number < EXACT:
        return number
    octave, part = divmod(number - EXACT, PARTS)
    return (PARTS + part) << (octave + 1)


def highest(number: int) -> int:
    """The greatest value of a bucket, in microseconds."""
    return lowest(number + 1) - 1
