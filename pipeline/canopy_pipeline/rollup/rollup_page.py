"""The rollup as a page: rates over time, the busiest topics, latencies, and sizes.

No table is brought to the driver: time is cut into `POINTS` pieces at most, topics into `TOPICS`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.pages import AMBER, BLUE, GREEN, RED, TIME, VIOLET, Chart, Page, Series
from canopy_pipeline.record.coverage import Coverage
from canopy_pipeline.record.gap_times import gap_times, shaded, unknown
from canopy_pipeline.rollup.latency import highest, lowest
from canopy_pipeline.rollup.rollup_tables import PageRows
from canopy_pipeline.runtime.engine import f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

POINTS: Final = 1500
"""Points of a plot over time: minutes where they are so few, or else hours, or else days."""
TOPICS: Final = 25
FRACTIONS: Final = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "99.9 %": 0.999}
MIN_SECONDS: Final = 1.0
"""Seconds that a rate is taken over at least: one message alone has no rate."""
LATENCY_UNITS: Final = (("s", 1_000_000), ("ms", 1_000), ("µs", 1))
"""Of a chart, by its greatest latency; with their microseconds."""
SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


@dataclass(frozen=True)
class Totals:
    messages: int
    bytes: int
    topics: int
    latencies: int
    first_us: int
    last_us: int
    """Microseconds since 1970: datetimes would come in this machine's zone."""

    @property
    def first(self) -> datetime:
        return datetime.fromtimestamp(self.first_us / 1e6, UTC)

    @property
    def last(self) -> datetime:
        return datetime.fromtimestamp(self.last_us / 1e6, UTC)


@dataclass(frozen=True)
class Piece:
    """Rows of a table, added up: the counters, and the messages in each latency bucket."""

    row: Row | dict[str, Any]
    latency: Counter[int]

    def percentile(self, fraction: float) -> float | None:
        """Return the microseconds that `fraction` of the values do not exceed (the middle of a bucket); None of an
        empty histogram.

        `fraction` is 0.99 for the 99th percentile.
        """
        rank = max(1, math.ceil(sum(self.latency.values()) * fraction))
        seen = 0
        for number, n in sorted(self.latency.items()):
            seen += n
            if seen >= rank:
                return (lowest(number) + highest(number)) / 2
        return None


def page(
    shown: PageRows,
    totals: Totals,
    coverage: Coverage,
    seconds: list[Piece] | None = None,
    gaps: DataFrame | None = None,
) -> Page:
    """Return the page of the tables; `seconds`, if there are any, are drawn over time. `gaps`: the `ts` of events that
    name gaps of the record."""
    made = Page("Traffic", "What was published, by topic and time. canopy pipeline rollup")
    coverage.show(made)
    over, unit = (seconds, "second") if seconds else _over_time(shown.minutes, shown.hours, totals)
    over = with_empty(over, SECONDS[unit])
    lost = [] if gaps is None else gaps_among(gaps, over, unit)
    span = max((totals.last_us - totals.first_us) / 1e6, 1.0)
    made.figures(
        {
            "messages": totals.messages,
            "topics": totals.topics,
            "payload bytes": totals.bytes,
            "messages a second, on average": totals.messages / span,
            "from (UTC)": f"{totals.first:%Y-%m-%d %H:%M:%S}",
            "to": f"{totals.last:%Y-%m-%d %H:%M:%S}",
        }
    )
    plots = _rates(over, covered(over, SECONDS[unit], totals), unit, lost)
    percentiles, sizes = _percentiles(over), _sizes(over)
    for plot in (*plots, percentiles, sizes):
        plot.stages = shaded(lost, over[0].row["start"], SECONDS[unit]) if lost else ()
        plot.about += " Shaded: the recorder lost events." if lost else ""
    for plot in plots:
        made.plot(plot)
    made.heading("Topics with the most messages")
    topics = _topics(shown.hours, totals)
    name, factor = _unit(max((each for _, latencies in topics for each in latencies if each is not None), default=0.0))
    made.table(
        ["topic", "messages", "share %", "bytes", "mean size", "retained", f"p50 {name}", f"p99 {name}"],
        [[*row, *(None if each is None else _three(each / factor) for each in latencies)] for row, latencies in topics],
        "the table hours",
    )
    if totals.latencies:
        made.plot(percentiles)
    else:
        made.paragraph("No message said when it was sent: no latency.", "note")
    made.plot(sizes)
    return made


