"""Payloads in Avro's binary encoding: a record of a schema that is given.

In Confluent's framing a payload names the schema that it was written with; a value is read by that one, and becomes the
record of the table's schema by Avro's rules. A payload of a schema that neither the mapping nor the registry has is
refused.

Promises: a mapping is refused whose schema has a type that is part of itself, or an array whose items take no bytes: a
few bytes could ask for any depth, or for any number of items.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Final

from canopy_pipeline.tables.payloads.bad_payload import BadPayloadError
from canopy_pipeline.tables.payloads.column_values import fields
from canopy_pipeline.tables.payloads.confluent import HEAD, Schemas, split
from canopy_pipeline.tables.plans import Column, Plan

SINGLE_OBJECT: Final = b"\xc3\x01"
_HEADS: Final = {"none": 0, "single-object": 10, "confluent": HEAD}
_PRIMITIVES: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float64",
    "double": "float64",
    "string": "string",
    "bytes": "binary",
    "fixed": "binary",
    "enum": "string",
}
_LOGICAL: Final[Mapping[str, str]] = {
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "date": "timestamp",
    "decimal": "float64",
    "uuid": "string",
}
_DECIMAL: Final = 1_000
"""Bytes of a decimal: its conversion takes time with the square of them."""
_TIMES: Final = ("time-millis", "time-micros", "local-timestamp-millis", "local-timestamp-micros")


class AvroDecoder:
    def __init__(self, plan: Plan) -> None:
        import fastavro

        self.columns = plan.columns
        self.framing = plan.framing
        parsed = json.loads(plan.schema)
        self.head = b""
        if plan.framing == "single-object":
            canonical = fastavro.schema.to_parsing_canonical_form(parsed)
            mark = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
            self.head = SINGLE_OBJECT + bytes.fromhex(mark)
        self.schema = fastavro.parse_schema(parsed)
        self._schemas = Schemas("AVRO", dict(plan.schemas), plan.registry)
        self._writers: dict[int, Any] = {}
        _bounded(fastavro.read.LOGICAL_READERS)
        self._read = fastavro.schemaless_reader

    def rows(self, payload: bytes, topic: str, seq: int) -> list[tuple[Any, ...]]:
        del topic, seq
        skipped = _HEADS[self.framing]
        writer, reader = self.schema, None
        if self.framing == "confluent":
            writer, reader = self._writer(split(payload)[0]), self.schema
        elif len(payload) < skipped or not payload.startswith(self.head):
            raise BadPayloadError("malformed", f"does not begin as {self.framing} Avro of this schema does")
        stream = io.BytesIO(payload)
        stream.seek(skipped)
        try:
            found: Any = self._read(stream, writer, reader)
        # Whatever the library says of hostile bytes: it stays with these bytes.
        except Exception as error:
            raise BadPayloadError("malformed", f"not Avro of this schema: {str(error) or 'it breaks off'}") from error
        left = len(payload) - stream.tell()
        if left:
            raise BadPayloadError("malformed", f"{left:,} bytes are left over")
        return [fields(found, self.columns)]

    def _writer(self, number: int) -> Any:
        """Return the schema that a payload was written with, parsed."""
        found = self._writers.get(number)
        if found is None:
            import fastavro

            text = self._schemas.text(number)
            try:
                columns(text.encode())
            except ValueError as error:
                raise BadPayloadError("no-schema", f"of schema {number}: {error}") from error
            found = self._writers[number] = fastavro.parse_schema(json.loads(text))
        return found


def _bounded(readers: dict[str, Any]) -> None:
    """Make the library refuse long decimals."""
    plain = readers["bytes-decimal"]
    if getattr(plain, "bounded", False):
        return

    def read(data: bytes, *schemas: Any) -> Any:
        if len(data) > _DECIMAL:
            raise ValueError(f"a decimal of {len(data):,} bytes")
        return plain(data, *schemas)

    read.bounded = True  # type: ignore[attr-defined]
    readers["bytes-decimal"] = read


def columns(text: bytes) -> tuple[Column, ...]:
    """Return the columns of a schema: a record's fields; nested ones are JSON.

    Raises:
        ValueError: it is no schema of a record, or not one that is read here.
    """
    import fastavro

    try:
        found = json.loads(text)
        fastavro.parse_schema(found)
    # The library's errors have no type in common.
    except Exception as error:
        raise ValueError(f"no Avro schema: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict) or found.get("type") != "record":
        raise ValueError("the schema must be that of a record")
    _least(found, {}, ())
    return tuple(Column(str(each["name"]), _type(each["type"]), (str(each["name"]),)) for each in found["fields"])


def _type(schema: Any) -> str:
    if isinstance(schema, list):
        kinds = {_type(each) for each in schema if each != "null"}
        return kinds.pop() if len(kinds) == 1 else "json"
    if isinstance(schema, dict):
        logical = str(schema.get("logicalType"))
        if logical in _LOGICAL:
            return _LOGICAL[logical]
        return "json" if logical in _TIMES else _type(schema["type"])
    return _PRIMITIVES.get(schema, "json")


def _least(schema: Any, named: dict[str, int], inside: tuple[str, ...]) -> int:
    """Return the least number of bytes of a value.

    Raises:
        ValueError: a type is part of itself, or an array has items that may take none.
    """
    if isinstance(schema, list):
        return 1 + min((_least(each, named, inside) for each in schema), default=0)
    if isinstance(schema, str):
        if _last(schema) in inside:
            raise ValueError(f"the type {schema} is part of itself: its depth has no bound")
        return named.get(_last(schema), {"null": 0, "float": 4, "double": 8}.get(schema, 1))
    kind = schema["type"]
    if isinstance(kind, (dict, list)):
        return _least(kind, named, inside)
    if kind == "array":
        if not _least(schema["items"], named, inside):
            raise ValueError("an array whose items take no bytes: their number has no bound")
        return 1
    if kind == "map":
        _least(schema["values"], named, inside)
        return 1
    # Without its namespace, which a reference may leave out or not: two types of one last name are the smaller one.
    name = _last(str(schema.get("name", "")))
    if kind in ("record", "error"):
        size = sum(_least(each["type"], named, (*inside, name)) for each in schema["fields"])
    elif kind == "fixed":
        size = int(schema["size"])
    else:
        return _least(kind, named, inside) if kind != "enum" else named.setdefault(name, 1)
    named[name] = min(size, named.get(name, size))
    return size


def _last(name: str) -> str:
    return name.rpartition(".")[2]
