"""The record at a glance: messages, drops, gaps and clients over time, and the busiest clients. The topics are on the
pages of rollup and tree.

No table is brought to the driver: time is cut into `POINTS` pieces at most, causes of drops into `CAUSES`, clients into
`BUSIEST`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.pages import BLUE, COLOURS, GREEN, GREY, RED, TIME, Chart, Page, Series
from canopy_pipeline.record.events_schema import CONNECT, DELIVER, DISCONNECT, DROP, ERASED, GAP, PUBLISH
from canopy_pipeline.record.gap_times import gap_times, shaded, unknown
from canopy_pipeline.runtime.engine import f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

POINTS: Final = 600
"""Pieces of time at most."""
STEPS: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 10_800, 21_600, 86_400, 604_800, 2_592_000)
"""Seconds that a piece of time may have."""
CAUSES: Final = len(COLOURS) - 1
"""Causes of drops with a line of their own; the others share one."""
BUSIEST: Final = 10
COLUMNS: Final = ("kind", "ts", "client_id", "reason", "n")


@dataclass(frozen=True)
class Picture:
    start: int = 0
    """Seconds since 1970."""
    step: int = 1
    """Seconds of a piece of time."""
    pieces: int = 0
    counts: dict[tuple[str, str | None], dict[int, int]] = field(default_factory=dict)
    """By kind and cause, in each piece of time: messages, lost ones for drops and gaps, or else events."""
    clients: list[list[Any]] = field(default_factory=list)

    def of(self, kind: str) -> dict[int, int]:
        """One kind, of all causes."""
        found: dict[int, int] = defaultdict(int)
        for (what, _), counts in self.counts.items():
            if what == kind:
                for at, n in counts.items():
                    found[at] += n
        return found


def _counted(kind: str) -> Any:
    return f.count(f.when(f.col("kind") == kind, True))


def _lost(kind: str) -> Any:
    return f.sum(f.when(f.col("kind") == kind, f.coalesce("n", f.lit(1))).otherwise(0))


def picture(events: DataFrame) -> Picture:
    """Return the picture of events with `COLUMNS`."""
    found = events.agg(f.min(f.unix_seconds("ts")).alias("first"), f.max(f.unix_seconds("ts")).alias("last"))
    first, last = found.collect()[0]
    if first is None:
        return Picture()
    step = next((each for each in STEPS if (last - first) / each < POINTS - 1), STEPS[-1])
    start = first // step * step
    lost = f.col("kind").isin(DROP, GAP)
    rows = (
        events.where(f.col("kind").isin(PUBLISH, DELIVER, DROP, GAP, CONNECT, DISCONNECT, ERASED))
        .groupBy(
            f.floor((f.unix_seconds("ts") - start) / step).alias("at"),
            "kind",
            f.when(lost, f.col("reason")).alias("cause"),
        )
        .agg(f.sum(f.when(lost, f.coalesce("n", f.lit(1))).otherwise(1)).alias("n"))
        .collect()
    )
    counts: dict[tuple[str, str | None], dict[int, int]] = defaultdict(dict)
    for row in rows:
        counts[row["kind"], row["cause"]][row["at"]] = row["n"]
    clients = (
        events.where(f.col("client_id").isNotNull() & f.col("kind").isin(PUBLISH, DELIVER, DROP, CONNECT))
        .groupBy("client_id")
        .agg(
            _counted(PUBLISH).alias("published"),
            _counted(DELIVER).alias("received"),
            _lost(DROP).alias("dropped"),
            _counted(CONNECT).alias("connects"),
        )
        .orderBy(f.desc(f.col("published") + f.col("received") + f.col("dropped")), "client_id")
        .limit(BUSIEST)
    )
    return Picture(
        start,
        step,
        (last - start) // step + 1,
        dict(counts),
        [list(row) for row in clients.collect()],
    )


def draw(made: Page, shown: Picture) -> None:
    if not shown.pieces:
        return
    made.heading("At a glance")
    for plot in (_messages(shown), _clients(shown), _drops(shown), _gaps(shown)):
        plot.broad = False
        made.plot(plot)
    made.heading("Busiest clients")
    made.table(["client", "published", "received", "dropped on the way to it", "connects"], shown.clients)


def _plot(key: str, title: str, about: str, shown: Picture, unit: str) -> Chart:
    times = [shown.start + (at + 0.5) * shown.step for at in range(shown.pieces)]
    view = (shown.start, shown.start + shown.pieces * shown.step)
    gaps = shaded(_gap_times(shown), shown.start, shown.step)
    about += " Shaded: the recorder lost events." if gaps else ""
    return Chart(key, title, about, times, unit=unit, x_unit=TIME, view=view, stages=gaps)


def _every(shown: Picture) -> str:
    for unit, seconds in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if shown.step >= seconds:
            many = shown.step // seconds
            return f"each {unit}" if many == 1 else f"each {many} {unit}s"
    return "each second" if shown.step == 1 else f"each {shown.step} seconds"


def _gap_times(shown: Picture) -> list[tuple[int, int]]:
    return gap_times(shown.of(GAP), {at for counts in shown.counts.values() for at in counts})


def _over(name: str, shown: Picture, values: Mapping[int, float], colour: str, bars: bool = False) -> Series:
    """Return a line over all pieces of time, the empty ones included; a piece of a gap in which nothing was counted is
    not empty."""
    lost = unknown(_gap_times(shown), values)
    return Series(name, [None if at in lost else values.get(at, 0) for at in range(shown.pieces)], colour, bars=bars)


def _messages(shown: Picture) -> Chart:
    plot = _plot("messages", "Messages", f"Averages over {_every(shown)}.", shown, "messages/s")
    for name, kind, colour in (("published", PUBLISH, BLUE), ("delivered", DELIVER, GREEN)):
        counts = shown.of(kind)
        if counts:
            plot.series.append(_over(name, shown, {at: n / shown.step for at, n in counts.items()}, colour))
    if not plot.series:
        plot.absent = "No message was published."
    return plot


def _clients(shown: Picture) -> Chart:
    plot = _plot("clients", "Clients", f"Who came and went, in {_every(shown)}.", shown, "clients")
    came, went = shown.of(CONNECT), shown.of(DISCONNECT)
    if not came and not went:
        plot.absent = "No client came or went."
        return plot
    there, so_far = dict[int, int](), 0
    for at in range(shown.pieces):
        so_far += came.get(at, 0) - went.get(at, 0)
        there[at] = so_far
    for at in unknown(_gap_times(shown), came | went):
        del there[at]
    # Who was there before the record began left with no word of having come: the line begins with those.
    before = -min(0, *there.values())
    plot.about += " The line: who is connected, of those who came or left while this was recorded."
    plot.series = [
        _over("connected", shown, {at: n + before for at, n in there.items()}, BLUE),
        _over("came", shown, came, GREEN),
        _over("went", shown, went, GREY),
    ]
    return plot


def _drops(shown: Picture) -> Chart:
    about = f"Messages that the broker dropped, by cause, in {_every(shown)}."
    plot = _plot("drops", "Drops", about, shown, "messages")
    causes = {cause or "unknown": counts for (kind, cause), counts in shown.counts.items() if kind == DROP}
    if not causes:
        plot.absent = "The broker dropped nothing."
        return plot
    ordered = sorted(causes, key=lambda cause: (-sum(causes[cause].values()), cause))
    for cause, colour in zip(ordered[:CAUSES], COLOURS[3:] + COLOURS[:3], strict=False):
        plot.series.append(_over(cause, shown, causes[cause], colour, bars=True))
    rest: dict[int, int] = defaultdict(int)
    for cause in ordered[CAUSES:]:
        for at, n in causes[cause].items():
            rest[at] += n
    if rest:
        plot.series.append(_over("other causes", shown, rest, GREY, bars=True))
    plot.stacked = True
    return plot


def _gaps(shown: Picture) -> Chart:
    about = f"Events that the recorder says it lost, in {_every(shown)}; what else is missing stands above."
    plot = _plot("gaps", "Gaps", about, shown, "events")
    counts = shown.of(GAP)
    if not counts:
        plot.absent = "The recorder names no gap."
        return plot
    plot.series = [Series("lost events", [counts.get(at, 0) for at in range(shown.pieces)], RED, bars=True)]
    return plot
