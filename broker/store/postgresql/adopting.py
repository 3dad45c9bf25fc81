"""Sessions of a dead node of the same mesh, which come out of its schema into this broker's.

Owns which schemas nobody holds, and the lease of one while its sessions come. Promises: the database says who is dead:
a schema whose lease is renewed is left alone; one that is taken has a new epoch, so that its broker cannot write there
any more; a session goes there in the transaction that writes it here (`move`), which holds both epochs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from broker.core.connection.handshake import RESERVED
from broker.core.persistence.pages import Page
from broker.store.adoptions import Abandoned, Adoptions, Estate
from broker.store.base import StoreError, Times
from broker.store.groups.committing import Groups
from broker.store.groups.group import Adopted
from broker.store.groups.principals import Principals
from broker.store.groups.records import Damaged
from broker.store.postgresql.database import FAILURES, Database, Replaced
from broker.store.postgresql.reading import read
from broker.store.postgresql.schema import VERSION
from broker.store.postgresql.sweeping import Sweep

MOST: Final = 1_000
"""Schemas of a database that are looked at."""

SCHEMAS: Final = (
    "SELECT nspname::text FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
    " JOIN pg_namespace ON pg_namespace.oid = relnamespace"
    " WHERE relname = 'owner' AND relkind = 'r' AND attname = 'adopter' AND nspname <> $1"
    " AND has_schema_privilege(pg_namespace.oid, 'USAGE') AND has_table_privilege(pg_class.oid, 'UPDATE')"
    " ORDER BY 1 LIMIT $2"
)
JOIN: Final = "UPDATE owner SET mesh = $2, member = $3 WHERE epoch = $1"
FREE: Final = "SELECT member, epoch FROM {0}.owner WHERE mesh = $1 AND lease_until < clock_timestamp()"
CLIENTS: Final = "SELECT EXISTS (SELECT 1 FROM {0}.session WHERE NOT client_id LIKE ANY($1::text[]))"
ADOPT: Final = (
    "UPDATE owner SET epoch = epoch + 1, adopter = $1, lease_until = clock_timestamp() + $2 * interval '1 second'"
    " WHERE epoch = $3 AND lease_until < clock_timestamp() RETURNING epoch"
)
KNOWN: Final = "SELECT version FROM canopy_store"
LET_GO: Final = "UPDATE owner SET adopter = '', lease_until = '-infinity' WHERE epoch = $1"

HOLD: Final = (
    "UPDATE {0}.owner SET lease_until = clock_timestamp() + $2 * interval '1 second' WHERE epoch = $1 RETURNING epoch"
)
PAGE: Final = (
    "INSERT INTO delivery SELECT $5 - 1 + row_number() OVER (ORDER BY number), $2, NULL, 0, 0, 0, delivery.qos,"
    " delivery.retain, identifiers, share,"
    " CASE WHEN message IS NULL THEN delivery.topic ELSE message.topic END,"
    " CASE WHEN message IS NULL THEN delivery.payload ELSE message.payload END,"
    " CASE WHEN message IS NULL THEN publish_qos ELSE message.qos END,"
    " CASE WHEN message IS NULL THEN publish_retain ELSE message.retain END,"
    " CASE WHEN message IS NULL THEN delivery.properties ELSE message.properties END,"
    " CASE WHEN message IS NULL THEN delivery.publisher ELSE message.publisher END,"
    " CASE WHEN message IS NULL THEN delivery.expires_at ELSE message.expires_at END, size"
    " FROM {0}.delivery LEFT JOIN {0}.message ON message.id = delivery.message"
    " WHERE size IS NOT NULL AND state = 0 AND session = $1 AND number BETWEEN $3 AND $4"
).replace("WHEN message IS NULL", "WHEN delivery.message IS NULL")
GONE: Final = (
    "WITH gone AS (DELETE FROM {0}.session WHERE id = ANY($1::bigint[]) RETURNING id),"
    " back AS (DELETE FROM {0}.read_back WHERE session = ANY($1::bigint[]))"
    " INSERT INTO {0}.gone_session SELECT id FROM gone ON CONFLICT DO NOTHING"
)


def quoted(name: str) -> str:
    """A name as it stands in a statement."""
    return '"' + name.replace('"', '""') + '"'


async def move(connection: Any, adopted: Adopted, lease: float) -> None:
    """Take sessions out of another schema, within the transaction that writes them here. Raises Replaced."""
    source = quoted(adopted.source)
    if await connection.fetchval(HOLD.format(source), adopted.epoch, lease) is None:
        raise Replaced(
            f"schema {adopted.source} was taken by another broker while its sessions came here: this broker has to "
            "begin anew"
        )
    for page in adopted.pages:
        await connection.execute(PAGE.format(source), *page)
    await connection.execute(GONE.format(source), adopted.sessions)


class PostgresEstate(Estate):
    """A schema that this broker holds besides its own, over a connection of its own."""

    def __init__(self, database: Database, groups: Groups, node: str, read_at: float) -> None:
        super().__init__(node, read_at)
        self._database = database
        self._groups = groups
        self._notes = groups.journal.adoptions

    async def read(self, times: Times, principals: Principals, page: int) -> None:
        """Read all of it. Raises what the database does to us, and Damaged."""
        loaded = await read(self._database, times.now(), principals, page, retained=False)
        for number, record in loaded.sessions.items():
            if not record.client_id.startswith(RESERVED):
                self.sessions.append((number, record))
        self.broadcasts = loaded.saved.broadcasts

    def page(self, number: int, client_id: str, page: Page) -> Page:
        journal = self._groups.journal
        first = journal.adopting(page.messages)
        known = journal.kept[client_id].id
        self._of().pages.append((number, known, page.first, page.last, first))
        return Page(first, first + page.messages - 1, page.messages, page.bytes)

    def took(self, number: int) -> None:
        self._of().sessions.append(number)
        self._groups.journal.adopting(0)

    def _of(self) -> Adopted:
        return self._notes.of(self._database.name, self._database.epoch)

    def end(self) -> None:
        self._groups.end()

    async def kept(self) -> None:
        await self._groups.flush()
        if self._database.is_due():
            with suppress(*FAILURES):
                await self._database.renew()

    async def close(self) -> None:
        """What the sessions left there is removed first, as far as that goes."""
        try:
            if not self.sessions:
                await self._sweep()
        except FAILURES:
            self._database.drop()
        except BaseException:
            self._database.drop()
            raise
        finally:
            await _let_go(self._database)

    async def _sweep(self) -> None:
        database = self._database
        sweep = Sweep(database)
        more = True
        while more:
            async with asyncio.timeout(database.timeout):
                more = await sweep.piece()
                if database.is_due():
                    await database.renew()


async def _let_go(database: Database) -> None:
    with suppress(*FAILURES):
        async with asyncio.timeout(database.timeout):
            await (await database.connection()).execute(LET_GO, database.epoch)
    await database.disconnect()


class PostgresAdoptions(Adoptions):
    """See there. `ask` runs something on the connection of the store, whose own schema is that of `database`."""

    def __init__(
        self,
        database: Database,
        mesh: str,
        ask: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
        groups: Groups,
        times: Times,
        principals: Principals,
        page: int,
    ) -> None:
        self._database = database
        self._mesh = mesh
        self._ask = ask
        self._groups = groups
        self._times = times
        self._principals = principals
        self._page = page

    async def join(self, node: str) -> None:
        database = self._database
        await self._ask(lambda: database.fetch(JOIN, database.epoch, self._mesh, node))

    async def abandoned(self) -> list[Abandoned]:
        found: list[Abandoned] = await self._ask(self._look)
        return found

    async def _look(self) -> list[Abandoned]:
        database = self._database
        reserved = [f"{each}%" for each in RESERVED]
        found: list[Abandoned] = []
        for [name] in await database.fetch(SCHEMAS, database.name, MOST):
            for node, epoch in await database.fetch(FREE.format(quoted(name)), self._mesh):
                [[clients]] = await database.fetch(CLIENTS.format(quoted(name)), reserved)
                if clients:
                    found.append(Abandoned(name, node, epoch))
        return found

    async def take(self, store: Abandoned) -> Estate | None:
        database = self._database.other(store.name)
        try:
            if not await self._hold(database, store.epoch):
                await database.disconnect()
                return None
            estate = PostgresEstate(database, self._groups, store.node, self._times.broker())
            try:
                await estate.read(self._times, self._principals, self._page)
            except Damaged as error:
                raise StoreError(f"{database.place} is damaged: restore it from a backup ({error})") from error
        except BaseException as error:
            database.drop()
            await _let_go(database)
            if isinstance(error, FAILURES):
                raise StoreError(database.told(error)) from error
            raise
        return estate

    async def _hold(self, database: Database, epoch: int) -> bool:
        [[version]] = await database.fetch(KNOWN)
        if version != VERSION:
            return False  # a broker of that version is to start there first
        rows = await database.fetch(ADOPT, self._database.node, database.lease_timeout, epoch)
        if not rows:
            return False
        database.held(rows[0][0])
        return True
