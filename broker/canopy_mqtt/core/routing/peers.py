"""The connected peers. The only place where a session gets or loses its send buffer.

What notices that a peer connects or disconnects (a protocol, a writer that cannot write, a timer) adds a
`PeerConnected` or `PeerDisconnected` to the `events`. `drain` applies these before each batch of packets is routed, and
between packets if a CONNECT needs it, so that no peer joins or leaves during a fanout. A peer without matching filters
costs nothing, and after its `PeerDisconnected` nothing here refers to it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.jobs import PLACING, Budget, Job, Scheduler
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.queues.queue_terms import RequestedDelays
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.routing.subscription_table import SubscriptionTable
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.subscription import DELAY_BYTES, Subscription

if TYPE_CHECKING:
    from canopy_mqtt.core.limits import Limits
    from canopy_mqtt.core.routing.router import Router
    from canopy_mqtt.core.routing.share_queues import ShareQueues

PLACES: Final = 1_024
"""Shared subscriptions of a session that are placed at once, when it comes or goes, and in a tick: 0.1 milliseconds."""


class PeerConnected:
    """A connection was accepted for a session."""

    def __init__(self, session: Session, send_buffer: SendBuffer) -> None:
        self.session = session
        self.send_buffer = send_buffer


class PeerDisconnected:
    """A connection ended, or is closed, for one of `causes`."""

    def __init__(self, session: Session, send_buffer: SendBuffer, cause: str) -> None:
        self.session = session
        self.send_buffer = send_buffer
        self.cause = cause


class ConnectedPeers(Job):
    """The connected peers, and the events that change them; as a job, who may take shared messages."""

    def __init__(self, totals: QueueTotals, jobs: Scheduler, table: SubscriptionTable) -> None:
        self._totals = totals
        self._table = table
        self._jobs = jobs
        self.send_buffers: dict[Session, SendBuffer] = {}
        # How many of them are the broker's own: links, nodes of the cluster, subscriptions of the program.
        self.internal: i64 = 0
        # Send buffers that got something since the shell last looked: it wakes their writers once for each read.
        self.touched: list[SendBuffer] = []
        # Shared subscriptions of those who came with very many, which are still to be placed: of each once, however
        # often it comes and goes.
        self.placing: OrderedDict[Session, list[Subscription]] = OrderedDict()
        self.places: i64 = PLACES
        self.events: list[PeerConnected | PeerDisconnected] = []  # that wait for the next `drain`
        self._draining = False
        # Connections that requested a delay, and one more if the settings have any: with 0 the shell looks for none.
        # The version changes with the settings.
        self.delays: i64 = 0
        self.delays_version: i64 = 0
        self._set_delays: i64 = 0
        self.share_queues: ShareQueues | None = None  # the router's

    def set_delays(self, limits: Limits) -> None:
        """Apply changed settings to the delays of all peers."""
        some = limits.max_delay > 0.0 or limits.listener_delays
        for rule in limits.rules:
            some = some or rule.max_delay > 0.0
        self.delays -= self._set_delays
        self._set_delays = 1 if some else 0
        self.delays += self._set_delays
        self.delays_version += 1

    def request_delay(self, session: Session, topic_filter: str, delay: int) -> None:
        """Note a delay that a connected client requests, in milliseconds: see `RequestedDelays`."""
        requested = session.requested_delays
        if requested is None:
            requested = RequestedDelays()
            session.requested_delays = requested
            self.delays += 1
        before = len(requested.of_filters)
        requested.request(topic_filter, delay)
        self._table.charge(session, DELAY_BYTES * (len(requested.of_filters) - before))

    def drain(self, router: Router, now: float) -> None:
        """Apply all events that wait, in order. Called before each batch is routed; never runs inside itself."""
        totals = self._totals
        totals.now = now
        overflowed = totals.overflowed
        events = self.events
        if self._draining or not (events or overflowed):
            return
        self._draining = True
        done: i64 = 0
        try:
            while done < len(events) or overflowed:
                while overflowed:
                    overflowed.pop().overflow(now)  # their policy ends the connection, by another event
                while done < len(events):
                    event = events[done]
                    done += 1
                    session = event.session
                    send_buffer = event.send_buffer
                    if isinstance(event, PeerConnected):
                        session.send_buffer = send_buffer
                        send_buffer.ledger = session.ledger
                        self.send_buffers[session] = send_buffer
                        if session.internal:
                            self.internal += 1
                        if session.memberships is not None:
                            self._place_shared(session)
                    elif session.send_buffer is send_buffer:  # else it was replaced, or is gone
                        session.send_buffer = None
                        del self.send_buffers[session]
                        if session.internal:
                            self.internal -= 1
                        try:
                            session.detach(send_buffer)
                            if session.requested_delays is not None:
                                self._table.charge(session, -DELAY_BYTES * len(session.requested_delays.of_filters))
                                session.requested_delays = None
                                self.delays -= 1
                            if session.memberships is not None:
                                self._place_shared(session)
                        finally:
                            router.peer_disconnected(event, now)
        finally:
            # Also where one of them has raised: it is not applied again.
            del events[:done]
            self._draining = False

    def _place_shared(self, session: Session) -> None:
        """Move its shared subscriptions to the connected members of their groups, or to the others (section 4.8.2).

        Only some at once. A group finds out by itself that a member has gone; the rest of one that came has its turns.
        """
        assert session.memberships is not None
        rest = list(session.memberships)
        left: i64 = self.places
        while rest and left > 0:
            self._place(rest.pop())
            left -= 1
        self.placing.pop(session, None)
        if rest and session.send_buffer is not None:
            self.placing[session] = rest
            self._jobs.submit(PLACING, self)

    def step(self, budget: Budget) -> bool:
        """Place shared subscriptions, no more than `places` of them."""
        placing = self.placing
        done: i64 = 0
        while placing and done < self.places:
            session = next(iter(placing))
            rest = placing[session]
            while rest and done < self.places:
                self._place(rest.pop())
                done += 1
            if not rest:
                del placing[session]
        budget.used += done
        return not placing

    def _place(self, subscription: Subscription) -> None:
        group = subscription.group
        if group is not None:
            group.place(subscription)
            if group.queue is not None and self.share_queues is not None:
                self.share_queues.attach(subscription)
