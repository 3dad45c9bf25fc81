"""The connected peers. The only place where a session gets or loses its outbox.

Whoever notices that a peer connects or disconnects (a protocol, a writer that cannot write, a timer) posts a
`PeerConnected` or `PeerDisconnected`. `ConnectedPeers` applies these before each batch of packets is routed, and
between packets if a CONNECT needs it, so that no peer joins or leaves during a fanout. A peer without matching filters
costs nothing, and after its `PeerDisconnected` nothing here refers to it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from broker.core.queues.live.outbox import Outbox
from broker.core.queues.queue_totals import QueueTotals
from broker.core.session.session import Session
from broker.core.topics.subscription import Subscription

if TYPE_CHECKING:
    from broker.core.routing.router import Router

PLACES: Final = 1_024
"""Shared subscriptions of a session that are placed at once, when it comes or goes, and in a tick: 0.1 milliseconds."""

END_WORK: Final = 512
HELD_WORK: Final = 4
"""What the end of a connection counts for in a turn, as deliveries, and each message that waits for the client then."""


class PeerEvent:
    """An event of a peer: `PeerConnected` or `PeerDisconnected`."""

    def __init__(self, session: Session, outbox: Outbox) -> None:
        self.session = session
        self.outbox = outbox


class PeerConnected(PeerEvent):
    """A connection was accepted for a session."""


class PeerDisconnected(PeerEvent):
    """A connection ended, or is closed, for one of `causes`."""

    def __init__(self, session: Session, outbox: Outbox, cause: str) -> None:
        super().__init__(session, outbox)
        self.cause = cause


class ConnectedPeers:
    """The connected peers, and the events that change them."""

    def __init__(self, load: QueueTotals) -> None:
        self._load = load
        self.outboxes: dict[Session, Outbox] = {}
        # Outboxes that got something since the shell last looked: it wakes their writers once for each read.
        self.touched: list[Outbox] = []
        # Shared subscriptions of those who came with very many, which are still to be placed: of each once, however
        # often it comes and goes.
        self.placing: OrderedDict[Session, list[Subscription]] = OrderedDict()
        self.places: i64 = PLACES
        self._events: list[PeerEvent] = []
        self._draining = False

    def post(self, event: PeerEvent) -> None:
        """Queue an event; it takes effect at the next `drain`."""
        self._events.append(event)

    def drain(self, router: Router, now: float) -> None:
        """Apply all events that wait, in order. Called before each batch is routed; never runs inside itself."""
        load = self._load
        load.now = now
        overflowed = load.overflowed
        if self._draining or not (self._events or overflowed):
            return
        self._draining = True
        events = self._events
        done: i64 = 0
        try:
            while done < len(events) or overflowed:
                if overflowed:
                    router.overfull(now)
                while done < len(events):
                    event = events[done]
                    done += 1
                    if self.apply(event) and isinstance(event, PeerDisconnected):
                        router.peer_left(event, now)
        finally:
            # Also where one of them has raised: it is not applied again.
            del events[:done]
            self._draining = False

    def apply(self, event: PeerEvent) -> bool:
        """Apply one event. False when it says nothing new: the connection that it ends was replaced, or is gone."""
        session = event.session
        if isinstance(event, PeerDisconnected):
            if session.outbox is not event.outbox:
                return False
            session.detach(event.outbox)
            session.outbox = None
            self._place_shared(session, False)
            del self.outboxes[session]
            return True
        session.outbox = event.outbox
        event.outbox.queue.ledger = session.ledger
        self._place_shared(session, True)
        self.outboxes[session] = event.outbox
        return True

    def _place_shared(self, session: Session, connected: bool) -> None:
        """Move its shared subscriptions to the connected members of their groups, or to the others (section 4.8.2).

        Only some at once. A group finds out by itself that a member has gone; the rest of one that came has its turns.
        """
        session.connected = connected
        if session.memberships is not None:
            rest = list(session.memberships)
            left: i64 = self.places
            while rest and left > 0:
                self._place(rest.pop())
                left -= 1
            self.placing.pop(session, None)
            if rest and connected:
                self.placing[session] = rest

    def place_some(self) -> i64:
        """Place some of those that are still to be placed. How many they were."""
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
        return done

    def _place(self, subscription: Subscription) -> None:
        group = subscription.group
        if group is not None:
            group.place(subscription)
