"""Holds the state that outlives the connections of one link: its session, its upstream subscriptions, and its figures.

A link has one, and gives it to each of its connections (`Uplink`, with its `Downlink`).
"""

from __future__ import annotations

from collections.abc import Callable

from canopy_mqtt.core.routing.router import Router
from canopy_mqtt.links.filters.declarer import Declarer
from canopy_mqtt.links.protocol.replays import NoReplays, Replays
from canopy_mqtt.links.protocol.session import UplinkSession


class LinkStats:
    """The figures of a link since it was made."""

    def __init__(self) -> None:
        # Sent up, and refused there; or given up, since the upstream ended the connection for it.
        self.rejected = 0
        self.given_up = 0
        self.received = 0
        # Of these: matched by no subscription here, outside of all filters and roots of the link, a copy that another
        # link has brought, retained and known already, returned in a loop.
        self.unmatched = 0
        self.outside = 0
        self.copies = 0
        self.replayed = 0
        self.looped = 0
        # Without a name here.
        self.nameless = 0


class LinkState:
    """One link between its connections, too."""

    def __init__(self, router: Router, session: UplinkSession, declarer: Declarer) -> None:
        self.router = router
        self.session = session
        self.declarer = declarer
        # A node sends what is retained with each connection, and says of what age it is.
        self.replays = NoReplays(router, session) if session.node else Replays(router, session)
        if session.node:
            declarer.retain_handling = 2
        # Of a node: told what it says to this one, topic and payload; None: the nodes say nothing to each other.
        self.heard: Callable[[bytes, bytes], None] | None = None
        self.figures = LinkStats()
