"""The content of a group: the net changes of sessions and deliveries, and the values for statements.

Owns the objects that `journal` keeps while a group is open, and `Batch`, which the writer gets. Promises: a batch
shares nothing with the broker that changes after it was made.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.packets import Will
from canopy_mqtt.core.persistence.journal import share_name
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queues.delivery import QUEUED, Delivery
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.retained import stored_properties
from canopy_mqtt.core.routing.retained_shares import account_name
from canopy_mqtt.core.topics.subscription import Subscription
from canopy_mqtt.store.times import Note

SESSION_COLUMNS: Final = 15
SUBSCRIPTION_COLUMNS: Final = 12
MESSAGE_COLUMNS: Final = 10
DELIVERY_COLUMNS: Final = 20
PLAIN_COLUMNS: Final = 11
RETAINED_COLUMNS: Final = 8
BROADCAST_COLUMNS: Final = 9
"""Values of a row, of which those of a batch stand one behind the other. Plain ones are deliveries as most are that
wait for an absent client: queued, with a message of their own and nothing special. Number, session, QoS, topic,
payload, QoS of the publish, properties, publisher, expiry, size. Behind these stand None for the checksums of a row,
which the writer fills in (`checksums.fill`)."""

ROW_BYTES: Final = 100
"""Bytes that a row of a session or a subscription, or one of a session that has had a message, counts for in a
group."""

UNSET: Final = -1e300
"""The absence of a time. It is a number, so that the attribute stays unboxed."""


class Kept:
    """A session as the file has it, or will have it with the open group."""

    def __init__(self, number: int, client_id: str, principal: Principal) -> None:
        self.id: i64 = number
        self.client_id = client_id
        self.principal = principal
        self.expiry_interval: i64 = 0
        # A lasting time; UNSET: connected.
        self.disconnected_at = UNSET
        self.will: Will | None = None
        self.will_due = UNSET
        # What its own row counts for in the open group.
        self.size: i64 = 0
        # Whether its own row changed in the open group, whether anything of it did, whether it ended.
        self.changed = False
        self.touched = False
        self.gone = False
        # Its deliveries that the open group writes anew.
        self.rows: i64 = 0
        # What the open group changes: the subscription, None: gone; of a packet identifier whether it comes or goes.
        self.subscriptions: dict[str, SubscriptionRow | None] | None = None
        self.received: dict[int, bool] | None = None

    def row_bytes(self) -> i64:
        will = self.will
        return ROW_BYTES if will is None else ROW_BYTES + len(will.payload) + len(will.topic) + len(will.properties)

    def end(self) -> i64:
        """End the session, and return by how many bytes the open group shrinks."""
        self.gone = True
        size: i64 = self.size
        if self.subscriptions is not None:
            for topic_filter, row in self.subscriptions.items():
                if row is not None:
                    size += ROW_BYTES + len(topic_filter)
        self.will = None
        self.subscriptions = None
        self.received = None
        return size

    def begin(self, packet_id: int) -> None:
        """Note the begin of a QoS 2 publish; one whose identifier was to go stands in the file."""
        self._change(packet_id, True)

    def complete(self, packet_id: int) -> None:
        self._change(packet_id, False)

    def written(self) -> None:
        """Forget the changes of the session, since the open group ended with them."""
        self.touched = False
        self.changed = False
        self.size = 0
        self.subscriptions = None
        self.received = None

    def _change(self, packet_id: int, comes: bool) -> None:
        """Note a change, or undo its opposite in the open group, which leaves the file as it is."""
        if self.received is None:
            self.received = {}
        if packet_id in self.received:
            del self.received[packet_id]
        else:
            self.received[packet_id] = comes


class SubscriptionRow:
    """A subscription as the journal was told of it."""

    def __init__(self, subscription: Subscription, streaming: bool) -> None:
        request = subscription.request()
        self.qos = request.qos
        self.no_local = request.no_local
        self.retain_as_published = request.retain_as_published
        self.retain_handling = request.retain_handling
        self.identifier: int = subscription.identifier
        self.streaming = streaming
        message_terms = subscription.message_terms
        self.options = None if message_terms is None else message_terms.options


class Row:
    """A delivery that the open group writes anew; `message` None: released."""

    def __init__(self, kept: Kept, delivery: Delivery, note: i64) -> None:
        self.kept = kept
        # The number of the note that told of it.
        self.note: i64 = note
        self.delivery = delivery
        self.message: Message | None = delivery.message
        self.state: i64 = i64(delivery.state)
        self.packet_id: i64 = i64(delivery.packet_id)
        self.attempts: i64 = 0
        # Of one that waits on disk alone: the bytes that it counts for.
        self.size: int | None = None


def split(rows: dict[int, Row], limit: i64, told: i64) -> tuple[dict[int, Row], dict[int, Row]]:
    """Split the rows into those up to a note and those behind it; `told`: the last note."""
    if limit >= told:
        return rows, {}
    older: dict[int, Row] = {}
    young: dict[int, Row] = {}
    for number, row in rows.items():
        if row.note > limit:
            young[number] = row
        else:
            older[number] = row
    return older, young


def without_ended(rows: dict[int, Row]) -> tuple[dict[int, Row], i64, i64]:
    """The rows of sessions that have not ended; the first note of the others, 0: there are none; and their bytes."""
    left: dict[int, Row] = {}
    note: i64 = 0
    size: i64 = 0
    for number, row in rows.items():
        if not row.kept.gone:
            left[number] = row
            continue
        if note == 0 or row.note < note:
            note = row.note
        if row.message is not None:
            size += row.message.size
    return left, note, size


class Change:
    """The changes of the open group to a delivery that an earlier group wrote."""

    def __init__(self, packet_id: i64, attempts: i64) -> None:
        self.packet_id: i64 = packet_id
        self.attempts: i64 = attempts


class Batch:
    """The net changes of a group, as the values of statements. Numbers alone stand in lists, for JSON."""

    def __init__(self, number: int) -> None:
        # All notes up to this number.
        self.number = number
        # And all deliveries up to this one, but for those that the next group has.
        self.last = 0
        # Whether somebody may wait for it: what is over is all that it has otherwise.
        self.awaited = False
        self.size = 0
        # When its first note came, by the clock of the event loop (s).
        self.began = 0.0
        # How the clocks stand, where that is to be written.
        self.clock: Note | None = None
        self.gone: list[int] = []
        # Sessions that were nothing but a will: nothing is left of them.
        self.wills_gone: list[int] = []
        self.sessions: list[object] = []
        self.streamed: list[tuple[int, str]] = []
        self.subscriptions: list[object] = []
        self.unsubscribed: list[tuple[int, str]] = []
        self.finished: list[int] = []
        # Session, first and last number.
        self.unpaged: list[tuple[int, int, int]] = []
        # Session, and the number up to which what waits is in memory again.
        self.read_back: list[tuple[int, int]] = []
        self.messages: list[object] = []
        # Queued deliveries of the common kind (`PLAIN_COLUMNS`), and all others.
        self.plain: list[object] = []
        self.deliveries: list[object] = []
        self.changed: list[tuple[int, int, int, int]] = []
        # Number and session.
        self.released: list[tuple[int, int]] = []
        self.received: list[tuple[int, int]] = []
        self.completed: list[tuple[int, int]] = []
        self.retained: list[object] = []
        self.retained_cleared: list[str] = []
        # Messages for very many; of which number what session has had it; the numbers of those that are over.
        self.broadcasts: list[object] = []
        self.passed: list[tuple[int, int]] = []
        self.broadcasts_over: list[int] = []

    def rows(self) -> int:
        """The number of messages and changes to write, about."""
        return (
            len(self.plain) // PLAIN_COLUMNS
            + len(self.deliveries) // DELIVERY_COLUMNS
            + len(self.retained) // RETAINED_COLUMNS
            + len(self.finished)
            + len(self.changed)
            + len(self.released)
        )

    def empty(self) -> bool:
        return not (
            self.plain
            or self.deliveries
            or self.finished
            or self.unpaged
            or self.changed
            or self.released
            or self.retained
            or self.retained_cleared
            or self.received
            or self.completed
            or self.sessions
            or self.gone
            or self.wills_gone
            or self.subscriptions
            or self.unsubscribed
            or self.streamed
            or self.read_back
            or self.broadcasts
            or self.passed
            or self.broadcasts_over
        )


def _lasting(message: Message, offset: float) -> float | None:
    return None if message.expires_at == 0.0 else message.expires_at + offset


def of_session(batch: Batch, kept: Kept) -> None:
    if kept.changed:
        will = kept.will
        batch.sessions += (
            kept.id, kept.client_id, kept.principal, kept.expiry_interval,
            None if kept.disconnected_at == UNSET else kept.disconnected_at,
        )  # fmt: skip
        if will is None:
            batch.sessions += (None, None, None, None, None, None, None, None, None, None)
        else:
            batch.sessions += (
                will.topic, will.payload, will.qos, will.retain, will.delay, will.message_expiry, will.properties,
                None if kept.will_due == UNSET else kept.will_due, None, None,
            )  # fmt: skip
    subscriptions = kept.subscriptions
    if subscriptions is not None:
        for topic_filter, row in subscriptions.items():
            if row is None:
                batch.unsubscribed.append((kept.id, topic_filter))
                continue
            options = row.options
            batch.subscriptions += (
                kept.id, topic_filter, row.qos, row.no_local, row.retain_as_published, row.retain_handling,
                row.identifier, row.streaming,
            )  # fmt: skip
            if options is None:
                batch.subscriptions += (None, None, None, None)
            else:
                batch.subscriptions += (options.policy, options.max_age, options.depth, None)
    received = kept.received
    if received is not None:
        for packet_id, comes in received.items():
            (batch.received if comes else batch.completed).append((kept.id, packet_id))


def of_deliveries(batch: Batch, rows: dict[int, Row], last: i64, offset: float) -> i64:
    """Add the new deliveries of a group. A message stands beside its only delivery, or by itself if the group has
    several.

    `last`: the highest number of a message before; it is returned as it is now.
    """
    before: i64 = last
    shared: dict[int, i64] = {}
    for row in rows.values():
        message = row.message
        if message is None or row.kept.gone:
            continue
        if message.record <= before:
            last += 1
            message.record = last
        else:
            shared[message.record] = shared.get(message.record, 1) + 1
    written: dict[int, None] = {}
    plain = batch.plain
    values = batch.deliveries
    for number, row in rows.items():
        if row.kept.gone:
            continue
        delivery = row.delivery
        message = row.message
        if (
            message is not None
            and row.state == QUEUED
            and delivery.group is None
            and not delivery.retain
            and not message.retain
            and not delivery.identifiers
            and message.record not in shared
        ):
            plain += (
                number, row.kept.id, delivery.qos, message.topic.decode(), message.payload(), message.qos,
                message.properties or None, message.publisher or None, _lasting(message, offset), row.size, None,
            )  # fmt: skip
            continue
        share = share_name(delivery) if delivery.group is not None else None
        identifiers = str(list(delivery.identifiers)) if delivery.identifiers else None
        if message is None:
            values += (
                number, row.kept.id, None, row.state, row.packet_id, row.attempts, delivery.qos, delivery.retain,
                identifiers, share, None, None, None, None, None, None, None, None, None, None,
            )  # fmt: skip
        elif message.record in shared:
            values += (
                number, row.kept.id, message.record, row.state, row.packet_id, row.attempts, delivery.qos,
                delivery.retain, identifiers, share, None, None, None, None, None, None, None, row.size, None, None,
            )  # fmt: skip
            if message.record not in written:
                written[message.record] = None
                batch.messages += (
                    message.record, shared[message.record], message.topic.decode(), message.payload(), message.qos,
                    message.retain, message.properties or None, message.publisher or None,
                    _lasting(message, offset), None,
                )  # fmt: skip
        else:
            values += (
                number, row.kept.id, None, row.state, row.packet_id, row.attempts, delivery.qos, delivery.retain,
                identifiers, share, message.topic.decode(), message.payload(), message.qos, message.retain,
                message.properties or None, message.publisher or None, _lasting(message, offset), row.size, None, None,
            )  # fmt: skip
    return last


def of_retained(batch: Batch, retained: dict[str, Message | None], offset: float) -> None:
    """Add the retained messages that the group sets, and the topics that it clears (None)."""
    for topic, message in retained.items():
        if message is None:
            batch.retained_cleared.append(topic)
        else:
            batch.retained += (
                topic, message.payload(), message.qos, stored_properties(message) or None, message.publisher or None,
                _lasting(message, offset), account_name(message) or None, None,
            )  # fmt: skip


def of_broadcasts(batch: Batch, broadcasts: dict[int, Message], offset: float) -> None:
    """Add the messages for very many with which the group begins."""
    for number, message in broadcasts.items():
        batch.broadcasts += (
            number, message.topic.decode(), message.payload(), message.qos, message.retain,
            message.properties or None, message.publisher or None, _lasting(message, offset), None,
        )  # fmt: skip
