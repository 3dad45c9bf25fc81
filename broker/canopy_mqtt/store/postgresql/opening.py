"""Opens the schema of a store: whether it can be used, its version, and which broker uses it.

Promises: every error is one line with the place, the fault and the remedy (`StoreError`); a schema of another program,
or of another version, is never written to.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.group_commit.records import MAX_NUMBER
from canopy_mqtt.store.postgresql import schema
from canopy_mqtt.store.postgresql.database import FAILURES, Database
from canopy_mqtt.store.times import Note

OTHERS: Final = (
    "SELECT relname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = $1 LIMIT 1"
)
NUMBERS: Final = (
    "SELECT greatest((SELECT max(id) FROM session), (SELECT max(id) FROM gone_session), 0),"
    " greatest((SELECT max(number) FROM delivery), (SELECT max(id) FROM broadcast),"
    " (SELECT max(number) FROM read_back), 0),"
    " greatest((SELECT max(id) FROM message), 0)"
)


class OpenedForBroker(NamedTuple):
    """The highest numbers in an open schema, that of its last group, and how the clocks stood then."""

    highest: tuple[int, int, int]
    group: int
    note: Note | None


async def open_for_broker(database: Database) -> OpenedForBroker:
    """Open the schema for a broker; schema and tables are made where they are not there. Raises StoreError."""
    taken = False
    try:
        async with asyncio.timeout(database.timeout):
            await _make(database)
        group, note = await database.take()
        taken = True
        [row] = await database.fetch(NUMBERS)
        highest = (row[0], row[1], row[2])
        if max(highest) > MAX_NUMBER:
            raise StoreError(f"{database.place} is damaged: a number in it is above {MAX_NUMBER}")
    except (*FAILURES, ValueError) as error:
        await _let_go(database, taken)
        raise StoreError(database.told(error)) from error
    except BaseException:
        await _let_go(database, taken)
        raise
    return OpenedForBroker(highest, group, note)


async def _let_go(database: Database, taken: bool) -> None:
    """Release the tables, so that the next broker need not wait."""
    database.drop()
    if taken:
        await database.give_up()
        database.drop()


async def _make(database: Database) -> None:
    """Make the schema and its tables, all or none, unless they are there. Of two brokers one makes them."""
    connection = await database.connection()
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{database.place} is a database in {encoding}: make one with ENCODING 'UTF8'")
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"canopy {database.name}")
        there = await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", database.name)
        if not there:
            await connection.execute(f'CREATE SCHEMA "{database.name}"')
        if not await connection.fetchval("SELECT to_regclass('canopy')::text"):
            if await connection.fetchval("SELECT to_regclass('canopy_store')::text"):
                raise _too_old(database)
            if await connection.fetchval("SELECT to_regclass('cluster')::text"):
                raise StoreError(
                    f"{database.place} has the sessions that the nodes of a cluster share: name another schema "
                    "(store.name), or the cluster (cluster.name)"
                )
            if await connection.fetchval(OTHERS, database.name):
                raise StoreError(f"{database.place} has another program's tables: name another schema (store.name)")
            await connection.execute(schema.SCHEMA)
            await connection.execute("INSERT INTO canopy VALUES ($1)", schema.VERSION)
            await connection.execute("INSERT INTO owner VALUES ('', '', 0, '-infinity', 0)")
        await _check_version(database)


def _too_old(database: Database) -> StoreError:
    return StoreError(
        f"{database.place} was written by a Canopy from before the first release: name another schema (store.name), "
        "or drop this one"
    )


async def _check_version(database: Database) -> None:
    """Raise StoreError if this broker does not know the version of the tables."""
    [[version]] = await database.fetch("SELECT version FROM canopy")
    if version < schema.VERSION:
        raise _too_old(database)
    if version > schema.VERSION:
        raise StoreError(
            f"{database.place} is of version {version}, newer than this broker's {schema.VERSION}: run the newer broker"
        )
