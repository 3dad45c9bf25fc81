"""Reads back everything from a store on disk when a broker starts.

Owns the queries; `records` has the meaning of rows, and which can be used. Promises: everything is of one state
of the file; a damaged row costs itself alone. Raises the errors of SQLite, for example for damaged pages.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from mypy_extensions import i64

from canopy_mqtt.core.persistence.journal import DeliveryRecord, MessageRecord
from canopy_mqtt.core.queues.disk_queue import PAGE
from canopy_mqtt.store.damage import Damages
from canopy_mqtt.store.group_commit.checksums import LOW, SHIFT, of_gone, of_read_back
from canopy_mqtt.store.group_commit.checksums import fault as fault_of
from canopy_mqtt.store.group_commit.principals import Principals
from canopy_mqtt.store.group_commit.records import MAX_NUMBER, UNREADABLE, Damaged, Loaded, delivery, fault, message
from canopy_mqtt.store.times import Note

_MOST: Final = f"<= {MAX_NUMBER}"
NUMBERS: Final = (
    f"SELECT max((SELECT ifnull(max(id), 0) FROM session WHERE id {_MOST}),"
    f" (SELECT ifnull(max(id), 0) FROM gone_session WHERE id {_MOST}),"
    # What is left of no session: whoever had its number would inherit it.
    f" (SELECT ifnull(max(session), 0) FROM subscription WHERE session {_MOST}),"
    f" (SELECT ifnull(max(session), 0) FROM received WHERE session {_MOST})),"
    f" max((SELECT ifnull(max(number), 0) FROM delivery WHERE number {_MOST}),"
    f" (SELECT ifnull(max(id), 0) FROM broadcast WHERE id {_MOST}),"
    f" (SELECT ifnull(max(number), 0) FROM read_back WHERE number {_MOST})),"
    f" (SELECT ifnull(max(id), 0) FROM message WHERE id {_MOST})"
)
"""The highest numbers in use. Numbers above `MAX_NUMBER` are those of damaged rows."""


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
    "SELECT json_group_array(json_array(number, owner, message, state, packet_id, attempts, qos, retain, identifiers,"
    " share, topic, length(payload), publish_qos, publish_retain, length(properties), publisher, expires_at, size,"
    " checksum, state_checksum, refs, kept_topic, kept_qos, kept_retain, kept_publisher, kept_expires_at,"
    " kept_checksum)),"
    " CAST(group_concat(payload, '') AS BLOB), CAST(group_concat(properties, '') AS BLOB) FROM"
    " (SELECT number, session AS owner, message, state, packet_id, attempts, delivery.qos AS qos,"
    " delivery.retain AS retain, identifiers, share, delivery.topic AS topic,"
    " CASE WHEN message IS NULL THEN delivery.payload ELSE kept.payload END AS payload, publish_qos, publish_retain,"
    " CASE WHEN message IS NULL THEN delivery.properties ELSE kept.properties END AS properties,"
    " delivery.publisher AS publisher, delivery.expires_at AS expires_at, size, delivery.checksum AS checksum,"
    " state_checksum, refs, kept.topic AS kept_topic, kept.qos AS kept_qos, kept.retain AS kept_retain,"
    " kept.publisher AS kept_publisher, kept.expires_at AS kept_expires_at, kept.checksum AS kept_checksum"
    " FROM delivery INDEXED BY delivery_paged LEFT JOIN message AS kept ON kept.id = delivery.message"
    " WHERE size IS NOT NULL AND state = 0 AND session = ? AND number BETWEEN ? AND ? ORDER BY number)"
)
"""`SOME_ON_DISK` with the messages that stand by themselves; payloads and properties one behind the other. Each row of
an answer gives up the interpreter's lock, which may take 5 ms to come back while the event loop is busy."""
NUMBERS_ON_DISK: Final = (
    "SELECT number FROM delivery INDEXED BY delivery_paged WHERE size IS NOT NULL AND state = 0"
    " AND session = ? AND number BETWEEN ? AND ? ORDER BY number"
)
ONE_DELIVERY: Final = "SELECT * FROM delivery NOT INDEXED WHERE number = ?"
READ_BACK: Final = "SELECT session, number, checksum FROM read_back"
SHARED_MESSAGE: Final = "SELECT * FROM message WHERE id = ?"

