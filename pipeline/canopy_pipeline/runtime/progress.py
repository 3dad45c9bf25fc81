"""The progress of a long job: a line on standard error now and then.

Promises: nothing is said of a job that is quick. The thread ends with the block.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

from canopy_pipeline.runtime.engine import is_duckdb

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

    def watch() -> None:
        while not over.wait(every):
            done, tasks = _tasks(spark)
            of = f"{done} of {tasks} tasks" if tasks else "at work"
            print(f"{what}: {of}, {time.monotonic() - begun:.0f} s", file=output, flush=True)

    watcher = threading.Thread(target=watch, name="canopy-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """Count the tasks of the present stages: those that are done, and all."""
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
