"""Results as Parquet: `seconds.parquet`, `samples.parquet`, `pairs.parquet`.

Owns: the columns, their types, and the writing in batches.

Promises: what Spark reads: zstd; `ts` is timestamp[us, UTC]; integers are signed 64 bits; no maps, so the
distribution of a second is a list of (us, count). Times relative to the run stay beside `ts` as doubles. Each row
names its run, so that files of several runs can be read together. A run without rows gives a file without rows, with
all its columns.

Nothing is left out: every second, sample and pair is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from loadtest.load.report.result import Deliveries, Pair, Result, Sample, Second

BATCH: Final = 65_536
"""Rows converted at a time, and in a row group."""

Row = TypeVar("Row")
Columns = dict[str, tuple[Any, Callable[[Row], object]]]
"""Name of a column to its type and its value in a row."""

_TIME: Final = pa.timestamp("us", tz="UTC")
_HISTOGRAM: Final = pa.list_(pa.struct([("us", pa.int64()), ("count", pa.int64())]))
_KINDS: Final = {"str": pa.string(), "bool": pa.bool_(), "int": pa.int64(), "float": pa.float64()}
"""By the type of a field; `| None` makes no difference."""


def write_seconds(result: Result, path: Path) -> None:
    """One row for each second; `latencies` is its distribution."""
    begun = began(result)
    columns: Columns[Second] = {"ts": (_TIME, lambda row: begun + round(row.start * 1e6))}
    for field in fields(Second):
        if field.name != "latencies":
            columns[field.name] = (_KINDS[str(field.type).removesuffix(" | None")], _getter(field.name))
    columns["latencies"] = (
        _HISTOGRAM,
        lambda row: [{"us": us, "count": count} for us, count in sorted(row.latencies.items())],
    )
    _write(result.run, result.seconds, columns, path)


def write_samples(result: Result, path: Path) -> None:
    """One row for each sampled delivery; `ts` is the intended time of sending, `latency` in microseconds."""
    begun = began(result)
    columns: Columns[Sample] = {
        "ts": (_TIME, lambda row: begun + round(row.sent_at * 1e6)),
        "sent_at": (pa.float64(), _getter("sent_at")),
        "latency": (pa.int64(), _getter("latency")),
        "publisher": (pa.string(), _getter("publisher")),
        "subscriber": (pa.string(), _getter("subscriber")),
        "topic": (pa.string(), _getter("topic")),
        "sequence": (pa.int64(), _getter("sequence")),
        "qos": (pa.int64(), _getter("qos")),
        "size": (pa.int64(), _getter("size")),
    }
    _write(result.run, result.samples, columns, path)


def write_pairs(result: Result, path: Path) -> None:
    """One row for each (publisher, subscriber), with all counts of its deliveries."""
    columns: Columns[Pair] = {name: (pa.string(), _getter(name)) for name in ("publisher", "subscriber", "group")}
    for field in fields(Deliveries):
        columns[field.name] = (pa.int64(), _counter(field.name))
    _write(result.run, result.pairs, columns, path)


def began(result: Result) -> int:
    """`Result.begun` in microseconds since 1970; without an offset it is UTC.

    Raises:
        ValueError: it is not ISO 8601.
    """
    moment = datetime.fromisoformat(result.begun)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    past = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds


def _getter(name: str) -> Callable[[object], object]:
    return lambda row: getattr(row, name)


def _counter(name: str) -> Callable[[Pair], object]:
    return lambda row: getattr(row.deliveries, name)


def _write(run: str, rows: Sequence[Row], columns: Columns[Row], path: Path) -> None:
    schema = pa.schema([("run", pa.string()), *((name, kind) for name, (kind, _) in columns.items())])
    with pq.ParquetWriter(path, schema, compression="zstd", version="2.6") as writer:
        for part in _batches(rows):
            arrays = [pa.array([run] * len(part), pa.string())]
            arrays += [pa.array([value(row) for row in part], kind) for kind, value in columns.values()]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    for at in range(0, len(rows), BATCH):
        yield rows[at : at + BATCH]