RETAINED: Final = "SELECT rowid, * FROM retained"

KEYS: Final = {
    "session": "id = ?",
    "subscription": "session IS ? AND filter IS CAST(? AS TEXT)",
    "received": "session IS ? AND packet_id IS ?",
    "message": "id = ?",
    "delivery": "number = ?",
    "retained": "rowid = ?",
    "broadcast": "id = ?",
    "passed": "broadcast IS ? AND session IS ?",
    "read_back": "session = ?",
}
"""The columns by which a row is found, by table."""

WITHOUT_WILL: Final = (
    "UPDATE session SET will_topic = NULL, will_payload = NULL, will_qos = NULL, will_retain = NULL, will_delay = NULL,"
    " will_message_expiry = NULL, will_properties = NULL, will_due = NULL, will_checksum = NULL WHERE id = ?"
)
MANY: Final = 1 << 30
"""More deliveries than share a message."""
COUNTED: Final = (
    "UPDATE message SET refs = told.found, checksum = (checksum & 4294967295) | (told.found << 32) FROM"
    " (SELECT message.id AS shared, ifnull(counted.found, 0) AS found FROM message LEFT JOIN"
    " (SELECT message AS pointed, count(*) AS found FROM delivery WHERE message NOT NULL GROUP BY message) AS counted"
    " ON counted.pointed = message.id) AS told WHERE message.id = told.shared"
)
BAD_GONE: Final = "DELETE FROM gone_session WHERE id = ?"
ENDED_AND_THERE: Final = "DELETE FROM gone_session WHERE id IN (SELECT id FROM session)"

CLOCK: Final = "SELECT time, wall, uptime, boot, checksum FROM clock"


def numbers(db: sqlite3.Connection) -> tuple[int, int, int]:
    """Return the highest numbers of a session, a delivery and a message in the file."""
    session, number, message = db.execute(NUMBERS).fetchone()
    return session, number, message


def clock(db: sqlite3.Connection) -> Note | None:
    """Return the clocks of the last note; None: there is none, or it is damaged."""
    found = db.execute(CLOCK).fetchone()
    return None if found is None else Note.of(found)


def read(db: sqlite3.Connection, now: float, principals: Principals, page: int = PAGE) -> Loaded:
    """Read everything, with times counted from `now`, a lasting time. `page`: messages of one that waits on disk
    alone."""
    try:
        return _read(db, now, principals, page)
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", None) is not None:
            raise
    # A text in it is none, which stops all rows of its statement.
    with any_text(db):
        return _read(db, now, principals, page)


@contextmanager
def any_text(db: sqlite3.Connection) -> Iterator[None]:
    """Read text that is no UTF-8 as text that cannot be encoded, while the block lasts."""
    usual, db.text_factory = db.text_factory, _any_text
    try:
        yield
    finally:
        db.text_factory = usual


def _any_text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def _exact(value: Any) -> Any:
    """Return a value of `any_text` as the bytes in the file."""
    return value.encode(errors="surrogateescape") if isinstance(value, str) else value


def _read(db: sqlite3.Connection, now: float, principals: Principals, page: int) -> Loaded:
    db.execute("BEGIN")
    try:
        loaded = Loaded(now, principals, page, frozenset(each for (each,) in db.execute("SELECT id FROM gone_session")))
        for row in db.execute("SELECT * FROM session"):
            loaded.session(row)
        for row in db.execute("SELECT * FROM subscription"):
            loaded.subscription(row)
        for row in db.execute(IN_MEMORY):
            _delivery(db, loaded, row)
        _pages(db, loaded)
        for row in db.execute("SELECT * FROM received"):
            loaded.received(row)
        for row in db.execute("SELECT * FROM broadcast ORDER BY id"):
            loaded.broadcast(row)
        for row in db.execute("SELECT * FROM passed"):
            loaded.passed(row)
        whole = True
        for row in db.execute("SELECT * FROM retained"):
            whole = loaded.retained(row) and whole
        if not whole:
            for row in db.execute(RETAINED):
                loaded.no_retained(row[1:], row[0])
    finally:
        db.execute("ROLLBACK")
    return loaded


