"""Payloads in Protobuf: a message whose descriptors are given (`protoc --include_imports --descriptor_set_out`).

Promises: fields that the descriptors do not know are left out. Depth is bounded by the library (100).
"""

from __future__ import annotations

from datetime import UTC
from typing import Any, Final

from canopy_pipeline.tables.payloads.bad_payload import BadPayloadError
from canopy_pipeline.tables.payloads.column_values import value
from canopy_pipeline.tables.plans import Column, Plan

_BOOLEAN: Final = 8
_MESSAGE: Final = (10, 11)
_ENUM: Final = 14
_TYPES: Final = {
    1: "float64", 2: "float64", 3: "int64", 4: "int64", 5: "int32", 6: "int64", 7: "int64", _BOOLEAN: "boolean",
    9: "string", 12: "binary", 13: "int64", _ENUM: "string", 15: "int32", 16: "int64", 17: "int32", 18: "int64",
}  # fmt: skip
"""By the numbers of FieldDescriptor.Type. A uint64 that does not fit int64 is a dead letter."""
_TIME: Final = "google.protobuf.Timestamp"


class ProtobufDecoder:
    def __init__(self, plan: Plan) -> None:
        from google.protobuf import message_factory

        self.columns = plan.columns
        self._class: Any = message_factory.GetMessageClass(_descriptor(plan.schema, plan.message))

    def rows(self, payload: bytes, topic: str, seq: int) -> list[tuple[Any, ...]]:
        del topic, seq
        found = self._class()
        try:
            found.ParseFromString(payload)
            said: dict[tuple[str, ...], dict[str, Any]] = {}
            return [tuple(value(_at(found, column.path, said), column) for column in self.columns)]
        except BadPayloadError:
            raise
        # Whatever the library says of hostile bytes: it stays with these bytes.
        except Exception as error:
            raise BadPayloadError("malformed", f"not this message: {error}") from error


def columns(text: bytes, message: str) -> tuple[Column, ...]:
    """Return the columns of a message: its fields; nested or repeated ones are JSON.

    Raises:
        ValueError: there is no such message in the descriptors.
    """
    return tuple(Column(each.name, _type(each), (each.name,)) for each in _descriptor(text, message).fields)


def place(text: bytes, message: str) -> tuple[int, ...]:
    """Return the place of a message in its file, from the outermost one on."""
    found: Any = _descriptor(text, message)
    places: list[int] = []
    while found is not None:
        outer = found.containing_type
        beside = found.file.message_types_by_name.values() if outer is None else outer.nested_types
        places.insert(0, [each.full_name for each in beside].index(found.full_name))
        found = outer
    return tuple(places)


def check(text: bytes, message: str, path: tuple[str, ...]) -> None:
    """Refuse a path that the message does not have.

    Raises:
        ValueError: it has no such field.
    """
    found: Any = _descriptor(text, message)
    for name in path:
        field = found.fields_by_name.get(name) if found is not None else None
        if field is None:
            raise ValueError(f"the message {message} has no field {'.'.join(path)}")
        found = field.message_type if not field.is_repeated else None


def _descriptor(text: bytes, message: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(text)
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
        return pool.FindMessageTypeByName(message)
    except KeyError as error:
        raise ValueError(f"no message {message} in the descriptors ({', '.join(_messages(files))})") from error
    # The library's errors have no type in common.
    except Exception as error:
        raise ValueError(f"no descriptors: {type(error).__name__}: {error}") from error


def _messages(files: Any) -> list[str]:
    return [f"{file.package}.{each.name}".lstrip(".") for file in files.file for each in file.message_type][:10]


def _type(field: Any) -> str:
    if field.is_repeated:
        return "json"
    if field.type in _MESSAGE:
        return "timestamp" if field.message_type.full_name == _TIME else "json"
    return _TYPES[field.type]


def _at(found: Any, path: tuple[str, ...], said: dict[tuple[str, ...], dict[str, Any]]) -> Any:
    """`said`: messages of this payload as JSON has them, by path: each is made once for all columns."""
    for number, name in enumerate(path):
        field = found.DESCRIPTOR.fields_by_name[name]
        if not field.is_repeated and field.has_presence and not found.HasField(name):
            return None
        if number < len(path) - 1:
            found = getattr(found, name)
        else:
            return _value(found, field, path[:-1], said)
    return None


def _value(found: Any, field: Any, above: tuple[str, ...], said: dict[tuple[str, ...], dict[str, Any]]) -> Any:
    made = getattr(found, field.name)
    if field.is_repeated or field.type in _MESSAGE:
        from google.protobuf import json_format

        if not field.is_repeated and field.message_type.full_name == _TIME:
            return made.ToDatetime(UTC)
        if above not in said:
            said[above] = json_format.MessageToDict(found, preserving_proto_field_name=True)
        return said[above].get(field.name)
    if field.type == _ENUM:
        known = field.enum_type.values_by_number.get(made)
        return str(made) if known is None else known.name
    return made
