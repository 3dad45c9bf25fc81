"""Rows as Arrow batches.

Owns the way from Python lists to the columns of `schema.SCHEMA`. What no row has becomes a column of nulls, which costs
nothing; times are worked out for a whole batch at once.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.record.schema import SCHEMA, kind_column
from broker.record.unpack import Rows

_FULL: Final = frozenset(
    {"seq", "kind", "ts", "recv_ns", "run_id", "client_id", "topic", "payload", "size", "qos", "retain", "ref_seq"}
)


def batch(rows: Rows, run_id: str, offset_us: int) -> Any:
    """The rows as one record batch.

    `offset_us`: what the wall clock (µs, UTC) is ahead of the monotonic one.
    """
    count = rows.count
    recv_ns = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(rows.recv_ns)])
    ts = pc.add(pc.divide(recv_ns, 1000), offset_us).cast(pa.timestamp("us", tz="UTC"))
    columns: dict[str, Any] = {
        "seq": pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(rows.seq)]),
        "kind": kind_column(rows.kind),
        "ts": ts,
        "recv_ns": recv_ns,
        "run_id": pa.repeat(pa.scalar(run_id), count),
        "client_id": pa.array(rows.client_id, pa.string()),
        # Every topic was validated when it came: what a cast would do again.
        "topic": pa.array(rows.topic, pa.binary()).cast(pa.string()),
        "payload": pa.array(rows.payload, pa.binary()),
        "size": pa.array(rows.size, pa.int32()),
        "qos": pa.array(rows.qos, pa.int8()),
        "retain": pa.array(rows.retain, pa.bool_()),
        "ref_seq": pa.array(rows.ref_seq, pa.int64()) if rows.refers else pa.nulls(count, pa.int64()),
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
