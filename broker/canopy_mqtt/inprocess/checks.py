"""Checks the arguments of a program: topic, payload and properties. An error names the allowed values."""

from __future__ import annotations

from typing import TypeAlias

from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import validate_topic
from canopy_mqtt.inprocess.properties import Properties

Payload: TypeAlias = bytes | bytearray | memoryview | str
"""The types of a payload: bytes, or text, which is encoded as UTF-8."""


def payload_bytes(payload: object) -> bytes:
    """Return a payload as bytes; text is encoded as UTF-8. Raises TypeError for other types."""
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    hint = ": json.dumps makes text of it" if isinstance(payload, (dict, list, tuple, int, float, type(None))) else ""
    raise TypeError(f"payload is {_article(payload)}; a message has bytes or text{hint}")


def check_properties(properties: object) -> None:
    """Check that these are properties of a message. Raises TypeError."""
    if not isinstance(properties, Properties):
        raise TypeError(f"properties is {_article(properties)}; canopy.Properties, or None")


def check_topic(topic: str, max_levels: int = 0) -> None:
    """Check that a message can have this topic. Raises TypeError or ValueError."""
    if not isinstance(topic, str):
        raise TypeError(f"topic is {_article(topic)}; a topic name is text")
    try:
        validate_topic(topic, max_levels)
        topic.encode()
    except (ProtocolError, UnicodeEncodeError) as error:
        raise ValueError(f"topic {topic!r}: {error}") from None


def _article(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}" if value is not None else name.removesuffix("Type")
