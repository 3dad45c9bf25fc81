"""A row as a message to publish.

Owns: the columns that the sink understands, what their types may be, and what
values they may have.

Refuses: a row whose topic, QoS or property no PUBLISH can carry, in one line that names the column and the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from canopy_pipeline.errors import MisuseError, PipelineError
from canopy_pipeline.mqtt.mqtt_options import MAX_EXPIRY, wrong_topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

MAX_PAYLOAD: Final = 268_435_455
"""Bytes of a whole packet [MQTT-1.5.5]; the payload is shorter."""
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "payload": ("binary", "string"),
    "qos": ("tinyint", "smallint", "int", "bigint"),
    "retain": ("boolean",),
    "properties": ("array<struct<key:string,value:string>>",),
    "content_type": ("string",),
    "response_topic": ("string",),
    "correlation_data": ("binary",),
    "payload_format": ("tinyint", "smallint", "int", "bigint"),
    "message_expiry": ("int", "bigint"),
}
_LEFT_ALONE: Final = frozenset({"dup", "ts", "recv_ns", "lost", "session", "seq"})


def columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns of a schema that the sink uses.

    Raises:
        MisuseError: one is missing, of a wrong type, or unknown.
    """
    kinds = {each.name: each.dataType.simpleString() for each in schema}
    for name, kind in kinds.items():
        if name not in _TYPES and name not in _LEFT_ALONE:
            raise MisuseError(
                f"column {name!r} has no meaning for the sink mqtt: drop it, or put it into the payload, as in "
                "to_json(struct(*)) AS payload"
            )
        if kind not in _TYPES.get(name, (kind,)):
            raise MisuseError(f"column {name!r} is {kind}: the sink mqtt takes {' or '.join(_TYPES[name])}")
    for name in ("topic", "payload"):
        if name not in kinds:
            raise MisuseError(f"there is no column {name!r}: name one so")
    return tuple(name for name in kinds if name in _TYPES)


@dataclass(frozen=True)
class Message:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    user_properties: Sequence[tuple[str, str]]
    properties: Mapping[str, Any]
    """Of MQTT 5.0, by the names of their columns."""


_PROPERTIES: Final = frozenset(
    {"content_type", "response_topic", "correlation_data", "payload_format", "message_expiry"}
)


def message(
    values: Mapping[str, Any], qos: int, columns: Sequence[str], tags: Sequence[tuple[str, str]] = ()
) -> Message:
    """Return a row, given by its columns, as a message; `qos`: of a row without one. `tags` are added to its user
    properties.

    Raises:
        PipelineError: no PUBLISH can carry it.
    """
    control = {name: values[name] for name in columns if values[name] is not None}
    topic = control.get("topic")
    why = "it is null" if topic is None else wrong_topic(topic)
    if topic is None or why is not None:
        raise PipelineError(f"column 'topic' has {topic!r}: {why}")
    qos = control.get("qos", qos)
    if qos not in (0, 1, 2):
        raise PipelineError(f"column 'qos' has {qos} (topic {topic!r}): it is 0, 1 or 2")
    if control.get("payload_format", 0) not in (0, 1):
        raise PipelineError(f"column 'payload_format' has {control['payload_format']} (topic {topic!r}): it is 0 or 1")
    if not 0 <= control.get("message_expiry", 0) <= MAX_EXPIRY:
        raise PipelineError(f"column 'message_expiry' has {control['message_expiry']} (topic {topic!r}): no such time")
    reply = control.get("response_topic")
    if reply is not None and (why := wrong_topic(reply)) is not None:
        raise PipelineError(f"column 'response_topic' has {reply!r} (topic {topic!r}): {why}")
    payload = control.get("payload", b"")
    if isinstance(payload, str):
        payload = payload.encode()
    if len(payload) >= MAX_PAYLOAD:
        raise PipelineError(f"column 'payload' has {len(payload)} bytes (topic {topic!r}): too many for a packet")
    pairs = [(each["key"] or "", each["value"] or "") for each in control.get("properties", ()) if each is not None]
    return Message(
        topic,
        payload,
        qos,
        control.get("retain", False),
        # Those of an earlier sink are not this row's.
        [each for each in pairs if not each[0].startswith("canopy-")] + list(tags),
        {name: value for name, value in control.items() if name in _PROPERTIES},
    )
