"""What a session has lost, as tests ask for it."""

from __future__ import annotations

from broker.core.counters import DROP_CAUSES
from broker.core.session.session import Session


def dropped_by_cause(session: Session) -> list[int]:
    """Messages dropped, one number for each of `DROP_CAUSES`, the present connection included."""
    dropped = session.ledger.dropped
    return [0] * len(DROP_CAUSES) if dropped is None else dropped.copy()
