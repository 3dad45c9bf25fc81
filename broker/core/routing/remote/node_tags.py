"""The user properties that a node adds to a message on its way to another node, which takes them away again.

Owns the names, and what is done where a client has written one of them. They stand behind the properties of the
publisher, in this order: the number of a QoS 2 publish, the share group that the message was chosen for, the move of
sessions that it belongs to. Promises: no property of a client is taken for one of them, and each reaches the clients of
other nodes unaltered [MQTT-3.3.2-17]: behind such a name of a client a node adds an empty number.
"""

from __future__ import annotations

from typing import Final

from broker.core.codec.primitives import text
from broker.core.codec.properties import properties_of

_COMMON: Final = b"canopy-"
_NUMBER: Final = b"\x26\x00\x0ecanopy-publish"
_SHARE: Final = b"\x26\x00\x0ccanopy-share"
_LATE: Final = b"\x26\x00\x0bcanopy-late"
"""Everything before the value, section 2.2.2.2."""


def holds_tag(properties: bytes) -> bool:
    """Whether a client may have written one of these names, so that `with_number` adds an empty number.

    Nodes do not get the same frame as clients then.
    """
    if properties.find(_COMMON) < 0:
        return False
    return properties.find(_NUMBER) >= 0 or properties.find(_SHARE) >= 0 or properties.find(_LATE) >= 0


def with_number(properties: bytes, number: int) -> bytes:
    """The properties of a message that goes to a node, as it was published. `number`: see `PublishNumbers`; 0: none."""
    if number > 0:
        return properties + _NUMBER + text(str(number))
    return properties + _NUMBER + text("") if holds_tag(properties) else properties


def take_number(properties: bytes) -> tuple[str, bytes]:
    """The number of a message from a node, and its properties without it; "" where it has none."""
    return _take_last(_NUMBER, properties)


def with_share(properties: bytes, share: str) -> bytes:
    """The properties of a message that goes to a node for a share group, `$share/name/filter`."""
    return properties + _SHARE + text(share)


def take_share(properties: bytes) -> tuple[str, bytes]:
    """The group that a message from a node is for, and its properties without it; "" where it is for none."""
    return _take_last(_SHARE, properties)


def with_late(properties: bytes, move: str) -> bytes:
    """The properties of a message that goes to a node for the sessions of a move (`hooks.LateListener`)."""
    return properties + _LATE + text(move)


def take_late(properties: bytes) -> tuple[str, bytes]:
    """The move that a message from a node belongs to, and its properties without it; "" where it belongs to none."""
    return _take_last(_LATE, properties)


def _take_last(head: bytes, properties: bytes) -> tuple[str, bytes]:
    """The value of a user property that is the last one, and the properties without it; "" where it is not.

    `head`: all before the value.
    """
    if properties.find(head) < 0:
        return "", properties
    found = -1
    end = 0
    for _, start, stop in properties_of(properties):
        if properties[start:stop].startswith(head):
            found, end = start, stop
    if found < 0 or end != len(properties):
        return "", properties
    return properties[found + len(head) + 2 : end].decode(), properties[:found]
