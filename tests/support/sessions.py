"""Sessions of no broker, for tests of what belongs to a session; and the members of a share group."""

from __future__ import annotations

from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import SharedGroup, Subscription, Turns


def any_session(client_id: str = "c") -> Session:
    """Return a session that no client is connected to."""
    return Session(client_id, 0, 0, Counters())


def any_subscription(
    client_id: str,
    topic_filter: str,
    qos: int = 0,
    no_local: bool = False,
    as_published: bool = False,
    identifier: int = 0,
) -> Subscription:
    """Return a subscription of such a session."""
    return Subscription(any_session(client_id), topic_filter, qos, no_local, as_published, 0, identifier)


def members(group: SharedGroup | Turns) -> list[Subscription]:
    """Return the members of a share group, the connected ones first; or those in one of its two lists."""
    if isinstance(group, SharedGroup):
        return [*members(group.connected), *members(group.away)]
    return [member for member in group.slots if member is not None]
