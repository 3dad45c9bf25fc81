"""Writes a group in one transaction.

Owns the statements. Promises: the event loop continues after some thousand rows; a group is written completely or not
at all, and once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from canopy_mqtt.core.principal import Principal
from canopy_mqtt.store.group_commit import checksums
from canopy_mqtt.store.group_commit.batch import (
    BROADCAST_COLUMNS,
    DELIVERY_COLUMNS,
    MESSAGE_COLUMNS,
    PLAIN_COLUMNS,
    RETAINED_COLUMNS,
    SESSION_COLUMNS,
    SUBSCRIPTION_COLUMNS,
    Batch,
)
from canopy_mqtt.store.postgresql.database import Database
from canopy_mqtt.store.postgresql.schema import FINISHED, removing

TURN: Final = 1_024
"""Rows that get their checksums and are put into the protocol's form at a time: some milliseconds."""

NUMBERS: Final = 16_384
"""The same for rows that are numbers alone."""

QUEUED_COLUMNS: Final = (
    "number", "session", "qos", "topic", "payload", "publish_qos", "properties", "publisher", "expires_at", "size",
    "checksum",
)  # fmt: skip

SESSIONS: Final = (
    "INSERT INTO session SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::float8[],"
    " $6::text[], $7::bytea[], $8::smallint[], $9::boolean[], $10::bigint[], $11::bigint[], $12::bytea[],"
    " $13::float8[], $14::bigint[], $15::bigint[]) ON CONFLICT (id) DO UPDATE SET"
    " client_id = excluded.client_id, principal = excluded.principal,"
    " expiry_interval = excluded.expiry_interval, disconnected_at = excluded.disconnected_at,"
    " will_topic = excluded.will_topic, will_payload = excluded.will_payload, will_qos = excluded.will_qos,"
    " will_retain = excluded.will_retain, will_delay = excluded.will_delay,"
    " will_message_expiry = excluded.will_message_expiry, will_properties = excluded.will_properties,"
    " will_due = excluded.will_due, checksum = excluded.checksum, will_checksum = excluded.will_checksum"
)
SUBSCRIPTIONS: Final = (
    "INSERT INTO subscription SELECT * FROM unnest($1::bigint[], $2::text[], $3::smallint[], $4::boolean[],"
    " $5::boolean[], $6::smallint[], $7::bigint[], $8::boolean[], $9::smallint[], $10::float8[], $11::bigint[],"
    " $12::bigint[])"
    " ON CONFLICT (session, filter) DO UPDATE SET qos = excluded.qos, no_local = excluded.no_local,"
    " retain_as_published = excluded.retain_as_published, retain_handling = excluded.retain_handling,"
    " identifier = excluded.identifier, streaming = excluded.streaming, queue_policy = excluded.queue_policy,"
    " queue_max_age = excluded.queue_max_age, queue_depth = excluded.queue_depth, checksum = excluded.checksum"
)
RETAINED: Final = (
    "INSERT INTO retained SELECT * FROM unnest($1::text[], $2::bytea[], $3::smallint[], $4::bytea[], $5::text[],"
    " $6::float8[], $7::text[], $8::bigint[]) ON CONFLICT (topic) DO UPDATE SET payload = excluded.payload,"
    " qos = excluded.qos, properties = excluded.properties, publisher = excluded.publisher,"
    " expires_at = excluded.expires_at, account = excluded.account, checksum = excluded.checksum"
)
BROADCASTS: Final = (
    "INSERT INTO broadcast SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[], $4::smallint[], $5::boolean[],"
    " $6::bytea[], $7::text[], $8::float8[], $9::bigint[])"
)

SESSION_GONE: Final = "DELETE FROM session WHERE id = ANY($1::bigint[])"
REMEMBER_GONE: Final = "INSERT INTO gone_session SELECT unnest($1::bigint[]) ON CONFLICT DO NOTHING"
FORGET_READ_BACK: Final = "DELETE FROM read_back WHERE session = ANY($1::bigint[])"
STREAMED: Final = (
    "UPDATE subscription SET streaming = false, checksum = checksum & 4294967295"
    " FROM unnest($1::bigint[], $2::text[]) AS told (s, f) WHERE session = s AND filter = f"
)
UNSUBSCRIBED: Final = (
    "DELETE FROM subscription USING unnest($1::bigint[], $2::text[]) AS told (s, f) WHERE session = s AND filter = f"
)
UNPAGED: Final = removing("size IS NOT NULL AND state = 0 AND session = $1 AND number BETWEEN $2 AND $3")
READ_BACK: Final = (
    "INSERT INTO read_back SELECT * FROM unnest($1::bigint[], $2::bigint[])"
    " ON CONFLICT (session) DO UPDATE SET number = excluded.number"
)
CHANGED: Final = (
    "UPDATE delivery SET state = s, packet_id = p, attempts = a, state_checksum = c FROM unnest($1::bigint[],"
    " $2::smallint[], $3::integer[], $4::bigint[], $5::bigint[]) AS told (n, s, p, a, c) WHERE number = n"
)
RELEASED: Final = (
    "WITH held AS (SELECT number, message, c FROM delivery, unnest($1::bigint[], $2::bigint[]) AS told (n, c)"
    " WHERE number = n), "
    "released AS (UPDATE delivery SET state = 2, message = NULL, topic = NULL, payload = NULL, properties = NULL,"
    " publisher = NULL, checksum = c, state_checksum = (state_checksum & 4294967295) | 8589934592"
    " FROM held WHERE delivery.number = held.number), "
    "counted AS (SELECT message AS id, count(*) AS n FROM held WHERE message IS NOT NULL GROUP BY message), "
    "over AS (DELETE FROM message USING counted WHERE message.id = counted.id AND refs <= n AND checksum >> 32 <= n) "
    "UPDATE message SET refs = refs - n, checksum = checksum - (n << 32) FROM counted WHERE message.id = counted.id"
    " AND (refs > n OR checksum >> 32 > n)"
)
RECEIVED: Final = (
    "INSERT INTO received SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bigint[])"
    " ON CONFLICT (session, packet_id) DO UPDATE SET checksum = excluded.checksum"
)
COMPLETED: Final = (
    "DELETE FROM received USING unnest($1::bigint[], $2::integer[]) AS told (s, p) WHERE session = s AND packet_id = p"
)
RETAINED_CLEARED: Final = "DELETE FROM retained WHERE topic = ANY($1::text[])"
PASSED: Final = (
    "INSERT INTO passed SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) ON CONFLICT DO NOTHING"
)
BROADCAST_OVER: Final = "DELETE FROM broadcast WHERE id = ANY($1::bigint[])"
FORGET_PASSED: Final = "DELETE FROM passed WHERE broadcast = ANY($1::bigint[])"
CLOCK: Final = "UPDATE owner SET time = $1, wall = $2, uptime = $3, boot = $4, clock_checksum = $5"


