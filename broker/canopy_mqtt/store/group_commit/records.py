"""Converts rows of a store to records, and to the journal's view of the sessions.

Owns the conversion, and which rows can be used; the reader brings the rows with their checksums, table by table:
sessions first. Promises: nothing is made of a row whose checksum is another, or that no broker wrote: it is counted,
and costs what it held alone (`Loaded.damages`); rows of ended sessions are skipped; records that shared a message share
it again.
"""

from __future__ import annotations

import json
from typing import Any, Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.packets import SubscriptionRequest, Will
from canopy_mqtt.core.persistence.journal import (
    BroadcastRecord,
    DeliveryRecord,
    LoneWillRecord,
    MessageRecord,
    Saved,
    SessionRecord,
    SubscriptionRecord,
    WillRecord,
)
from canopy_mqtt.core.queues.delivery import MAX_ATTEMPTS, QUEUED, RELEASED, SENT
from canopy_mqtt.core.queues.disk_queue import PAGE, PAGE_BYTES, Page
from canopy_mqtt.core.queues.in_flight import MAX_ID
from canopy_mqtt.core.queues.queue_terms import RequestedTerms
from canopy_mqtt.store.damage import Damages
from canopy_mqtt.store.group_commit.batch import UNSET, Kept
from canopy_mqtt.store.group_commit.checksums import fault as fault_of
from canopy_mqtt.store.group_commit.checksums import will_fault
from canopy_mqtt.store.group_commit.journal import GroupJournal
from canopy_mqtt.store.group_commit.principals import Principals

MAX_NUMBER: Final = 2**62
"""The largest number of a session, a delivery or a message: no broker gets there, and as many may follow."""


NAMES: Final = 65_536
"""Names that are one object each, at a time."""

UNREADABLE: Final = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)
"""The errors of reading a value that no broker wrote."""


class Damaged(Exception):
    """Rows that no broker wrote."""


