"""The size of a session without its subscriptions and its queues.

The constants are upper bounds of what was measured in a compiled broker.
"""

from __future__ import annotations

from typing import Final

from broker.core.codec.packets import Will
from broker.core.principal import Principal
from broker.core.session.session import Session
from broker.core.topics.filter_bytes import text_bytes

SESSION_BYTES: Final = 1_536
"""A session with its dicts and its ledger, its place among the sessions, and its time in the heap."""

IDENTIFIER_BYTES: Final = 64
"""A packet identifier of a QoS 2 publish that is not released yet."""

CHARACTER_BYTES: Final = 4
"""A character of what an authenticator says of a client, at most."""

WILL_BYTES: Final = 256
"""A will without its topic, payload and properties."""


def will_bytes(will: Will | None) -> int:
    """What is counted for a will."""
    if will is None:
        return 0
    return WILL_BYTES + text_bytes(will.topic) + len(will.payload) + len(will.properties)


def session_bytes(client_id: str, principal: Principal, will: Will | None) -> int:
    """What is counted for a session of a client that has no QoS 2 publishes to release."""
    size = SESSION_BYTES + text_bytes(client_id) + text_bytes(principal.user_name or "") + will_bytes(will)
    return size + CHARACTER_BYTES * principal.size()


def bytes_of(session: Session) -> int:
    """What is counted for a session as it is now."""
    size = session_bytes(session.client_id, session.principal, session.will)
    received = session.incoming_qos2
    return size if received is None else size + len(received) * IDENTIFIER_BYTES


def is_empty(session: Session) -> bool:
    """Whether the end of a session whose client is away would lose nothing but the word that it was there."""
    return (
        session.outbox is None
        and not session.own
        and not session.subscriptions
        and session.queue.pending is None
        and not session.inflight
        and not session.incoming_qos2
        and session.will is None
    )
