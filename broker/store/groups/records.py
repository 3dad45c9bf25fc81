"""Converts rows of a store to records, and to the journal's view of the sessions.

Owns the conversion; the reader brings the rows, table by table: sessions first. Promises: rows that belong to no
session are skipped; records that shared a message share it again. Raises `Damaged` for rows that no broker wrote, and
whatever a wrong type raises.
"""

from __future__ import annotations

import json
from typing import Any, Final

from mypy_extensions import i64

from broker.core.codec.packets import SubscriptionRequest, Will
from broker.core.persistence.journal import (
    BroadcastRecord,
    DeliveryRecord,
    LoneWillRecord,
    MessageRecord,
    Saved,
    SessionRecord,
    SubscriptionRecord,
    WillRecord,
)
from broker.core.persistence.pages import PAGE, PAGE_BYTES, Page
from broker.core.principal import Principal
from broker.core.queues.delivery import MOST_ATTEMPTS, QUEUED, RELEASED, SENT
from broker.core.queues.policies.queue_policy import QueueOptions
from broker.core.queues.windows.in_flight import LARGEST_ID
from broker.store.groups.group import UNSET, Kept
from broker.store.groups.journal import GroupJournal
from broker.store.groups.principals import Principals

LARGEST_NUMBER: Final = 2**62
"""Of a session, a delivery or a message: no broker gets there, and as many may follow."""


class Damaged(Exception):
    """Rows that no broker wrote."""


