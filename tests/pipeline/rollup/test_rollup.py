"""The tables of the rollup against SQL and plain Python on the same segments."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from canopy_load.ledger.mark import Mark
from canopy_pipeline.errors import PipelineError
from canopy_pipeline.record.events_schema import PAIRS
from canopy_pipeline.record.segments import Choice
from canopy_pipeline.rollup import rollup_job
from canopy_pipeline.rollup.latency import MAX_MARK_LATENCY, bucket, highest, lowest, timed
from canopy_pipeline.rollup.rollup_page import Piece
from canopy_pipeline.runtime.engine import f
from tests.pipeline.recorded import Story, write_segment
from tests.pipeline.rollup.stories import RUN, traffic


def test_each_latency_has_its_bucket_and_percentiles_are_near(duck: SparkSession) -> None:
    chance = random.Random(7)
    values = [0, 1, 31, 32, 33, 34, 63, 64, MAX_MARK_LATENCY, *(1 << power for power in range(5, 42))]
    values += [(1 << power) - 1 for power in range(5, 42)]
    values += [int(chance.lognormvariate(7, 2)) for _ in range(3000)]
    rows = duck.createDataFrame([(value,) for value in values], "v bigint").withColumn("bucket", bucket(f.col("v")))
    found = rows.collect()
    for row in found:
        assert lowest(row["bucket"]) <= row["v"] <= highest(row["bucket"])
        middle = (lowest(row["bucket"]) + highest(row["bucket"])) / 2
        assert abs(middle - row["v"]) <= row["v"] / 32
    assert [lowest(each + 1) - highest(each) for each in range(600)] == [1] * 600
    histogram = Piece({}, Counter(row["bucket"] for row in found))
    ordered = sorted(values)
    for fraction in (0.0, 0.01, 0.5, 0.9, 0.99, 1.0):
        exact = ordered[max(0, -(-int(fraction * 1000) * len(ordered) // 1000) - 1)]
        assert histogram.percentile(fraction) == pytest.approx(exact, rel=1 / 32, abs=0.5), fraction
    assert Piece({}, Counter()).percentile(0.5) is None


def test_a_property_says_when_a_message_was_sent(spark: SparkSession) -> None:
    received = datetime(2026, 11, 21, 16, 0, 10, 250_000, tzinfo=UTC)
    second = int(received.timestamp()) - 10
    cases = {
        f"{second}": 10_250_000, f"{second}.5": 9_750_000, f"{second}.000001": 10_249_999,
        f"{second}250": 10_000_000, f"{second}250125": 9_999_875, f"{second}250125999": 9_999_875,
        f"{second + 11}": None, "": None, "soon": None, "-5": None, "1e9": None, "12": None, "9" * 19: None,
        f" {second}": None, f"{second}\n": None,
        f"{second}250125999.9": 9_999_875, f"00{second}": 10_250_000, f"{'0' * 9}{second}": 10_250_000,
    }  # fmt: skip
    schema = "name string, properties " + PAIRS
    pairs: list[Any] = [(said, [("other", "1"), ("sent", said), ("sent", "1")]) for said in cases]
    frame = spark.createDataFrame([*pairs, ("no pair", []), ("no list", None)], schema)
    at = timed(frame.withColumn("ts", f.lit(received)), "property:sent")
    found = {row["name"]: row["latency"] for row in at.collect()}
    assert found == {**cases, "no pair": None, "no list": None}


def expected_histograms(story: Story, seconds: int) -> dict[tuple[int, str], Counter[int]]:
    """Latencies by the load tester's own reading of marks, and a bucket found by looking for it."""
    found: dict[tuple[int, str], Counter[int]] = {}
    mark = Mark(RUN)
    for event in story.events:
        if event["kind"] != "publish" or not mark.read(event["payload"]) or not mark.time:
            continue
        micros = event["recv_ns"] // 1000 - mark.time
        if 0 <= micros < MAX_MARK_LATENCY:
            start = int(event["ts"].timestamp()) // seconds * seconds
            number = next(each for each in range(600) if lowest(each) <= micros <= highest(each))
            found.setdefault((start, event["topic"]), Counter())[number] += 1
    return found


DUCK = """
select epoch_us(ts) // {unit} * {unit} as start, topic, count(*) as messages, sum(size)::bigint as bytes,
  min(size) as size_min, max(size) as size_max, count(*) filter (qos = 0) as qos0, count(*) filter (qos = 1) as qos1,
  count(*) filter (qos = 2) as qos2, count(*) filter (retain) as retained, count(distinct client_id) as publishers,
  epoch_us(min(ts)) as first_ts, epoch_us(max(ts)) as last_ts
from read_parquet('{folder}/date=*/hour=*/seg-*.parquet') where kind = 'publish' group by all order by all
"""
READ = """
select epoch_us(start) as start, topic, messages, bytes, size_min, size_max, qos0, qos1, qos2, retained,
  publishers, epoch_us(first_ts) as first_ts, epoch_us(last_ts) as last_ts
from read_parquet('{folder}/**/*.parquet', hive_partitioning = true) order by all
"""


def query(sql: str, **names: Any) -> list[tuple[Any, ...]]:
    with duckdb.connect() as session:
        return session.sql(sql.format(**names)).fetchall()