def _delivery(db: sqlite3.Connection, loaded: Loaded, row: Any) -> None:
    """Read a delivery, with the message that it points to: once for all that do."""
    if row[2] is not None and row[1] in loaded.sessions and row[2] not in loaded.messages:
        kept = db.execute(SHARED_MESSAGE, (row[2],)).fetchone()
        if kept is not None:
            loaded.shared(kept)
    loaded.delivery(row)


def _pages(db: sqlite3.Connection, loaded: Loaded) -> None:
    """Count what waits on disk alone; the messages are not read, except those that were in memory again."""
    marks: dict[int, int] = {}
    for session_id, number, checksum in db.execute(READ_BACK):
        if checksum == of_read_back(session_id, number):
            marks[session_id] = number
        else:
            loaded.unusable.setdefault("read_back", []).append((session_id,))
            loaded.damages.add("read_back", "", "", "its checksum is another")
    # Sessions of which something with a size was in memory again.
    again: dict[int, None] = {}
    for session_id, number, size in db.execute(ON_DISK):
        if number > marks.get(session_id, 0):
            loaded.paged(session_id, number, size)
        elif session_id in loaded.sessions:
            again[session_id] = None
    for session_id in again:
        for row in db.execute(SOME_ON_DISK, (session_id, 0, marks[session_id])):
            _delivery(db, loaded, row)
        loaded.sessions[session_id].deliveries.sort(key=_number)


def _number(record: DeliveryRecord) -> int:
    return record.number


