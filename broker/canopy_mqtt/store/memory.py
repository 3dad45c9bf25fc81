"""A store in memory: for a broker that is stopped and started again within one process, and for tests.

Owns its records in dictionaries; no object of the core is kept except the key of each delivery. Promises: `load`
returns what the journal was told, up to the last call. Bounded by the limits of the sessions: a record for each queued
message, each packet identifier, each subscription, each retained message, and nothing for ended ones. Payloads are not
copied. It does not outlive the process.
"""

from __future__ import annotations

from collections.abc import Callable

from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.persistence.journal import (
    BroadcastRecord,
    DeliveryRecord,
    Journal,
    LoneWillRecord,
    MessageRecord,
    Saved,
    SessionRecord,
    SubscriptionRecord,
    WillRecord,
    share_name,
)
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import RELEASED, SENT, Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.retained import stored_properties
from canopy_mqtt.core.routing.retained_shares import account_name
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store.base import IN_USE, Store, StoreError
from canopy_mqtt.store.times import Clocks, Times


class _Message:
    """A message with its expiry as a lasting time; None: it does not expire."""

    __slots__ = ("account", "expires_at", "payload", "properties", "publisher", "qos", "retain", "topic")

    def __init__(self, message: Message, expires_at: float | None) -> None:
        self.topic = message.topic
        self.payload = message.payload()
        self.qos = message.qos
        self.retain = message.retain
        self.properties = message.properties
        self.expires_at = expires_at
        self.publisher = message.publisher
        self.account = account_name(message)


class _Delivery:
    """A delivery; `message` None once it was released."""

    __slots__ = ("attempts", "identifiers", "message", "packet_id", "qos", "retain", "share", "state")

    def __init__(self, delivery: Delivery, message: _Message) -> None:
        self.message: _Message | None = message
        self.qos = delivery.qos
        self.retain = delivery.retain
        self.identifiers = delivery.identifiers
        self.share = share_name(delivery)
        self.packet_id = delivery.packet_id
        self.state = delivery.state
        self.attempts = 0


def _number(numbered: tuple[int, _Delivery]) -> int:
    return numbered[0]


class _Subscription:
    """A subscription, and whether retained messages are on their way because of it."""

    __slots__ = ("identifier", "options", "request", "streaming")

    def __init__(self, subscription: Subscription, streaming: bool) -> None:
        self.request = subscription.request()
        self.identifier = subscription.identifier
        self.streaming = streaming
        message_terms = subscription.message_terms
        self.options = None if message_terms is None else message_terms.options


class _Session:
    """All of one client. Dictionaries keep the order in which things came."""

    def __init__(self) -> None:
        self.principal = Principal()
        self.expiry_interval = 0
        # A lasting time; None while the client is connected.
        self.disconnected_at: float | None = None
        self.subscriptions: dict[str, _Subscription] = {}
        self.deliveries: dict[int, _Delivery] = {}
        # The number of each delivery that the present broker knows.
        self.numbers: dict[Delivery, int] = {}
        self.received: set[int] = set()
        self.will: Will | None = None
        self.will_due: float | None = None


class _Broadcast:
    """A message on its way to very many, and the clients that it is not for any more."""

    __slots__ = ("message", "passed")

    def __init__(self, message: _Message) -> None:
        self.message = message
        self.passed: dict[str, None] = {}