def test_minutes_and_hours_are_what_sql_makes_of_the_segments(duck: SparkSession, tmp_path: Path) -> None:
    recorded, out = tmp_path / "recorded", tmp_path / "out"
    story = traffic(4000)
    story.write(recorded, segments=5)
    said: list[str] = []
    outcome = rollup_job.run(duck, [str(recorded)], str(out), say=said.append)
    assert said == []
    assert outcome.messages == 4000
    for table, seconds in (("minutes", 60), ("hours", 3600)):
        assert query(READ, folder=out / table) == query(DUCK, unit=seconds * 1_000_000, folder=recorded)
        rows = pq.read_table(
            out / table, columns=["start", "topic", "latency", "latency_count", "publishers"]
        ).to_pylist()
        histograms = {
            (int(row["start"].timestamp()), row["topic"]): Counter(
                {each["bucket"]: each["n"] for each in row["latency"]}
            )
            for row in rows
            if row["latency"]
        }
        assert histograms == expected_histograms(story, seconds)
        assert all(row["latency_count"] == sum(each["n"] for each in row["latency"]) for row in rows)
    # Others read it too, and the page stands beside it.
    read = pd.read_parquet(out / "minutes")
    assert read["messages"].sum() == 4000
    assert str(read["date"].iloc[0]) == "2026-11-21"
    assert query("select sum(messages) from read_parquet('{folder}/**/*.parquet')", folder=out / "publishers") == [
        (4000,)
    ]
    page = (out / "index.html").read_text()
    assert "site/0/device/1" in page
    assert ">Latency<" in page
    assert not [name for name in out.iterdir() if name.name.startswith("_staging")]


def test_a_second_run_replaces_the_first(duck: SparkSession, tmp_path: Path) -> None:
    recorded, out = tmp_path / "recorded", tmp_path / "out"
    traffic(300).write(recorded)
    said: list[str] = []
    assert rollup_job.run(duck, [str(recorded)], str(out)).messages == 300
    chosen = Choice(until="2026-11-21T17:00")
    less = rollup_job.run(duck, [str(recorded)], str(out), "property:sent", chosen, say=said.append)
    assert less.messages == 120
    assert "no message carries a time of sending" in said[0]
    assert sorted(path.name for path in (out / "minutes" / "date=2026-11-21").iterdir()) == ["hour=16"]
    # Within an hour, too, whatever an earlier version called its file.
    hour = out / "minutes" / "date=2026-11-21" / "hour=16"
    assert sorted(path.name for path in hour.glob("*.parquet")) == [f"minutes-{part}.parquet" for part in range(6)]
    (hour / "minutes-0.parquet").rename(hour / "minutes.parquet")
    assert rollup_job.run(duck, [str(recorded)], str(out), choice=Choice(until="2026-11-21T16:25")).messages == 50
    assert sorted(path.name for path in hour.glob("*.parquet")) == [f"minutes-{part}.parquet" for part in range(3)]
    assert query("select sum(messages) from read_parquet('{folder}/**/*.parquet')", folder=out / "minutes") == [(50,)]
    assert rollup_job.run(duck, [str(recorded)], str(out), choice=Choice(since="2099-01-01")).messages == 0
    assert not (out / "index.html").exists()
    (out / "empty").mkdir()
    with pytest.raises(PipelineError, match="no segment in it"):
        rollup_job.run(duck, [str(out / "empty")], str(out))


def hours_of(out: Path) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
    """The rows of each hour of each table."""
    return {
        table: {
            hour.name: query("select * from read_parquet('{folder}/*.parquet') order by all", folder=hour)
            for hour in sorted((out / table).glob("date=*/hour=*"))
        }
        for table in ("minutes", "hours", "publishers")
    }


def test_a_timer_that_replaces_hour_after_hour_comes_to_what_one_run_does(duck: SparkSession, tmp_path: Path) -> None:
    recorded, out = tmp_path / "recorded", tmp_path / "out"
    story = traffic(300)
    first, rest = story.events[:200], story.events[200:]
    write_segment(recorded, first)
    rollup_job.run(duck, [str(recorded)], str(out), choice=Choice(since="2026-11-21T16:00"), update=True)
    before = hours_of(out)
    # 18:10 by then, of which the hour of 17 was not over at the last run.
    write_segment(recorded, rest)
    chosen = Choice(since="2026-11-21T18:00+01:00")
    for _ in range(2):
        outcome = rollup_job.run(duck, [str(recorded)], str(out), choice=chosen, update=True)
        # Page and summary are of what was asked for.
        assert outcome.messages == sum(
            each["kind"] == "publish" and each["ts"] >= datetime(2026, 11, 21, 17, tzinfo=UTC) for each in story.events
        )
    rollup_job.run(duck, [str(recorded)], str(tmp_path / "whole"))
    assert hours_of(out) == hours_of(tmp_path / "whole")
    assert hours_of(out)["minutes"]["hour=16"] == before["minutes"]["hour=16"] != []
    assert hours_of(out)["hours"]["hour=17"] != before["hours"]["hour=17"]
    # What is not in the record any more leaves its hours, and no others.
    shutil.rmtree(recorded)
    write_segment(recorded, first[:1])
    gone = Choice(since="2026-11-21T17:00", until="2026-11-21T18:00")
    assert rollup_job.run(duck, [str(recorded)], str(out), choice=gone, update=True).messages == 0
    assert all([*hours] == ["hour=16", "hour=18"] for hours in hours_of(out).values())
