"""The table of recorded events, as a job sees it.

Owns: `EVENTS`, the columns that the recorder writes (docs/recorder.md explains each), and the names of the kinds. The
recorder's own schema stands in `canopy_mqtt.record`; a test holds the two against each other.
"""

from __future__ import annotations

from typing import Final

from canopy_pipeline.runtime.table_schema import Schema

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
ERASED: Final = "erased"
"""What `compact --erase` leaves of an event: its number, times and run."""
ARRIVE: Final = "arrive"
"""A message that another node of the cluster, or another worker, has brought: published there."""
FORWARD: Final = "forward"
"""A message that was put into the queue for another node, or worker."""

NODES: Final = "$node/"
"""The client identifiers of other nodes, and of other workers, begin so."""

PAIRS: Final = "array<struct<key:string,value:string>>"

EVENTS: Final = Schema(
    {
        "seq": "bigint",
        "kind": "string",
        "ts": "timestamp",
        "recv_ns": "bigint",
        "run_id": "string",
        "client_id": "string",
        "topic": "string",
        "payload": "binary",
        "size": "int",
        "qos": "tinyint",
        "retain": "boolean",
        "topic_filter": "string",
        "no_local": "boolean",
        "retain_as_published": "boolean",
        "subscription_id": "int",
        "reason": "string",
        "n": "bigint",
        "ref_seq": "bigint",
        "from_seq": "bigint",
        "to_seq": "bigint",
        "address": "string",
        "user_name": "string",
        "protocol": "tinyint",
        "clean_start": "boolean",
        "session_present": "boolean",
        "payload_format": "tinyint",
        "content_type": "string",
        "response_topic": "string",
        "correlation_data": "binary",
        "message_expiry": "bigint",
        "properties": PAIRS,
    }
)

ALWAYS: Final = ("seq", "kind", "ts", "recv_ns", "run_id")
"""Columns without which a file holds no events."""
