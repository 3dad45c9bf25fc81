"""Knows the path that a message took over links to other brokers.

It is in the message, a user property for each broker, so that a message from a client that comes over no link costs one
search for its name. Any client can write any path: use it to end loops, and for nothing that must be trusted.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.core.codec.packets import PUBLISH
from canopy_mqtt.core.codec.primitives import text
from canopy_mqtt.core.codec.properties import USER_PROPERTY, PropertyReader
from canopy_mqtt.core.codec.reason_codes import ProtocolError

LINK: Final = "canopy-link"
"""The user property that marks a CONNECT as a broker's; the other broker confirms it in CONNACK."""

VIA: Final = "canopy-via"
"""The user property of a message that names a broker which forwarded it; one for each, in order."""

UPLINKS: Final = "$upstream/"
"""The client identifiers of a broker's own links begin so; a client's may not."""

PROGRAM: Final = "$program/"
"""The client identifiers of the embedding program's subscriptions begin so; a client's may not."""

_NAME: Final = b"canopy-via"
"""`VIA` as a broker compares it."""

_HEAD: Final = b"\x26\x00\x0acanopy-via"
"""The encoded property up to its value, section 2.2.2.2."""


def visited(properties: bytes) -> list[str]:
    """Return the ids of the brokers that forwarded a message, in order.

    `properties`: encoded, as in `Message.properties`. The path ends at bytes that are no properties.
    """
    if properties.find(_HEAD) < 0:
        return []
    found: list[str] = []
    section = PropertyReader(properties, 0, len(properties), PUBLISH)
    try:
        while section.next():
            if section.identifier == USER_PROPERTY and section.name == _NAME:
                found.append(section.value.decode("utf-8", "replace"))
    except ProtocolError:
        pass
    return found


def has_looped(path: list[str], broker_id: str, hop_limit: int) -> bool:
    """Return True if a message has visited a broker already, or has come over `hop_limit` links.

    `broker_id` "": the broker has no name yet; `hop_limit` 0: any number.
    """
    return len(path) > 0 and ((broker_id != "" and broker_id in path) or 0 < hop_limit <= len(path))


def with_hop(properties: bytes, broker_id: str) -> bytes:
    """Return the properties of a message with the id of the forwarding broker at the end of the path.

    The other properties stay as they are, in their order [MQTT-3.3.2-18].

    Raises:
        ValueError: the id has more than 65,535 bytes.
    """
    return properties + _HEAD + text(broker_id)
