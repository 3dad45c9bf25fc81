"""The engine that computes the numbers: Spark, or DuckDB on one machine.

Owns: `f`, by which the jobs write down what each number is, once: the functions of the engine that is at work. Window
functions are SQL (`f.expr`), which is the same for both, with names in backquotes. And the choice: `--engine auto`
takes DuckDB where it is installed and the record is small.

Promises: pages, summaries and exit codes are made by the same code, which does not know the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.runtime.spark_session import UNSAID, SparkOptions, spark_session, submitted
from canopy_pipeline.runtime.storage import Local, local_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    __all__ = ["f"]

AUTO: Final = "auto"
SPARK: Final = "spark"
DUCKDB: Final = "duckdb"
ENGINES: Final = (AUTO, SPARK, DUCKDB)

AUTO_BYTES: Final = 1 << 30
"""Bytes of segments up to which `auto` takes DuckDB: about 20 million events with small payloads, of which it judges
all deliveries in a minute of two cores, and in 2 GB. Beyond that Spark's start no longer counts, and its cores may."""

_SPARK: Final = "pyspark.sql.functions"
_DUCKDB: Final = "canopy_pipeline.runtime.duck.functions"
_functions: ContextVar[str] = ContextVar("engine", default=_SPARK)
"""The module of the engine at work, in this thread or task."""


class _Functions:
    """`pyspark.sql.functions`, or what stands for them."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(_functions.get()), name)


if not TYPE_CHECKING:
    f = _Functions()


def is_duckdb(spark: Any) -> bool:
    return type(spark).__module__.startswith("canopy_pipeline.runtime.duck.")


def chosen(engine: str, inputs: Sequence[str], output: str, options: SparkOptions = UNSAID) -> str:
    """Return the engine of a job; `auto` chooses it by the input.

    Raises:
        MisuseError: there is no such engine, or it cannot do what is asked for.
        PipelineError: it is not installed.
    """
    if engine not in ENGINES:
        raise MisuseError(f"--engine {engine}: must be one of {', '.join(ENGINES)}")
    there = find_spec("duckdb") is not None
    remote = [path for path in (*inputs, output) if local_path(path) is None]
    clustered = options.asked or submitted()
    if engine == DUCKDB:
        if clustered:
            raise MisuseError("--engine duckdb: --master, --conf, --packages are for Spark; leave them out")
        if local_path(output) is None:
            raise MisuseError(f"--engine duckdb: {output} is not a folder of this machine; --engine spark writes there")
        if not there:
            raise PipelineError("--engine duckdb needs DuckDB: in a clone of Canopy, pip install '.[duckdb]'")
        return DUCKDB
    if engine == SPARK or not there or remote or clustered or _bytes(inputs) > AUTO_BYTES:
        return SPARK
    return DUCKDB


def _bytes(inputs: Sequence[str]) -> int:
    """Return the size of all segments in bytes, those included that a merged one replaces."""
    folders = [place for path in inputs if (place := local_path(path)) is not None]
    return sum(file.size for place in folders for file in Local(place).files(".parquet"))


@contextmanager
def session(
    name: str,
    engine: str,
    inputs: Sequence[str],
    output: str,
    options: SparkOptions = UNSAID,
    say: Callable[[str], None] = print,
) -> Iterator[SparkSession]:
    """Open a session of the chosen engine for one job, and say first which it is.

    Raises:
        MisuseError, PipelineError: as `chosen`, and as `canopy_pipeline.runtime.spark_session.spark_session`.
    """
    taken = chosen(engine, inputs, output, options)
    say(f"engine: {taken}")
    if taken == SPARK:
        with spark_session(name, options) as spark:
            yield spark
        return
    from canopy_pipeline.runtime.duck.duckdb_session import connected

    with connected(options.memory) as made, at_work(DUCKDB):
        yield cast("SparkSession", made)


@contextmanager
def at_work(engine: str) -> Iterator[None]:
    """Let `f` be the functions of an engine within the block."""
    token = _functions.set(_DUCKDB if engine == DUCKDB else _SPARK)
    try:
        yield
    finally:
        _functions.reset(token)
