"""Reads back everything from a store on disk when a broker starts.

Owns the queries; `groups.records` has the meaning of rows. Promises: everything is of one state of the file. Raises
what SQLite raises, and `Damaged` for rows that no broker wrote.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

from mypy_extensions import i64

from broker.core.persistence.journal import DeliveryRecord, MessageRecord, SessionRecord
from broker.core.persistence.pages import PAGE
from broker.store.groups.principals import Principals
from broker.store.groups.records import LARGEST_NUMBER, Damaged, Loaded, add_to_pages, delivery, fault, message
from broker.store.times import Note

NUMBERS: Final = (
    "SELECT max((SELECT ifnull(max(id), 0) FROM session), (SELECT ifnull(max(id), 0) FROM gone_session),"
    # What is left of no session: whoever had its number would inherit it.
    " (SELECT ifnull(max(session), 0) FROM subscription), (SELECT ifnull(max(session), 0) FROM received)),"
    " max((SELECT ifnull(max(number), 0) FROM delivery), (SELECT ifnull(max(id), 0) FROM broadcast),"
    " (SELECT ifnull(max(number), 0) FROM read_back)),"
    " (SELECT ifnull(max(id), 0) FROM message)"
)


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
READ_BACK: Final = "SELECT session, number FROM read_back"
SHARED_MESSAGE: Final = "SELECT * FROM message WHERE id = ?"

CLOCK: Final = "SELECT time, wall, uptime, boot FROM clock"


def numbers(db: sqlite3.Connection) -> tuple[int, int, int]:
    """The highest numbers of a session, a delivery and a message in the file. Raises Damaged: none can follow."""
    session, number, message = db.execute(NUMBERS).fetchone()
    if max(session, number, message) > LARGEST_NUMBER:
        raise Damaged(f"a number in it is above {LARGEST_NUMBER}")
    return session, number, message


def clock(db: sqlite3.Connection) -> Note | None:
    """How the clocks stood when the last broker noted it, where one did. Raises Damaged: no broker wrote that."""
    found = db.execute(CLOCK).fetchone()
    if found is None:
        return None
    note = Note(*found)
    if not note.sound():
        raise Damaged("its clock is no time")
    return note


def read(db: sqlite3.Connection, now: float, principals: Principals, page: int = PAGE) -> Loaded:
    """Everything, with times counted from `now`, a lasting time. `page`: messages of one that waits on disk alone."""
    loaded = Loaded(now, principals, page)
    db.execute("BEGIN")
    try:
        for row in db.execute("SELECT * FROM session"):
            loaded.session(row)
        for row in db.execute("SELECT * FROM subscription"):
            loaded.subscription(row)
        for row in db.execute(IN_MEMORY):
            if row[2] is not None and row[1] in loaded.sessions:
                _look_up(db, loaded, row[2])
            loaded.delivery(row)
        _pages(db, loaded.sessions, now, page)
        for session_id, packet_id, publish_number in db.execute("SELECT session, packet_id, number FROM received"):
            loaded.received(session_id, packet_id, publish_number)
        for row in db.execute("SELECT * FROM broadcast ORDER BY id"):
            loaded.broadcast(row)
        for number, session_id in db.execute("SELECT broadcast, session FROM passed"):
            loaded.passed(number, session_id)
        for row in db.execute("SELECT * FROM retained"):
            loaded.retained(row)
    except (sqlite3.Error, Damaged, MemoryError):
        raise
    except Exception as error:  # a missing column, a wrong type, a number without bounds, JSON without end
        raise Damaged(fault(error)) from error
    finally:
        db.execute("ROLLBACK")
    return loaded


def _look_up(db: sqlite3.Connection, loaded: Loaded, number: int) -> None:
    """A message that several deliveries point to: once."""
    if number not in loaded.messages:
        loaded.shared(db.execute(SHARED_MESSAGE, (number,)).fetchone())


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
            add_to_pages(session, number, size, most)
        else:
            again[session_id] = marks[session_id]
    for session_id, last in again.items():
        session = sessions[session_id]
        session.deliveries += _some_on_disk(db, session_id, 0, last, now)
        session.deliveries.sort(key=_number)


def _some_on_disk(db: sqlite3.Connection, session: int, first: int, last: int, now: float) -> list[DeliveryRecord]:
    messages: dict[int, MessageRecord] = {}
    records: list[DeliveryRecord] = []
    for row in db.execute(SOME_ON_DISK, (session, first, last)):
        if row[2] is not None and row[2] not in messages:
            kept = db.execute(SHARED_MESSAGE, (row[2],)).fetchone()
            messages[row[2]] = message(kept[2], kept[3], kept[4], kept[5], kept[6], kept[7], kept[8], now)
        records.append(delivery(row, messages, now))
    return records


def _number(record: DeliveryRecord) -> int:
    return record.number


def read_on_disk(db: sqlite3.Connection, session: int, first: int, last: int, now: float) -> list[DeliveryRecord]:
    """What waits of a session on disk alone, within some numbers; times are counted from `now`, a lasting time.

    Raises what SQLite raises, and Damaged.
    """
    try:
        if first == last:
            # It may be very long.
            return _some_on_disk(db, session, first, last, now)
        found, payloads, properties = db.execute(IN_ONE_ROW, (session, first, last)).fetchone()
        return _on_disk(json.loads(found), payloads or b"", properties or b"", now)
    except (sqlite3.Error, Damaged, MemoryError):
        raise
    except Exception as error:  # see `read`
        raise Damaged(fault(error)) from error


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
        found = message(topic, payload, published, kept, properties[there : there + more], publisher, expires_at, now)
        there += more
        identifiers: tuple[int, ...] = () if listed is None else tuple(json.loads(listed))
        records.append(DeliveryRecord(number, found, qos, retain != 0, identifiers, share or ""))
    if at != len(payloads) or there != len(properties):
        raise Damaged("a payload is none")
    return records
