"""The rollup as a page: rates over time, the busiest topics, how old messages were, how large.

No table is brought to the driver: time is cut into `POINTS` pieces at most, topics into `TOPICS`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from pipeline.coverage import Coverage
from pipeline.pages import Page
from pipeline.rollup.latency import highest, lowest

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

POINTS: Final = 1500
"""Points of a plot over time: minutes where they are so few, or else hours, or else days."""
TOPICS: Final = 25
FRACTIONS: Final = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "99.9 %": 0.999}
ABOVE: Final = {"orientation": "h", "x": 0.0, "y": 1.02, "yanchor": "bottom"}
"""Where a legend stands: below the axis it would lie on the date of the first tick."""
FEW: Final = 100
"""Points up to which each is marked: a line between two alone looks like a trend."""
MIN_SECONDS: Final = 1.0
"""Seconds that a rate is taken over at least: one message alone has no rate."""
SECONDS: Final = {"minute": 60, "hour": 3600, "day": 86_400}


@dataclass(frozen=True)
class Totals:
    """What the tables come to."""

    messages: int
    bytes: int
    topics: int
    latencies: int
    first_us: int
    last_us: int
    """Microseconds since 1970: datetimes would come in this machine's zone."""

    @property
    def first(self) -> datetime:
        """When the first message came."""
        return datetime.fromtimestamp(self.first_us / 1e6, UTC)

    @property
    def last(self) -> datetime:
        """When the last one came."""
        return datetime.fromtimestamp(self.last_us / 1e6, UTC)


@dataclass(frozen=True)
class Piece:
    """Some rows of a table, added up: the counters, and how many messages each latency bucket has."""

    row: Row
    latency: Counter[int]

    def percentile(self, fraction: float) -> float | None:
        """As `pipeline.rollup.latency.percentile`, of what is here already."""
        rank = max(1, math.ceil(sum(self.latency.values()) * fraction))
        seen = 0
        for number, n in sorted(self.latency.items()):
            seen += n
            if seen >= rank:
                return (lowest(number) + highest(number)) / 2
        return None


def page(minutes: DataFrame, hours: DataFrame, totals: Totals, coverage: Coverage) -> Page:
    """The page of the two tables."""
    made = Page("Traffic", "What was published, by topic and time. canopy pipeline rollup")
    coverage.show(made)
    over, unit = _over_time(minutes, hours, totals)
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
    made.heading("Rates")
    made.plot(
        _rates(over, covered(over, SECONDS[unit], totals)),
        f"Averages over each {unit} that had messages; of the first and the last {unit}, over the time from the first "
        "message and to the last one.",
    )
    made.heading("Topics with the most messages")
    made.table(
        ["topic", "messages", "share %", "bytes", "mean size", "retained", "p50 µs", "p99 µs"],
        _topics(hours, totals.messages),
        "the table hours",
    )
    if totals.latencies:
        made.heading("Latency: from sending to the broker")
        made.plot(_percentiles(over), "From histograms whose buckets are 6 % wide.")
        made.plot(_heat(over), "Messages by time and latency; each line is a power of two.")
    else:
        made.paragraph("No message said when it was sent: no latency.", "note")
    made.heading("Sizes")
    made.plot(_sizes(over), "Payload bytes.")
    return made


def _over_time(minutes: DataFrame, hours: DataFrame, totals: Totals) -> tuple[list[Piece], str]:
    """All topics together, over time, in few enough pieces; and how long a piece is."""
    span = (totals.last_us - totals.first_us) / 1e6
    unit = next((unit for unit in ("minute", "hour") if span / SECONDS[unit] < POINTS), "day")
    rows = minutes if unit == "minute" else hours
    return _pieces(rows.withColumn("start", f.unix_seconds(f.date_trunc(unit, "start"))), "start"), unit


def _pieces(rows: DataFrame, by: str) -> list[Piece]:
    """Rows of a table added up by one column, in its order; few of them."""
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
    for row in each.agg(f.sum("each.n").alias("n")).collect():
        found.setdefault(row[by], Counter())[row["bucket"]] += row["n"]
    return [Piece(row, found.get(row[by], Counter())) for row in counted.orderBy(by).collect()]


