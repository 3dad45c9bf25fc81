"""What `canopy load run --records` wrote, as Spark sees it.

Owns: the columns of its tables (docs/load.md explains each), which files make them, and what is said of a folder that
holds none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyarrow import ArrowException
from pyarrow.parquet import read_schema
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.errors import MisuseError, PipelineError
from pipeline.record.coverage import Coverage, left_out
from pipeline.record.segments import Say, broken, reading, unsaid
from pipeline.runtime.engine import f
from pipeline.runtime.storage import File, parquet, storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS: Final = "records"

_TYPES: Final = {
    "bool": BooleanType(),
    "int8": ByteType(),
    "int16": ShortType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "text": StringType(),
    "time": TimestampType(),
}


def _table(text: str) -> StructType:
    """Columns written as `name:type`."""
    return StructType(
        [StructField(name, _TYPES[kind]) for name, _, kind in (each.partition(":") for each in text.split())]
    )


SENT: Final = _table(
    "run:text stream:int64 sequence:int64 group:text publisher:text topic:text qos:int8 retain:bool size:int32 "
    "intended_us:int64 sent_us:int64 ts:time stage:int16 acknowledged:bool acknowledged_us:int64"
)
RECEIVED: Final = _table(
    "run:text process:int32 number:int64 stream:int64 sequence:int64 publisher:text subscriber:text topic:text "
    "qos:int8 retain:bool dup:bool altered:bool size:int32 intended_us:int64 recv_us:int64 ts:time stage:int16 "
    "during:int16 whole:bool epoch:int64 absence:int64"
)
STAGES: Final = _table("run:text stage:int16 name:text measured:bool")
STREAMS: Final = _table("run:text stream:int64 group:text publisher:text topic:text qos:int8 sent:int64 resent:int64")
SUBSCRIBERS: Final = _table(
    "run:text subscriber:text group:text frozen:bool shared:bool churns:bool open:bool whole:bool epoch:int64 "
    "absence:int64 told_lost:int64"
)
EXPECTED: Final = _table("run:text stream:int64 publisher:text subscriber:text qos:int8 filters:int32 churned:bool")
UNCERTAIN: Final = _table("run:text stream:int64 first:int64 last:int64")

COUNTS: Final = (
    "expected", "received", "lost", "duplicates", "redelivered", "overlapping", "reordered", "altered", "unconfirmed",
    "unjudged", "retained", "told_lost",
)  # fmt: skip
"""What is counted of deliveries, as the load tester calls it."""

PAIRS: Final = _table("run:text publisher:text subscriber:text group:text " + " ".join(f"{e}:int64" for e in COUNTS))
"""The load tester's own account, `pairs.parquet`."""

_SMALL: Final = {
    "stages": STAGES,
    "streams": STREAMS,
    "subscribers": SUBSCRIBERS,
    "expected": EXPECTED,
    "uncertain": UNCERTAIN,
}


@dataclass(frozen=True)
class Records:
    """The tables of a run (or of several, one after the other in the same files)."""

    sent: DataFrame
    received: DataFrame
    stages: DataFrame
    streams: DataFrame
    subscribers: DataFrame
    expected: DataFrame
    uncertain: DataFrame
    coverage: Coverage
    """What was left out."""


@dataclass(frozen=True)
class Report:
    """What the load tester itself says of the run."""

    summary: dict[str, Any]
    pairs: DataFrame


def records(spark: SparkSession, folder: str, skip_corrupt: bool = False, say: Say = unsaid) -> Records:
    """The records in the folder of a run's report, or in its `records`.

    Raises:
        MisuseError: there is no such folder.
        PipelineError: it holds no records, or a file of them cannot be read.
    """
    if not storage(spark, folder).exists():
        raise MisuseError(f"--input {folder}: no such folder")
    found: dict[str, File] = {}
    for where in (folder, f"{folder.rstrip('/')}/{RECORDS}"):
        place = storage(spark, where)
        found = {each.place: each for each in place.files(".parquet")} if place.exists() else {}
        if "stages.parquet" in found:
            break
    else:
        raise PipelineError(
            f"--input {folder}: no records in it: play the scenario again with `canopy load run … --records` "
            "(an interrupted write leaves none)"
        )
    whole: dict[str, File] = {}
    left: list[tuple[str, str]] = []
    for name, file in found.items():
        why = broken(place, file)
        if not why:
            whole[name] = file
        elif skip_corrupt and name.startswith(("sent-", "received-")):
            say(f"left out: {file.path}: {why}")
            left.append((file.path, why))
        else:
            raise PipelineError(f"{file.path}: {why}; play the scenario again")

    def series(prefix: str, schema: StructType) -> DataFrame:
        paths = [file.path for name, file in whole.items() if name.startswith(prefix)]
        if not paths:
            # Nobody published, or nobody subscribed.
            return spark.range(0).select(*(f.lit(None).cast(each.dataType).alias(each.name) for each in schema))
        return _read(spark, paths, schema, skip_corrupt)

    tables: dict[str, DataFrame] = {}
    for name, schema in _SMALL.items():
        if f"{name}.parquet" not in whole:
            raise PipelineError(f"--input {folder}: {name}.parquet is missing; play the scenario again")
        tables[name] = _read(spark, [whole[f"{name}.parquet"].path], schema, skip=False)
    return Records(
        sent=series("sent-", SENT),
        received=series("received-", RECEIVED),
        **tables,
        coverage=left_out(left, len(whole)),
    )


def report(spark: SparkSession, folder: str) -> Report | None:
    """The load tester's own report beside the records; None where there is none.

    Raises:
        PipelineError: it is none.
    """
    path = folder.rstrip("/")
    for where in (path, path.removesuffix(f"/{RECORDS}")):
        place = storage(spark, where)
        names = {each.place: each.path for each in place.files(".parquet")}
        if "pairs.parquet" not in names:
            continue
        try:
            summary = json.loads(place.text("summary.json"))
            if not isinstance(summary, dict) or not {"deliveries", "latency", "groups"} <= summary.keys():
                raise ValueError
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise PipelineError(f"{where}/summary.json: not the summary of a load run") from error
        return Report(summary, _read(spark, [names["pairs.parquet"]], PAIRS, skip=False))
    return None


def _read(spark: SparkSession, paths: Sequence[str], schema: StructType, skip: bool) -> DataFrame:
    has = _columns(spark, paths[0])
    missing = [name for name in schema.names if name not in has]
    if missing:
        raise PipelineError(f"{paths[0]}: not what `canopy load run --records` writes: no column {', '.join(missing)}")
    return parquet(spark.read.schema(schema).option("ignoreCorruptFiles", str(skip).lower()), *paths)


def _columns(spark: SparkSession, path: str) -> set[str]:
    """The columns of a file; of one on this machine without asking Spark, which makes a job of it."""
    if not path.startswith("file:"):
        with reading():
            return set(parquet(spark.read, path).columns)
    try:
        return set(read_schema(path.removeprefix("file:")).names)
    except (ArrowException, OSError) as error:
        raise PipelineError(f"{path}: cannot be read; play the scenario again") from error
