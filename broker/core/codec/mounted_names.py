"""Adds and removes the topic prefix of a mounted client.

Owns the prefix of a mount as bytes and text. It consists of whole levels, ends in "/", contains no wildcard and does
not begin with "$". Promises: every name from a mounted client gets the prefix, or is None: topics that begin with "$"
are not mounted, and names that would be too long do not exist. `inner_properties` removes exactly what
`outer_properties` has added, and shows no name that lies outside.

Names and filters are already validated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.codec.primitives import string
from broker.core.codec.properties import RESPONSE_TOPIC, properties_of
from broker.core.codec.topic_names import MAX_BYTES, parse_shared

if TYPE_CHECKING:
    from mypy_extensions import i64

DOLLAR: Final = 0x24


def outer_topic(mount: bytes, topic: bytes) -> bytes | None:
    """What the broker calls a client's topic; None: the client has no such topic."""
    if topic[0] == DOLLAR or len(mount) + len(topic) > MAX_BYTES:
        return None
    return mount + topic


def inner_topic(mount: bytes, topic: bytes) -> bytes | None:
    """What the client calls a topic of the broker; None: it has no name for it, so that it is never sent there.

    "tenant/a" is such a topic, which the filter "tenant/a/#" matches; so is "tenant/a/", of which nothing is left; and
    "tenant/a/$x", which the client's "#" would not match [MQTT-4.7.2-1].
    """
    size: i64 = len(mount)
    if len(topic) <= size or topic[size] == DOLLAR or not topic.startswith(mount):
        return None
    return topic[size:]


def outer_filter(mount: str, name: str) -> str | None:
    """What the broker calls a client's filter; of a shared one the part behind `$share/name/` is what changes.

    None: it is for what lies outside, or would be too long.
    """
    group, inner = parse_shared(name)
    if inner.startswith("$"):
        return None
    made = mount + inner
    if len(made) * 4 > MAX_BYTES and len(made.encode()) > MAX_BYTES:
        return None
    return f"$share/{group}/{made}" if group else made


def outer_properties(mount: bytes, properties: bytes) -> bytes | None:
    """The properties of a message from the client, its Response Topic as the broker calls it; None: it has no name."""
    if RESPONSE_TOPIC not in properties:
        return properties
    for identifier, start, stop in properties_of(properties):
        if identifier == RESPONSE_TOPIC:
            topic = outer_topic(mount, properties[start + 3 : stop])
            return None if topic is None else properties[: start + 1] + string(topic) + properties[stop:]
    return properties


def inner_properties(mount: bytes, properties: bytes) -> bytes:
    """The properties of a message as the client gets it, without a Response Topic that it has no name for."""
    if RESPONSE_TOPIC not in properties:
        return properties
    for identifier, start, stop in properties_of(properties):
        if identifier == RESPONSE_TOPIC:
            topic = inner_topic(mount, properties[start + 3 : stop])
            if topic is None:
                # It would tell of others' topics, and an answer to it would go elsewhere.
                return properties[:start] + properties[stop:]
            return properties[: start + 1] + string(topic) + properties[stop:]
    return properties
