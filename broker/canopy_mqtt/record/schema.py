"""The table of recorded events: its columns and kinds.

Owns `SCHEMA`; docs/recorder.md explains each column, and a test compares `canopy_pipeline.record.events_schema` with
it. The columns of messages are named as in a `canopy load capture` file, so that `canopy load replay` reads both.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

FORMAT: Final = 1
"""The version of the format; it grows when a column changes its meaning."""

SCHEMA: Final[Any] = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("recv_ns", pa.int64(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        ("client_id", pa.string()),
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("size", pa.int32()),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("topic_filter", pa.string()),
        ("no_local", pa.bool_()),
        ("retain_as_published", pa.bool_()),
        ("subscription_id", pa.int32()),
        ("reason", pa.string()),
        ("n", pa.int64()),
        ("ref_seq", pa.int64()),
        ("from_seq", pa.int64()),
        ("to_seq", pa.int64()),
        ("address", pa.string()),
        ("user_name", pa.string()),
        ("protocol", pa.int8()),
        ("clean_start", pa.bool_()),
        ("session_present", pa.bool_()),
        ("payload_format", pa.int8()),
        ("content_type", pa.string()),
        ("response_topic", pa.string()),
        ("correlation_data", pa.binary()),
        ("message_expiry", pa.int64()),
        ("properties", pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))),
    ]
)

ERASED: Final = "erased"
"""The kind of an event that was erased later: the recorder writes none."""


def dictionary_columns() -> list[str]:
    """Return the columns with repeated values, for which Parquet uses a dictionary."""
    return ["kind", "run_id", "client_id", "topic", "topic_filter", "reason", "address", "user_name", "content_type"]


def number_columns() -> list[str]:
    """Return the columns whose numbers differ little from one row to the next, for which Parquet keeps the
    differences."""
    return ["seq", "ts", "recv_ns", "ref_seq"]
