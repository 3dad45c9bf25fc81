"""Turns a session of a running router into the record from which `restore.admit` makes a session in another one.

Owns what of a `Session` is moved: subscriptions, queued and in-flight messages in their order, the packet identifiers
of its client's publishes, the will, and the remaining times. It does not know who moves it, or how.
"""

from __future__ import annotations

from broker.core.codec.packets import NEVER
from broker.core.persistence.journal import (
    DeliveryRecord,
    MessageRecord,
    SessionRecord,
    SubscriptionRecord,
    WillRecord,
    share_name,
)
from broker.core.queues.delivery import QUEUED, RELEASED, Delivery, queue_of
from broker.core.queues.message import Message, MovedMessage
from broker.core.session.session import Session


def record_of(session: Session, now: float, queued: bool = True) -> SessionRecord:
    """The record of a session whose client is away. Nothing changes by this.

    `now`: the clock of the session's times, from which the record's seconds count. What waits on disk alone is named in
    `pages`, which stand by their numbers among the deliveries that wait: whoever moves it fetches them. `queued`: with
    what waits.

    Raises:
        RuntimeError: the client is connected.
    """
    if session.outbox is not None:
        raise RuntimeError("a session moves while its client is away")
    gone_for = 0.0
    if session.expires_at != 0.0 and session.expiry_interval != NEVER:
        gone_for = max(session.expiry_interval - (session.expires_at - now), 0.0)
    record = SessionRecord(session.client_id, session.expiry_interval, gone_for, session.principal)
    for subscription in session.subscriptions.values():
        kept = SubscriptionRecord(
            subscription.request(), int(subscription.identifier), session.is_streaming(subscription)
        )
        queue = queue_of(subscription)
        kept.options = None if queue is None else queue.options
        record.subscriptions.append(kept)
    messages: dict[Message, MessageRecord] = {}
    for delivery in session.inflight.values():
        record.deliveries.append(delivery_record(delivery, messages, now))
    if queued:
        for delivery in session.queue.waiting():
            record.deliveries.append(delivery_record(delivery, messages, now))
    disk = session.queue.disk
    if disk is not None and queued:
        record.pages.extend(disk.pages())
    if session.incoming_qos2 is not None:
        record.received.extend(sorted(session.incoming_qos2))
    if session.numbers is not None:
        record.numbers.update({packet_id: number for packet_id, number in session.numbers.items() if number > 0})
    if session.will is not None:
        due_in = session.will_due - now if session.will_due != 0.0 else None
        record.will = WillRecord(session.will, due_in)
    return record


def delivery_record(delivery: Delivery, messages: dict[Message, MessageRecord], now: float) -> DeliveryRecord:
    """The record of a delivery that waits or is in flight. `messages`: the records that there are already."""
    kept: MessageRecord | None = None
    if delivery.state != RELEASED:
        message = delivery.message
        kept = messages.get(message)
        if kept is None:
            kept = messages[message] = message_record(message, now)
    record = DeliveryRecord(
        int(delivery.record), kept, int(delivery.qos), delivery.retain, delivery.identifiers, share_name(delivery)
    )
    record.state = int(delivery.state)
    if record.state != QUEUED:
        record.packet_id = int(delivery.packet_id)
        record.attempts = 1 if delivery.attempts > 0 else 0
    return record


def message_record(message: Message, now: float) -> MessageRecord:
    """The record of a message."""
    expires_in = message.expires_at - now if message.expires_at != 0.0 else None
    record = MessageRecord(
        message.topic,
        message.payload(),
        int(message.qos),
        message.retain,
        message.properties,
        expires_in,
        message.publisher,
    )
    if isinstance(message, MovedMessage):
        record.identity = message.identity
    return record
