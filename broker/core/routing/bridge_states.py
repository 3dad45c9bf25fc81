"""The states of mosquitto's bridges: `$SYS/broker/connection/NAME/state`, retained, `1` while connected, else `0`.

Owns the decision who may write there; everything else below `$SYS` is the broker's own. A bridge announces its name by
the will of its CONNECT, as mosquitto's does by default, and publishes `1` itself.

Promises: a client writes the state that its own will names, and no other. NAME is a bridge's client identifier by
default: then it is that client's state alone, while its session is there, connected or not. Of clients that share
another name, the one has it that wrote there, while its session is there. A bridge that is gone leaves `0`: by its
will, or else by the broker. States are retained messages of their client, within its limits; no store keeps them,
because they say nothing about another run of the broker.
"""

from __future__ import annotations

from typing import Final, cast

from broker.core.codec.packets import Will
from broker.core.codec.topic_names import SLASH, SYSTEM_TOPICS, is_system
from broker.core.queues.message import Message
from broker.core.session.session import Session
from broker.core.topics.topic_tree import RetainedTree

_BEFORE: Final = SYSTEM_TOPICS + b"broker/connection/"
_AFTER: Final = b"/state"

DOWN: Final = b"0"
"""The payload of a bridge that is not connected."""

ONLY_BRIDGES: Final = (
    "the topic is the broker's own: below $SYS only a bridge may have its will, at $SYS/broker/connection/NAME/state"
)
ANOTHER: Final = "the bridge state of this name is another client's: give each bridge its own name (remote_clientid)"


def is_bridge_state(topic: bytes) -> bool:
    """Whether a topic name (UTF-8) is the state of a bridge."""
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
    """Says who may write the state of a bridge."""

    def __init__(self, retained: RetainedTree, sessions: dict[str, Session]) -> None:
        self._retained = retained
        self._sessions = sessions

    def is_another(self, topic: bytes, client_id: str) -> bool:
        """Whether a state is another client's, so that this one may not write it."""
        name = topic[len(_BEFORE) : -len(_AFTER)].decode()
        if name == client_id:
            return False
        if name in self._sessions:
            return True
        told = cast("Message | None", self._retained.get(topic.decode()))
        return told is not None and told.publisher != client_id and told.publisher in self._sessions

    def may_write(self, topic: bytes, session: Session) -> bool:
        """Whether a connected client may publish to a topic below `$SYS`."""
        return topic == session.bridge_state and topic != b"" and not self.is_another(topic, session.client_id)

    def may_send_will(self, topic: bytes, client_id: str) -> bool:
        """Whether the will of a client may be published now. One that says that a bridge is gone may not if the bridge
        has come back before the will had its turn."""
        if not is_bridge_state(topic):
            return not is_system(topic)
        session = self._sessions.get(client_id)
        if session is not None and session.outbox is not None and session.bridge_state == topic:
            return False
        return not self.is_another(topic, client_id)

    def left(self, session: Session) -> Message | None:
        """What the broker is to publish because a client's connection is over: that its bridge is down, if its will
        has not said so; None: nothing."""
        topic = session.bridge_state
        if not topic:
            return None
        told = cast("Message | None", self._retained.get(topic.decode()))
        if told is None or told.publisher != session.client_id or told.payload() == DOWN:
            return None
        return Message(topic, DOWN, 1, True, b"", 0.0, session.client_id)
