"""A router that gets all that a store kept, in one call."""

from __future__ import annotations

from collections import deque

from canopy_mqtt.core.persistence import restore as restoring
from canopy_mqtt.core.persistence.journal import Saved, SessionRecord
from canopy_mqtt.core.routing.router import Router


def restore(router: Router, saved: Saved, now: float) -> list[SessionRecord]:
    """Fill it; the records of links."""
    links: list[SessionRecord] = []
    deque(restoring.restore(router, saved, now, links), 0)
    return links
