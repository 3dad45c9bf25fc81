"""Sessions of a dead node of the same mesh, which come out of its schema into this broker's.

Owns which schemas nobody holds, and the lease of one while its sessions come. Promises: the database says who is dead:
a schema whose lease is renewed is left alone; one that is taken has a new epoch, so that its broker cannot write there
any more; a session goes there in the transaction that writes it here (`move`), which holds both epochs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from broker.core.connection.connect.handshake import RESERVED
from broker.core.persistence.journal import SessionRecord
from broker.core.persistence.pages import Page
from broker.core.routing.remote.loop_detection import FROM_NODE
from broker.store.adoptions import Abandoned, Adoptions, Estate, cost
from broker.store.base import StoreError
from broker.store.groups.committing import Groups
from broker.store.groups.group import Adopted
from broker.store.groups.principals import Principals
from broker.store.groups.records import Damaged
from broker.store.postgresql.copying import Copies, Range, copy, quoted
from broker.store.postgresql.database import FAILURES, Database, Replaced
from broker.store.postgresql.pieces import Pieces
from broker.store.postgresql.schema import VERSION
from broker.store.postgresql.sweeping import Sweep
from broker.store.times import Times

AT_ONCE: Final = 100
"""Schemas of the database that are looked at by one statement; what the broker writes has its turn between two."""

RECEIVED: Final = (
    "SELECT client_id, packet_id FROM received JOIN session ON session.id = received.session"
    " WHERE starts_with(client_id, $1)"
)

SCHEMAS: Final = (
    "SELECT nspname::text FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
    " JOIN pg_namespace ON pg_namespace.oid = relnamespace"
    " WHERE relname = 'owner' AND relkind = 'r' AND attname = 'adopter' AND nspname <> $1 AND nspname > $2"
    " AND has_schema_privilege(pg_namespace.oid, 'USAGE') AND has_table_privilege(pg_class.oid, 'UPDATE')"
    " ORDER BY nspname LIMIT $3"
)
JOIN: Final = "UPDATE owner SET mesh = $2, member = $3 WHERE epoch = $1"
FREE: Final = (
    "SELECT ($2::text[])[{1}], member, epoch, adopter <> '', lease_until >= clock_timestamp() FROM {0}.owner"
    " WHERE mesh = $1 AND (adopter <> '' OR lease_until < clock_timestamp())"
)
"""Of one schema, the name of which stands at that place of the second value."""
CLIENTS: Final = "SELECT EXISTS (SELECT 1 FROM {0}.session WHERE NOT client_id LIKE ANY($1::text[]))"
COUNT: Final = "SELECT count(*) FROM session WHERE NOT client_id LIKE ANY($1::text[])"
ADOPT: Final = (
    "UPDATE owner SET epoch = epoch + 1, adopter = $1, lease_until = clock_timestamp() + $2 * interval '1 second'"
    " WHERE epoch = $3 AND lease_until < clock_timestamp() RETURNING epoch"
)
KNOWN: Final = "SELECT version FROM canopy"

HOLD: Final = (
    "UPDATE {0}.owner SET lease_until = clock_timestamp() + $2 * interval '1 second' WHERE epoch = $1 RETURNING epoch"
)
GONE: Final = (
    "WITH gone AS (DELETE FROM {0}.session WHERE id = ANY($1::bigint[]) RETURNING id),"
    " back AS (DELETE FROM {0}.read_back WHERE session = ANY($1::bigint[]))"
    " INSERT INTO {0}.gone_session SELECT id FROM gone ON CONFLICT DO NOTHING"
)


CLIENTLESS: Final = [f"{each}%" for each in RESERVED]
"""The names of sessions that are no client's, as patterns."""


async def move(connection: Any, adopted: Adopted, lease: float, copied: bool = False) -> None:
    """Take sessions out of another schema, within the transaction that writes them here. Raises Replaced.

    `copied`: the transaction has what was copied before.
    """
    source = quoted(adopted.source)
    if await connection.fetchval(HOLD.format(source), adopted.epoch, lease) is None:
        raise Replaced(
            f"schema {adopted.source} was taken by another broker while its sessions came here: this broker has to "
            "begin anew"
        )
    await copy(connection, adopted.source, adopted.pages if copied else [*adopted.copied, *adopted.pages])
    await connection.execute(GONE.format(source), adopted.sessions)


def _add(ranges: list[Range], last: tuple[int, int], added: Range) -> None:
    """Have a page be moved, too. `last`: the session there, and the last number here, of the page before."""
    number, known, _, last_number, first = added
    if ranges and last == (number, first - 1):
        # Nothing stands between the two, there or here: one statement for both.
        ranges[-1] = (number, known, ranges[-1][2], last_number, ranges[-1][4])
    else:
        ranges.append(added)


