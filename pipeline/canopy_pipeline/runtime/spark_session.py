"""The Spark session of a job.

Owns: how a Spark is started here, and the one clear line when it cannot be. On a cluster spark-submit has decided all
of it already: then only what the jobs' meaning depends on is set (UTC).

Promises: the master is set only where one was asked for. A Spark that is started here listens on 127.0.0.1 alone, has
no web page, and says nothing below an error.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from canopy_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA: Final = 17
"""Spark 4 needs at least this version; Spark 3.5 runs on it, too."""

LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    # Of Spark's own 64 MB, compressed, one core makes a task of many seconds while the others wait.
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # Segments have row groups of about 128k rows: several of them make a task.
    "spark.sql.files.maxPartitionBytes": "64m",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

MEANING: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    # Spark's own choice (INT96) is nanoseconds without a zone to other readers, who then compare it with the record's.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings that decide the jobs' results and the format of their files, wherever they run."""


_OF_INTERRUPTS: Final = (
    "KeyboardInterrupt while sending command.",
    "Exception occurred while shutting down connection",
)
"""py4j logs these with a traceback if Ctrl-C comes while it waits."""


@dataclass(frozen=True)
class SparkOptions:
    master: str | None = None
    memory: str = "2g"
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings given by --conf and --packages."""

    @property
    def asked(self) -> bool:
        """True if an option was given that is for Spark alone."""
        return self.master is not None or bool(self.settings)


UNSAID: Final = SparkOptions()


def java() -> str | None:
    """Return the reason why there is no usable Java here, in one line; None if there is one."""
    home = os.environ.get("JAVA_HOME", "")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    remedy = f"Spark needs Java {MIN_JAVA} or newer (Debian: apt install openjdk-17-jre-headless)"
    if command is None:
        return f"no Java found: {remedy}"
    try:
        said = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        where = f" (JAVA_HOME={home})" if home else ""
        return f"Java cannot be run{where}: {remedy}"
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is not None and int(found[1]) < MIN_JAVA:
        return f"this Java is version {found[1]}: {remedy}"
    return None


def submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def spark_session(name: str, options: SparkOptions = UNSAID) -> Iterator[SparkSession]:
    """A session for one job, stopped at its end; one that is there already is used and left.

    Raises:
        PipelineError: there is no Java, or Spark does not start.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    own = not submitted()
    if own:
        why = java()
        if why is not None:
            raise PipelineError(why)
        # Spark would look up the machine's name, and warn of what it finds.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Nor would its workers be this Python, which has what they need.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with as_file(files("canopy_pipeline") / "runtime" / "log4j2.properties") as quiet:
        builder = SparkSession.builder.appName(name)
        chosen = dict(MEANING)
        if own and (options.master is None or options.master.startswith("local")):
            chosen |= LOCAL
            # Spark's own line of the tasks that are done; in a log it would be many.
            chosen["spark.ui.showConsoleProgress"] = str(sys.stderr.isatty()).lower()
            chosen["spark.driver.memory"] = options.memory
            chosen["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={quiet.as_uri()}"
        for key, value in (chosen | dict(options.settings)).items():
            builder = builder.config(key, value)
        if options.master is not None:
            builder = builder.master(options.master)
        try:
            session = builder.getOrCreate()
        except (PySparkException, OSError, RuntimeError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise PipelineError(f"Spark does not start: {lines[0]}") from error
        try:
            with _interrupts(own):
                yield session
        finally:
            session.stop()


@contextmanager
def _interrupts(own: bool) -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt and nothing else while a session lasts that was started here.

    Spark's own handler asks the Java machine to cancel all jobs, on the connection whose answer is being waited for:
    that fails, and what failed is logged with its traceback. So does py4j with the interrupt itself.
    """
    if not own or threading.current_thread() is not threading.main_thread():
        yield
        return
    # The second is told where a connection is given up on which a stream's batches are asked for.
    loggers = [logging.getLogger(), logging.getLogger("py4j.clientserver")]
    for logger in loggers:
        logger.addFilter(_worth_saying)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        for logger in loggers:
            logger.removeFilter(_worth_saying)


def _worth_saying(record: logging.LogRecord) -> bool:
    return record.msg not in _OF_INTERRUPTS