async def write(database: Database, batch: Batch, principal: Callable[[Principal], str]) -> None:
    """Write a group, unless it is written already. `principal`: the text of one.

    Raises what asyncpg and the system raise, `Replaced` and `Behind`; then the connection is of no use any more.
    """
    if not await database.claim():
        return
    connection = database.begun()
    if not batch.empty():
        await _statements(connection, batch, principal)
    if batch.clock is not None:
        await connection.execute(CLOCK, *batch.clock.row())
    await database.commit()


async def _statements(connection: Any, batch: Batch, principal: Callable[[Principal], str]) -> None:
    await _each(connection, (SESSION_GONE, REMEMBER_GONE, FORGET_READ_BACK), batch.gone)
    await _each(connection, (SESSION_GONE,), batch.wills_gone)
    values = batch.sessions
    for at in range(2, len(values), SESSION_COLUMNS):
        of = values[at]
        if isinstance(of, Principal):  # it is a text when the group is written again
            values[at] = principal(of)
    await _rows(connection, "session", SESSIONS, values, SESSION_COLUMNS)
    await _tuples(connection, STREAMED, batch.streamed)
    await _rows(connection, "subscription", SUBSCRIPTIONS, batch.subscriptions, SUBSCRIPTION_COLUMNS)
    await _tuples(connection, UNSUBSCRIBED, batch.unsubscribed)
    await _each(connection, (FINISHED,), batch.finished)
    for page in batch.unpaged:
        await connection.execute(UNPAGED, *page)
    await _tuples(connection, READ_BACK, batch.read_back)
    await _copy(connection, "message", batch.messages, MESSAGE_COLUMNS)
    await _copy(connection, "delivery", batch.plain, PLAIN_COLUMNS, QUEUED_COLUMNS)
    await _copy(connection, "delivery", batch.deliveries, DELIVERY_COLUMNS)
    await _tuples(connection, CHANGED, ((*each, checksums.state_of(*each)) for each in batch.changed))
    await _tuples(connection, RELEASED, ((each[0], checksums.of_released(*each)) for each in batch.released))
    await _tuples(connection, RECEIVED, ((*each, *checksums.of_received(each)) for each in batch.received))
    await _tuples(connection, COMPLETED, batch.completed)
    await _each(connection, (RETAINED_CLEARED,), batch.retained_cleared)
    await _rows(connection, "retained", RETAINED, batch.retained, RETAINED_COLUMNS)
    await _rows(connection, "broadcast", BROADCASTS, batch.broadcasts, BROADCAST_COLUMNS)
    await _tuples(connection, PASSED, ((*each, *checksums.of_passed(each)) for each in batch.passed))
    await _each(connection, (BROADCAST_OVER, FORGET_PASSED), batch.broadcasts_over)


def _turns(rows: Iterable[Any], most: int) -> Iterator[list[Any]]:
    left = iter(rows)
    while turn := list(islice(left, most)):
        yield turn


async def _copy(
    connection: Any, table: str, values: list[object], columns: int, names: tuple[str, ...] | None = None
) -> None:
    """Write rows whose values stand one behind the other, by COPY."""
    for rows in _whole(table, values, columns):
        await connection.copy_records_to_table(table, records=rows, columns=names)


async def _rows(connection: Any, table: str, statement: str, values: list[object], columns: int) -> None:
    """Write such rows by a statement that gets each column as an array."""
    for rows in _whole(table, values, columns):
        await connection.execute(statement, *zip(*rows, strict=True))


def _whole(table: str, values: list[object], columns: int) -> Iterator[list[tuple[object, ...]]]:
    for at in range(0, len(values), TURN * columns):
        part = values[at : at + TURN * columns]
        if columns == PLAIN_COLUMNS:
            checksums.fill_plain(part)
        else:
            checksums.fill(table, part, columns)
        yield list(zip(*[iter(part)] * columns, strict=True))


async def _tuples(connection: Any, statement: str, rows: Iterable[Any]) -> None:
    for some in _turns(rows, TURN):
        await connection.execute(statement, *zip(*some, strict=True))


async def _each(connection: Any, statements: tuple[str, ...], values: list[Any]) -> None:
    for some in _turns(values, NUMBERS):
        for statement in statements:
            await connection.execute(statement, some)
