"""Confluent's framing: a payload begins with a zero byte and the number of its schema in a registry, in four bytes.

Avro needs the schema of that number to be read. JSON and Protobuf do not: there the number has to be one of the
registry, if the mapping names one, and says no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from canopy_pipeline.tables.payloads.bad_payload import BadPayloadError
from canopy_pipeline.tables.registry import Registry

HEAD: Final = 5
ASKED: Final = 100
"""Numbers unknown to the registry that it is asked for in one batch: clients choose the numbers."""


def split(payload: bytes) -> tuple[int, bytes]:
    """Return the number of the schema, and the value.

    Raises:
        BadPayloadError: it does not begin so.
    """
    if len(payload) < HEAD or payload[0]:
        raise BadPayloadError("malformed", "does not begin with a zero byte and the number of a schema")
    return int.from_bytes(payload[1:HEAD], "big"), payload[HEAD:]


class Schemas:
    """The schemas of one kind that payloads of a batch name: those of the mapping, and of the registry."""

    def __init__(self, kind: str, given: Mapping[int, bytes], registry: Registry | None) -> None:
        """`kind`: AVRO, JSON or PROTOBUF."""
        self._kind = kind
        self._found = {number: text.decode() for number, text in given.items()}
        self._registry = registry
        self._unknown: dict[int, str] = {}

    def text(self, number: int) -> str:
        """Return a schema.

        Raises:
            BadPayloadError: there is none of this number and kind.
            PipelineError: the registry does not answer.
        """
        found = self._found.get(number)
        if found is not None:
            return found
        if self._registry is None:
            raise BadPayloadError("no-schema", f"of schema {number}, which is not in the mapping's schemas")
        if number not in self._unknown and len(self._unknown) >= ASKED:
            raise BadPayloadError(
                "no-schema", f"of schema {number}; the registry was not asked: it lacks {ASKED} others of this batch"
            )
        if number not in self._unknown:
            said = self._registry.schema(number)
            if said is not None and said.kind == self._kind and not said.references:
                self._found[number] = said.text
                return said.text
            self._unknown[number] = (
                f"of schema {number}, which the registry does not have"
                if said is None
                else f"of schema {number}, which is {said.kind} in the registry"
                if said.kind != self._kind
                else f"of schema {number}, which refers to others in the registry: give it in the mapping's schemas"
            )
        raise BadPayloadError("no-schema", self._unknown[number])


class Decoder(Protocol):
    """Reads payloads of one format."""

    def rows(self, payload: bytes, topic: str, seq: int) -> list[tuple[Any, ...]]:
        """Return the values of the columns, row by row.

        Raises:
            BadPayloadError: there is no row in it.
        """


class FramedDecoder:
    """Reads payloads in JSON or Protobuf in this framing."""

    def __init__(self, decoder: Decoder, kind: str, registry: Registry | None, message: tuple[int, ...] = ()) -> None:
        """`message`: the place of Protobuf's message in its file, from the outermost one on."""
        self._decoder = decoder
        self._schemas = None if registry is None else Schemas(kind, {}, registry)
        self._message = message

    def rows(self, payload: bytes, topic: str, seq: int) -> list[tuple[Any, ...]]:
        number, value = split(payload)
        if self._schemas is not None:
            self._schemas.text(number)
        if self._message:
            value = _after(value, self._message)
        return self._decoder.rows(value, topic, seq)


def _after(value: bytes, message: tuple[int, ...]) -> bytes:
    """Return a value without the place of its message: its length and numbers, or one zero byte for the first message.

    Raises:
        BadPayloadError: it is another message.
    """
    count, at = _number(value, 0)
    found: tuple[int, ...] = (0,)
    if count > len(message):
        raise BadPayloadError("malformed", f"another message of its file, {count} levels deep")
    if count:
        places = []
        for _ in range(count):
            place, at = _number(value, at)
            places.append(place)
        found = tuple(places)
    if found != message:
        raise BadPayloadError("malformed", f"another message of its file, at {'.'.join(map(str, found))}")
    return value[at:]


def _number(value: bytes, at: int) -> tuple[int, int]:
    """Return a variable-length number in zigzag encoding, and the place behind it."""
    found = shift = 0
    for place in range(at, min(at + 5, len(value))):
        found |= (value[place] & 0x7F) << shift
        if value[place] < 0x80:
            return (found >> 1) ^ -(found & 1), place + 1
        shift += 7
    raise BadPayloadError("malformed", "breaks off in the place of its message")
