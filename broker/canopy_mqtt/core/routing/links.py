"""Knows other brokers: the path that a message took over links, and the states of mosquitto's bridges.

The path is in the message, a user property for each broker, so that a message from a client that comes over no link
costs one search for its name. Any client can write any path: use it to end loops, and for nothing that must be trusted.

`BridgeStates` owns the decision who may write `$SYS/broker/connection/NAME/state`, retained, `1` while a bridge is
connected, else `0`; everything else below `$SYS` is the broker's own.
"""

from __future__ import annotations

from typing import Final, cast

from canopy_mqtt.core.codec.packets import PUBLISH, Will
from canopy_mqtt.core.codec.primitives import text
from canopy_mqtt.core.codec.properties import USER_PROPERTY, PropertyReader
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.codec.topic_names import SLASH, SYSTEM_TOPICS
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.topic_tree import TopicTree

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


# -- the states of bridges ---------------------------------------------------------------------------------------------

_BEFORE: Final = SYSTEM_TOPICS + b"broker/connection/"
_AFTER: Final = b"/state"

DOWN: Final = b"0"
"""The payload of a bridge that is not connected."""

ONLY_BRIDGES: Final = (
    "the topic is the broker's own: below $SYS only a bridge may have its will, at $SYS/broker/connection/NAME/state"
)
ANOTHER: Final = "the bridge state of this name is another client's: give each bridge its own name (remote_clientid)"


def is_bridge_state(topic: bytes) -> bool:
    """Return whether a topic name (UTF-8) is the state of a bridge."""
    return (
        topic.startswith(_BEFORE)
        and topic.endswith(_AFTER)
        and len(topic) > len(_BEFORE) + len(_AFTER)
        and topic.find(SLASH, len(_BEFORE)) == len(topic) - len(_AFTER)
    )


def announced(will: Will | None) -> bytes:
    """The bridge state that the will of a CONNECT announces; empty: it announces none."""
    if will is None:
        return b""
    topic = will.topic.encode()
    return topic if is_bridge_state(topic) else b""


class BridgeStates:
    """Says who may write the state of a bridge.

    A bridge announces its name by the will of its CONNECT, as mosquitto's does by default, and publishes `1` itself.
    Promises: a client writes the state that its own will names, and no other. NAME is a bridge's client identifier by
    default: then it is that client's state alone, while its session is there, connected or not. Of clients that share
    another name, the one has it that wrote there, while its session is there. A bridge that is gone leaves `0`: by its
    will, or else by the broker. States are retained messages of their client, within its limits; no store keeps them,
    because they say nothing about another run of the broker.
    """

    def __init__(self, retained: TopicTree, sessions: dict[str, Session]) -> None:
        self._retained = retained
        self._sessions = sessions

    def is_another(self, topic: bytes, client_id: str) -> bool:
        """Return whether a state is another client's, so that this one may not write it."""
        name = topic[len(_BEFORE) : -len(_AFTER)].decode()
        if name == client_id:
            return False
        if name in self._sessions:
            return True
        told = cast("Message | None", self._retained.get(topic.decode()))
        return told is not None and told.publisher != client_id and told.publisher in self._sessions

    def may_write(self, topic: bytes, session: Session) -> bool:
        """Return whether a connected client may publish to a topic below `$SYS`."""
        return topic == session.bridge_state and topic != b"" and not self.is_another(topic, session.client_id)

    def may_send_will(self, topic: bytes, client_id: str) -> bool:
        """Return whether the will of a client at a topic below `$SYS` may be published now.

        One that says that a bridge is gone may not if the bridge has come back before the will had its turn.
        """
        if not is_bridge_state(topic):
            return False
        session = self._sessions.get(client_id)
        if session is not None and session.send_buffer is not None and session.bridge_state == topic:
            return False
        return not self.is_another(topic, client_id)

    def left(self, session: Session) -> Message | None:
        """Return the message that a bridge is down, for the end of its connection; None: nothing is to be said."""
        topic = session.bridge_state
        if not topic:
            return None
        told = cast("Message | None", self._retained.get(topic.decode()))
        if told is None or told.publisher != session.client_id or told.payload() == DOWN:
            return None
        return Message(topic, DOWN, 1, True, b"", 0.0, session.client_id)