class PostgresEstate(Estate):
    """A schema that this broker holds besides its own, over a connection of its own. `own`: its own."""

    def __init__(
        self, database: Database, own: Database, groups: Groups, node: str, read_at: float, pieces: Pieces
    ) -> None:
        super().__init__(node, read_at)
        self._database = database
        self._copies = Copies(own, database, groups.journal)
        self._pieces = pieces
        self._groups = groups
        self._notes = groups.journal.adoptions
        # The session there, and the last number here, of the last page.
        self._last_page = (0, 0)

    async def begin(self) -> None:
        """Look what is there. Raises what the database does to us, and Damaged."""
        [[self.count]] = await self._database.fetch(COUNT, CLIENTLESS)
        for client_id, packet_id in await self._database.fetch(RECEIVED, FROM_NODE):
            self.received.setdefault(client_id.removeprefix(FROM_NODE), []).append(packet_id)
        self.broadcasts = await self._pieces.broadcasts()

    async def more(self) -> bool:
        try:
            loaded = await self._pieces.next(self.broadcasts)
        except Damaged as error:
            raise _damaged(self._database, error) from error
        except FAILURES as error:
            raise StoreError(self._database.told(error)) from error
        if loaded is None:
            return False
        self.sessions.extend(loaded.sessions.items())
        return True

    async def prepare(self, most: int) -> None:
        chosen: list[tuple[int, SessionRecord]] = []
        for number, record in self.sessions:
            chosen.append((number, record))
            most -= cost(record)
            if most <= 0:
                break
        try:
            await self._copies.make(chosen)
        except FAILURES as error:
            raise StoreError(self._database.told(error)) from error

    def place(self, number: int, page: Page | None) -> None:
        self._copies.place(number, page)

    def page(self, number: int, client_id: str, page: Page) -> Page:
        journal = self._groups.journal
        known = int(journal.kept[client_id].id)
        adopted = self._of()
        adopted.bytes += page.bytes
        copied = self._copies.of(number)
        if copied is None:
            first = journal.adopting(page.messages)
            _add(adopted.pages, self._last_page, (number, known, page.first, page.last, first))
        else:
            first = sum(copied.places[page.first])
            copied.pages -= 1
            _add(adopted.copied, self._last_page, (number, known, page.first, page.last, first))
        self._last_page = (number, first + page.messages - 1)
        return Page(first, first + page.messages - 1, page.messages, page.bytes)

    def took(self, number: int) -> None:
        self._copies.place(number, None)
        self._of().sessions.append(number)
        self._groups.journal.adopting(0)

    def _of(self) -> Adopted:
        return self._notes.of(self._database.name, self._database.epoch)

    def end(self) -> None:
        begun = self._copies.take()
        if begun is not None:
            self._of().begun = begun
        self._groups.end()

    async def kept(self) -> None:
        await self._groups.flush()
        if self._database.is_due():
            with suppress(*FAILURES):
                await self._database.renew()

    async def close(self) -> None:
        """What the sessions left there is removed first, as far as that goes."""
        self._copies.drop()
        try:
            if not (await self._database.fetch(COUNT, CLIENTLESS))[0][0]:
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
    """Whoever it is whose sessions are left there may have it at once, or the next node."""
    await database.give_up()
    await database.disconnect()


def _damaged(database: Database, error: Damaged) -> StoreError:
    return StoreError(f"{database.place} is damaged: restore it from a backup ({error})")


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
        found: list[Abandoned] = []
        names = [""]
        while names:
            names = await self._ask(partial(self._look, names[-1], found))
        return found

    async def _look(self, behind: str, found: list[Abandoned]) -> list[str]:
        """Look at the next schemas: their names."""
        database = self._database
        names = [name for [name] in await database.fetch(SCHEMAS, database.name, behind, AT_ONCE)]
        if names:
            owners = " UNION ALL ".join(FREE.format(quoted(name), at) for at, name in enumerate(names, 1))
            for name, node, epoch, begun, held in await database.fetch(owners, self._mesh, names):
                [[clients]] = await database.fetch(CLIENTS.format(quoted(name)), CLIENTLESS)
                if clients:
                    found.append(Abandoned(name, node, epoch, begun, held))
        return names

    async def take(self, store: Abandoned, mine: Callable[[str], bool]) -> Estate | None:
        database = self._database.other(store.name)
        try:
            if not await self._hold(database, store.epoch):
                await database.disconnect()
                return None
            pieces = Pieces(database, self._times.now(), self._principals, self._page, mine)
            estate = PostgresEstate(database, self._database, self._groups, store.node, self._times.broker(), pieces)
            await estate.begin()
        except BaseException as error:
            database.drop()
            await _let_go(database)
            if isinstance(error, Damaged):
                raise _damaged(database, error) from error
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
