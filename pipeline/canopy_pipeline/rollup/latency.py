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
    from pyspark.sql import Column

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


def latency(mode: str) -> Column:
    """Return the microseconds from sending to receipt, as a long; null if the message has no time or an impossible one.

    Raises:
        MisuseError: there is no such way.
    """
    columns(mode)
    if mode == NONE:
        return f.lit(None).cast("long")
    if mode.startswith(PROPERTY):
        return _believed(f.unix_micros("ts") - _sent(mode.removeprefix(PROPERTY)), MAX_PROPERTY_LATENCY)
    time = _marked()
    return _believed(f.expr("recv_ns div 1000") - time, MAX_MARK_LATENCY)


def _believed(micros: Column, longest: int) -> Column:
    return f.when((micros >= 0) & (micros < longest), micros)


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


def _sent(name: str) -> Column:
    """A user property as microseconds since 1970: its magnitude tells seconds from milli-, micro- and nanoseconds."""
    value = f.get(f.filter("properties", lambda pair: pair["key"] == f.lit(name)), f.lit(0))["value"]
    number = f.when(value.rlike(r"^\d{1,19}(\.\d{1,9})?\z"), value).cast("decimal(28,9)")
    micros = (
        f.when(number < 100_000_000_000, number * 1_000_000)
        .when(number < 100_000_000_000_000, number * 1_000)
        .when(number < 100_000_000_000_000_000, number)
        .otherwise(number / 1_000)
    )
    return f.floor(micros).cast("long")


def bucket(micros: Column) -> Column:
    """The bucket of a latency in microseconds, 0 or more; null for null."""
    digits = f.char_length(f.bin(micros))
    # A shift by a column has no name in Python.
    high = f.call_function("shiftright", micros, digits - 5)
    return f.when(micros < EXACT, micros).otherwise(EXACT + PARTS * (digits - 6) + high - PARTS).cast("int")


def lowest(number: int) -> int:
    """The least value of a bucket, in microseconds."""
    if number < EXACT:
        return number
    octave, part = divmod(number - EXACT, PARTS)
    return (PARTS + part) << (octave + 1)


def highest(number: int) -> int:
    """The greatest value of a bucket, in microseconds."""
    return lowest(number + 1) - 1
