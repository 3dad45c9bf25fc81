"""Everything that a store on disk kept, read back when a broker starts.

Owns the way from rows to records. Promises: what is read is one state of the file; what belongs to no session any more
is passed over; records that shared a message share it again. Raises what SQLite raises, and `Damaged` where rows say
what no broker wrote.
"""

from __future__ import annotations

import json
import sqlite3
from math import isfinite
from typing import Any, Final

from mypy_extensions import i64

from broker.core.codec.packets import SubscriptionRequest, Will
from broker.core.persistence.journal import (
    BroadcastRecord,
    DeliveryRecord,
    MessageRecord,
    Saved,
    SessionRecord,
    SubscriptionRecord,
    WillRecord,
)
from broker.core.persistence.pages import PAGE, PAGE_BYTES, Page
from broker.core.queues.delivery import MOST_ATTEMPTS, QUEUED, RELEASED, SENT
from broker.core.queues.queue_policy import QueueOptions
from broker.core.queues.windows.in_flight import LARGEST_ID
from broker.store.sqlite.group import UNSET, Kept
from broker.store.sqlite.principals import Principals

NUMBERS: Final = (
    "SELECT max((SELECT ifnull(max(id), 0) FROM session), (SELECT ifnull(max(id), 0) FROM gone_session)),"
    " max((SELECT ifnull(max(number), 0) FROM delivery), (SELECT ifnull(max(id), 0) FROM broadcast),"
    " (SELECT ifnull(max(number), 0) FROM read_back)),"
    " (SELECT ifnull(max(id), 0) FROM message)"
)


LARGEST_NUMBER: Final = 2**62
"""Of a session, a delivery or a message: no broker gets there, and as many may follow."""


IN_MEMORY: Final = "SELECT * FROM delivery NOT INDEXED WHERE size IS NULL OR state != 0 ORDER BY number"
ON_DISK: Final = (
    "SELECT session, number, size FROM delivery INDEXED BY delivery_paged WHERE size IS NOT NULL AND state = 0"
    " ORDER BY session, number"
)
SOME_ON_DISK: Final = (
    "SELECT * FROM delivery INDEXED BY delivery_paged WHERE size IS NOT NULL AND state = 0"
    " AND session = ? AND number BETWEEN ? AND ? ORDER BY number"
)
IN_ONE_ROW: Final = (
    "SELECT json_group_array(json_array(number, qos, retain, identifiers, share, topic, length(payload), publish_qos,"
    " publish_retain, ifnull(length(properties), 0), publisher, expires_at)),"
    " CAST(group_concat(payload, '') AS BLOB), CAST(group_concat(properties, '') AS BLOB) FROM"
    " (SELECT number, delivery.qos AS qos, delivery.retain AS retain, identifiers, share,"
    " ifnull(kept.topic, delivery.topic) AS topic, ifnull(kept.payload, delivery.payload) AS payload,"
    " ifnull(kept.qos, publish_qos) AS publish_qos, ifnull(kept.retain, publish_retain) AS publish_retain,"
    " ifnull(kept.properties, delivery.properties) AS properties,"
    " ifnull(kept.publisher, delivery.publisher) AS publisher,"
    " ifnull(kept.expires_at, delivery.expires_at) AS expires_at"
    " FROM delivery INDEXED BY delivery_paged LEFT JOIN message AS kept ON kept.id = delivery.message"
    " WHERE size IS NOT NULL AND state = 0 AND session = ? AND number BETWEEN ? AND ? ORDER BY number)"
)
"""`SOME_ON_DISK` with the messages that stand by themselves; payloads and properties one behind the other. Each row of
an answer gives up the interpreter's lock, which may take 5 ms to come back while the event loop is busy."""
LATER_ON_DISK: Final = (
    "SELECT number, size FROM delivery INDEXED BY delivery_paged WHERE size IS NOT NULL AND state = 0"
    " AND session = ? AND number > ? ORDER BY number"
)
READ_BACK: Final = "SELECT session, number FROM read_back"
SHARED_MESSAGE: Final = "SELECT * FROM message WHERE id = ?"

CLOCK: Final = "SELECT wall, ahead FROM clock"


class Damaged(Exception):
    """Rows that no broker wrote."""


class Loaded:
    """What was kept, and the sessions as the journal knows them."""

    def __init__(self) -> None:
        self.saved = Saved()
        self.kept: list[Kept] = []


def numbers(db: sqlite3.Connection) -> tuple[int, int, int]:
    """The highest numbers of a session, a delivery and a message in the file. Raises Damaged: none can follow."""
    session, number, message = db.execute(NUMBERS).fetchone()
    if max(session, number, message) > LARGEST_NUMBER:
        raise Damaged(f"a number in it is above {LARGEST_NUMBER}")
    return session, number, message


def clock(db: sqlite3.Connection) -> tuple[float, float] | None:
    """What the last broker noted of its clocks (`Times.note`), where one did. Raises Damaged: no broker wrote that."""
    found = db.execute(CLOCK).fetchone()
    if found is None:
        return None
    wall, ahead = found
    if not (isinstance(wall, float) and isinstance(ahead, float) and isfinite(wall) and isfinite(ahead)):
        raise Damaged("its clock is no time")
    return wall, ahead


