"""Reads the losses of a session, for tests."""

from __future__ import annotations

from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.core.session.session import Session


def dropped_by_cause(session: Session) -> list[int]:
    """Messages dropped, one number for each of `DROP_CAUSES`, the present connection included."""
    dropped = session.ledger.dropped
    return [0] * len(DROP_CAUSES) if dropped is None else dropped.copy()
