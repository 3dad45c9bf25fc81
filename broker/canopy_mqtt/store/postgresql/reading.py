"""Reads back everything from the database when a broker starts, and what is there only.

Owns the queries; `records` has the meaning of rows. Promises: a thousand rows at a time, so that the event loop
continues between them and the lease is renewed; no other broker writes meanwhile, so everything is of one state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from canopy_mqtt.core.persistence.journal import DeliveryRecord, MessageRecord
from canopy_mqtt.core.queues.disk_queue import PAGE
from canopy_mqtt.store.damage import Damages
from canopy_mqtt.store.group_commit.checksums import fault as fault_of
from canopy_mqtt.store.group_commit.principals import Principals
from canopy_mqtt.store.group_commit.records import UNREADABLE, Damaged, Loaded, delivery, fault, message
from canopy_mqtt.store.postgresql.database import Database, Replaced

TURN: Final = 1_000
"""Rows of an answer: some milliseconds."""

GONE: Final = "SELECT id FROM gone_session WHERE id > $1 ORDER BY id LIMIT $2"
SESSIONS: Final = "SELECT * FROM session WHERE id > $1 ORDER BY id LIMIT $2"
SUBSCRIPTIONS: Final = (
    "SELECT * FROM subscription WHERE (session, filter) > ($1, $2::text) ORDER BY session, filter LIMIT $3"
)
DELIVERIES: Final = (
    "SELECT number, delivery.session, message, state, packet_id, attempts, qos, retain, identifiers, share, topic,"
    " CASE WHEN here THEN payload END, publish_qos, publish_retain, CASE WHEN here THEN properties END, publisher,"
    " expires_at, size, checksum, state_checksum, here FROM"
    " (SELECT delivery.*, size IS NULL OR state <> 0 OR number <= coalesce("
    " (SELECT number FROM read_back WHERE read_back.session = delivery.session), 0) AS here"
    " FROM delivery WHERE number > $1 ORDER BY number LIMIT $2) AS delivery ORDER BY number"
)
"""All, and whether a delivery is in memory (`here`); those that wait there alone without what is long."""
SHARED: Final = "SELECT * FROM message WHERE id = ANY($1::bigint[])"
RECEIVED: Final = (
    "SELECT session, packet_id, checksum FROM received WHERE (session, packet_id) > ($1, $2)"
    " ORDER BY session, packet_id LIMIT $3"
)
BROADCASTS: Final = "SELECT * FROM broadcast WHERE id > $1 ORDER BY id LIMIT $2"
PASSED: Final = (
    "SELECT broadcast, session, checksum FROM passed WHERE (broadcast, session) > ($1, $2)"
    " ORDER BY broadcast, session LIMIT $3"
)
RETAINED: Final = "SELECT * FROM retained WHERE topic > $1 ORDER BY topic LIMIT $2"

KEYS: Final = {
    "session": "id = $1",
    "subscription": "session = $1 AND filter = $2",
    "received": "session = $1 AND packet_id = $2",
    "message": "id = $1",
    "delivery": "number = $1",
    "retained": "topic = $1",
    "broadcast": "id = $1",
    "passed": "broadcast = $1 AND session = $2",
}
"""The columns by which a row is found, by table."""
WITHOUT_WILL: Final = (
    "UPDATE session SET will_topic = NULL, will_payload = NULL, will_qos = NULL, will_retain = NULL, will_delay = NULL,"
    " will_message_expiry = NULL, will_properties = NULL, will_due = NULL, will_checksum = NULL"
    " WHERE id = ANY($1::bigint[])"
)
REMEMBER_GONE: Final = "INSERT INTO gone_session SELECT unnest($1::bigint[]) ON CONFLICT DO NOTHING"
COUNTED: Final = (
    "UPDATE message SET refs = found, checksum = (checksum & 4294967295) | (found << 32) FROM"
    " (SELECT message.id AS shared, count(number) AS found FROM message LEFT JOIN delivery"
    " ON delivery.message = message.id GROUP BY message.id) AS told"
    " WHERE id = shared AND (refs <> found OR checksum >> 32 <> found)"
)
"""A damaged delivery may point to any message."""

ALONE: Final = (
    "SELECT * FROM delivery WHERE size IS NOT NULL AND state = 0 AND session = $1 AND number BETWEEN $2 AND $3"
    " ORDER BY number"
)


async def read(database: Database, now: float, principals: Principals, page: int = PAGE) -> Loaded:
    """Read everything, with times counted from `now`, a lasting time. `page`: messages of one that waits there alone.

    Raises what asyncpg and the system raise, and `Replaced`.
    """
    gone: set[int] = set()
    async for rows in turns(database, GONE, (0,)):
        gone.update(row[0] for row in rows)
    loaded = Loaded(now, principals, page, frozenset(gone))
    await _read(database, loaded)
    if not await database.renew():
        raise Replaced(f"{database.place} was taken over by another broker while it was read")
    return loaded


async def _read(database: Database, loaded: Loaded) -> None:
    async for rows in turns(database, SESSIONS, (0,)):
        for row in rows:
            loaded.session(row)
    async for rows in turns(database, SUBSCRIPTIONS, (0, "")):
        for row in rows:
            loaded.subscription(row)
    async for rows in turns(database, DELIVERIES, (0,)):
        for row in await database.fetch(SHARED, _missing(rows, loaded.messages)):
            loaded.shared(row)
        for row in rows:
            if row[20]:
                loaded.delivery(row[:20])
            else:
                loaded.paged(row[1], row[0], row[17])
    async for rows in turns(database, RECEIVED, (0, 0)):
        for row in rows:
            loaded.received(row)
    async for rows in turns(database, BROADCASTS, (0,)):
        for row in rows:
            loaded.broadcast(row)
    async for rows in turns(database, PASSED, (0, 0)):
        for row in rows:
            loaded.passed(row)
    async for rows in turns(database, RETAINED, ("",)):
        for row in rows:
            if not loaded.retained(row):
                loaded.no_retained(row, row[0])


def _missing(rows: Sequence[Any], messages: dict[int, MessageRecord]) -> list[int]:
    """Return the shared messages of rows that are in memory, which are not known yet."""
    wanted = {row[2] for row in rows if row[2] is not None and row[20]}
    return [number for number in wanted if number not in messages]


async def turns(database: Database, statement: str, start: tuple[Any, ...]) -> AsyncIterator[Sequence[Any]]:
    """Yield the rows of a table, some at a time, in the order of their first columns.

    Raises what asyncpg and the system raise, and `Replaced`.
    """
    behind = start
    while True:
        rows = await database.fetch(statement, *behind, TURN)
        if rows:
            yield rows
        if len(rows) < TURN:
            return
        behind = tuple(rows[-1][: len(start)])
        await keep(database)


async def keep(database: Database) -> None:
    """Renew the lease where that is due. Raises what asyncpg and the system raise, and `Replaced`."""
    if database.is_due() and not await database.renew():
        raise Replaced(f"{database.place} was taken over by another broker while it was read")


async def discard(database: Database, loaded: Loaded) -> None:
    """Delete the rows that cannot be used. Raises what asyncpg raises, and `Replaced`."""
    if not (loaded.unusable or loaded.orphaned or loaded.will_damaged):
        return
    await database.hold()
    connection = database.begun()
    for table, keys in loaded.unusable.items():
        await connection.executemany(f"DELETE FROM {table} WHERE {KEYS[table]}", keys)
    await connection.execute(WITHOUT_WILL, loaded.will_damaged)
    await connection.execute(REMEMBER_GONE, list(loaded.orphaned))
    await _count_anew(connection)


async def discard_deliveries(database: Database, numbers: list[int]) -> None:
    """Delete deliveries that cannot be used (`Damages.deliveries`). Raises what asyncpg raises, and `Replaced`."""
    await database.hold()
    connection = database.begun()
    await connection.execute("DELETE FROM delivery WHERE number = ANY($1::bigint[])", numbers)
    await _count_anew(connection)


async def _count_anew(connection: Any) -> None:
    """Count anew, at the end of a transaction, how many deliveries point to each message."""
    await connection.execute(COUNTED)
    await connection.execute("DELETE FROM message WHERE refs = 0")
    await connection.execute("COMMIT")


async def read_alone(
    database: Database, session: int, first: int, last: int, now: float
) -> tuple[list[DeliveryRecord], Damages]:
    """Return the deliveries of a session that wait in the database alone, within some numbers, and the damaged ones;
    times are counted from `now`, a lasting time. Raises what asyncpg and the system raise."""
    rows = await database.fetch(ALONE, session, first, last)
    messages: dict[int, MessageRecord] = {}
    records: list[DeliveryRecord] = []
    damages = Damages()
    wanted = list({row[2] for row in rows if row[2] is not None})
    for row in await database.fetch(SHARED, wanted) if wanted else ():
        if not fault_of("message", tuple(row)):
            messages[row[0]] = message(row[2], row[3], row[4], row[5], row[6], row[7], row[8], now)
    for row in rows:
        try:
            if why := fault_of("delivery", tuple(row)):
                raise Damaged(why)
            records.append(delivery(row, messages, now))
        except (Damaged, *UNREADABLE) as error:
            damages.add("delivery", "", row[10], fault(error))
            damages.deliveries.append(row[0])
    return records, damages
