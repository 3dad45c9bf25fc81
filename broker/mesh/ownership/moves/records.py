"""A session as bytes between two nodes: in parts of bounded size, which are made as they are wanted.

Owns `SessionWriter`, which makes the parts of a `SessionRecord`, and `SessionReader`, which makes the record of the
parts. Promises: what is read was looked at: a part that no writer makes raises ProtocolFault and changes nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import isfinite
from typing import Annotated, Final

import msgspec

from broker.core.codec.packets import NEVER, SubscriptionRequest, Will
from broker.core.codec.properties import decode_forward
from broker.core.codec.topic_names import parse_shared, validate_filter, validate_topic
from broker.core.persistence.journal import (
    DeliveryRecord,
    MessageRecord,
    SessionRecord,
    SubscriptionRecord,
    WillRecord,
)
from broker.core.queues.delivery import QUEUED, RELEASED
from broker.core.queues.policies.queue_policy import QueueOptions
from broker.mesh.bus import UNUSABLE, ProtocolFault
from broker.store.groups.principals import Principals

PART_BYTES: Final = 65_536
"""Bytes of a part, about: a message is never divided, and a part has at least one."""

ITEM: Final = 64
"""Bytes that a subscription or a delivery takes besides its texts and its payload, about."""

IDENTITY: Final = 512
"""Characters of what a message is called on all nodes, at most: two names of nodes and two numbers."""

Qos = Annotated[int, msgspec.Meta(ge=0, le=2)]
PacketId = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
PublishNumber = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=NEVER)]


class _Message(msgspec.Struct, array_like=True, frozen=True):
    topic: bytes
    payload: bytes
    qos: Qos
    retain: bool
    properties: bytes
    expires_in: float | None
    publisher: str
    identity: Annotated[str, msgspec.Meta(max_length=IDENTITY)] = ""


class _Delivery(msgspec.Struct, array_like=True, frozen=True):
    message: _Message | None
    qos: Qos
    retain: bool
    identifiers: tuple[Annotated[int, msgspec.Meta(ge=1, le=268_435_455)], ...]
    share: str
    packet_id: PacketId
    state: Annotated[int, msgspec.Meta(ge=QUEUED, le=RELEASED)]
    attempts: Annotated[int, msgspec.Meta(ge=0, le=1)]


class _Options(msgspec.Struct, array_like=True, frozen=True):
    policy: Annotated[int, msgspec.Meta(ge=-1, le=3)]
    max_age: float
    depth: Annotated[int, msgspec.Meta(ge=-1, le=4_294_967_295)]


class _Subscription(msgspec.Struct, array_like=True, frozen=True):
    topic_filter: str
    qos: Qos
    no_local: bool
    retain_as_published: bool
    retain_handling: Annotated[int, msgspec.Meta(ge=0, le=2)]
    identifier: Annotated[int, msgspec.Meta(ge=0, le=268_435_455)]
    streaming: bool
    options: _Options | None


class _Will(msgspec.Struct, array_like=True, frozen=True):
    topic: str
    payload: bytes
    qos: Qos
    retain: bool
    delay: Seconds
    message_expiry: Annotated[int, msgspec.Meta(ge=-1, le=NEVER)]
    properties: bytes
    due_in: float | None


class _Head(msgspec.Struct, array_like=True, frozen=True):
    client_id: str
    principal: str
    expiry_interval: Seconds
    gone_for: float
    will: _Will | None


class _Part(msgspec.Struct, array_like=True, frozen=True):
    """`head` stands in the first part and in no other; `last`: no part follows."""

    head: _Head | None
    received: list[Annotated[int, msgspec.Meta(ge=1, le=65_535)]]
    subscriptions: list[_Subscription]
    deliveries: list[_Delivery]
    last: bool
    # By packet identifier; a node that does not know numbers passes them over, and sends none.
    numbers: dict[PacketId, PublishNumber] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Part).decode


class SessionWriter:
    """The parts of one record, one after the other. `pages` of the record are not its own: `add` what is in them."""

    def __init__(self, record: SessionRecord, principals: Principals, part_bytes: int = PART_BYTES) -> None:
        """`principals`: how a principal stands there. `part_bytes`: see `PART_BYTES`."""
        self._record = record
        self._principals = principals
        self._part_bytes = part_bytes
        self._subscriptions = deque(record.subscriptions)
        self._deliveries = deque(record.deliveries)
        self.begun = False
        # Whether more deliveries follow with `add`.
        self.more = False
        # Whether the last part was made.
        self.over = False

    @property
    def empty(self) -> bool:
        """Whether no delivery is left that was added, or was in the record."""
        return not self._deliveries

    def add(self, deliveries: Iterable[DeliveryRecord], more: bool) -> None:
        """These are the next deliveries of the record. `more`: others follow."""
        self._deliveries.extend(deliveries)
        self.more = more

    def next(self) -> bytes:
        """The next part; not to be called when it is over. Bounded work, but for a single item."""
        record = self._record
        head: _Head | None = None
        received: list[int] = []
        numbers: dict[int, int] = {}
        left = self._part_bytes
        if not self.begun:
            self.begun = True
            gone_for = 0.0 if record.disconnected_for is None else record.disconnected_for
            principal = self._principals.write(record.principal)
            will = None if record.will is None else _will(record.will)
            head = _Head(record.client_id, principal, record.expiry_interval, gone_for, will)
            received, numbers = record.received, record.numbers
            left -= len(principal) + 3 * len(received) + 12 * len(numbers) + (0 if will is None else len(will.payload))
        subscriptions: list[_Subscription] = []
        while self._subscriptions and (left > 0 or not (subscriptions or head)):
            kept = self._subscriptions.popleft()
            subscriptions.append(_subscription(kept))
            left -= ITEM + len(kept.request.topic_filter)
        deliveries: list[_Delivery] = []
        while not self._subscriptions and self._deliveries and (left > 0 or not (deliveries or subscriptions or head)):
            delivery = self._deliveries.popleft()
            deliveries.append(_delivery(delivery))
            message = delivery.message
            left -= ITEM + len(delivery.share)
            if message is not None:
                left -= len(message.topic) + len(message.payload) + len(message.properties) + len(message.publisher)
        self.over = not self._subscriptions and self.empty and not self.more
        return _encode(_Part(head, received, subscriptions, deliveries, self.over, numbers))


class SessionReader:
    """The record that parts make, in the order in which they were made."""

    def __init__(self, principals: Principals) -> None:
        self._principals = principals
        self._record: SessionRecord | None = None

    def add(self, part: bytes) -> SessionRecord | None:
        """The next part. The record when it is the last one, None before. Deliveries are numbered from 1 on.

        Raises:
            ProtocolFault: no node writes such a part, or not at this place.
        """
        try:
            read = _decode(part)
            record = self._record
            if (record is None) is not (read.head is not None):
                raise ValueError("a part without its place")
            if record is None:
                assert read.head is not None
                record = self._record = self._begin(read.head)
                record.received.extend(sorted(set(read.received)))
                record.numbers.update((each, read.numbers[each]) for each in record.received if each in read.numbers)
            for each in read.subscriptions:
                validate_filter(parse_shared(each.topic_filter)[1])
                record.subscriptions.append(_read_subscription(each))
            for one in read.deliveries:
                record.deliveries.append(_read_delivery(one, len(record.deliveries) + 1))
            if not read.last:
                return None
            _check(record)
        except UNUSABLE as error:
            raise ProtocolFault(f"a session that nobody wrote: {error}") from error
        self._record = None
        return record

    def _begin(self, head: _Head) -> SessionRecord:
        principal = self._principals.read(head.principal, head.client_id)
        record = SessionRecord(head.client_id, head.expiry_interval, max(_finite(head.gone_for), 0.0), principal)
        if head.will is not None:
            record.will = _read_will(head.will)
        return record


def _finite(seconds: float) -> float:
    if not isfinite(seconds):
        raise ValueError("a time that is no number")
    return seconds


def _will(kept: WillRecord) -> _Will:
    will = kept.will
    return _Will(
        will.topic,
        will.payload,
        will.qos,
        will.retain,
        will.delay,
        will.message_expiry,
        will.properties,
        kept.due_in,
    )


def _read_will(read: _Will) -> WillRecord:
    validate_topic(read.topic)
    decode_forward(read.properties)
    will = Will(read.topic, read.payload, read.qos, read.retain, read.delay, read.message_expiry, read.properties)
    return WillRecord(will, None if read.due_in is None else _finite(read.due_in))


def _subscription(kept: SubscriptionRecord) -> _Subscription:
    request, options = kept.request, kept.options
    return _Subscription(
        request.topic_filter,
        request.qos,
        request.no_local,
        request.retain_as_published,
        request.retain_handling,
        kept.identifier,
        kept.streaming,
        None if options is None else _Options(options.policy, options.max_age, options.depth),
    )


def _read_subscription(read: _Subscription) -> SubscriptionRecord:
    request = SubscriptionRequest(
        read.topic_filter, read.qos, read.no_local, read.retain_as_published, read.retain_handling
    )
    made = SubscriptionRecord(request, read.identifier, read.streaming)
    if read.options is not None:
        made.options = QueueOptions(read.options.policy, _finite(read.options.max_age), read.options.depth)
    return made


def _delivery(kept: DeliveryRecord) -> _Delivery:
    message = kept.message
    sent: _Message | None = None
    if message is not None:
        sent = _Message(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            message.properties,
            message.expires_in,
            message.publisher,
            message.identity,
        )
    return _Delivery(
        sent, kept.qos, kept.retain, kept.identifiers, kept.share, kept.packet_id, kept.state, kept.attempts
    )


def _read_delivery(read: _Delivery, number: int) -> DeliveryRecord:
    message: MessageRecord | None = None
    if read.message is not None:
        sent = read.message
        validate_topic(sent.topic.decode())
        if sent.properties:
            decode_forward(sent.properties)
        expires_in = None if sent.expires_in is None else _finite(sent.expires_in)
        message = MessageRecord(
            sent.topic, sent.payload, sent.qos, sent.retain, sent.properties, expires_in, sent.publisher
        )
        message.identity = sent.identity
    if (message is None) is not (read.state == RELEASED) or (read.state == RELEASED and read.qos != 2):
        raise ValueError("a delivery without a message")
    if (read.packet_id != 0) is not (read.state != QUEUED) or (read.state != QUEUED and read.qos == 0):
        raise ValueError("a packet identifier at the wrong place")
    made = DeliveryRecord(number, message, read.qos, read.retain, read.identifiers, read.share)
    made.packet_id, made.state, made.attempts = read.packet_id, read.state, read.attempts
    return made


def _check(record: SessionRecord) -> None:
    """What no part by itself tells: names and numbers that stand twice."""
    filters = {kept.request.topic_filter for kept in record.subscriptions}
    in_flight = [kept.packet_id for kept in record.deliveries if kept.state != QUEUED]
    if len(filters) != len(record.subscriptions) or len(set(in_flight)) != len(in_flight):
        raise ValueError("something that stands twice")
