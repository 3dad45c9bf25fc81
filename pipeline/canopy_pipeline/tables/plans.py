"""The result of reading a mapping, as plain data: tables, their columns, and how to read a payload.

Owns: the Arrow schemas of the tables and of the dead letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from canopy_pipeline.tables.patterns import Pattern
from canopy_pipeline.tables.registry import Registry

DEAD_LETTERS: Final = "dead_letters"
DATE: Final = "date"
"""The column that tables are partitioned by: a day in UTC."""
SEQ: Final = "seq"
TS: Final = "ts"
EVENT_TIME: Final = "event_time"
ITEM: Final = "item"

MICROS: Final = pa.timestamp("us", tz="UTC")
TYPES: Final[Mapping[str, Any]] = {
    "boolean": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": MICROS,
    # Whatever it is, as JSON text.
    "json": pa.string(),
}

KEPT: Final[Mapping[str, Any]] = {
    "topic": pa.string(),
    "client_id": pa.string(),
    "run_id": pa.string(),
    "qos": pa.int8(),
    "retain": pa.bool_(),
    "recv_ns": pa.int64(),
}
"""Columns of the record that a table can keep."""

NEEDED: Final = ("seq", "kind", "ts", "run_id", "client_id", "topic", "payload", "qos", "retain", "recv_ns")
"""Columns of the record that are read."""
SIZE: Final = "size"
"""Bytes of an event's payload, by which it is known before the payload is read."""

DEAD: Final = pa.schema(
    [
        pa.field(SEQ, pa.int64(), nullable=False),
        pa.field(TS, MICROS, nullable=False),
        pa.field("run_id", pa.string()),
        pa.field("client_id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("table", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field(DATE, pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Limits:
    """Limits of one payload; a payload beyond them is a dead letter (docs/tables.md)."""

    payload_bytes: int = 1_048_576
    depth: int = 32
    fields: int = 1_000
    items: int = 10_000
    columns: int = 200
    births: int = 1_000_000


@dataclass(frozen=True)
class Column:
    """A column that is made of the payload."""

    name: str
    type: str
    path: tuple[str, ...]
    required: bool = False
    unit: str = "ms"
    """Of a number that is a time."""


@dataclass(frozen=True)
class Plan:
    name: str
    pattern: Pattern
    format: str
    columns: tuple[Column, ...]
    keep: tuple[str, ...] = ("topic",)
    event_time: str | None = None
    late: int = 7 * 86_400_000_000
    ahead: int = 86_400_000_000
    """Microseconds that the time of an event may lie before the record's time, and after it."""
    schema: bytes = b""
    """Avro's schema, or Protobuf's descriptors."""
    schemas: tuple[tuple[int, bytes], ...] = ()
    """Avro's schemas that payloads name, by their numbers."""
    message: str = ""
    framing: str = "none"
    registry: Registry | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def items(self) -> bool:
        """True if a payload may make several rows."""
        return self.format == "sparkplug"

    @cached_property
    def arrow(self) -> Any:
        fields = [pa.field(SEQ, pa.int64(), nullable=False), pa.field(TS, MICROS, nullable=False)]
        fields += [pa.field(name, KEPT[name]) for name in self.keep]
        fields += [pa.field(name, pa.string()) for name in self.pattern.names]
        fields.append(pa.field(EVENT_TIME, MICROS, nullable=False))
        if self.items:
            fields.append(pa.field(ITEM, pa.int32(), nullable=False))
        fields += [pa.field(each.name, TYPES[each.type]) for each in self.columns]
        fields.append(pa.field(DATE, pa.string(), nullable=False))
        return pa.schema(fields)