def gaps_among(gaps: DataFrame, over: list[Piece], unit: str) -> list[tuple[int, int]]:
    """Return the first and the last piece of each time of which the recorder lost events; `unit`: of a piece."""
    start, seconds = over[0].row["start"] if over else 0, SECONDS[unit]
    rows = gaps.select(f.floor((f.unix_seconds("ts") - start) / seconds).alias("at")).distinct().collect()
    told = {at for at, each in enumerate(over) if each.row["messages"]}
    return gap_times((row["at"] for row in rows if 0 <= row["at"] < len(over)), told)


def _three(value: float) -> float:
    """Round to three figures: a bucket is 6 % wide."""
    return float(f"{value:.3g}")


def _unit(greatest: float) -> tuple[str, int]:
    """Return the unit for latencies up to `greatest` microseconds, and its microseconds."""
    return next((name, each) for name, each in LATENCY_UNITS if greatest >= each or each == 1)


def _over_time(minutes: DataFrame, hours: DataFrame, totals: Totals) -> tuple[list[Piece], str]:
    """Return all topics together, over time, in at most `POINTS` pieces, and the length of a piece."""
    span = (totals.last_us - totals.first_us) / 1e6
    unit = next((unit for unit in ("minute", "hour") if span / SECONDS[unit] < POINTS), "day")
    rows = minutes if unit == "minute" else hours
    at = rows.withColumn("start", f.unix_seconds(f.date_trunc(unit, "start")))
    return _pieces(at, "start", totals.latencies > 0), unit


def by_second(told: DataFrame) -> list[Piece]:
    """Return the publishes second by second; `told` has their `start`, `size`, `retain` and latency `bucket`."""
    rows = (
        told.groupBy("start", "bucket")
        .agg(
            f.count(f.lit(1)).alias("messages"),
            f.sum("size").alias("bytes"),
            f.min("size").alias("size_min"),
            f.max("size").alias("size_max"),
            f.count(f.when(f.col("retain"), True)).alias("retained"),
        )
        .orderBy("start")
        .collect()
    )
    found = []
    for start, same in groupby(rows, key=lambda row: row["start"]):
        each = list(same)
        counters = {name: sum(row[name] for row in each) for name in ("messages", "bytes", "retained")}
        sizes = {"size_min": min(row["size_min"] for row in each), "size_max": max(row["size_max"] for row in each)}
        latency = Counter({row["bucket"]: row["messages"] for row in each if row["bucket"] is not None})
        found.append(Piece({"start": start, **counters, **sizes}, latency))
    return found


def _pieces(rows: DataFrame, by: str, timed: bool) -> list[Piece]:
    """Rows of a table added up by one column, in its order; few of them. `timed`: some have a latency."""
    counted = rows.groupBy(by).agg(
        f.sum("messages").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.min("size_min").alias("size_min"),
        f.max("size_max").alias("size_max"),
        f.sum("retained").alias("retained"),
    )
    found: dict[Any, Counter[int]] = {}
    # Apart from the counters, and put together here: cheaper than a join, for so little.
    each = rows.select(by, f.explode("latency").alias("each")).groupBy(by, "each.bucket")
    for row in each.agg(f.sum("each.n").alias("n")).collect() if timed else ():
        found.setdefault(row[by], Counter())[row["bucket"]] += row["n"]
    return [Piece(row, found.get(row[by], Counter())) for row in counted.orderBy(by).collect()]


def with_empty(over: list[Piece], seconds: int) -> list[Piece]:
    """Return pieces of time together with those between them that had no message."""
    there = {each.row["start"]: each for each in over}
    empty = {"messages": 0, "bytes": 0, "retained": 0, "size_min": None, "size_max": None}
    return [
        there.get(start) or Piece({"start": start, **empty}, Counter())
        for start in range(min(there, default=0), max(there, default=-1) + 1, seconds)
    ]


