"""What the core knows of the other nodes of a mesh, which are sessions to it (`Session.node`).

Owns `NodeState`, which the mesh fills, and which messages are not for a node (No Local).
"""

from __future__ import annotations

from broker.core.hooks import Confirmer
from broker.core.routing.remote.publish_numbers import PublishNumbers
from broker.core.session.session import Session


class NodeState:
    """The state of the other nodes, for publishing and subscribing.

    `count`: how many nodes may want what is published here; `patience`: seconds that a publisher's acknowledgement
    waits for them at most; `confirmer`: what a SUBACK waits for, until they know the topic filter; `numbers`: of QoS 2
    publishes.
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
