"""The core's view of the other nodes of a mesh.

Owns `NodeState`, which messages are not for a node (No Local), and the user properties that tell for which share group
a message on its way to another node was chosen, or to which move of a session it belongs: nodes add and remove them;
from a client they are ordinary user properties.
"""

from __future__ import annotations

from typing import Final

from broker.core.codec.primitives import text
from broker.core.hooks import Confirmer
from broker.core.routing.remote.publish_numbers import PublishNumbers, take_last
from broker.core.session.session import Session

_HEAD: Final = b"\x26\x00\x0ccanopy-share"
_LATE: Final = b"\x26\x00\x0bcanopy-late"
"""Everything before the value, section 2.2.2.2."""


class NodeState:
    """The state of the other nodes, for publishing and subscribing.

    `count`: how many may want what is published here; `patience`: seconds that a publisher's acknowledgement waits for
    them at most; `confirmer` says when they know what is asked for here; `numbers`: of QoS 2 publishes.
    """

    def __init__(self) -> None:
        self.count = 0
        self.patience = 0.0
        self.confirmer: Confirmer | None = None
        self.numbers = PublishNumbers()


def keeps_out(session: Session, origin: Session | None) -> bool:
    """Whether a subscription with No Local of a session is not for what comes from `origin`: its own, or another node's
    where the session is a node's."""
    return session is origin or (session.node and origin is not None and origin.node)


def with_share(properties: bytes, share: str) -> bytes:
    """The properties of a message that goes to a node for a share group, `$share/name/filter`."""
    return properties + _HEAD + text(share)


def take_share(properties: bytes) -> tuple[str, bytes]:
    """The group that a message from a node is for, and its properties without it; "" where it is for none."""
    return take_last(_HEAD, properties)


def with_late(properties: bytes, move: str) -> bytes:
    """The properties of a message that goes to a node for the sessions of a move (`hooks.LateListener`)."""
    return properties + _LATE + text(move)


def take_late(properties: bytes) -> tuple[str, bytes]:
    """The move that a message from a node belongs to, and its properties without it; "" where it belongs to none."""
    return take_last(_LATE, properties)
