"""The sessions of a schema, read some at a time, each with all that it has.

Owns how far that has got, and which deliveries of the schema belong to which session: an index of its own for as long
as the connection lasts, since deliveries are in the order of their numbers and no table knows those of one session.
Promises: the memory that is needed does not grow with the number of sessions; no statement is about more than some
thousand rows; the lease is renewed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.core.connection.connect.handshake import RESERVED
from broker.core.persistence.journal import BroadcastRecord
from broker.store.groups.principals import Principals
from broker.store.groups.records import Damaged, Loaded, fault
from broker.store.postgresql.database import Database
from broker.store.postgresql.reading import BROADCASTS, SHARED, TURN, keep, turns

MOST_ROWS: Final = 4_000
MOST_BYTES: Final = 4_194_304
"""Subscriptions and deliveries of the sessions of a piece, and bytes of their payloads: one session has more, perhaps.
A piece has `TURN` sessions at most."""

INDEXED: Final = 10_000
"""Deliveries that are looked at by one statement while the index is made: some tens of milliseconds."""

INDEX: Final = (
    "CREATE TEMP TABLE in_memory (session bigint NOT NULL, number bigint NOT NULL, bytes bigint NOT NULL)",
    "CREATE INDEX ON in_memory (session, number)",
    "CREATE TEMP TABLE on_disk (session bigint NOT NULL)",
    "CREATE INDEX ON on_disk (session)",
)
INDEX_SOME: Final = (
    "WITH looked_at AS (SELECT number, session, coalesce(octet_length(payload),"
    " (SELECT octet_length(payload) FROM message WHERE id = delivery.message), 0) AS bytes,"
    " size IS NULL OR state <> 0 OR number <= coalesce("
    " (SELECT number FROM read_back WHERE read_back.session = delivery.session), 0) AS here"
    " FROM delivery WHERE number > $1 ORDER BY number LIMIT $2),"
    " put AS (INSERT INTO in_memory SELECT session, number, bytes FROM looked_at WHERE here),"
    " alone AS (INSERT INTO on_disk SELECT DISTINCT session FROM looked_at WHERE NOT here)"
    " SELECT max(number), count(*) FROM looked_at"
)
"""All that do not wait in the database alone (`reading.DELIVERIES`), and the sessions of the others."""

CLIENTS: Final = (
    "SELECT id, client_id, coalesce(octet_length(will_payload), 0) FROM session WHERE id > $1 ORDER BY id LIMIT $2"
)
SIZES: Final = (
    "SELECT id, subscriptions.n + deliveries.n, deliveries.bytes FROM unnest($1::bigint[]) AS id,"
    " LATERAL (SELECT count(*) AS n FROM subscription WHERE session = id) AS subscriptions,"
    " LATERAL (SELECT count(*) AS n, coalesce(sum(bytes), 0)::bigint AS bytes FROM in_memory WHERE session = id)"
    " AS deliveries"
)
SESSIONS: Final = "SELECT * FROM session WHERE id = ANY($1::bigint[]) ORDER BY id"
SUBSCRIPTIONS: Final = (
    "SELECT * FROM subscription WHERE session = ANY($1::bigint[]) AND session <= $2"
    " AND (session, filter) > ($3, $4::text) ORDER BY session, filter LIMIT $5"
)
RECEIVED: Final = (
    "SELECT session, packet_id, number FROM received WHERE session = ANY($1::bigint[]) AND session <= $2"
    " AND (session, packet_id) > ($3, $4) ORDER BY session, packet_id LIMIT $5"
)
NUMBERS: Final = (
    "SELECT number FROM in_memory WHERE session = ANY($1::bigint[]) AND session <= $2 AND number > $3"
    " ORDER BY number LIMIT $4"
)
DELIVERIES: Final = (
    "SELECT number, session, message, state, packet_id, attempts, qos, retain, identifiers, share, topic, payload,"
    " publish_qos, publish_retain, properties, publisher, expires_at FROM delivery WHERE number = ANY($1::bigint[])"
    " ORDER BY number"
)
PAGED: Final = (
    "SELECT id, coalesce((SELECT number FROM read_back WHERE session = id), 0)"
    " FROM (SELECT DISTINCT session AS id FROM on_disk WHERE session = ANY($1::bigint[])) AS alone"
)
PAGES: Final = (
    "SELECT number, size FROM delivery WHERE size IS NOT NULL AND state = 0"
    f" AND (session, number) > ($1, $2) AND session <= $1 ORDER BY session, number LIMIT {TURN}"
)
"""Of one session. In the order of `delivery_paged`, and with the limit as a number, PostgreSQL takes no other index."""
PASSED: Final = (
    "SELECT broadcast, session FROM passed WHERE broadcast = ANY($1::bigint[]) AND session = ANY($2::bigint[])"
)


class Pieces:
    """The sessions of clients in one schema that are `mine`, by client identifier. `now`: see `Loaded`."""

    def __init__(
        self, database: Database, now: float, principals: Principals, page: int, mine: Callable[[str], bool]
    ) -> None:
        self._database = database
        self._now = now
        self._principals = principals
        self._page = page
        self._mine = mine
        self._indexed = False
        # The last session that was read, or is not mine.
        self._behind = 0

    async def broadcasts(self) -> list[BroadcastRecord]:
        """The messages that were on their way to very many, as if to all sessions."""
        loaded = Loaded(self._now, self._principals, self._page)
        async for rows in turns(self._database, BROADCASTS, (0,)):
            for row in rows:
                loaded.broadcast(row)
        return loaded.saved.broadcasts

    async def next(self, broadcasts: Sequence[BroadcastRecord]) -> Loaded | None:
        """The next sessions, and which of them have had the broadcasts; None: these were all, and it begins anew.

        Raises what asyncpg and the system raise, `Damaged`, and `Replaced`.
        """
        numbers = await self._choose()
        if not numbers:
            self._behind = 0
            return None
        self._behind = numbers[-1]
        loaded = Loaded(self._now, self._principals, self._page)
        try:
            await self._read(loaded, numbers)
            await self._read_passed(loaded, numbers, broadcasts)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, RecursionError, OverflowError) as error:
            # Whatever a hand wrote there.
            raise Damaged(fault(error)) from error
        return loaded

    async def _choose(self) -> list[int]:
        """The numbers of the next sessions."""
        if not self._indexed:
            await self._index()
        wills: dict[int, int] = {}
        behind, rows = self._behind, TURN
        while rows == TURN and not wills:
            found = await self._fetch(CLIENTS, behind, TURN)
            rows = len(found)
            for number, client_id, will in found:
                behind = number
                if not client_id.startswith(RESERVED) and self._mine(client_id):
                    wills[number] = will
        sizes = {row[0]: row for row in await self._fetch(SIZES, list(wills))} if wills else {}
        chosen: list[int] = []
        rows_left, bytes_left = MOST_ROWS, MOST_BYTES
        for number, will in wills.items():
            rows_left -= sizes[number][1]
            bytes_left -= sizes[number][2] + will
            if chosen and (rows_left < 0 or bytes_left < 0):
                break
            chosen.append(number)
        return chosen

    async def _index(self) -> None:
        connection = await self._database.connection()
        for statement in INDEX:
            await connection.execute(statement, timeout=self._database.timeout)
        last, rows = 0, INDEXED
        while rows == INDEXED:
            [[number, rows]] = await self._fetch(INDEX_SOME, last, INDEXED)
            last = number or 0
        self._indexed = True

    async def _read(self, loaded: Loaded, numbers: list[int]) -> None:
        within = (numbers, numbers[-1])
        for row in await self._fetch(SESSIONS, numbers):
            loaded.session(row)
        async for rows in turns(self._database, SUBSCRIPTIONS, (0, ""), within):
            for row in rows:
                loaded.subscription(row)
        async for rows in turns(self._database, NUMBERS, (0,), within):
            found = await self._fetch(DELIVERIES, [number for [number] in rows])
            wanted = {row[2] for row in found if row[2] is not None}
            for row in await self._fetch(SHARED, [each for each in wanted if each not in loaded.messages]):
                loaded.shared(row)
            for row in found:
                loaded.delivery(row)
        async for rows in turns(self._database, RECEIVED, (0, 0), within):
            for session, packet_id, number in rows:
                loaded.received(session, packet_id, number)
        for session, read_back in await self._fetch(PAGED, numbers):
            rows = await self._fetch(PAGES, session, read_back)
            while rows:
                for number, size in rows:
                    loaded.paged(session, number, size)
                rows = await self._fetch(PAGES, session, rows[-1][0])

    async def _read_passed(self, loaded: Loaded, numbers: list[int], broadcasts: Sequence[BroadcastRecord]) -> None:
        by_number = {each.number: each for each in broadcasts}
        for each in broadcasts:
            each.passed.clear()
        if broadcasts:
            for number, session in await self._fetch(PASSED, list(by_number), numbers):
                by_number[number].passed.add(loaded.sessions[session].client_id)

    async def _fetch(self, statement: str, *values: object) -> Sequence[Any]:
        await keep(self._database)
        return await self._database.fetch(statement, *values)
