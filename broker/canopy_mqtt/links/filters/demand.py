"""The topic filters that other brokers are asked for because of the subscriptions here."""

from __future__ import annotations

from canopy_mqtt.core.routing.nodes import NODES
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import Subscription


def is_asked_for(subscription: Subscription, topic_filter: str) -> bool:
    """Return whether other brokers are asked for the filter of a subscription, without `$share/name/`."""
    group = subscription.group
    if group is not None and group.home is not None:
        # The home asks for it.
        return False
    if subscription.session.upstream:
        # Another worker has members of a group that lives here.
        return group is not None and subscription.topic_filter.startswith(NODES)
    # No other node sends what nodes say to each other.
    return not topic_filter.startswith(NODES)


def is_of_worker(subscription: Subscription) -> bool:
    """Return whether another worker asks by a subscription for what its clients want."""
    return subscription.session.client_id.startswith(NODES) and not subscription.topic_filter.startswith(NODES)


def asked_for(session: Session, told: set[str], for_workers: bool) -> list[str]:
    """Return the filters that other brokers are asked for because of a session, but those in `told`.

    `told`: by which other workers are told of members. A group has one for all its members; new ones are added.
    `for_workers`: an upstream broker is asked, for the clients of all workers.
    """
    found: list[str] = []
    for subscription in session.subscriptions.values():
        group, entry = subscription.group, subscription.entry
        if group is not None and group.home is not None:
            if group.home.told and group.home.told not in told:
                told.add(group.home.told)
                found.append(group.home.told)
        elif entry is not None and is_asked_for(subscription, entry.topic_filter):
            found.append(entry.topic_filter)
        elif for_workers and is_of_worker(subscription):
            found.append(subscription.topic_filter)
    return found
