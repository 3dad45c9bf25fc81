"""Sessions of no broker, for tests of what belongs to a session."""

from __future__ import annotations

from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.session.session import Session


def any_session(client_id: str = "c") -> Session:
    """Return a session that no client is connected to."""
    return Session(client_id, 0, 0, Counters())
