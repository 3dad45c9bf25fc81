"""What a store is told of the session of another node: its topic filters always, messages while they have to be kept.

Owns which deliveries the store has. While `keeps` is off it hears nothing of new ones, and of those that it has what
becomes of them. When it comes on, the store is told of all that there is in pieces, and of what follows behind that.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from broker.core.persistence.journal import Journal
from broker.core.principal import Principal
from broker.core.queues.delivery import QUEUED, RELEASED, Delivery
from broker.core.topics.subscription import Subscription

PIECE: Final = 1_024
"""Deliveries of which the store is told in one turn."""


class NodeJournal(Journal):
    """The journal of one node's session, before the store's. `kept`: the deliveries that the store has."""

    def __init__(self, journal: Journal, kept: Iterable[Delivery]) -> None:
        super().__init__()
        self.commits = journal.commits
        self.keeps = True
        """Whether new messages are kept."""
        self.kept: set[Delivery] = set(kept)
        self.due: dict[Delivery, None] = {}
        """Those of which it is still to be told, in their order."""
        # Whether those in flight that were not written will not be any more.
        self._unsent = False
        self._journal = journal

    # -- the session ---------------------------------------------------------------------------------------------------

    def session_kept(self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float) -> None:
        # With it the store has all packet identifiers that the node may know: not before it has been told of them.
        if not self.due:
            self._journal.session_kept(client_id, principal, expiry_interval, disconnected_at)

    def session_gone(self, client_id: str) -> None:
        self.kept.clear()
        self.due.clear()
        self._journal.session_gone(client_id)

    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        self._journal.subscribed(client_id, subscription, streaming)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        self._journal.unsubscribed(client_id, topic_filter)

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def begin(self, inflight: list[Delivery], waiting: list[Delivery], unsent: bool) -> None:
        """Keep from now on: all that there is, in its order. `unsent`: what was not written will not be any more.

        `go_on` has to follow, until nothing is due.
        """
        self.keeps = True
        self._unsent = unsent
        self.due = {delivery: None for delivery in (*inflight, *waiting) if delivery not in self.kept}

    def go_on(self, client_id: str, most: int) -> None:
        """Tell the store of so many of those that are due, at most. Whoever waits for one waits for the store then."""
        due = self.due
        for delivery in list(islice(due, most)):
            del due[delivery]
            self.kept.add(delivery)
            if delivery.state == QUEUED:
                self._journal.queued(client_id, delivery)
            else:
                self._journal.in_flight(client_id, delivery)
                if delivery.state == RELEASED:
                    self._journal.released(client_id, delivery)
                elif self._unsent and delivery.attempts == 0:
                    self._journal.unsent(client_id, delivery)
            delivery.settle(True)

    def queued(self, client_id: str, delivery: Delivery) -> None:
        if self.due:
            self.due[delivery] = None
        elif self.keeps:
            self.kept.add(delivery)
            self._journal.queued(client_id, delivery)

    def in_flight(self, client_id: str, delivery: Delivery) -> None:
        if self.keeps:
            self.kept.add(delivery)
        if delivery in self.kept:
            self._journal.in_flight(client_id, delivery)

    def unsent(self, client_id: str, delivery: Delivery) -> None:
        if delivery in self.kept:
            self._journal.unsent(client_id, delivery)

    def released(self, client_id: str, delivery: Delivery) -> None:
        if delivery in self.kept:
            self._journal.released(client_id, delivery)

    def finished(self, client_id: str, delivery: Delivery) -> None:
        if delivery in self.kept:
            self.kept.discard(delivery)
            self._journal.finished(client_id, delivery)
        else:
            self.due.pop(delivery, None)
