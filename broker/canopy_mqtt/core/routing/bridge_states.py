"""Says who may write the state of a bridge of mosquitto's: `$SYS/broker/connection/NAME/state`, retained, `1` while the
bridge is connected, else `0`. Everything else below `$SYS` is the broker's own.

A bridge announces its name by the will of its CONNECT, as mosquitto's does by default, and publishes `1` itself. Each
client writes the state that its own will names, and no other. NAME is a bridge's client identifier by default: then it
is that client's state alone, while its session is there, connected or not. Of clients that share another name, the one
has it that wrote there, while its session is there. A bridge that is gone leaves `0`: by its will, or else by the
broker (`last_word`). States are within their client's limits; no store keeps them, as another run has other bridges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.codec.topic_names import SLASH, SYSTEM_TOPICS
from canopy_mqtt.core.queues.message import Message

if TYPE_CHECKING:
    from canopy_mqtt.core.routing.router import Router
    from canopy_mqtt.core.session.session import Session

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


def is_another(router: Router, topic: bytes, client_id: str) -> bool:
    """Return whether a state is another client's, so that this one may not write it."""
    name = topic[len(_BEFORE) : -len(_AFTER)].decode()
    if name == client_id:
        return False
    if name in router.sessions:
        return True
    told = cast("Message | None", router.retained.get(topic.decode()))
    return told is not None and told.publisher != client_id and told.publisher in router.sessions


def may_write(router: Router, topic: bytes, session: Session) -> bool:
    """Return whether a connected client may publish to a topic below `$SYS`."""
    return topic == session.bridge_state and topic != b"" and not is_another(router, topic, session.client_id)


def may_send_will(router: Router, topic: bytes, client_id: str) -> bool:
    """Return whether the will of a client at a topic below `$SYS` may be published now.

    One that says that a bridge is gone may not if the bridge has come back before the will had its turn.
    """
    if not is_bridge_state(topic):
        return False
    session = router.sessions.get(client_id)
    if session is not None and session.send_buffer is not None and session.bridge_state == topic:
        return False
    return not is_another(router, topic, client_id)


def last_word(router: Router, session: Session) -> Message | None:
    """Return the message that a bridge is down, for the end of its connection; None: nothing is to be said."""
    topic = session.bridge_state
    told = cast("Message | None", router.retained.get(topic.decode()))
    if told is None or told.publisher != session.client_id or told.payload() == DOWN:
        return None
    return Message(topic, DOWN, 1, True, b"", 0.0, session.client_id)
