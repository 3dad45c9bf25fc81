"""Converts between what a shared store has and the core's own objects."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Final

from canopy_mqtt.core.codec.packets import SubscriptionRequest, Will
from canopy_mqtt.core.persistence.journal import DeliveryRecord, MessageRecord, SessionRecord, SubscriptionRecord
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import QUEUED, RELEASED, SENT
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.shared import Offer
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store.shared import calls
from canopy_mqtt.store.shared.calls import Content, DueWill, NewWill, Owner, Publish, RetainedRow, Subscribe, Waiting

STATES: Final = {0: QUEUED, calls.SENT: SENT, calls.RELEASED: RELEASED}
"""The states of a delivery, by those of the store."""


def session_record(
    client_id: str, expiry: int, principal: Principal, content: Content, number: Callable[[Waiting], int]
) -> SessionRecord:
    """Return what a claimed session has, but for what waits; its client is connected. `number`: of a delivery here."""
    record = SessionRecord(client_id, expiry, None, principal)
    for each in content.subscriptions:
        assert each.qos is not None
        request = SubscriptionRequest(
            each.filter, each.qos, each.no_local, each.retain_as_published, each.retain_handling
        )
        record.subscriptions.append(SubscriptionRecord(request, each.identifier, False))
    record.received.extend(content.received)
    record.deliveries.extend(delivery_record(each, number(each)) for each in content.flying)
    return record


def delivery_record(waiting: Waiting, number: int) -> DeliveryRecord:
    """Return a delivery with the number that it has here."""
    message = MessageRecord(
        waiting.topic.encode(),
        waiting.payload,
        waiting.qos,
        waiting.retain,
        waiting.properties or b"",
        waiting.expiry,
        waiting.publisher or "",
    )
    record = DeliveryRecord(
        number,
        None if waiting.state == calls.RELEASED else message,
        waiting.qos,
        waiting.retain,
        tuple(waiting.identifiers or ()),
        "",
    )
    record.state = STATES[waiting.state]
    if waiting.state:
        record.packet_id = waiting.packet_id
        record.attempts = 1
    return record


def subscribe(owner: Owner, subscription: Subscription) -> Subscribe:
    """Return a subscription as it is noted."""
    request = subscription.request()
    return Subscribe(
        *owner,
        request.topic_filter,
        request.qos,
        request.no_local,
        request.retain_as_published,
        request.retain_handling,
        subscription.identifier,
    )


def publish(message: Message, owner: Owner | None, packet_id: int, now: float, offer: Offer | None = None) -> Publish:
    """Return a message as it is noted; `now`: the clock of its expiry, s; `offer`: it is to be retained, too."""
    session, epoch = owner or (None, None)
    noted = Publish(
        session,
        epoch,
        packet_id,
        message.topic.decode(),
        message.payload(),
        message.qos,
        message.retain,
        message.properties or None,
        message.publisher or None,
        max(ceil(message.expires_at - now), 0) if message.expires_at else None,
        [],
    )
    if offer is None:
        return noted
    account = None if offer.account.internal else offer.account.name
    return noted._replace(retained=not offer.clears, account=account, replaces=offer.replaces or None)


def new_will(owner: Owner, will: Will, expiry: int) -> NewWill:
    """Return the will of a CONNECT as it is noted; `expiry`: the Session Expiry Interval, s."""
    message_expiry = will.message_expiry if will.message_expiry >= 0 else None
    properties = will.properties or None
    delay = min(will.delay, expiry)
    return NewWill(*owner, will.topic, will.payload, will.qos, will.retain, properties, message_expiry, delay)


def due_will(due: DueWill) -> Will:
    """Return a will whose delay is over."""
    message_expiry = -1 if due.expiry is None else due.expiry
    return Will(due.topic, due.payload, due.qos, due.retain, 0, message_expiry, due.properties or b"")


def retained(offer: Offer, owner: Owner | None, now: float) -> Publish:
    """Return what is only to be retained, or cleared, as it is noted."""
    noted = publish(offer.message, owner, 0, now, offer)._replace(filters=None)
    return noted._replace(payload=b"", properties=None) if offer.clears else noted


def retained_message(row: RetainedRow, now: float) -> Message:
    """Return a retained message; without payload, its topic was cleared."""
    return Message(
        row.topic.encode(),
        row.payload or b"",
        row.qos,
        True,
        row.properties or b"",
        now + row.expiry if row.expiry is not None and row.payload is not None else 0.0,
        row.publisher or "",
    )
