"""The rollup as a stream: killed five times while segments are added, it comes to what one batch makes of them all."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest
from pyspark.sql import SparkSession

from broker.record.files.segment import manifest_path
from pipeline.compact import job as compact
from pipeline.errors import MisuseError, PipelineError, UnreadError
from pipeline.outputs import Folder
from pipeline.retention import job as retention
from pipeline.rollup import job, memory
from pipeline.rollup.stream import stream
from tests.pipeline.folder import NOW
from tests.pipeline.mortal import environment
from tests.pipeline.recorded import BEGIN, Story, write_segment
from tests.pipeline.rollup.stories import traffic

pytestmark = pytest.mark.long

NONE = timedelta(0)
PATIENCE = 300.0
"""Seconds for what takes three on an idle machine."""
EVERY: Final = 6
"""Of the points at which a batch can break off, one in so many is tried: each takes two batches, three seconds."""


def process(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command in a process group of its own, with its JVM."""
    with open(log, "ab") as said:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "broker", "pipeline", "rollup", *arguments],
            stdout=said, stderr=said, start_new_session=True, env=environment(log.parent),
        )  # fmt: skip


def wait(running: subprocess.Popen[bytes], log: Path, until: Callable[[], bool]) -> None:
    """Until something is true; at once an error when the process has ended."""
    limit = time.monotonic() + PATIENCE
    while not until():
        assert running.poll() is None, log.read_text()
        assert time.monotonic() < limit, log.read_text()
        time.sleep(0.02)


def kill(running: subprocess.Popen[bytes]) -> None:
    os.killpg(running.pid, signal.SIGKILL)
    running.wait(PATIENCE)


def rows(folder: Path, table: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as session:
        files = f"read_parquet('{folder / table}/**/*.parquet')"
        return session.sql(f"select * replace (epoch_us(start) as start) from {files} order by all").fetchall()


@pytest.mark.timeout(900)
def test_a_stream_that_is_killed_five_times_counts_each_message_once(spark: SparkSession, tmp_path: Path) -> None:
    recorded, out, checkpoint, log = (tmp_path / name for name in ("recorded", "out", "checkpoint", "log"))
    story = traffic(1200, hours=1.5)
    waiting = [story.events[at : at + 100] for at in range(0, len(story.events), 100)]
    arguments = ["--input", str(recorded), "--output", str(out), "--checkpoint", str(checkpoint), "--latency", "mark",
                 "--master", "local[2]", "--driver-memory", "512m"]  # fmt: skip

    def add() -> None:
        # Whole under its name, and then its manifest, as the recorder does it.
        draft = tmp_path / "draft"
        path = write_segment(draft, waiting.pop(0))
        for file in (path, manifest_path(draft, path.relative_to(draft).as_posix())):
            place = recorded / file.relative_to(draft)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)

    def there(pattern: str) -> Callable[[], bool]:
        seen = set(tmp_path.glob(pattern))
        return lambda: bool(set(tmp_path.glob(pattern)) - seen)

    add()
    # Killed when it has: planned the first batch, done it; of the second, begun to write, kept the cells, and begun to
    # publish.
    for moment in (
        "checkpoint/plan-*",
        "checkpoint/done-*",
        "out/_staging-*/cells",
        "out/_state/*/*/*/cells-*.parquet",
        "out/_staging-*/minutes",
    ):
        begun = there(moment)
        running = process(log, *arguments, "--every", "100ms")
        try:
            add()
            wait(running, log, begun)
            add()
        finally:
            kill(running)
    while waiting:
        add()
    # The last start is one in this process: it need not begin cold.
    streamed = stream(spark, str(recorded), str(out), str(checkpoint), None, "mark")
    batch = tmp_path / "batch"
    outcome = job.run(spark, [str(recorded)], str(batch), "mark")
    assert outcome.messages == 1200
    assert replace(streamed, output="") == replace(outcome, output="")
    for table in ("minutes", "hours", "publishers"):
        assert rows(out, table) == rows(batch, table)
    assert (out / "index.html").exists()
    assert not list(out.glob("_staging-*"))


def test_checkpoint_and_tables_belong_together(spark: SparkSession, tmp_path: Path) -> None:
    recorded, out, checkpoint = (tmp_path / name for name in ("recorded", "out", "checkpoint"))
    # Some of it was merged before: what that replaces is still there, or gone. Nothing is counted twice.
    told = traffic(100, hours=3).write(recorded, segments=10)
    shutil.copy(told[0], tmp_path / "kept")
    assert compact.run(str(recorded), NONE, 1 << 20, NONE, now=NOW).removed > 0
    shutil.move(tmp_path / "kept", told[0])
    write_segment(recorded, traffic(20, first_seq=103).events)

    def kept(output: Path, place: Path, latency: str = "none") -> job.Outcome:
        return stream(spark, str(recorded), str(output), str(place), None, latency)

    assert kept(out, checkpoint).messages == 120
    assert kept(out, checkpoint).messages == 120
    with pytest.raises(MisuseError, match="was begun with none"):
        kept(out, checkpoint, "mark")
    with pytest.raises(MisuseError, match="a stream keeps these tables"):
        job.run(spark, [str(recorded)], str(out))
    with pytest.raises(MisuseError, match="there are tables already"):
        kept(out, tmp_path / "other")
    (tmp_path / "foreign" / "offsets").mkdir(parents=True)
    (tmp_path / "foreign" / "offsets" / "0").touch()
    with pytest.raises(MisuseError, match="another query's"):
        kept(tmp_path / "new", tmp_path / "foreign")
    shutil.rmtree(out)
    with pytest.raises(MisuseError, match="remove the checkpoint to begin again"):
        kept(out, checkpoint)
    with pytest.raises(MisuseError, match="no such folder"):
        stream(spark, str(tmp_path / "absent"), str(out), str(checkpoint), None)


