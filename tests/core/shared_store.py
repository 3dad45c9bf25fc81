"""A store of shared sessions that does what a test says: it answers claims and commits when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from canopy_mqtt.core.codec.packets import Subscribe
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.persistence import restore
from canopy_mqtt.core.persistence.commits import Commits
from canopy_mqtt.core.persistence.journal import (
    DeliveryRecord,
    Journal,
    MessageRecord,
    SessionRecord,
    SubscriptionRecord,
)
from canopy_mqtt.core.queues.delivery import Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.shared import Attempt, Offer, RetainedWait, SharedSessions
from canopy_mqtt.core.topics.subscription import Subscription
from tests.core.harness import Client, Network, limits


class ToldJournal(Journal):
    """A journal that remembers what it is told of sessions, and commits when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: Commits = Commits()
        self.told: list[tuple[Any, ...]] = []

    def note(self, *what: Any) -> None:
        """One change that has to be kept."""
        self.told.append(what)
        self.commits.journal_position += 1

    def session_gone(self, client_id: str) -> None:
        self.note("gone", client_id)

    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        del streaming
        self.note("subscribed", client_id, subscription.topic_filter, subscription.qos)

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        self.note("unsubscribed", client_id, topic_filter)

    def restored(self, client_id: str, delivery: Delivery, number: int) -> None:
        del delivery
        self.told.append(("restored", client_id, number))

    def finished(self, client_id: str, delivery: Delivery) -> None:
        self.note("finished", client_id, delivery.message.payload())

    def completed(self, client_id: str, packet_id: int) -> None:
        self.note("completed", client_id, packet_id)


class Kept:
    """A message that a store was given."""

    def __init__(self, message: Message, session: Session | None, packet_id: int) -> None:
        self.payload, self.qos = message.payload(), message.qos
        self.client_id = None if session is None else session.client_id
        self.packet_id = packet_id

    def __repr__(self) -> str:
        return repr(vars(self))


class SharedStore(SharedSessions):
    """The store. `at_once`: claims are answered while they are made, as new sessions."""

    def __init__(self, journal: ToldJournal, at_once: bool) -> None:
        super().__init__()
        self.at_once = at_once
        self.attempts: list[Attempt] = []
        self.over: list[Attempt] = []
        self.kept: list[Kept] = []
        self.live: list[Callable[[], object]] = []
        self.ended_wills: list[tuple[object, int]] = []
        self.published_wills: list[tuple[object, Message, Callable[[], object]]] = []
        self.absent: set[str] = set()
        """Clients whose sessions were opened while the store was away."""
        self._journal = journal

    def claim(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        if self.at_once:
            attempt.opened(None)

    def look(self, wait: RetainedWait) -> None:
        wait.start()

    def left(self, attempt: Attempt) -> None:
        assert attempt.is_gone
        assert attempt.session is None
        self.over.append(attempt)

    def will_ended(self, kept: object, delay: int) -> None:
        self.ended_wills.append((kept, delay))

    def keep_will(self, kept: object, message: Message, live: Callable[[], object], offer: Offer | None) -> None:
        assert offer is None
        self.published_wills.append((kept, message, live))

    def holds(self, session: Session) -> bool:
        return session.claim is not None and session.client_id not in self.absent

    def publish(
        self,
        message: Message,
        session: Session | None,
        packet_id: int,
        live: Callable[[], object] | None,
        offer: Offer | None,
    ) -> None:
        assert offer is None  # it keeps no retained messages
        self.kept.append(Kept(message, session, packet_id))
        if live is not None:
            self.live.append(live)
        self._journal.note("kept", message.payload())


class SharedNetwork(Network):
    """A broker whose durable sessions are in such a store."""

    def __init__(self, at_once: bool = True, **given: Any) -> None:
        super().__init__(limits(**given))
        self.journal = ToldJournal()
        self.store = SharedStore(self.journal, at_once)
        self.router.journal = self.journal
        self.router.shared = self.store
        self._number = 100

    def commit(self) -> None:
        """All that was told is safe, and what waited for it leaves."""
        self.journal.commits.advance(self.journal.commits.journal_position)
        self.settle()

    def waiting(self, client_id: str, **connect: Any) -> Client:
        """A client that has sent its CONNECT."""
        client = self.idle(client_id)
        client.connect(**{"clean": False, "expiry": 100, **connect})
        return client

    def durable(self, client_id: str, record: SessionRecord | None = None, **connect: Any) -> Client:
        """A client that is connected, with a session that has what the record says."""
        before, self.store.at_once = self.store.at_once, False
        client = self.waiting(client_id, **connect)
        # What it was sent at another broker is not known.
        client.judge.enabled = record is None
        attempt = self.store.attempts[-1]
        if attempt.will is not None:
            attempt.kept_will = f"the will of {client_id}"
        attempt.opened(record)
        self.settle()
        self.store.at_once = before
        assert client.connack.reason_code == 0
        return client

    def take(self, client_id: str, *payloads: bytes, qos: int = 2, topic: bytes = b"a") -> None:
        """The store has read messages for a session that is here."""
        records = []
        for payload in payloads:
            self._number += 1
            kept = MessageRecord(topic, payload, qos, False, b"", None, "p")
            records.append(DeliveryRecord(self._number, kept, qos, False, (), ""))
        restore.take(self.router, self.session(client_id), records, self.now)
        self.commit()

    def subscriber(self, client_id: str, topic_filter: str, qos: int = 2, **connect: Any) -> Client:
        """The same, and it has subscribed."""
        client = self.durable(client_id, **connect)
        client.send(Subscribe(client.take_id(), [Request(topic_filter, qos)]))
        self.settle()
        self.commit()
        return client


def record(client_id: str, *subscriptions: SubscriptionRecord, **given: Any) -> SessionRecord:
    """What a store has of a session."""
    made = SessionRecord(client_id, 100, None, given.pop("principal", None))
    made.subscriptions.extend(subscriptions)
    made.received.extend(given.pop("received", ()))
    made.deliveries.extend(given.pop("deliveries", ()))
    assert not given
    return made