class _MemoryJournal(Journal):
    """Applies each change at once."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.sessions: dict[str, _Session] = {}
        # Of clients without a session: whose, what, and its time; None while its client is connected.
        self.wills: dict[str, tuple[Principal, Will, float | None]] = {}
        self.retained: dict[str, _Message] = {}
        self.broadcasts: dict[int, _Broadcast] = {}
        self._number = 0
        self._placed = 0
        # Somebody has loaded: the next broker's deliveries will take the place of the last one's.
        self.loaded = False
        # A fanout tells of the same message again and again: its record is made once.
        self._latest: Message | None = None
        self._latest_record: _Message | None = None

    def session_kept(self, client_id: str, principal: Principal, expiry_interval: int, disconnected_at: float) -> None:
        session = self.sessions.get(client_id)
        if session is None:
            session = _Session()
            self.sessions[client_id] = session
            for broadcast in self.broadcasts.values():
                broadcast.passed[client_id] = None
        session.principal = principal.at(client_id, principal.listener, principal.host)
        session.expiry_interval = expiry_interval
        session.disconnected_at = self.times.lasting(disconnected_at) if disconnected_at != 0.0 else None

    def session_gone(self, client_id: str) -> None:
        del self.sessions[client_id]
        for broadcast in self.broadcasts.values():
            broadcast.passed.pop(client_id, None)

    def subscribed(self, client_id: str, subscription: Subscription, streaming: bool) -> None:
        self.sessions[client_id].subscriptions[subscription.topic_filter] = _Subscription(subscription, streaming)

    def streamed(self, client_id: str, topic_filter: str) -> None:
        # A node of the cluster has a stream without a subscription.
        subscription = self.sessions[client_id].subscriptions.get(topic_filter)
        if subscription is not None:
            subscription.streaming = False

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        del self.sessions[client_id].subscriptions[topic_filter]

    def queued(self, client_id: str, delivery: Delivery) -> None:
        self._add(self.sessions[client_id], delivery)

    def _add(self, session: _Session, delivery: Delivery) -> _Delivery:
        kept = _Delivery(delivery, self._record(delivery.message))
        number = self._next_number()
        session.numbers[delivery] = number
        session.deliveries[number] = kept
        return kept

    def _next_number(self) -> int:
        number, self._placed = self._placed, 0
        return number or self.place()

    def place(self) -> int:
        self._number += 1
        return self._number

    def placed(self, number: int) -> None:
        self._placed = number

    def renewed(self, client_id: str, delivery: Delivery) -> None:
        session = self.sessions[client_id]
        session.deliveries[session.numbers[delivery]] = _Delivery(delivery, self._record(delivery.message))

    def in_flight(self, client_id: str, delivery: Delivery) -> None:
        session = self.sessions[client_id]
        number = session.numbers.get(delivery)
        kept = self._add(session, delivery) if number is None else session.deliveries[number]
        kept.packet_id = delivery.packet_id
        kept.state = SENT
        kept.attempts = 1

    def unsent(self, client_id: str, delivery: Delivery) -> None:
        session = self.sessions[client_id]
        session.deliveries[session.numbers[delivery]].attempts = 0

    def released(self, client_id: str, delivery: Delivery) -> None:
        session = self.sessions[client_id]
        kept = session.deliveries[session.numbers[delivery]]
        kept.state = RELEASED
        kept.message = None

    def finished(self, client_id: str, delivery: Delivery) -> None:
        session = self.sessions[client_id]
        del session.deliveries[session.numbers.pop(delivery)]

    def restored(self, client_id: str, delivery: Delivery, number: int) -> None:
        if self.loaded:
            self.loaded = False
            for session in self.sessions.values():
                session.numbers = {}
        self.sessions[client_id].numbers[delivery] = number

    def received(self, client_id: str, packet_id: int) -> None:
        self.sessions[client_id].received.add(packet_id)

    def completed(self, client_id: str, packet_id: int) -> None:
        self.sessions[client_id].received.remove(packet_id)

    def broadcast(self, message: Message) -> int:
        number = self._next_number()
        self.broadcasts[number] = _Broadcast(self._record(message))
        return number

    def passed(self, number: int, client_id: str) -> None:
        self.broadcasts[number].passed[client_id] = None

    def broadcast_over(self, number: int) -> None:
        del self.broadcasts[number]

    def will_set(self, client_id: str, will: Will, due: float) -> None:
        session = self.sessions[client_id]
        session.will = will
        session.will_due = self.times.lasting(due) if due != 0.0 else None

    def will_alone(self, name: str, principal: Principal, will: Will, due: float) -> None:
        self.wills[name] = (principal, will, self.times.lasting(due) if due != 0.0 else None)

    def will_cleared(self, client_id: str) -> None:
        if self.wills.pop(client_id, None) is None:
            self.sessions[client_id].will = None

    def retained_set(self, message: Message) -> None:
        record = self._record(message)
        record.properties = stored_properties(message)
        self.retained[message.topic.decode()] = record

    def retained_cleared(self, topic: str) -> None:
        del self.retained[topic]

    def _record(self, message: Message) -> _Message:
        if message is self._latest and self._latest_record is not None:
            return self._latest_record
        expires_at = self.times.lasting(message.expires_at) if message.expires_at != 0.0 else None
        record = _Message(message, expires_at)
        self._latest = message
        self._latest_record = record
        return record


class MemoryStore(Store):
    """Keeps everything in dictionaries of this process."""

    def __init__(self, clocks: Clocks | None = None) -> None:
        """`clocks`: those that go on between two brokers; None: the machine's."""
        self._times = Times(clocks)
        self._journal = _MemoryJournal(self._times)
        self._open = False
        super().__init__(self._journal)

    async def open(self, clock: Callable[[], float]) -> None:
        """Open the store. Raises StoreError when another broker has it."""
        if self._open:
            raise StoreError(IN_USE)
        self._open = True
        self._times.start(clock)

    async def load(self) -> Saved:
        journal = self._journal
        journal.loaded = True
        saved = Saved()
        messages: dict[_Message, MessageRecord] = {}
        for message in journal.retained.values():
            saved.retained.append(self._message(message, messages))
        for client_id, session in journal.sessions.items():
            saved.sessions.append(self._session(client_id, session, messages))
        for name, (principal, will, due) in journal.wills.items():
            due_in = None if due is None else self._times.left(due)
            saved.wills.append(LoneWillRecord(name, principal, will, due_in))
        for number, broadcast in journal.broadcasts.items():
            record = BroadcastRecord(number, self._message(broadcast.message, messages))
            record.passed.update(broadcast.passed)
            saved.broadcasts.append(record)
        return saved

    async def flush(self) -> None:
        """Do nothing: nothing waits here."""

    async def close(self) -> None:
        self._open = False

    def _session(self, client_id: str, session: _Session, messages: dict[_Message, MessageRecord]) -> SessionRecord:
        times = self._times
        gone_for = -times.left(session.disconnected_at) if session.disconnected_at is not None else None
        record = SessionRecord(client_id, session.expiry_interval, gone_for, session.principal)
        for kept in session.subscriptions.values():
            subscription = SubscriptionRecord(kept.request, kept.identifier, kept.streaming)
            subscription.options = kept.options
            record.subscriptions.append(subscription)
        for number, delivery in sorted(session.deliveries.items(), key=_number):
            record.deliveries.append(self._delivery(number, delivery, messages))
        record.received.extend(session.received)
        if session.will is not None:
            due_in = times.left(session.will_due) if session.will_due is not None else None
            record.will = WillRecord(session.will, due_in)
        return record

    def _delivery(self, number: int, kept: _Delivery, messages: dict[_Message, MessageRecord]) -> DeliveryRecord:
        message = None if kept.message is None else self._message(kept.message, messages)
        record = DeliveryRecord(number, message, kept.qos, kept.retain, kept.identifiers, kept.share)
        record.packet_id = kept.packet_id
        record.state = kept.state
        record.attempts = kept.attempts
        return record

    def _message(self, kept: _Message, messages: dict[_Message, MessageRecord]) -> MessageRecord:
        record = messages.get(kept)
        if record is None:
            expires_in = self._times.left(kept.expires_at) if kept.expires_at is not None else None
            record = MessageRecord(
                kept.topic, kept.payload, kept.qos, kept.retain, kept.properties, expires_in, kept.publisher
            )
            record.account = kept.account
            messages[kept] = record
        return record