def is_damage(error: Exception) -> bool:
    """Return whether an error of SQLite is about the file's content, and so comes again."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def read_on_disk(
    db: sqlite3.Connection, session: int, first: int, last: int, now: float
) -> tuple[list[DeliveryRecord], Damages]:
    """Return the deliveries of a session that wait on disk alone, within some numbers, and the damaged ones; times are
    counted from `now`, a lasting time. Raises what SQLite raises."""
    if first < last:  # one alone may be very long
        try:
            found, payloads, properties = db.execute(IN_ONE_ROW, (session, first, last)).fetchone()
            return _on_disk(json.loads(found), payloads or b"", properties or b"", now), Damages()
        except (Damaged, *UNREADABLE):
            pass  # some row of them
        except sqlite3.Error as error:
            # A text that is none has no code; a value that JSON has no place for has that of any error.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            if code != sqlite3.SQLITE_ERROR and not is_damage(error):
                raise
    with any_text(db):
        return _one_by_one(db, session, first, last, now)


def _one_by_one(
    db: sqlite3.Connection, session: int, first: int, last: int, now: float
) -> tuple[list[DeliveryRecord], Damages]:
    messages: dict[int, MessageRecord] = {}
    records: list[DeliveryRecord] = []
    damages = Damages()
    for number in _numbers_on_disk(db, session, first, last, damages):
        row: Any = ()
        try:
            row = db.execute(ONE_DELIVERY, (number,)).fetchone()
            if row is None or row[1] != session:
                raise Damaged("its index leads elsewhere")
            if why := fault_of("delivery", row):
                raise Damaged(why)
            if row[2] is not None and row[2] not in messages:
                kept = db.execute(SHARED_MESSAGE, (row[2],)).fetchone()
                why = "it is missing" if kept is None else fault_of("message", kept)
                if why:
                    raise Damaged(f"its message {row[2]}: {why}")
                messages[row[2]] = message(kept[2], kept[3], kept[4], kept[5], kept[6], kept[7], kept[8], now)
            records.append(delivery(row, messages, now))
        except (Damaged, *UNREADABLE) as error:
            damages.add("delivery", "", row[10] if row else "", fault(error))
            if row and row[1] == session:
                damages.deliveries.append(number)
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            damages.add("delivery", "", "", fault(error))
    return records, damages


def _numbers_on_disk(db: sqlite3.Connection, session: int, first: int, last: int, damages: Damages) -> list[int]:
    found: list[int] = []
    try:
        for (number,) in db.execute(NUMBERS_ON_DISK, (session, first, last)):
            found.append(number)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        damages.add("delivery", "", "", f"those behind it cannot be found: {fault(error)}")
    return found


def _on_disk(rows: list[Any], payloads: bytes, properties: bytes, now: float) -> list[DeliveryRecord]:
    """Return the deliveries of `IN_ONE_ROW`. Raises Damaged: one of them is no row that a broker wrote."""
    records: list[DeliveryRecord] = []
    messages: dict[int, MessageRecord] = {}
    at: i64 = 0
    there: i64 = 0
    for row in rows:
        payload = payloads[at : at + row[11]]
        at += row[11]
        more = None if row[14] is None else properties[there : there + row[14]]
        there += 0 if row[14] is None else row[14]
        own = row[:20]
        if row[2] is None:
            own[11], own[14] = payload, more
        else:
            own[11] = own[14] = None
            kept = (row[2], row[20], row[21], payload, row[22], row[23], more, row[24], row[25], row[26])
            if row[2] not in messages:
                if fault_of("message", kept):
                    raise Damaged("a message")
                messages[row[2]] = message(kept[2], kept[3], kept[4], kept[5], kept[6], kept[7], kept[8], now)
        if fault_of("delivery", own):
            raise Damaged("a delivery")
        records.append(delivery(own, messages, now))
    if at != len(payloads) or there != len(properties):
        raise Damaged("a payload is none")
    return records


def mend_ended(db: sqlite3.Connection) -> None:
    """Forget ended sessions that no broker wrote, before anything of theirs is removed: they may be any sessions."""
    wrong = [(number,) for number, checksum in db.execute("SELECT * FROM gone_session") if checksum != of_gone(number)]
    db.executemany(BAD_GONE, wrong)
    db.execute(ENDED_AND_THERE)


def discard(db: sqlite3.Connection, loaded: Loaded) -> None:
    """Delete the rows that cannot be used. Raises what SQLite raises.

    The number of deliveries that share a message is counted anew: a damaged one may point to any.
    """
    if not (loaded.unusable or loaded.orphaned or loaded.will_damaged):
        return
    with _counted_anew(db):
        for table, keys in loaded.unusable.items():
            db.executemany(f"DELETE FROM {table} WHERE {KEYS[table]}", (tuple(map(_exact, key)) for key in keys))
        db.executemany(WITHOUT_WILL, ((number,) for number in loaded.will_damaged))
        gone = [(number, of_gone(number)) for number in loaded.orphaned]
        db.executemany("INSERT OR IGNORE INTO gone_session VALUES (?, ?)", gone)


def discard_deliveries(db: sqlite3.Connection, numbers: list[int]) -> None:
    """Delete deliveries that cannot be used (`Damages.deliveries`). Raises what SQLite raises."""
    with _counted_anew(db):
        db.executemany(f"DELETE FROM delivery WHERE {KEYS['delivery']}", ((number,) for number in numbers))


@contextmanager
def _counted_anew(db: sqlite3.Connection) -> Iterator[None]:
    """Run a transaction at whose end the deliveries of each message are counted anew."""
    db.execute("BEGIN IMMEDIATE")
    try:
        # Meanwhile no trigger removes a message.
        db.execute(f"UPDATE message SET refs = {MANY}, checksum = (checksum & {LOW}) | ({MANY} << {SHIFT})")
        yield
        db.execute(COUNTED)
        db.execute("DELETE FROM message WHERE refs <= 0")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