def covered(over: list[Piece], seconds: int, totals: Totals) -> list[float]:
    """How many seconds of each piece the messages can have come in, at least 1.

    That is all of it, but of the first and the last piece only what lies between the first message and the last: a run
    of 20 seconds that touches two minutes did not have its messages in 120.
    """
    first, last = totals.first_us / 1e6, totals.last_us / 1e6
    return [max(min(each.row["start"] + seconds, last) - max(each.row["start"], first), MIN_SECONDS) for each in over]


def _figure(**layout: Any) -> Figure:
    from plotly.graph_objects import Figure

    made = Figure()
    made.update_layout(**layout)
    return made


def _times(over: list[Piece]) -> list[datetime]:
    return [datetime.fromtimestamp(each.row["start"], UTC) for each in over]


def _lines(over: list[Piece]) -> str:
    """How a line over time is drawn: with its points, where they are few."""
    return "lines" if len(over) > FEW else "lines+markers"


def _rates(over: list[Piece], seconds: list[float]) -> Figure:
    """Messages above, bytes below: on one pair of axes the one line hides the other, since they go alike."""
    plain = {"rangemode": "tozero", "separatethousands": True, "exponentformat": "none"}
    made = _figure(
        xaxis={"anchor": "y2"},
        yaxis={"title": "messages/s", "domain": [0.55, 1.0], **plain},
        yaxis2={"title": "bytes/s", "domain": [0.0, 0.45], **plain},
        showlegend=False,
        height=480,
    )
    times = _times(over)
    pieces = list(zip(over, seconds, strict=True))
    for name, axis in (("messages", "y"), ("bytes", "y2")):
        rates = [each.row[name] / time for each, time in pieces]
        made.add_scatter(x=times, y=rates, name=name, yaxis=axis, mode=_lines(over))
    return made


def _topics(hours: DataFrame, messages: int) -> list[list[Any]]:
    named = hours.groupBy("topic").agg(f.sum("messages").alias("n")).orderBy(f.desc("n"), "topic").limit(TOPICS)
    names = [row["topic"] for row in named.collect()]
    told = {each.row["topic"]: each for each in _pieces(hours.where(f.col("topic").isin(names)), "topic")}
    return [
        [
            name, told[name].row["messages"], round(100 * told[name].row["messages"] / max(messages, 1), 2),
            told[name].row["bytes"], told[name].row["bytes"] / told[name].row["messages"],
            told[name].row["retained"], told[name].percentile(0.5), told[name].percentile(0.99),
        ]
        for name in names
    ]  # fmt: skip


def _percentiles(over: list[Piece]) -> Figure:
    made = _figure(yaxis={"title": "µs", "type": "log"}, legend=ABOVE, height=380)
    lines = _lines(over)
    times = _times(over)
    for name, fraction in FRACTIONS.items():
        made.add_scatter(x=times, y=[each.percentile(fraction) for each in over], name=name, mode=lines)
    return made


def _heat(over: list[Piece]) -> Figure:
    """Messages by time and power of two."""
    cells: dict[tuple[int, int], int] = {}
    for at, piece in enumerate(over):
        for number, n in piece.latency.items():
            power = lowest(number).bit_length()
            cells[at, power] = cells.get((at, power), 0) + n
    powers = range(min(power for _, power in cells), max(power for _, power in cells) + 1)
    labels = [f"< {1 << power:,} µs" for power in powers]
    made = _figure(height=420)
    made.add_heatmap(
        x=_times(over),
        y=labels,
        z=[[cells.get((at, power)) for at in range(len(over))] for power in powers],
        colorscale="Viridis",
        colorbar={"title": "messages"},
    )
    return made


def _sizes(over: list[Piece]) -> Figure:
    made = _figure(yaxis={"title": "bytes"}, legend=ABOVE, height=320)
    times = _times(over)
    lines = _lines(over)
    made.add_scatter(x=times, y=[each.row["size_max"] for each in over], name="greatest", mode=lines)
    made.add_scatter(x=times, y=[each.row["bytes"] / each.row["messages"] for each in over], name="mean", mode=lines)
    made.add_scatter(x=times, y=[each.row["size_min"] for each in over], name="least", mode=lines)
    return made