class Loaded:
    """What was kept, row by row, with times counted from `now`, a lasting time."""

    def __init__(self, now: float, principals: Principals, page: int = PAGE) -> None:
        """`page`: messages of a page of what waits outside memory alone."""
        self.saved = Saved()
        self.kept: list[Kept] = []
        self.sessions: dict[int, SessionRecord] = {}
        # Those that several deliveries point to.
        self.messages: dict[int, MessageRecord] = {}
        self._now = now
        self._principals = principals
        self._page: i64 = page
        self._broadcasts: dict[int, BroadcastRecord] = {}
        # The packet identifiers in use, by session.
        self._used: set[tuple[int, int]] = set()

    def tell(self, journal: GroupJournal) -> None:
        """Have the journal know what it would know if it had written all of it."""
        for kept in self.kept:
            record = self.sessions.get(int(kept.id))
            kept.numbered = record is not None and len(record.numbers) > 0
            journal.kept.setdefault(kept.client_id, kept)
        for number in self._broadcasts:
            journal.broadcasts.under_way[number] = None

    def session(self, row: Any) -> None:
        """A row of the sessions: all columns."""
        principal = self._principals.read(row[2], row[1])
        if row[3] == 0 and row[5] is not None:
            self._lone_will(row, principal)
            return
        gone_for = None if row[4] is None else max(self._now - row[4], 0.0)
        record = SessionRecord(row[1], row[3], gone_for, principal)
        kept = Kept(row[0], row[1], principal)
        kept.expiry_interval = row[3]
        kept.disconnected_at = UNSET if row[4] is None else row[4]
        if row[5] is not None:
            will = _will(row)
            record.will = WillRecord(will, None if row[12] is None else row[12] - self._now)
            kept.will = will
            kept.will_due = UNSET if row[12] is None else row[12]
        self.sessions[row[0]] = record
        self.kept.append(kept)
        self.saved.sessions.append(record)

    def _lone_will(self, row: Any, principal: Principal) -> None:
        """A row of a client that has no session, but a will."""
        will = _will(row)
        kept = Kept(row[0], row[1], principal)
        kept.will = will
        kept.will_due = UNSET if row[12] is None else row[12]
        self.kept.append(kept)
        due_in = None if row[12] is None else row[12] - self._now
        self.saved.wills.append(LoneWillRecord(row[1], principal, will, due_in))

    def subscription(self, row: Any) -> None:
        """A row of the subscriptions: all columns."""
        session = self.sessions.get(row[0])
        if session is None:
            return
        request = SubscriptionRequest(row[1], row[2], row[3] != 0, row[4] != 0, row[5])
        record = SubscriptionRecord(request, row[6], row[7] != 0)
        if row[8] is not None:
            record.options = QueueOptions(row[8], row[9], row[10])
        session.subscriptions.append(record)

    def shared(self, row: Any) -> MessageRecord:
        """A row of the messages that several deliveries point to."""
        made = message(row[2], row[3], row[4], row[5], row[6], row[7], row[8], self._now)
        self.messages[row[0]] = made
        return made

    def delivery(self, row: Any) -> None:
        """A row of the deliveries that is in memory; in the order of their numbers. What it points to is there."""
        session = self.sessions.get(row[1])
        if session is None:
            return
        record = delivery(row, self.messages, self._now)
        if record.state != QUEUED:
            self._in_flight(record, row[1])
        session.deliveries.append(record)

    def paged(self, session_id: int, number: int, size: int) -> None:
        """A delivery that waits outside memory alone; in the order of their numbers, within a session."""
        session = self.sessions.get(session_id)
        if session is not None:
            add_to_pages(session, number, size, self._page)

    def received(self, session_id: int, packet_id: int, number: int | None) -> None:
        """A packet identifier of a QoS 2 publish that was begun, and its number where other nodes may lack it."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.received.append(packet_id)
            if number is not None:
                session.numbers[packet_id] = number

    def broadcast(self, row: Any) -> None:
        """A message for very many: all columns; in the order of their numbers."""
        number, topic, payload, qos, retain, properties, publisher, expires_at = row
        record = BroadcastRecord(
            number, message(topic, payload, qos, retain, properties, publisher, expires_at, self._now)
        )
        self._broadcasts[number] = record
        self.saved.broadcasts.append(record)

    def passed(self, number: int, session_id: int) -> None:
        """A session that it is not for any more."""
        session = self.sessions.get(session_id)
        if session is not None and number in self._broadcasts:
            self._broadcasts[number].passed.add(session.client_id)

    def retained(self, row: Any) -> None:
        """A retained message: all columns."""
        topic, payload, qos, properties, publisher, expires_at = row
        self.saved.retained.append(message(topic, payload, qos, 1, properties, publisher, expires_at, self._now))

    def _in_flight(self, record: DeliveryRecord, session: int) -> None:
        """Hold one that was sent against what a client can have: an identifier of its own. Raises Damaged."""
        if record.state != RELEASED and (record.state != SENT or record.message is None):
            raise Damaged(f"delivery {record.number} is neither queued nor sent nor released")
        identifier = (session, record.packet_id)
        if not 1 <= record.packet_id <= LARGEST_ID or identifier in self._used:
            raise Damaged(f"delivery {record.number} cannot have the packet identifier {record.packet_id}")
        self._used.add(identifier)


def _will(row: Any) -> Will:
    return Will(row[5], row[6], row[7], bool(row[8]), row[9], row[10], row[11] or b"")


def delivery(row: Any, messages: dict[int, MessageRecord], now: float) -> DeliveryRecord:
    """A row of the deliveries: all columns. `messages`: those that several deliveries point to."""
    kept: MessageRecord | None = None
    if row[2] is not None:
        kept = messages.get(row[2])
        if kept is None:
            raise Damaged(f"delivery {row[0]} waits for a message that is not there")
    elif row[10] is not None:
        kept = message(row[10], row[11], row[12], row[13], row[14], row[15], row[16], now)
    identifiers: tuple[int, ...] = () if row[8] is None else tuple(json.loads(row[8]))
    record = DeliveryRecord(row[0], kept, row[6], row[7] != 0, identifiers, row[9] or "")
    record.state = row[3]
    record.packet_id = row[4]
    record.attempts = row[5]
    if record.state == QUEUED and kept is None:
        raise Damaged(f"delivery {row[0]} waits without a message")
    if not 0 <= record.attempts <= MOST_ATTEMPTS:
        raise Damaged(f"delivery {row[0]} cannot have been sent {record.attempts} times")
    return record


def add_to_pages(session: SessionRecord, number: int, size: int, most: i64) -> None:
    """Count one that waits outside memory alone. Raises Damaged: it has no size."""
    if not 0 < size < LARGEST_NUMBER:
        raise Damaged(f"delivery {number} has no size")
    page = session.pages[-1] if session.pages else None
    if page is None or page.messages >= most or page.bytes + size > PAGE_BYTES:
        page = Page(number, number, 0, 0)
        session.pages.append(page)
    page.last = number
    page.messages += 1
    page.bytes += size


def message(
    topic: str, payload: bytes, qos: int, retain: int, properties: Any, publisher: Any, expires_at: Any, now: float
) -> MessageRecord:
    """A message of such columns."""
    expires_in = None if expires_at is None else expires_at - now
    return MessageRecord(topic.encode(), payload, qos, retain != 0, properties or b"", expires_in, publisher or "")


def fault(error: Exception) -> str:
    """An error as what is wrong with rows, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