def read(db: sqlite3.Connection, now: float, principals: Principals, page: int = PAGE) -> Loaded:
    """Everything, with times counted from `now`, a lasting time. `page`: messages of one that waits on disk alone."""
    loaded = Loaded()
    db.execute("BEGIN")
    try:
        sessions = _sessions(db, loaded, now, principals)
        _subscriptions(db, sessions)
        _deliveries(db, sessions, now)
        _pages(db, sessions, now, page)
        for session_id, packet_id in db.execute("SELECT session, packet_id FROM received"):
            session = sessions.get(session_id)
            if session is not None:
                session.received.append(packet_id)
        _broadcasts(db, loaded, sessions, now)
        retained = loaded.saved.retained
        for topic, payload, qos, properties, publisher, expires_at in db.execute("SELECT * FROM retained"):
            expires_in = None if expires_at is None else expires_at - now
            retained.append(
                MessageRecord(topic.encode(), payload, qos, True, properties or b"", expires_in, publisher or "")
            )
    except (sqlite3.Error, Damaged, MemoryError):
        raise
    except Exception as error:  # a missing column, a wrong type, a number without bounds, JSON without end
        raise Damaged(" ".join(f"{type(error).__name__}: {error}".split())) from error
    finally:
        db.execute("ROLLBACK")
    return loaded


def _sessions(db: sqlite3.Connection, loaded: Loaded, now: float, principals: Principals) -> dict[int, SessionRecord]:
    sessions: dict[int, SessionRecord] = {}
    for row in db.execute("SELECT * FROM session"):
        principal = principals.read(row[2], row[1])
        gone_for = None if row[4] is None else max(now - row[4], 0.0)
        record = SessionRecord(row[1], row[3], gone_for, principal)
        kept = Kept(row[0], row[1], principal)
        kept.expiry_interval = row[3]
        kept.disconnected_at = UNSET if row[4] is None else row[4]
        if row[5] is not None:
            will = Will(row[5], row[6], row[7], bool(row[8]), row[9], row[10], row[11] or b"")
            record.will = WillRecord(will, None if row[12] is None else row[12] - now)
            kept.will = will
            kept.will_due = UNSET if row[12] is None else row[12]
        sessions[row[0]] = record
        loaded.kept.append(kept)
        loaded.saved.sessions.append(record)
    return sessions


def _subscriptions(db: sqlite3.Connection, sessions: dict[int, SessionRecord]) -> None:
    for row in db.execute("SELECT * FROM subscription"):
        session = sessions.get(row[0])
        if session is None:
            continue
        request = SubscriptionRequest(row[1], row[2], row[3] != 0, row[4] != 0, row[5])
        record = SubscriptionRecord(request, row[6], row[7] != 0)
        if row[8] is not None:
            record.options = QueueOptions(row[8], row[9], row[10])
        session.subscriptions.append(record)


def _deliveries(db: sqlite3.Connection, sessions: dict[int, SessionRecord], now: float) -> None:
    messages: dict[int, MessageRecord] = {}
    used: set[tuple[int, int]] = set()
    for row in db.execute(IN_MEMORY):
        session = sessions.get(row[1])
        if session is None:
            continue
        record = _delivery(db, row, messages, now)
        if record.state != QUEUED:
            _in_flight(record, row[1], used)
        session.deliveries.append(record)


def _delivery(db: sqlite3.Connection, row: Any, messages: dict[int, MessageRecord], now: float) -> DeliveryRecord:
    """A delivery; `messages`: those that several deliveries point to, which are looked up once."""
    message: MessageRecord | None = None
    if row[2] is not None:
        message = messages.get(row[2])
        if message is None:
            kept = db.execute(SHARED_MESSAGE, (row[2],)).fetchone()
            message = _message(kept[2], kept[3], kept[4], kept[5], kept[6], kept[7], kept[8], now)
            messages[row[2]] = message
    elif row[10] is not None:
        message = _message(row[10], row[11], row[12], row[13], row[14], row[15], row[16], now)
    identifiers: tuple[int, ...] = () if row[8] is None else tuple(json.loads(row[8]))
    record = DeliveryRecord(row[0], message, row[6], row[7] != 0, identifiers, row[9] or "")
    record.state = row[3]
    record.packet_id = row[4]
    record.attempts = row[5]
    if record.state == QUEUED and message is None:
        raise Damaged(f"delivery {row[0]} waits without a message")
    if not 0 <= record.attempts <= MOST_ATTEMPTS:
        raise Damaged(f"delivery {row[0]} cannot have been sent {record.attempts} times")
    return record


