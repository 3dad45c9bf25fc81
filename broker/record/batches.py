"""Rows as Arrow batches.

Owns the way from Python lists to the columns of `schema.SCHEMA`. What no row has becomes a column of nulls, which costs
nothing; times are worked out for a whole batch at once.
"""

from __future__ import annotations

from array import array
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.record.schema import SCHEMA, kind_column
from broker.record.unpack import Rows

_FULL: Final = frozenset(
    {"seq", "kind", "ts", "recv_ns", "run_id", "client_id", "topic", "payload", "size", "qos", "retain", "ref_seq"}
)


def _numbers(values: list[int], code: str, kind: Any) -> Any:
    """A column of numbers, none of them null; by way of `array`, which takes half of what Arrow takes for a list."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])


def _or_null(column: Any, lacks: bool) -> Any:
    """The same with nulls where it says `NONE`."""
    return pc.if_else(pc.less(column, 0), None, column) if lacks else column


def batch(rows: Rows, run_id: str, offset_us: int) -> Any:
    """The rows as one record batch.

    `offset_us`: what the wall clock (µs, UTC) is ahead of the monotonic one.
    """
    count = rows.count
    recv_ns = _numbers(rows.recv_ns, "q", pa.int64())
    ts = pc.add(pc.divide(recv_ns, 1000), offset_us).cast(pa.timestamp("us", tz="UTC"))
    columns: dict[str, Any] = {
        "seq": _numbers(rows.seq, "q", pa.int64()),
        "kind": kind_column(bytes(rows.kind)),
        "ts": ts,
        "recv_ns": recv_ns,
        "run_id": pa.repeat(pa.scalar(run_id), count),
        "client_id": pa.array(rows.client_id, pa.string()),
        # Every topic was validated when it came: what a cast would do again.
        "topic": pa.array(rows.topic, pa.binary()).cast(pa.string()),
        "payload": pa.array(rows.payload, pa.binary()),
        "size": _or_null(_numbers(rows.size, "i", pa.int32()), rows.lacks),
        "qos": _or_null(_numbers(rows.qos, "b", pa.int8()), rows.lacks),
        "retain": _or_null(_numbers(rows.retain, "b", pa.int8()), rows.lacks).cast(pa.bool_()),
        "ref_seq": _or_null(_numbers(rows.ref_seq, "q", pa.int64()), True)
        if rows.refers
        else pa.nulls(count, pa.int64()),
    }
    for field in SCHEMA:
        if field.name in _FULL:
            continue
        found = rows.rare.get(field.name)
        if found is None:
            columns[field.name] = pa.nulls(count, field.type)
        else:
            columns[field.name] = pa.array([found.get(row) for row in range(count)], field.type)
    return pa.record_batch([columns[name] for name in SCHEMA.names], schema=SCHEMA)
