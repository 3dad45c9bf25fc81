"""The table of recorded events, as a job sees it.

Owns: `EVENTS`, the columns that the recorder writes (docs/recorder.md explains each) in Spark's words, and the names of
the kinds.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.record.schema import SCHEMA
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

_TYPES: Final = {
    "int64": "bigint", "int32": "int", "int8": "tinyint", "bool": "boolean", "string": "string", "binary": "binary",
    "timestamp[us, tz=UTC]": "timestamp",
}  # fmt: skip
"""Arrow's types in Spark's SQL."""

EVENTS: Final = Schema({each.name: _TYPES.get(str(each.type), PAIRS) for each in SCHEMA})

ALWAYS: Final = tuple(each.name for each in SCHEMA if not each.nullable)
"""Columns without which a file holds no events."""