def _pages(db: sqlite3.Connection, sessions: dict[int, SessionRecord], now: float, most: i64) -> None:
    """How much waits on disk alone; the messages are not looked at, but for what was in memory again."""
    marks: dict[int, int] = dict(db.execute(READ_BACK))
    # Sessions of which something with a size was in memory again, and up to which delivery.
    again: dict[int, int] = {}
    for session_id, number, size in db.execute(ON_DISK):
        session = sessions.get(session_id)
        if session is None:
            continue
        if number > marks.get(session_id, 0):
            _add_to_pages(session, number, size, most)
        else:
            again[session_id] = marks[session_id]
    for session_id, session in sessions.items():
        last = _last_read_back(session)
        if last > 0:
            again[session_id] = last
            session.pages = []
            for number, size in db.execute(LATER_ON_DISK, (session_id, last)):
                _add_to_pages(session, number, size, most)
    for session_id, last in again.items():
        session = sessions[session_id]
        messages: dict[int, MessageRecord] = {}
        for row in db.execute(SOME_ON_DISK, (session_id, 0, last)):
            session.deliveries.append(_delivery(db, row, messages, now))
        session.deliveries.sort(key=_number)


def _add_to_pages(session: SessionRecord, number: int, size: int, most: i64) -> None:
    if not 0 < size < LARGEST_NUMBER:
        raise Damaged(f"delivery {number} has no size")
    page = session.pages[-1] if session.pages else None
    if page is None or page.messages >= most or page.bytes + size > PAGE_BYTES:
        page = Page(number, number, 0, 0)
        session.pages.append(page)
    page.last = number
    page.messages += 1
    page.bytes += size


def _last_read_back(session: SessionRecord) -> int:
    """Where a broker that did not note it (`read_back`) was killed: the delivery before which nothing waits on disk
    alone. It came into memory when nothing did, and before more than that fitted; what stands before it with a size was
    in memory again, and so there is not much of it. 0: no such delivery."""
    if not session.pages:
        return 0
    for record in reversed(session.deliveries):
        if record.state == QUEUED and record.number < session.pages[-1].last:
            return record.number if record.number > session.pages[0].first else 0
    return 0


def _broadcasts(db: sqlite3.Connection, loaded: Loaded, sessions: dict[int, SessionRecord], now: float) -> None:
    found: dict[int, BroadcastRecord] = {}
    for number, topic, payload, qos, retain, properties, publisher, expires_at in db.execute(
        "SELECT * FROM broadcast ORDER BY id"
    ):
        message = _message(topic, payload, qos, retain, properties, publisher, expires_at, now)
        found[number] = BroadcastRecord(number, message)
    loaded.saved.broadcasts.extend(found.values())
    for number, session_id in db.execute("SELECT broadcast, session FROM passed"):
        session = sessions.get(session_id)
        if session is not None and number in found:
            found[number].passed.add(session.client_id)


def _number(record: DeliveryRecord) -> int:
    return record.number


def read_on_disk(db: sqlite3.Connection, session: int, first: int, last: int, now: float) -> list[DeliveryRecord]:
    """What waits of a session on disk alone, within some numbers; times are counted from `now`, a lasting time.

    Raises what SQLite raises, and Damaged.
    """
    try:
        if first == last:
            # It may be very long.
            return [_delivery(db, row, {}, now) for row in db.execute(SOME_ON_DISK, (session, first, last))]
        found, payloads, properties = db.execute(IN_ONE_ROW, (session, first, last)).fetchone()
        return _on_disk(json.loads(found), payloads or b"", properties or b"", now)
    except (sqlite3.Error, Damaged, MemoryError):
        raise
    except Exception as error:  # see `read`
        raise Damaged(" ".join(f"{type(error).__name__}: {error}".split())) from error


def _on_disk(rows: list[Any], payloads: bytes, properties: bytes, now: float) -> list[DeliveryRecord]:
    """The deliveries of `IN_ONE_ROW`."""
    records: list[DeliveryRecord] = []
    at: i64 = 0
    there: i64 = 0
    for number, qos, retain, listed, share, topic, length, published, kept, more, publisher, expires_at in rows:
        if topic is None or length is None:
            raise Damaged(f"delivery {number} waits without a message")
        payload = payloads[at : at + length]
        at += length
        message = _message(
            topic, payload, published, kept, properties[there : there + more], publisher, expires_at, now
        )
        there += more
        identifiers: tuple[int, ...] = () if listed is None else tuple(json.loads(listed))
        records.append(DeliveryRecord(number, message, qos, retain != 0, identifiers, share or ""))
    if at != len(payloads) or there != len(properties):
        raise Damaged("a payload is none")
    return records


def _in_flight(record: DeliveryRecord, session: int, used: set[tuple[int, int]]) -> None:
    """Hold one that was sent against what a client can have: an identifier of its own. Raises Damaged."""
    if record.state != RELEASED and (record.state != SENT or record.message is None):
        raise Damaged(f"delivery {record.number} is neither queued nor sent nor released")
    identifier = (session, record.packet_id)
    if not 1 <= record.packet_id <= LARGEST_ID or identifier in used:
        raise Damaged(f"delivery {record.number} cannot have the packet identifier {record.packet_id}")
    used.add(identifier)


def _message(
    topic: str, payload: bytes, qos: int, retain: int, properties: Any, publisher: Any, expires_at: Any, now: float
) -> MessageRecord:
    expires_in = None if expires_at is None else expires_at - now
    return MessageRecord(topic.encode(), payload, qos, retain != 0, properties or b"", expires_in, publisher or "")
