"""What a store is told of the session of another node: its topic filters always, messages while they have to be kept.

Owns which deliveries the store has. While `keeps` is off it hears nothing of new ones, and of those that it has what
becomes of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.persistence.journal import Journal
from broker.core.principal import Principal
from broker.core.queues.delivery import RELEASED, Delivery
from broker.core.topics.subscription import Subscription


class NodeJournal(Journal):
    """The journal of one node's session, before the store's. `kept`: the deliveries that the store has."""

    def __init__(self, journal: Journal, kept: Iterable[Delivery]) -> None:
        super().__init__()
        self.commits = journal.commits
        self.keeps = True
        """Whether new messages are kept."""
        self.kept: set[Delivery] = set(kept)
        self._journal = journal

    # -- the session ---------------------------------------------------------------------------------------------------

    def session_kept(self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float) -> None:
        self._journal.session_kept(client_id, principal, expiry_interval, disconnected_at)

    def session_gone(self, client_id: str) -> None:
        self.kept.clear()
        self._journal.session_gone(client_id)

    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        self._journal.subscribed(client_id, subscription, streaming)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        self._journal.unsubscribed(client_id, topic_filter)

    # -- deliveries ----------------------------------------------------------------------------------------------------

    def begin(self, client_id: str, inflight: list[Delivery], waiting: list[Delivery], unsent: bool) -> None:
        """Keep from now on: all that there is, in its order. `unsent`: what was not written will not be any more."""
        self.keeps = True
        for delivery in inflight:
            if delivery in self.kept:
                continue
            self.in_flight(client_id, delivery)
            if delivery.state == RELEASED:
                self.released(client_id, delivery)
            elif unsent and delivery.attempts == 0:
                self.unsent(client_id, delivery)
        for delivery in waiting:
            if delivery not in self.kept:
                self.queued(client_id, delivery)

    def queued(self, client_id: str, delivery: Delivery) -> None:
        if self.keeps:
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