def covered(over: list[Piece], seconds: int, totals: Totals) -> list[float]:
    """Return the seconds of each piece in which messages can have come, at least 1.

    That is all of it, but of the first and the last piece only what lies between the first message and the last: a run
    of 20 seconds that touches two minutes did not have its messages in 120.
    """
    first, last = totals.first_us / 1e6, totals.last_us / 1e6
    return [max(min(each.row["start"] + seconds, last) - max(each.row["start"], first), MIN_SECONDS) for each in over]


def _course(
    key: str,
    title: str,
    about: str,
    over: list[Piece],
    lines: list[tuple[str, list[float | None], str]],
    unit: str,
    powers: bool = False,
) -> Chart:
    times = [float(each.row["start"]) for each in over]
    series = [Series(name, values, colour) for name, values, colour in lines]
    return Chart(key, title, about, times, series, unit, x_unit=TIME, powers=powers)


def _rates(over: list[Piece], seconds: list[float], unit: str, lost: Sequence[tuple[int, int]] = ()) -> list[Chart]:
    """Messages and bytes: on one pair of axes the one line hides the other, since they go alike. `lost`: the times of
    which the recorder lost events: a piece of these without messages is not known to have had none."""
    dark = unknown(lost, {at for at, each in enumerate(over) if each.row["messages"]})
    about = (
        f"Averages over each {unit}; of the first and the last {unit}, over the time from the first message and to the "
        "last one."
    )
    made = []
    for name, title, colour in (("messages", "Messages", BLUE), ("bytes", "Payload bytes", VIOLET)):
        rates: list[float | None] = [
            None if at in dark else each.row[name] / time
            for at, (each, time) in enumerate(zip(over, seconds, strict=True))
        ]
        made.append(_course(name, f"{title} a second", about, over, [(name, rates, colour)], f"{name}/s"))
        made[-1].broad = False
    return made


def _topics(hours: DataFrame, totals: Totals) -> list[tuple[list[Any], tuple[float | None, float | None]]]:
    """Return the busiest topics: their cells, and median and 99th percentile of the latency in microseconds."""
    named = hours.groupBy("topic").agg(f.sum("messages").alias("n")).orderBy(f.desc("n"), "topic").limit(TOPICS)
    names = [row["topic"] for row in named.collect()]
    busiest = _pieces(hours.where(f.col("topic").isin(names)), "topic", totals.latencies > 0)
    told = {each.row["topic"]: each for each in busiest}
    return [
        (
            [
                name, told[name].row["messages"], round(100 * told[name].row["messages"] / max(totals.messages, 1), 2),
                told[name].row["bytes"], told[name].row["bytes"] / told[name].row["messages"],
                told[name].row["retained"],
            ],
            (told[name].percentile(0.5), told[name].percentile(0.99)),
        )
        for name in names
    ]  # fmt: skip


def _percentiles(over: list[Piece]) -> Chart:
    about = "From sending to the broker; from histograms whose buckets are 6 % wide."
    lines = [
        (name, [each.percentile(fraction) for each in over], colour)
        for (name, fraction), colour in zip(FRACTIONS.items(), (BLUE, GREEN, AMBER, RED), strict=True)
    ]
    greatest = max((value for _, values, _ in lines for value in values if value is not None), default=0.0)
    unit, factor = _unit(greatest)
    shown = [
        (name, [None if each is None else each / factor for each in values], colour) for name, values, colour in lines
    ]
    return _course("percentiles", "Latency", about, over, shown, unit, powers=True)


def _sizes(over: list[Piece]) -> Chart:
    lines: list[tuple[str, list[float | None], str]] = [
        ("greatest", [each.row["size_max"] for each in over], RED),
        ("mean", [each.row["bytes"] / each.row["messages"] if each.row["messages"] else None for each in over], BLUE),
        ("least", [each.row["size_min"] for each in over], GREEN),
    ]
    return _course("sizes", "Sizes", "Payload bytes.", over, lines, "bytes")
