"""The tables of a store on disk, as an operator reads them with the sqlite3 shell.

Owns the schema, its version, and the statements that write it. Promises: times are seconds of the
store's own time (`times`; the table `clock` says how far that is from the system's clock), texts are texts, and topics
of deliveries that several sessions share are stored once. A message of several deliveries is removed with the last of
them, by a trigger, so the file is consistent after each transaction of any program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from canopy_mqtt.store.group_commit.batch import (
    BROADCAST_COLUMNS,
    DELIVERY_COLUMNS,
    MESSAGE_COLUMNS,
    PLAIN_COLUMNS,
    RETAINED_COLUMNS,
    SESSION_COLUMNS,
    SUBSCRIPTION_COLUMNS,
)

APPLICATION: Final = 0x434E5059
"""`PRAGMA application_id` of our files ("CNPY"), so that no other program's file is taken for one."""

OLDEST_SQLITE: Final = (3, 33, 0)
"""The first with `UPDATE … FROM`; it needs JSON too, which all but the leanest builds have."""

VERSION: Final = 2
"""`PRAGMA user_version`: the version of the schema."""

SCHEMA: Final = """
CREATE TABLE canopy (
    version INTEGER NOT NULL           -- as in the head of the file (PRAGMA user_version), where a byte may change
);
CREATE TABLE session (
    id INTEGER PRIMARY KEY,            -- never used again
    client_id TEXT NOT NULL UNIQUE,
    principal TEXT NOT NULL,           -- JSON: whose it is
    expiry_interval INTEGER NOT NULL,  -- seconds; 4294967295: does not expire; 0: no session, its will alone
    disconnected_at REAL,              -- NULL: connected
    will_topic TEXT,                   -- NULL: no will
    will_payload BLOB,
    will_qos INTEGER,
    will_retain INTEGER,
    will_delay INTEGER,
    will_message_expiry INTEGER,
    will_properties BLOB,
    will_due REAL,                     -- NULL: its client is connected
    checksum INTEGER NOT NULL,         -- of all but the will (groups/checksums.py)
    will_checksum INTEGER              -- NULL: no will
);
CREATE TABLE gone_session (
    id INTEGER PRIMARY KEY,            -- its subscriptions, deliveries and identifiers are removed in the background
    checksum INTEGER NOT NULL
);
CREATE TABLE subscription (
    session INTEGER NOT NULL,
    filter TEXT NOT NULL,              -- with $share/name/ where it is shared
    qos INTEGER NOT NULL,
    no_local INTEGER NOT NULL,
    retain_as_published INTEGER NOT NULL,
    retain_handling INTEGER NOT NULL,
    identifier INTEGER NOT NULL,       -- 0: none
    streaming INTEGER NOT NULL,        -- 1: retained messages are on their way
    queue_policy INTEGER,              -- NULL: nothing was asked of its queue
    queue_max_age REAL,
    queue_depth INTEGER,
    checksum INTEGER NOT NULL,         -- bit 32: streaming
    PRIMARY KEY (session, filter)
) WITHOUT ROWID;
CREATE INDEX subscription_over ON subscription (session) WHERE qos < 0;  -- only within a transaction that removes them
CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    refs INTEGER NOT NULL,             -- deliveries that point here
    topic TEXT NOT NULL,
    payload BLOB NOT NULL,
    qos INTEGER NOT NULL,
    retain INTEGER NOT NULL,
    properties BLOB,                   -- encoded as in MQTT 5.0
    publisher TEXT,
    expires_at REAL,                   -- NULL: never
    checksum INTEGER NOT NULL          -- from bit 32 on: refs
);
CREATE TABLE delivery (
    number INTEGER PRIMARY KEY,        -- the order in which deliveries of a session were queued
    session INTEGER NOT NULL,
    message INTEGER,                   -- NULL: the message stands here, or is needed no more (state 2)
    state INTEGER NOT NULL,            -- 0 queued, 1 sent, 2 released
    packet_id INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    qos INTEGER NOT NULL,
    retain INTEGER NOT NULL,
    identifiers TEXT,                  -- subscription identifiers, as a JSON list
    share TEXT,                        -- the shared subscription that it was chosen for
    topic TEXT,
    payload BLOB,
    publish_qos INTEGER,
    publish_retain INTEGER,
    properties BLOB,
    publisher TEXT,
    expires_at REAL,
    size INTEGER,                      -- of one that waits on disk alone: the bytes that it counts for
    checksum INTEGER NOT NULL,         -- of all but the three that change
    state_checksum INTEGER NOT NULL    -- of packet_id and attempts; from bit 32 on: state
);
CREATE TRIGGER delivery_removed AFTER DELETE ON delivery WHEN old.message IS NOT NULL BEGIN
    UPDATE message SET refs = refs - 1, checksum = checksum - 4294967296 WHERE id = old.message;
    DELETE FROM message WHERE id = old.message AND refs <= 0 AND checksum < 4294967296;
END;
CREATE TRIGGER delivery_released AFTER UPDATE OF message ON delivery
WHEN old.message IS NOT NULL AND new.message IS NULL BEGIN
    UPDATE message SET refs = refs - 1, checksum = checksum - 4294967296 WHERE id = old.message;
    DELETE FROM message WHERE id = old.message AND refs <= 0 AND checksum < 4294967296;
END;
CREATE INDEX delivery_paged ON delivery (session, number, size)
WHERE size IS NOT NULL AND state = 0;  -- what waits on disk alone, to be read back in its order; others cost it nothing
CREATE TABLE received (
    session INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (session, packet_id)
) WITHOUT ROWID;
CREATE TABLE retained (
    topic TEXT NOT NULL UNIQUE,
    payload BLOB NOT NULL,
    qos INTEGER NOT NULL,
    properties BLOB,
    publisher TEXT,
    expires_at REAL,
    account TEXT,                      -- the account that holds it; NULL: the broker's own
    checksum INTEGER NOT NULL
);
CREATE TABLE read_back (
    session INTEGER PRIMARY KEY,
    number INTEGER NOT NULL,           -- deliveries with a size up to this one are in memory again
    checksum INTEGER NOT NULL
);
CREATE TABLE broadcast (
    id INTEGER PRIMARY KEY,            -- a message that goes to very many, and has not come to all of them
    topic TEXT NOT NULL,
    payload BLOB NOT NULL,
    qos INTEGER NOT NULL,
    retain INTEGER NOT NULL,
    properties BLOB,
    publisher TEXT,
    expires_at REAL,
    checksum INTEGER NOT NULL
);
CREATE TABLE passed (
    broadcast INTEGER NOT NULL,
    session INTEGER NOT NULL,          -- has had it, or came after it
    checksum INTEGER NOT NULL,
    PRIMARY KEY (broadcast, session)
) WITHOUT ROWID;
CREATE TABLE clock (                   -- one row: how the clocks stood when this was written
    time REAL NOT NULL,                -- the store's own time, in which all others are: a step of a clock leaves it
    wall REAL NOT NULL,                -- the system's clock, in seconds since the epoch
    uptime REAL NOT NULL,              -- seconds since the system was started
    boot TEXT NOT NULL,                -- which start that was; empty: the system has no name for it
    checksum INTEGER NOT NULL
);
"""

