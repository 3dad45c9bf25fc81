"""The message of Sparkplug B (Eclipse Sparkplug 3.0, section 6.4.1), as far as rows are made of it, and its topics.

Promises: data sets, templates and properties stay bytes, so that nothing nests. The number of metrics is bounded before
a message is taken apart.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from canopy_pipeline.tables.payloads.bad_payload import BadPayloadError

NAMESPACE: Final = "spBv1.0"
BIRTHS: Final = ("NBIRTH", "DBIRTH")
KINDS: Final = (*BIRTHS, "NDATA", "DDATA", "NDEATH", "DDEATH", "NCMD", "DCMD")

_FIELDS: Final = {
    "Payload": (("timestamp", 1, 4, 1), ("metrics", 2, 11, 3), ("seq", 3, 4, 1), ("body", 5, 12, 1)),
    "Metric": (
        ("name", 1, 9, 1), ("alias", 2, 4, 1), ("timestamp", 3, 4, 1), ("datatype", 4, 13, 1),
        ("is_historical", 5, 8, 1), ("is_null", 7, 8, 1), ("int_value", 10, 13, 1), ("long_value", 11, 4, 1),
        ("float_value", 12, 2, 1), ("double_value", 13, 1, 1), ("boolean_value", 14, 8, 1), ("string_value", 15, 9, 1),
        ("bytes_value", 16, 12, 1), ("dataset_value", 17, 12, 1), ("template_value", 18, 12, 1),
    ),
}  # fmt: skip
"""By message: name, number, and FieldDescriptor's type and label."""


@cache
def payload_class() -> Any:
    """The message, as the library makes it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    # proto2, as Sparkplug's: a field that is not there is told from one that is 0.
    file = descriptor_pb2.FileDescriptorProto(name="canopy/sparkplug_b.proto", package="canopy.sparkplug")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in fields:
            made = message.field.add(name=field, number=number)
            made.type = kind  # type: ignore[assignment]  # numbers of the enumeration
            made.label = label  # type: ignore[assignment]
            if kind == 11:
                made.type_name = ".canopy.sparkplug.Metric"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("canopy.sparkplug.Payload"))


def is_state(topic: str) -> bool:
    """Return True for the topic of a host application's state, `spBv1.0/STATE/HOST`, whose payload is JSON."""
    levels = topic.split("/")
    return len(levels) == 3 and levels[:2] == [NAMESPACE, "STATE"]


def place(topic: str) -> tuple[str, str, str, str | None] | None:
    """Return group, message type, edge node and device of a topic; None if it is none of Sparkplug's."""
    levels = topic.split("/")
    if len(levels) not in (4, 5) or levels[0] != NAMESPACE or levels[2] not in KINDS:
        return None
    return levels[1], levels[2], levels[3], levels[4] if len(levels) == 5 else None


def read(payload: bytes, items: int) -> Any:
    """The message in some bytes.

    Raises:
        BadPayloadError: there is none, or it has more metrics than `items`.
    """
    # Before it is taken apart: a metric takes two bytes on its way, and a hundred here.
    # 0x92 is how a tag begins that says 0x12 in more bytes than it needs.
    if payload.count(b"\x12") + payload.count(b"\x92") > items:
        _count(payload, items)
    made = payload_class()()
    try:
        made.ParseFromString(payload)
    # Whatever the library says of hostile bytes: it stays with these bytes.
    except Exception as error:
        raise BadPayloadError("malformed", f"not a Sparkplug payload: {error}") from error
    # The library gives the bytes of a text that is not UTF-8, in messages of proto2.
    if any(isinstance(text, bytes) for metric in made.metrics for text in (metric.name, metric.string_value)):
        raise BadPayloadError("malformed", "not a Sparkplug payload: a text that is not UTF-8")
    return made


def _count(payload: bytes, items: int) -> None:
    """Refuse a message with more metrics than that."""
    count = at = 0
    try:
        while at < len(payload):
            key, at = _varint(payload, at)
            wire = key & 7
            if key == 0x12:
                count += 1
                if count > items:
                    raise BadPayloadError("too-many-fields", f"more than {items:,} metrics")
            if wire == 0:
                _, at = _varint(payload, at)
            elif wire == 2:
                size, at = _varint(payload, at)
                at += size
            elif wire in (1, 5):
                at += 8 if wire == 1 else 4
            else:
                raise BadPayloadError("malformed", f"not a Sparkplug payload: wire type {wire}")
    except IndexError as error:
        raise BadPayloadError("malformed", "not a Sparkplug payload: it breaks off") from error


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    made = 0
    for shift in range(0, 70, 7):
        byte = payload[at]
        at += 1
        made |= (byte & 0x7F) << shift
        if byte < 0x80:
            return made, at
    raise BadPayloadError("malformed", "not a Sparkplug payload: a number of more than ten bytes")
