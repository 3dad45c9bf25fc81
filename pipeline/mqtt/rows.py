"""The columns of a received message, and how a message becomes a row of them.

Owns: the schema of the source, in Arrow (`ARROW`) and for Spark (`spark_schema`); they are the same, which a test
holds.

Columns: `topic`, `payload`, `qos` (as delivered), `retain`, `dup`, `ts` (when it was received: UTC, microseconds),
`recv_ns` (the same on the receiver's monotonic clock), and of MQTT 5.0 `properties` (user properties in their order),
`content_type`, `response_topic`, `correlation_data`, `payload_format`, `message_expiry` (seconds left); null where a
message has none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage
    from pyspark.sql.types import StructType

_PAIR: Final = pa.struct([("key", pa.string()), ("value", pa.string())])
ARROW: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("dup", pa.bool_()),
        ("ts", pa.timestamp("us", tz="UTC")),
        ("recv_ns", pa.int64()),
        ("properties", pa.list_(pa.field("element", _PAIR))),
        ("content_type", pa.string()),
        ("response_topic", pa.string()),
        ("correlation_data", pa.binary()),
        ("payload_format", pa.int8()),
        ("message_expiry", pa.int64()),
    ]
)
"""Everything may be null, as Spark has it of a stream."""

Row = tuple[Any, ...]
"""A value for each column, in their order."""


def spark_schema() -> StructType:
    """The same schema for Spark."""
    from pyspark.sql import types as t

    pair = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.StringType())])
    kinds: dict[str, t.DataType] = {
        "topic": t.StringType(),
        "payload": t.BinaryType(),
        "qos": t.ByteType(),
        "retain": t.BooleanType(),
        "dup": t.BooleanType(),
        "ts": t.TimestampType(),
        "recv_ns": t.LongType(),
        "properties": t.ArrayType(pair),
        "content_type": t.StringType(),
        "response_topic": t.StringType(),
        "correlation_data": t.BinaryType(),
        "payload_format": t.ByteType(),
        "message_expiry": t.LongType(),
    }
    return t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])


def row(message: MQTTMessage) -> Row:
    """A message that has just been received."""
    try:
        topic = message.topic
    except UnicodeDecodeError:
        # A broker that lets such a topic pass is wrong [MQTT-1.5.4-1]; one row of it must not end the stream.
        topic = bytes(message._topic).decode(errors="replace")
    properties: Any = message.properties
    return (
        topic,
        message.payload,
        message.qos,
        bool(message.retain),
        bool(message.dup),
        time.time_ns() // 1000,
        time.monotonic_ns(),
        *(_properties(properties) if properties is not None else _NONE),
    )


_NONE: Final = (None,) * 6


def _properties(properties: Any) -> Row:
    pairs = getattr(properties, "UserProperty", None)
    return (
        [{"key": key, "value": value} for key, value in pairs] if pairs else None,
        getattr(properties, "ContentType", None),
        getattr(properties, "ResponseTopic", None),
        getattr(properties, "CorrelationData", None),
        getattr(properties, "PayloadFormatIndicator", None),
        getattr(properties, "MessageExpiryInterval", None),
    )


def batch(rows: Sequence[Row]) -> Any:
    """Rows as one Arrow RecordBatch."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(ARROW)
    return pa.record_batch(
        [pa.array(values, each.type) for each, values in zip(ARROW, columns, strict=True)], schema=ARROW
    )
