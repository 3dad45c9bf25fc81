"""The path of a message over links between brokers: one user property for each broker that forwarded it.

Owns the names (`LINK` in a CONNECT and its CONNACK, `VIA` in a PUBLISH, `UPLINKS` for a broker's own links), and how
the path is read and extended. Properties without a path cost one search for its name. `with_hop` keeps existing
properties and appends to them [MQTT-3.3.2-18]. Anybody can write any path: use it to end loops, and for nothing that
must be trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.codec.primitives import text
from broker.core.codec.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    USER_PROPERTY,
)

if TYPE_CHECKING:
    from mypy_extensions import i64

LINK: Final = "canopy-link"
"""The user property with which a broker says in CONNECT that it is one, and the other in CONNACK that it knows."""

VIA: Final = "canopy-via"
"""The user property of a message that names a broker which handed it on; one for each, in order."""

UPLINKS: Final = "$upstream/"
"""How the client identifiers of a broker's own links begin. No client may have such a one."""

PROGRAM: Final = "$program/"
"""The same of what the program subscribes to that the broker runs in."""

_NAME: Final = b"\x00\x0acanopy-via"
"""The name as it is encoded, section 1.5.7."""

_HEAD: Final = b"\x26\x00\x0acanopy-via"
"""Everything before the value, section 2.2.2.2."""


def visited(properties: bytes) -> list[str]:
    """The ids of the brokers that handed a message on, in order; empty where there are none.

    `properties`: encoded, as `Message.properties` has them. Bytes that are no such thing end the path where they begin.
    """
    if properties.find(_HEAD) < 0:
        return []
    found: list[str] = []
    position: i64 = 0
    end: i64 = len(properties)
    while position < end:
        identifier: i64 = properties[position]
        position += 1
        if identifier == PAYLOAD_FORMAT_INDICATOR:
            position += 1
            continue
        if (
            identifier != USER_PROPERTY
            and identifier != CONTENT_TYPE
            and identifier != RESPONSE_TOPIC
            and identifier != CORRELATION_DATA
        ):
            break
        if position + 2 > end:
            break
        start: i64 = position
        position += 2 + (properties[position] << 8 | properties[position + 1])
        if identifier != USER_PROPERTY:
            continue
        named = position - start == len(_NAME) and properties[start:position] == _NAME
        if position + 2 > end:
            break
        start = position + 2
        position = start + (properties[position] << 8 | properties[position + 1])
        if position > end:
            break
        if named:
            found.append(properties[start:position].decode("utf-8", "replace"))
    return found


def has_looped(path: list[str], broker_id: str, hop_limit: int) -> bool:
    """Whether a message on this path has been at a broker before, or has come over more links than it may.

    `broker_id` "": the broker has no name yet; `hop_limit` 0: any number.
    """
    return len(path) > 0 and ((broker_id != "" and broker_id in path) or 0 < hop_limit <= len(path))


def with_hop(properties: bytes, broker_id: str) -> bytes:
    """The properties of a message that a broker hands on: with its id at the end of the path.

    Raises:
        ValueError: an id that no property can hold (more than 65,535 bytes).
    """
    return properties + _HEAD + text(broker_id)