class Loaded:
    """The content of a store, added row by row, with times counted from `now`, a lasting time."""

    def __init__(
        self, now: float, principals: Principals, page: int = PAGE, gone: frozenset[int] = frozenset()
    ) -> None:
        """`page`: messages of a page of what waits outside memory alone; `gone`: sessions that have ended."""
        self.saved = Saved()
        self.kept: list[Kept] = []
        self.sessions: dict[int, SessionRecord] = {}
        # Those that several deliveries point to.
        self.messages: dict[int, MessageRecord] = {}
        self.damages = Damages()
        # The keys of rows that are to go, by table, and what is left of sessions that are not there.
        self.unusable: dict[str, list[tuple[Any, ...]]] = {}
        self.orphaned: dict[int, str] = {}
        self.will_damaged: list[int] = []
        self._gone = gone
        self._now = now
        self._principals = principals
        self._page: i64 = page
        self._names: dict[str, str] = {}
        self._broadcasts: dict[int, BroadcastRecord] = {}
        # The packet identifiers in use, by session.
        self._used: set[tuple[int, int]] = set()

    def tell(self, journal: GroupJournal) -> None:
        """Give the journal the state that it would have if it had written all of it."""
        for kept in self.kept:
            journal.kept.setdefault(kept.client_id, kept)
        for number in self._broadcasts:
            journal.broadcasts.under_way[number] = None

    def _damage(self, table: str, key: tuple[Any, ...], client_id: object, topic: object, why: str) -> None:
        self.unusable.setdefault(table, []).append(key)
        self.damages.add(table, client_id, topic, why)

    def _session_of(self, table: str, key: tuple[Any, ...], number: Any) -> SessionRecord | None:
        """Return the session of a row; None: it has ended or is damaged. The row counts as damaged unless the session
        has ended."""
        session = self.sessions.get(number)
        if session is None and number not in self._gone:
            if isinstance(number, int) and 0 < number < MAX_NUMBER:
                self.damages.add(table, self.orphaned.setdefault(number, ""), "", "its session is damaged")
            else:
                self._damage(table, key, "", "", "its session is none")
        return session

    def session(self, row: Any) -> None:
        """Add a row of the sessions: all columns."""
        if why := fault_of("session", row):
            self._no_session(row, why)
            return
        try:
            principal = self._principals.read(row[2], row[1])
            gone_for = None if row[4] is None else max(self._now - row[4], 0.0)
            record = SessionRecord(row[1], row[3], gone_for, principal)
            kept = Kept(row[0], row[1], principal)
            kept.expiry_interval = row[3]
        except UNREADABLE as error:
            self._no_session(row, fault(error))
            return
        kept.disconnected_at = UNSET if row[4] is None else row[4]
        if why := will_fault(row):
            # It is written anew, without it.
            self.damages.add("will", row[1], row[5], why)
            self.will_damaged.append(row[0])
        elif row[5] is not None:
            will = _will(row)
            if row[3] == 0:
                self._lone_will(row, kept, will)
                return
            record.will = WillRecord(will, None if row[12] is None else row[12] - self._now)
            kept.will = will
            kept.will_due = UNSET if row[12] is None else row[12]
        self.sessions[row[0]] = record
        self.kept.append(kept)
        self.saved.sessions.append(record)

    def _lone_will(self, row: Any, kept: Kept, will: Will) -> None:
        """Add a row of a client that has no session, but a will."""
        kept.will = will
        kept.will_due = UNSET if row[12] is None else row[12]
        self.kept.append(kept)
        due_in = None if row[12] is None else row[12] - self._now
        self.saved.wills.append(LoneWillRecord(row[1], kept.principal, will, due_in))

    def _no_session(self, row: Any, why: str) -> None:
        self._damage("session", (row[0],), row[1], "", why)
        if isinstance(row[0], int) and 0 < row[0] < MAX_NUMBER:
            self.orphaned[row[0]] = row[1] if isinstance(row[1], str) else ""

    def subscription(self, row: Any) -> None:
        """Add a row of the subscriptions: all columns."""
        key = (row[0], row[1])
        session = self.sessions.get(row[0])
        if why := fault_of("subscription", row):
            self._damage("subscription", key, "" if session is None else session.client_id, row[1], why)
            return
        session = self._session_of("subscription", key, row[0])
        if session is None:
            return
        request = SubscriptionRequest(row[1], row[2], row[3] != 0, row[4] != 0, row[5])
        record = SubscriptionRecord(request, row[6], row[7] != 0)
        if row[8] is not None:
            record.options = RequestedTerms(row[8], row[9], row[10])
        session.subscriptions.append(record)

    def shared(self, row: Any) -> None:
        """Add a row of the messages that several deliveries point to."""
        if why := fault_of("message", row):
            self._damage("message", (row[0],), "", row[2], why)
            return
        self.messages[row[0]] = message(row[2], row[3], row[4], row[5], row[6], row[7], row[8], self._now)

    def delivery(self, row: Any) -> None:
        """Add a row of the deliveries that is in memory; in the order of their numbers. Its message must have been
        added."""
        key = (row[0],)
        session = self.sessions.get(row[1])
        client_id = "" if session is None else session.client_id
        if why := fault_of("delivery", row):
            self._damage("delivery", key, client_id, row[10], why)
            return
        session = self._session_of("delivery", key, row[1])
        if session is None:
            return
        try:
            record = delivery(row, self.messages, self._now)
            if record.state != QUEUED:
                self._in_flight(record, row[1])
        except (Damaged, *UNREADABLE) as error:
            self._damage("delivery", key, client_id, row[10], fault(error))
            return
        session.deliveries.append(record)

    def paged(self, session_id: int, number: int, size: int) -> None:
        """Add a delivery that waits outside memory alone; in the order of their numbers, within a session."""
        session = self._session_of("delivery", (number,), session_id)
        if session is None:
            return
        try:
            add_to_pages(session, number, size, self._page)
        except (Damaged, *UNREADABLE) as error:
            self._damage("delivery", (number,), session.client_id, "", fault(error))

    def received(self, row: Any) -> None:
        """Add the packet identifier of a QoS 2 publish that was begun: all columns."""
        key = (row[0], row[1])
        session = self.sessions.get(row[0])
        if why := fault_of("received", row):
            self._damage("received", key, "" if session is None else session.client_id, "", why)
            return
        session = self._session_of("received", key, row[0])
        if session is not None:
            session.received.append(row[1])

    def broadcast(self, row: Any) -> None:
        """Add a message for very many: all columns; in the order of their numbers."""
        if why := fault_of("broadcast", row):
            self._damage("broadcast", (row[0],), "", row[1], why)
            return
        number, topic, payload, qos, retain, properties, publisher, expires_at, _ = row
        record = BroadcastRecord(
            number, message(topic, payload, qos, retain, properties, publisher, expires_at, self._now)
        )
        self._broadcasts[number] = record
        self.saved.broadcasts.append(record)

    def passed(self, row: Any) -> None:
        """Add a session that such a message is not for any more: all columns."""
        if why := fault_of("passed", row):
            self._damage("passed", (row[0], row[1]), "", "", why)
            return
        session = self.sessions.get(row[1])
        if session is not None and row[0] in self._broadcasts:
            self._broadcasts[row[0]].passed.add(session.client_id)

    def retained(self, row: Any) -> bool:
        """Add a retained message: all columns. False: it cannot be used, which `no_retained` has to be told."""
        if fault_of("retained", row):
            return False
        topic, payload, qos, properties, publisher, expires_at, account, _ = row
        record = message(topic, payload, qos, 1, properties, self._one(publisher), expires_at, self._now)
        record.account = self._one(account)
        self.saved.retained.append(record)
        return True

    def no_retained(self, row: Any, key: Any) -> None:
        """Note a retained message that may be one which cannot be used; `key`: by which its row is found."""
        if why := fault_of("retained", row):
            self._damage("retained", (key,), "", row[0], why)

    def _one(self, name: str | None) -> str:
        """Return one object for a name that many rows have: that of a client, or of an account."""
        if not name:
            return ""
        if len(self._names) >= NAMES:
            self._names.clear()
        return self._names.setdefault(name, name)

    def _in_flight(self, record: DeliveryRecord, session: int) -> None:
        """Check that a delivery in flight has a packet identifier of its own. Raises Damaged."""
        if record.state != RELEASED and (record.state != SENT or record.message is None):
            raise Damaged(f"delivery {record.number} is neither queued nor sent nor released")
        identifier = (session, record.packet_id)
        if not 1 <= record.packet_id <= MAX_ID or identifier in self._used:
            raise Damaged(f"delivery {record.number} cannot have the packet identifier {record.packet_id}")
        self._used.add(identifier)


def _will(row: Any) -> Will:
    return Will(row[5], row[6], row[7], bool(row[8]), row[9], row[10], row[11] or b"")


def delivery(row: Any, messages: dict[int, MessageRecord], now: float) -> DeliveryRecord:
    """Return the record of a row of the deliveries: all columns. `messages`: those that several deliveries point to."""
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
    if not 0 <= record.attempts <= MAX_ATTEMPTS:
        raise Damaged(f"delivery {row[0]} cannot have been sent {record.attempts} times")
    return record


def add_to_pages(session: SessionRecord, number: int, size: int, most: i64) -> None:
    """Count a delivery that waits outside memory alone. Raises Damaged: it has no size."""
    if not 0 < size < MAX_NUMBER:
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
    expires_in = None if expires_at is None else expires_at - now
    return MessageRecord(topic.encode(), payload, qos, retain != 0, properties or b"", expires_in, publisher or "")


def fault(error: Exception) -> str:
    """Describe an error as the fault of rows, in one line."""
    if isinstance(error, Damaged):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())
