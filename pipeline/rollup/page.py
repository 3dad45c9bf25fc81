"""The rollup as a page: rates over time, the busiest topics, how old messages were, how large.

Refuses: to bring a table to the driver. Time is cut into `POINTS` pieces at most, topics into `TOPICS`.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from pipeline.pages import Page
from pipeline.rollup.latency import lowest, percentile
from pipeline.rollup.transforms import united

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

POINTS: Final = 1500
"""Points of a plot over time: minutes where they are so few, or else hours, or else days."""
TOPICS: Final = 25
FRACTIONS: Final = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "99.9 %": 0.999}
SECONDS: Final = {"minute": 60, "hour": 3600, "day": 86_400}


def page(minutes: DataFrame, hours: DataFrame, totals: dict[str, int]) -> Page:
    """The page of the two tables."""
    made = Page("Traffic", "What was published, by topic and time. canopy pipeline rollup")
    over, unit = _over_time(minutes, hours)
    first, last = over[0]["first_ts"], over[-1]["last_ts"]
    span = max((last - first).total_seconds(), 1.0)
    made.figures(
        {
            "messages": totals["messages"],
            "topics": totals["topics"],
            "payload bytes": totals["bytes"],
            "messages a second, on average": totals["messages"] / span,
            "from (UTC)": f"{first:%Y-%m-%d %H:%M:%S}",
            "to": f"{last:%Y-%m-%d %H:%M:%S}",
        }
    )
    made.heading("Rates")
    made.plot(_rates(over, SECONDS[unit]), f"Averages over each {unit} that had messages.")
    made.heading("Topics with the most messages")
    made.table(
        ["topic", "messages", "share %", "bytes", "mean size", "retained", "p50 µs", "p99 µs"],
        _topics(hours, totals["messages"]),
        "the table hours",
    )
    if any(row["latency_count"] for row in over):
        made.heading("Latency: from sending to the broker")
        made.plot(_percentiles(over), "From histograms whose buckets are 6 % wide.")
        made.plot(_heat(over), "Messages by time and latency; each line is a power of two.")
    else:
        made.paragraph("No message said when it was sent: no latency.", "note")
    made.heading("Sizes")
    made.plot(_sizes(over), "Payload bytes.")
    return made


def _over_time(minutes: DataFrame, hours: DataFrame) -> tuple[list[Row], str]:
    """All topics together, over time, in few enough pieces; and how long a piece is."""
    for rows, unit in ((minutes, "minute"), (hours, "hour"), (hours, "day")):
        at = rows.withColumn("start", f.date_trunc(unit, "start"))
        fits = unit == "day" or at.select("start").distinct().limit(POINTS + 1).count() <= POINTS
        if fits:
            told = united(at, "start")
            for name, fraction in FRACTIONS.items():
                told = told.withColumn(name, percentile(f.col("latency"), fraction))
            return sorted(told.limit(POINTS * 4).collect(), key=lambda row: _start(row)), unit
    raise AssertionError("days always fit")


def _start(row: Row) -> datetime:
    start: datetime = row["start"]
    return start


def _figure(**layout: Any) -> Figure:
    from plotly.graph_objects import Figure

    made = Figure()
    made.update_layout(**layout)
    return made


def _rates(over: list[Row], seconds: int) -> Figure:
    made = _figure(
        yaxis={"title": "messages/s"},
        yaxis2={"title": "bytes/s", "overlaying": "y", "side": "right", "showgrid": False},
        legend={"orientation": "h"},
        height=380,
    )
    times = [row["start"] for row in over]
    lines = "lines" if len(over) > 1 else "markers"
    made.add_scatter(x=times, y=[row["messages"] / seconds for row in over], name="messages", mode=lines)
    made.add_scatter(x=times, y=[row["bytes"] / seconds for row in over], name="bytes", yaxis="y2", mode=lines)
    return made


def _topics(hours: DataFrame, messages: int) -> list[list[Any]]:
    named = hours.groupBy("topic").agg(f.sum("messages").alias("n")).orderBy(f.desc("n"), "topic").limit(TOPICS)
    chosen = united(hours.join(f.broadcast(named.select("topic")), "topic", "left_semi"), "topic")
    told = chosen.withColumns(
        {"p50": percentile(f.col("latency"), 0.5), "p99": percentile(f.col("latency"), 0.99)}
    ).collect()
    return [
        [
            row["topic"], row["messages"], round(100 * row["messages"] / max(messages, 1), 2), row["bytes"],
            row["bytes"] / row["messages"], row["retained"], row["p50"], row["p99"],
        ]
        for row in sorted(told, key=lambda row: (-row["messages"], row["topic"]))
    ]  # fmt: skip


def _percentiles(over: list[Row]) -> Figure:
    made = _figure(yaxis={"title": "µs", "type": "log"}, legend={"orientation": "h"}, height=380)
    lines = "lines" if len(over) > 1 else "markers"
    for name in FRACTIONS:
        made.add_scatter(x=[row["start"] for row in over], y=[row[name] for row in over], name=name, mode=lines)
    return made


def _heat(over: list[Row]) -> Figure:
    """Messages by time and power of two."""
    cells: dict[tuple[int, int], int] = {}
    for at, row in enumerate(over):
        for each in row["latency"]:
            power = lowest(each["bucket"]).bit_length()
            cells[at, power] = cells.get((at, power), 0) + each["n"]
    powers = range(min(power for _, power in cells), max(power for _, power in cells) + 1)
    labels = [f"< {1 << power:,} µs" for power in powers]
    made = _figure(height=420)
    made.add_heatmap(
        x=[row["start"] for row in over],
        y=labels,
        z=[[cells.get((at, power)) for at in range(len(over))] for power in powers],
        colorscale="Viridis",
        colorbar={"title": "messages"},
    )
    return made


def _sizes(over: list[Row]) -> Figure:
    made = _figure(yaxis={"title": "bytes"}, legend={"orientation": "h"}, height=320)
    times = [row["start"] for row in over]
    lines = "lines" if len(over) > 1 else "markers"
    made.add_scatter(x=times, y=[row["size_max"] for row in over], name="greatest", mode=lines)
    made.add_scatter(x=times, y=[row["bytes"] / row["messages"] for row in over], name="mean", mode=lines)
    made.add_scatter(x=times, y=[row["size_min"] for row in over], name="least", mode=lines)
    return made
