"""The columns of a received message, and how messages become rows of them.

Owns: the schema of the source. docs/pipeline-mqtt.md says what each column means. `seq` is where a row stands in the
spool: it is added when the row is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from canopy_mqtt.core.codec import properties as names
from canopy_mqtt.core.codec.packets import Publish
from canopy_mqtt.core.codec.properties import decode_forward
from canopy_mqtt.core.codec.reason_codes import ProtocolError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LOST: Final = "canopy-lost"
"""The user property by which Canopy tells a client what it lost: `count;cause`, one for each cause."""
MAX_LOST: Final = 1 << 53
"""The upper bound of counts of losses: any client may publish a message with a larger one, which must not end the
stream."""

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
        ("lost", pa.int64()),
        ("session", pa.int64()),
        ("seq", pa.int64()),
    ]
)
"""Everything may be null, as Spark has it of a stream."""
SPOOLED: Final = pa.schema(list(ARROW)[:-1])
"""The columns of a segment of the spool."""


class Read(NamedTuple):
    """One read of a connection."""

    messages: int
    ts: int
    """µs since 1970, UTC."""
    recv_ns: int
    session: int | None
    """The number of the broker's session in which it came, from 1."""


def spark_schema() -> StructType:
    """The same schema for Spark."""
    from pyspark.sql.pandas.types import from_arrow_schema

    made: StructType = from_arrow_schema(ARROW)
    return made


def told_lost(packet: Publish) -> int:
    """Return the number of messages that the broker says it lost for this client before this one."""
    if LOST.encode() not in packet.properties:
        return 0
    return _lost(_decoded(packet.properties).user)


def _lost(pairs: Sequence[tuple[str, str]]) -> int:
    counts = [value.partition(";")[0] for name, value in pairs if name == LOST]
    return min(sum(int(each) for each in counts if each.isdecimal() and len(each) < 19), MAX_LOST)


def _decoded(section: bytes) -> names.Properties:
    try:
        return decode_forward(section)
    except ProtocolError:
        # A broker that lets them pass is wrong; one row of it must not end the stream.
        return names.Properties()


def batch(packets: Sequence[Publish], reads: Sequence[Read]) -> Any:
    """Messages as one Arrow RecordBatch of `SPOOLED`; `reads` say when they came, in their order."""
    count = len(packets)
    values: dict[str, Any] = {
        "topic": [each.topic for each in packets],
        "payload": [each.payload for each in packets],
        "qos": [each.qos for each in packets],
        "retain": [each.retain for each in packets],
        "dup": [each.dup for each in packets],
    }
    for name in ("ts", "recv_ns", "session"):
        # One value for each read, not for each message.
        kind = SPOOLED.field(name).type
        pieces = [pa.repeat(pa.scalar(getattr(read, name), kind), read.messages) for read in reads]
        values[name] = pa.concat_arrays(pieces) if pieces else pa.nulls(0, kind)
    sections = [each.properties for each in packets]
    if any(sections):
        values |= _properties(sections)
    else:
        values["lost"] = pa.repeat(pa.scalar(0, pa.int64()), count)
    expiries = [each.message_expiry for each in packets]
    if max(expiries, default=-1) >= 0:
        values["message_expiry"] = [each if each >= 0 else None for each in expiries]
    return pa.record_batch([_column(values.get(each.name), each.type, count) for each in SPOOLED], schema=SPOOLED)


def _column(values: Any, kind: Any, count: int) -> Any:
    if values is None:
        return pa.nulls(count, kind)
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _properties(sections: Sequence[bytes]) -> dict[str, list[Any]]:
    found = [_decoded(each) if each else None for each in sections]
    return {
        "properties": [
            [{"key": key, "value": value} for key, value in each.user] if each is not None and each.user else None
            for each in found
        ],
        "content_type": [None if each is None else each.strings.get(names.CONTENT_TYPE) for each in found],
        "response_topic": [None if each is None else each.strings.get(names.RESPONSE_TOPIC) for each in found],
        "correlation_data": [None if each is None else each.binaries.get(names.CORRELATION_DATA) for each in found],
        "payload_format": [
            None if each is None else each.integers.get(names.PAYLOAD_FORMAT_INDICATOR) for each in found
        ],
        "lost": [0 if each is None else _lost(each.user) for each in found],
    }


def placed(rows: Any, first: int | None) -> Any:
    """A batch of a segment with all columns; `first`: the number of its first row."""
    count = rows.num_rows
    seq = None if first is None else pa.array(range(first, first + count), pa.int64())
    columns = {name: rows.column(name) for name in rows.schema.names} | {"seq": seq}
    return pa.record_batch([_column(columns.get(each.name), each.type, count) for each in ARROW], schema=ARROW)
