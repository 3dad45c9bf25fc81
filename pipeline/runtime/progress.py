"""How far a long job is: a line on standard error now and then.

Promises: nothing is said of a job that is quick. The thread ends with the block.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from pipeline.runtime.engine import is_duckdb
from pipeline.runtime.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY: Final = 5.0
"""Seconds between two lines."""


@contextmanager
def progress(spark: SparkSession, what: str, every: float = EVERY, stream: TextIO | None = None) -> Iterator[None]:
    """Tell how many of Spark's tasks are done, while the block runs."""
    over = threading.Event()
    output = stream or sys.stderr
    begun = time.monotonic()

    told: dict[str | None, tuple[int, int]] = {}

    def heard(stages: Any, operation_id: str | None, done: bool, **_: Any) -> None:
        told[operation_id] = _sum(() if done else stages or ())

    if is_connect(spark):
        cast("Any", spark).registerProgressHandler(heard)

    def watch() -> None:
        while not over.wait(every):
            done, tasks = _tasks(spark, [*told.values()])
            of = f"{done} of {tasks} tasks" if tasks else "at work"
            print(f"{what}: {of}, {time.monotonic() - begun:.0f} s", file=output, flush=True)

    watcher = threading.Thread(target=watch, name="canopy-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        if is_connect(spark):
            cast("Any", spark).removeProgressHandler(heard)


def _sum(stages: Iterable[Any]) -> tuple[int, int]:
    """Tasks that are done, and all, of stages as Spark Connect tells them."""
    running = [stage for stage in stages if not stage.done]
    return sum(stage.num_completed_tasks for stage in running), sum(stage.num_tasks for stage in running)


def _tasks(spark: SparkSession, told: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Of the stages that run: tasks that are done, and all of them; `told`: what Spark Connect said."""
    if is_connect(spark):
        return sum(done for done, _ in told), sum(tasks for _, tasks in told)
    if is_duckdb(spark):
        return 0, 0
    tracker: Any = spark.sparkContext.statusTracker()
    done = tasks = 0
    for stage in tracker.getActiveStageIds():
        about = tracker.getStageInfo(stage)
        if about is not None:
            done += about.numCompletedTasks
            tasks += about.numTasks
    return done, tasks
