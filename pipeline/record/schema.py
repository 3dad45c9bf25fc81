"""The table of recorded events, as Spark sees it.

Owns: `EVENTS`, the columns that the recorder writes (docs/recorder.md explains each), and the names of the kinds. The
recorder's own schema stands in `broker.record`; a test holds the two against each other.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

PUBLISH: Final = "publish"
DELIVER: Final = "deliver"
SUBSCRIBE: Final = "subscribe"
UNSUBSCRIBE: Final = "unsubscribe"
CONNECT: Final = "connect"
DISCONNECT: Final = "disconnect"
DROP: Final = "drop"
EVICT: Final = "evict"
GAP: Final = "gap"
SNAPSHOT: Final = "snapshot"

PAIRS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", StringType())]))

EVENTS: Final = StructType(
    [
        StructField("seq", LongType(), nullable=False),
        StructField("kind", StringType(), nullable=False),
        StructField("ts", TimestampType(), nullable=False),
        StructField("recv_ns", LongType(), nullable=False),
        StructField("run_id", StringType(), nullable=False),
        StructField("client_id", StringType()),
        StructField("topic", StringType()),
        StructField("payload", BinaryType()),
        StructField("size", IntegerType()),
        StructField("qos", ByteType()),
        StructField("retain", BooleanType()),
        StructField("topic_filter", StringType()),
        StructField("no_local", BooleanType()),
        StructField("retain_as_published", BooleanType()),
        StructField("subscription_id", IntegerType()),
        StructField("reason", StringType()),
        StructField("n", LongType()),
        StructField("ref_seq", LongType()),
        StructField("from_seq", LongType()),
        StructField("to_seq", LongType()),
        StructField("address", StringType()),
        StructField("user_name", StringType()),
        StructField("protocol", ByteType()),
        StructField("clean_start", BooleanType()),
        StructField("session_present", BooleanType()),
        StructField("payload_format", ByteType()),
        StructField("content_type", StringType()),
        StructField("response_topic", StringType()),
        StructField("correlation_data", BinaryType()),
        StructField("message_expiry", LongType()),
        StructField("properties", PAIRS),
    ]
)

ALWAYS: Final = ("seq", "kind", "ts", "recv_ns", "run_id")
"""Columns without which a file holds no events."""
