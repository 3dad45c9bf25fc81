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
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pipeline.errors import MisuseError, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PORT: Final = 15_002
PATIENCE: Final = 10.0
"""Seconds for a Spark Connect server to be reached: its own client tries for ten minutes."""
OLDEST_JAVA: Final = 17
"""What Spark 4 needs."""

LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
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
"""What the jobs' results depend on, wherever they run, and what others read in them."""


_OF_INTERRUPTS: Final = (
    "KeyboardInterrupt while sending command.",
    "Exception occurred while shutting down connection",
)
"""What py4j logs, with a traceback, where Ctrl-C came while it waited."""


@dataclass(frozen=True)
class SparkOptions:
    """How a command asks for its Spark."""

    master: str | None = None
    memory: str = "2g"
    settings: Mapping[str, str] = field(default_factory=dict)
    """What --conf and --packages said."""
    remote: str | None = field(default=None, repr=False)
    """The address of a Spark Connect server, in which a token may stand."""

    @property
    def asked(self) -> bool:
        """Whether something was said that is for Spark alone."""
        return self.master is not None or self.remote is not None or bool(self.settings)


UNSAID: Final = SparkOptions()


def java() -> str | None:
    """Why there is no usable Java here, in one line; None where there is one."""
    home = os.environ.get("JAVA_HOME", "")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    remedy = f"Spark needs Java {OLDEST_JAVA} or newer (Debian: apt install openjdk-17-jre-headless)"
    if command is None:
        return f"no Java found: {remedy}"
    try:
        said = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        where = f" (JAVA_HOME={home})" if home else ""
        return f"Java cannot be run{where}: {remedy}"
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is not None and int(found[1]) < OLDEST_JAVA:
        return f"this Java is version {found[1]}: {remedy}"
    return None


def submitted() -> bool:
    """Whether spark-submit started this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def spark_session(name: str, options: SparkOptions = UNSAID) -> Iterator[SparkSession]:
    """A session for one job, stopped at its end; one that is there already is used and left.

    Raises:
        PipelineError: there is no Java, or Spark does not start.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if options.remote is not None:
        with _connected(name, options.remote, options.settings) as connected:
            yield connected
        return
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
    with as_file(files("pipeline") / "runtime" / "log4j2.properties") as quiet:
        builder = SparkSession.builder.appName(name)
        chosen = dict(MEANING)
        if own and (options.master is None or options.master.startswith("local")):
            chosen |= LOCAL
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


def is_connect(spark: object) -> bool:
    """Whether a session is one of Spark Connect: without a Java machine in reach."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


@contextmanager
def _connected(name: str, url: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session at a Spark Connect server; nothing of it is left there.

    Raises:
        MisuseError: that is no address of one.
        PipelineError: it is not reached, or does not take the session.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port or PORT
    except ValueError:
        host, port = None, PORT
    if parts.scheme != "sc" or not host:
        # Not the text itself, in which a token may stand.
        raise MisuseError("--remote takes the address of a Spark Connect server, as in sc://host:15002")
    where = f"Spark Connect at {host}:{port}"
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except OSError as error:
        raise PipelineError(f"{where} is not reached: {error.strerror or error}") from error
    try:
        builder = SparkSession.builder.remote(url).appName(name)
        for key, value in (dict(MEANING) | dict(settings)).items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    except (PySparkException, ImportError) as error:
        missing = isinstance(error, ImportError) or "IMPORT" in type(error).__name__.upper()
        remedy = "; its client is installed by pip install 'pyspark[connect]'" if missing else ""
        raise PipelineError(f"{where} cannot be used ({type(error).__name__}){remedy}") from None
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _interrupts(own: bool) -> Iterator[None]:
    """Ctrl-C as KeyboardInterrupt and nothing else, for the time of a session that is started here.

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