def later(recorded: Path, messages: int, first_seq: int, days: int = 0) -> list[Path]:
    """So many publishes in segments of ten, a while after those with the numbers before."""
    story = Story(first_seq=first_seq, begin=BEGIN + timedelta(days=days, minutes=first_seq))
    for _ in range(messages):
        story.publish("p", "a")
    return story.write(recorded, segments=messages // 10)


@pytest.mark.timeout(600)
def test_a_stream_finds_what_was_merged_meanwhile_and_stops_before_what_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    recorded, out, checkpoint = (tmp_path / name for name in ("recorded", "out", "checkpoint"))

    def once(allow_gaps: bool = False) -> job.Outcome:
        return stream(spark, str(recorded), str(out), str(checkpoint), None, "none", allow_gaps=allow_gaps)

    later(recorded, 20, 1)
    assert once().messages == 20
    # A night's outage: what came meanwhile was merged, and what it replaced is gone.
    later(recorded, 30, 21)
    # Into one with what was read before.
    assert compact.run(str(recorded), NONE, 1 << 20, NONE, now=NOW).removed == 4
    later(recorded, 10, 51)
    done = once()
    assert (done.messages, done.coverage.complete) == (60, True)
    # Removed before it was read.
    later(recorded, 10, 61)
    [newest] = later(recorded, 10, 71)
    assert retention.run(str(recorded), None, keep_bytes=newest.stat().st_size + 1).removed
    before = rows(out, "minutes")
    with pytest.raises(UnreadError, match="retention removed numbers 61 to 70 before they were read") as told:
        once()
    assert "--once --allow-gaps" in str(told.value)
    assert told.value.exit_code == 1
    assert rows(out, "minutes") == before
    done = once(allow_gaps=True)
    assert (done.messages, done.coverage.missing) == (70, 10)
    # A segment that is gone, its manifest with it: found by the numbers. Put back, it is read.
    first, _ = later(recorded, 20, 81)
    manifest = manifest_path(recorded, first.relative_to(recorded).as_posix())
    for file in (first, manifest):
        file.rename(tmp_path / file.name)
    with pytest.raises(UnreadError, match="numbers 81 to 90 are missing"):
        once()
    for file in (first, manifest):
        (tmp_path / file.name).rename(file)
    done = once()
    assert (done.messages, done.coverage.missing) == (90, 10)
    # Another record under the same name is none that goes on.
    shutil.rmtree(recorded)
    later(recorded, 10, 1)
    with pytest.raises(PipelineError, match="another record"):
        once()


def test_an_hour_that_is_long_over_takes_no_more_and_keeps_no_cells(spark: SparkSession, tmp_path: Path) -> None:
    recorded, out, checkpoint = (tmp_path / name for name in ("recorded", "out", "checkpoint"))
    said: list[str] = []

    def once() -> job.Outcome:
        return stream(spark, str(recorded), str(out), str(checkpoint), None, "none", say=said.append, late=86_400.0)

    later(recorded, 10, 1)
    later(recorded, 10, 11, days=3)
    assert once().messages == 20
    assert [path.parent.name for path in (out / "_state").glob("date=*/*")] == ["date=2026-11-24"]
    # Somebody set the clock back.
    later(recorded, 10, 21)
    later(recorded, 10, 31, days=3)
    assert once().messages == 30
    assert any(line.startswith("10 messages came later than 24 h") for line in said)


def inodes(out: Path) -> dict[str, int]:
    return {str(path.relative_to(out)): path.stat().st_ino for path in out.rglob("*.parquet")}


def test_a_batch_writes_the_ten_minutes_that_it_touches_and_remembers_what_it_adds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MERGE", 3)
    recorded, out, checkpoint = (tmp_path / name for name in ("recorded", "out", "checkpoint"))

    def once() -> job.Outcome:
        return stream(spark, str(recorded), str(out), str(checkpoint), None, "none")

    # 16:01, 16:31 and 17:01: an hour of two parts, and another one.
    for first in (1, 31, 61):
        later(recorded, 10, first)
    assert once().messages == 30
    before = inodes(out)
    hour = "date=2026-11-21/hour=16"
    for number in range(2, 8):
        # 16:31 again and again.
        story = Story(first_seq=100 * number, begin=BEGIN + timedelta(minutes=31))
        story.gap(71 if number == 2 else 100 * number - 90, 100 * number - 1)
        for _ in range(9):
            story.publish("p", "a")
        story.write(recorded)
        done = once()
        assert (done.messages, done.rows) == (30 + 9 * (number - 1), 3)
        after = inodes(out)
        changed = {name for name, inode in after.items() if before.get(name) != inode}
        [kept] = [name for name in changed if name.startswith("_state")]
        # Three of a part are made one with the fourth.
        assert kept == f"_state/{hour}/part=3/{'whole' if number in (4, 7) else 'cells'}-{number:012d}.parquet"
        assert changed - {kept} == {
            f"minutes/{hour}/minutes-3.parquet", f"hours/{hour}/hours.parquet", f"publishers/{hour}/publishers.parquet"
        }  # fmt: skip
        assert len([name for name in after if f"_state/{hour}/part=3/" in name]) <= memory.MERGE
        before = after
    batch = tmp_path / "batch"
    job.run(spark, [str(recorded)], str(batch), "none")
    for table in ("minutes", "hours", "publishers"):
        assert rows(out, table) == rows(batch, table)


def test_the_page_is_made_of_sums_and_of_the_hours_that_are_open(spark: SparkSession, tmp_path: Path) -> None:
    recorded, out, checkpoint = (tmp_path / name for name in ("recorded", "out", "checkpoint"))

    def once() -> job.Outcome:
        return stream(spark, str(recorded), str(out), str(checkpoint), None, "mark", late=7_200.0)

    first = traffic(300, hours=5)
    first.write(recorded, segments=3)
    once()
    following = traffic(300, hours=5, first_seq=first.seq)
    for event in following.events:
        event["ts"] += timedelta(hours=5)
    following.write(recorded, segments=3)
    # Of runs that were killed: one before its sums were in force, and one before it removed those from before.
    for name in ("by-topic-2026-11-20-07", "by-hour-2026-11-21-22"):
        (out / "_state" / name).mkdir()
    done = once()
    batch = job.run(spark, [str(recorded)], str(tmp_path / "batch"), "mark")
    assert replace(done, output="") == replace(batch, output="")
    for table in ("minutes", "hours", "publishers"):
        assert rows(out, table) == rows(tmp_path / "batch", table)
    # 16:00 to 01:59, of which the hours from 23:00 on are open: of the others there are sums, and they are not read.
    assert len(list((out / "_state").glob("date=*/hour=*"))) == 3
    assert len(list((out / "_state").glob("by-*"))) == 2
    for path in (out / "hours").rglob("*.parquet"):
        if "date=2026-11-21" in str(path) and "hour=23" not in str(path):
            path.write_bytes(b"")
    assert replace(once(), output="") == replace(batch, output="")


class Down(Exception):
    """The machine went down."""


@pytest.mark.timeout(900)
def test_a_stream_that_breaks_off_before_any_change_of_its_folders_comes_to_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MERGE", 1)
    recorded, whole = tmp_path / "recorded", tmp_path / "whole"
    later(recorded, 10, 1)
    stream(spark, str(recorded), str(whole / "out"), str(whole / "checkpoint"), None, "none", late=3_600.0)
    later(recorded, 10, 11)
    # Hours become over, are added up and forgotten.
    later(recorded, 10, 21, days=1)
    outcome = job.run(spark, [str(recorded)], str(tmp_path / "batch"), "none")
    expected = {table: rows(tmp_path / "batch", table) for table in ("minutes", "hours", "publishers")}
    # One in so many points; which, differs from run to run.
    steps = 0 if os.environ.get("CI") else random.randrange(EVERY)
    while True:
        made: list[str] = []
        folder = tmp_path / str(steps)
        shutil.copytree(whole, folder)

        def once(folder: Path = folder) -> job.Outcome:
            out, checkpoint = str(folder / "out"), str(folder / "checkpoint")
            return stream(spark, str(recorded), out, checkpoint, None, "none", late=3_600.0)

        with monkeypatch.context() as patch:
            for name in ("move", "remove", "write"):
                patch.setattr(Folder, name, dying(name, getattr(Folder, name), made, steps))
            try:
                once()
                over = True
            except Down:
                over = False
        assert replace(once(), output="") == replace(outcome, output=""), made
        for table, said in expected.items():
            assert rows(folder / "out", table) == said, (table, made)
        assert len(list((folder / "out" / "_state").glob("date=*/hour=*"))) == 1
        assert len(list((folder / "out" / "_state").glob("by-*"))) == 2
        shutil.rmtree(folder)
        if over:
            break
        steps += EVERY
    assert steps > 20


def dying(name: str, change: Callable[..., None], made: list[str], steps: int) -> Callable[..., None]:
    """A change of a folder, before which the machine goes down when there were so many."""

    def step(folder: Folder, *arguments: str) -> None:
        # What tidies up on the way out of an error did not happen either.
        if len(made) >= steps:
            raise Down
        made.append(f"{name} {arguments[0]}")
        change(folder, *arguments)

    return step
