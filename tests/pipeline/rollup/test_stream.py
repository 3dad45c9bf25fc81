"""The rollup as a stream: killed five times while segments are added, it comes to what one batch makes of them all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from pipeline.compact import job as compact
from pipeline.errors import MisuseError
from pipeline.rollup import job
from tests.pipeline.folder import NOW
from tests.pipeline.mortal import environment
from tests.pipeline.recorded import write_segment
from tests.pipeline.rollup.stories import traffic

pytestmark = pytest.mark.long

NONE = timedelta(0)
PATIENCE = 300.0
"""Seconds for what takes three on an idle machine."""


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
        # Whole under its name, as the recorder does it.
        path = write_segment(tmp_path / "draft", waiting.pop(0))
        place = recorded / path.relative_to(tmp_path / "draft")
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, place)

    def there(pattern: str) -> Callable[[], bool]:
        seen = set(tmp_path.glob(pattern))
        return lambda: bool(set(tmp_path.glob(pattern)) - seen)

    add()
    # Killed when it has: planned the first batch, done it; of the second, begun to write, kept the cells, and
    # published a part.
    for moment in (
        "checkpoint/offsets/*",
        "checkpoint/commits/[0-9]*",
        "out/_staging-*/cells",
        "out/_state/*/*/cells-*.parquet",
        "out/_staging-*/hours",
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
    streamed = job.stream(spark, str(recorded), str(out), str(checkpoint), None, "mark")
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
    write_segment(recorded, traffic(20, first_seq=5000).events)

    def stream(output: Path, place: Path, latency: str = "none") -> job.Outcome:
        return job.stream(spark, str(recorded), str(output), str(place), None, latency)

    assert stream(out, checkpoint).messages == 120
    assert stream(out, checkpoint).messages == 120
    with pytest.raises(MisuseError, match="was begun with none"):
        stream(out, checkpoint, "mark")
    with pytest.raises(MisuseError, match="a stream keeps these tables"):
        job.run(spark, [str(recorded)], str(out))
    with pytest.raises(MisuseError, match="there are tables already"):
        stream(out, tmp_path / "other")
    (tmp_path / "foreign" / "offsets").mkdir(parents=True)
    (tmp_path / "foreign" / "offsets" / "0").touch()
    with pytest.raises(MisuseError, match="another query's"):
        stream(tmp_path / "new", tmp_path / "foreign")
    shutil.rmtree(out)
    with pytest.raises(MisuseError, match="remove the checkpoint to begin again"):
        stream(out, checkpoint)
    with pytest.raises(MisuseError, match="no such folder"):
        job.stream(spark, str(tmp_path / "absent"), str(out), str(checkpoint), None)