MAX_STATEMENT: Final = 2_048
"""Rows of one INSERT. Each statement gives up the interpreter's lock some times, which costs up to 5 ms each time while
the event loop is busy: few long statements are ten times as fast as many short ones."""

MAX_VALUES: Final = 32_766
"""Values that a statement of SQLite may have."""


class Insert:
    """Inserts rows into a table: `columns` values each, as many rows in one statement as possible."""

    def __init__(self, table: str, columns: int, selected: str = "*", end: str = "") -> None:
        self.columns = columns
        self._start = f"INSERT INTO {table} SELECT {selected} FROM (VALUES "
        # What was added to fill a statement up is left out again.
        self._end = f") WHERE column1 IS NOT NULL {end}"
        longest = min(MAX_STATEMENT, MAX_VALUES // columns)
        # There are few lengths, so that each is prepared once.
        self._counts = [1]
        while self._counts[-1] * 8 <= longest:
            self._counts.append(self._counts[-1] * 8)
        self._counts[-1] = longest
        self._texts: dict[int, str] = {}

    def statements(self, values: list[object]) -> Iterator[tuple[str, list[object]]]:
        """Yield statements and their values, for rows whose values stand one behind the other."""
        at, left = 0, len(values) // self.columns
        while left > 0:
            count = next((each for each in self._counts if each >= left), self._counts[-1])
            until = at + count * self.columns
            part = values if at == 0 and until == len(values) else values[at:until]
            part += [None] * (count * self.columns - len(part))
            yield self._text(count), part
            at = until
            left -= count

    def _text(self, count: int) -> str:
        text = self._texts.get(count)
        if text is None:
            row = f"({','.join(['?'] * self.columns)})"
            text = self._texts[count] = self._start + ",".join([row] * count) + self._end
        return text


SESSIONS: Final = Insert(
    "session",
    SESSION_COLUMNS,
    end="ON CONFLICT (id) DO UPDATE SET client_id = excluded.client_id, principal = excluded.principal,"
    " expiry_interval = excluded.expiry_interval, disconnected_at = excluded.disconnected_at,"
    " will_topic = excluded.will_topic, will_payload = excluded.will_payload, will_qos = excluded.will_qos,"
    " will_retain = excluded.will_retain, will_delay = excluded.will_delay,"
    " will_message_expiry = excluded.will_message_expiry, will_properties = excluded.will_properties,"
    " will_due = excluded.will_due, checksum = excluded.checksum, will_checksum = excluded.will_checksum",
)
SUBSCRIPTIONS: Final = Insert(
    "subscription",
    SUBSCRIPTION_COLUMNS,
    end="ON CONFLICT (session, filter) DO UPDATE SET qos = excluded.qos, no_local = excluded.no_local,"
    " retain_as_published = excluded.retain_as_published, retain_handling = excluded.retain_handling,"
    " identifier = excluded.identifier, streaming = excluded.streaming, queue_policy = excluded.queue_policy,"
    " queue_max_age = excluded.queue_max_age, queue_depth = excluded.queue_depth, checksum = excluded.checksum",
)
MESSAGES: Final = Insert("message", MESSAGE_COLUMNS)
DELIVERIES: Final = Insert("delivery", DELIVERY_COLUMNS)
QUEUED_DELIVERIES: Final = Insert(
    "delivery",
    PLAIN_COLUMNS,
    "column1, column2, NULL, 0, 0, 0, column3, 0, NULL, NULL, column4, column5, column6, 0, column7, column8, column9,"
    " column10, column11, 0",
)
RETAINED: Final = Insert(
    "retained",
    RETAINED_COLUMNS,
    end="ON CONFLICT (topic) DO UPDATE SET payload = excluded.payload, qos = excluded.qos,"
    " properties = excluded.properties, publisher = excluded.publisher, expires_at = excluded.expires_at,"
    " account = excluded.account, checksum = excluded.checksum",
)

BROADCASTS: Final = Insert("broadcast", BROADCAST_COLUMNS)

# Whatever is numbers alone comes as one JSON text: one parameter, and one statement however many there are.
READ_BACK: Final = (
    "INSERT OR REPLACE INTO read_back SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),"
    " json_extract(value, '$[2]') FROM json_each(?)"
)
FORGET_READ_BACK: Final = "DELETE FROM read_back WHERE session IN (SELECT value FROM json_each(?))"
SESSION_GONE: Final = "DELETE FROM session WHERE id IN (SELECT value FROM json_each(?))"
REMEMBER_GONE: Final = (
    "INSERT OR IGNORE INTO gone_session SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]')"
    " FROM json_each(?)"
)
STREAMED: Final = (
    "UPDATE subscription SET streaming = 0, checksum = checksum & 4294967295"
    " FROM (SELECT json_extract(value, '$[0]') AS s,"
    " json_extract(value, '$[1]') AS f FROM json_each(?)) AS told WHERE session = told.s AND filter = told.f"
)
# Marked and then removed: where SQLite is asked to delete pairs, it looks at all subscriptions of a session.
MARK_UNSUBSCRIBED: Final = (
    "UPDATE subscription SET qos = -1 FROM (SELECT json_extract(value, '$[0]') AS s,"
    " json_extract(value, '$[1]') AS f FROM json_each(?)) AS told WHERE session = told.s AND filter = told.f"
)
FORGET_MARKED: Final = "DELETE FROM subscription WHERE qos < 0"
CHANGED: Final = (
    "UPDATE delivery SET state = told.s, packet_id = told.p, attempts = told.a, state_checksum = told.c"
    " FROM (SELECT json_extract(value, '$[0]') AS n, json_extract(value, '$[1]') AS s,"
    " json_extract(value, '$[2]') AS p, json_extract(value, '$[3]') AS a, json_extract(value, '$[4]') AS c"
    " FROM json_each(?)) AS told"
    " WHERE number = told.n"
)
RELEASED: Final = (
    "UPDATE delivery SET state = 2, message = NULL, topic = NULL, payload = NULL, properties = NULL, publisher = NULL,"
    " checksum = told.c, state_checksum = (state_checksum & 4294967295) | 8589934592"
    " FROM (SELECT json_extract(value, '$[0]') AS n, json_extract(value, '$[1]') AS c FROM json_each(?)) AS told"
    " WHERE number = told.n"
)
UNPAGED: Final = (
    "DELETE FROM delivery WHERE number IN (SELECT number FROM delivery"
    " WHERE size IS NOT NULL AND state = 0 AND session = ? AND number BETWEEN ? AND ?)"
)
FINISHED: Final = "DELETE FROM delivery WHERE number IN (SELECT value FROM json_each(?))"
RECEIVED: Final = (
    "INSERT OR REPLACE INTO received SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),"
    " json_extract(value, '$[2]') FROM json_each(?)"
)
COMPLETED: Final = (
    "DELETE FROM received WHERE (session, packet_id) IN"
    " (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?))"
)
RETAINED_CLEARED: Final = "DELETE FROM retained WHERE topic IN (SELECT value FROM json_each(?))"

PASSED: Final = (
    "INSERT OR IGNORE INTO passed SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),"
    " json_extract(value, '$[2]') FROM json_each(?)"
)
BROADCAST_OVER: Final = "DELETE FROM broadcast WHERE id IN (SELECT value FROM json_each(?))"
FORGET_PASSED: Final = "DELETE FROM passed WHERE broadcast IN (SELECT value FROM json_each(?))"

FORGET_CLOCK: Final = "DELETE FROM clock"
CLOCK_NOTED: Final = "INSERT INTO clock VALUES (?, ?, ?, ?, ?)"

ALL_DELIVERIES: Final = "SELECT (SELECT min(number) FROM delivery), (SELECT max(number) FROM delivery)"
MARK_LEFT: Final = (
    "UPDATE subscription SET qos = -1 FROM (SELECT over.session AS s, over.filter AS f FROM gone_session"
    " CROSS JOIN subscription AS over ON over.session = gone_session.id"
    " WHERE gone_session.id >= ? AND gone_session.id <= ? LIMIT ?) AS told"
    " WHERE subscription.session = told.s AND subscription.filter = told.f"
)
LAST_MARKED: Final = "SELECT max(session) FROM subscription WHERE qos < 0"
FORGET_RECEIVED: Final = (
    "DELETE FROM received WHERE (session, packet_id) IN (SELECT over.session, over.packet_id FROM gone_session"
    " CROSS JOIN received AS over ON over.session = gone_session.id WHERE gone_session.id <= ? LIMIT ?)"
)
FORGET_GONE: Final = "DELETE FROM gone_session WHERE id <= ? AND id NOT IN (SELECT value FROM json_each(?))"
LEFT_DELIVERIES: Final = (
    "SELECT json_group_array(number), json_group_array(size) FROM"
    " (SELECT number, ifnull(length(payload), 0) AS size FROM delivery WHERE number > ? AND number <= ?"
    " AND session IN (SELECT id FROM gone_session WHERE id <= ?) ORDER BY number LIMIT ?)"
)
