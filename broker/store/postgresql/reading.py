"""Reads back everything from the database when a broker starts, and what is there only.

Owns the queries; `groups.records` has the meaning of rows. Promises: a thousand rows at a time, so that the event loop
continues between them and the lease is renewed; nobody else writes meanwhile, so everything is of one state.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from broker.core.persistence.journal import DeliveryRecord, MessageRecord
from broker.core.persistence.pages import PAGE
from broker.store.groups.principals import Principals
from broker.store.groups.records import Damaged, Loaded, delivery, fault, message
from broker.store.postgresql.database import Database, Replaced

TURN: Final = 1_000
"""Rows of an answer: some milliseconds."""

SESSIONS: Final = "SELECT * FROM session WHERE id > $1 ORDER BY id LIMIT $2"
SUBSCRIPTIONS: Final = (
    "SELECT * FROM subscription WHERE (session, filter) > ($1, $2::text) ORDER BY session, filter LIMIT $3"
)
DELIVERIES: Final = (
    "SELECT number, delivery.session, message, state, packet_id, attempts, qos, retain, identifiers, share, topic,"
    " CASE WHEN here THEN payload END, publish_qos, publish_retain, CASE WHEN here THEN properties END, publisher,"
    " expires_at, CASE WHEN NOT here THEN size END FROM"
    " (SELECT delivery.*, size IS NULL OR state <> 0 OR number <= coalesce("
    " (SELECT number FROM read_back WHERE read_back.session = delivery.session), 0) AS here"
    " FROM delivery WHERE number > $1 ORDER BY number LIMIT $2) AS delivery ORDER BY number"
)
"""All; those that wait there alone with their size, and without what is long, the others without a size."""
SHARED: Final = "SELECT * FROM message WHERE id = ANY($1::bigint[])"
RECEIVED: Final = (
    "SELECT session, packet_id, number FROM received WHERE (session, packet_id) > ($1, $2)"
    " ORDER BY session, packet_id LIMIT $3"
)
BROADCASTS: Final = "SELECT * FROM broadcast WHERE id > $1 ORDER BY id LIMIT $2"
PASSED: Final = (
    "SELECT broadcast, session FROM passed WHERE (broadcast, session) > ($1, $2) ORDER BY broadcast, session LIMIT $3"
)
RETAINED: Final = "SELECT * FROM retained WHERE topic > $1 ORDER BY topic LIMIT $2"

ALONE: Final = (
    "SELECT * FROM delivery WHERE size IS NOT NULL AND state = 0 AND session = $1 AND number BETWEEN $2 AND $3"
    " ORDER BY number"
)


async def read(database: Database, now: float, principals: Principals, page: int = PAGE) -> Loaded:
    """Everything, with times counted from `now`, a lasting time. `page`: messages of one that waits there alone.

    Raises what asyncpg and the system raise, `Damaged`, and `Replaced`.
    """
    loaded = Loaded(now, principals, page)
    try:
        await _read(database, loaded)
    except (AttributeError, KeyError, IndexError, TypeError, RecursionError, OverflowError) as error:
        # Whatever a hand wrote there.
        raise Damaged(fault(error)) from error
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
            if row[17] is None:
                loaded.delivery(row)
            else:
                loaded.paged(row[1], row[0], row[17])
    async for rows in turns(database, RECEIVED, (0, 0)):
        for session, packet_id, number in rows:
            loaded.received(session, packet_id, number)
    async for rows in turns(database, BROADCASTS, (0,)):
        for row in rows:
            loaded.broadcast(row)
    async for rows in turns(database, PASSED, (0, 0)):
        for number, session in rows:
            loaded.passed(number, session)
    async for rows in turns(database, RETAINED, ("",)):
        for row in rows:
            loaded.retained(row)


def _missing(rows: Sequence[Any], messages: dict[int, MessageRecord]) -> list[int]:
    """The shared messages of rows that are in memory, which are not known yet."""
    wanted = {row[2] for row in rows if row[2] is not None and row[17] is None}
    return [number for number in wanted if number not in messages]


async def turns(database: Database, statement: str, start: tuple[Any, ...]) -> AsyncIterator[Sequence[Any]]:
    """The rows of a table, some at a time, in the order of their first columns; each time behind the last ones.

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


async def read_alone(database: Database, session: int, first: int, last: int, now: float) -> list[DeliveryRecord]:
    """What waits of a session there alone, within some numbers; times are counted from `now`, a lasting time.

    Raises what asyncpg and the system raise, and `Damaged`.
    """
    rows = await database.fetch(ALONE, session, first, last)
    messages: dict[int, MessageRecord] = {}
    try:
        wanted = list({row[2] for row in rows if row[2] is not None})
        if wanted:
            for row in await database.fetch(SHARED, wanted):
                messages[row[0]] = message(row[2], row[3], row[4], row[5], row[6], row[7], row[8], now)
        return [delivery(row, messages, now) for row in rows]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(fault(error)) from error
