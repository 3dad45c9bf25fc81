"""The page of the rollup: what its rates are averages of, and that no line hides another."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from canopy_pipeline.rollup import rollup_job
from canopy_pipeline.rollup.latency import highest, lowest
from canopy_pipeline.rollup.rollup_page import Piece, Totals, _percentiles, _rates, _sizes, covered, with_empty
from tests.pipeline.recorded import Story
from tests.support.runs import for_each

MINUTE = 1_800_000_000
"""A full minute, in seconds since 1970."""


def pieces(*messages: int) -> list[Piece]:
    """A minute after the other, with so many messages of 100 bytes."""
    return [
        Piece(Row(start=MINUTE + 60 * at, messages=count, bytes=100 * count, size_min=90, size_max=110), Counter())
        for at, count in enumerate(messages)
    ]


def totals(first: float, last: float) -> Totals:
    """Of messages from `first` to `last`, in seconds after the full minute."""
    return Totals(1, 1, 1, 0, round((MINUTE + first) * 1e6), round((MINUTE + last) * 1e6))


@for_each(
    ("count", "first", "last", "seconds"),
    [
        (2, 50, 70, [10, 10]),
        (3, 45, 130, [15, 60, 10]),
        (1, 10, 40, [30]),
        (1, 10, 10.2, [1]),
        (2, 59.9, 61, [1, 1]),
    ],
)
def test_partial_minutes_count_as_what_they_are(count: int, first: float, last: float, seconds: list[float]) -> None:
    assert covered(pieces(*[1] * count), 60, totals(first, last)) == pytest.approx(seconds)


def test_a_minute_without_messages_is_none_and_no_line_goes_over_it() -> None:
    first, _, last = pieces(60, 0, 120)
    over = with_empty([first, last], 60)
    messages, _ = _rates(over, covered(over, 60, totals(0, 180)), "minute")
    assert messages.series[0].values == [1, 0, 2]
    assert [each.values[1] for each in (*_sizes(over).series, *_percentiles(over).series)] == [None] * 7
    assert with_empty([], 60) == []


def test_gaps_of_the_record_are_gaps_in_each_chart(duck: SparkSession, tmp_path: Path) -> None:
    """Seconds 2 to 4 hold nothing: in the last of them the recorder says that it lost events."""
    told = Story()
    for second in (0, 1, 5, 7):
        told.now = told.begin + timedelta(seconds=second)
        told.publish("c", "a")
        if second == 1:
            told.seq += 50
            told.pause(3)
            told.gap(told.seq - 50, told.seq - 1)
    told.write(tmp_path / "record")
    rollup_job.run(duck, [str(tmp_path / "record")], str(tmp_path / "out"))
    page = (tmp_path / "out/index.html").read_text()
    charts = {each["key"]: each for each in json.loads(page.split('id="charts">')[1].split("</script>")[0])}
    assert set(charts) == {"messages", "bytes", "sizes"}
    begin = told.begin.timestamp()
    for chart in charts.values():
        assert [(first - begin, last - begin) for _, first, last, shaded in chart["stages"] if shaded] == [(2, 5)]
    assert charts["messages"]["series"][0]["values"] == [1, 1, None, None, None, 1, 0, 1]


@for_each(
    ("micros", "unit"),
    [(900, "µs"), (2_000, "ms"), (19_400_000, "s")],
)
def test_latencies_are_in_the_unit_of_the_greatest(micros: int, unit: str) -> None:
    number = next(each for each in range(1_000) if lowest(each) <= micros <= highest(each))
    over = [Piece(Row(start=MINUTE), Counter({number: 5}))]
    chart = _percentiles(over)
    assert chart.unit == unit
    assert chart.series[0].values == pytest.approx([micros / {"µs": 1, "ms": 1e3, "s": 1e6}[unit]], rel=0.06)
