"""Opens the schema of a store: whether it can be used, its version, and which broker uses it.

Promises: every error is one line with the place, the fault and the remedy (`StoreError`); a schema of another program,
or of another version, is never written to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.group_commit.records import MAX_NUMBER
from canopy_mqtt.store.postgresql import schema
from canopy_mqtt.store.postgresql.database import FAILURES, Database
from canopy_mqtt.store.times import Note

OTHERS: Final = (
    "SELECT relname::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = $1 LIMIT 1"
)
FOREIGN: Final = {
    "cluster": "has the sessions that the nodes of a cluster share: name another schema (store.name), or the cluster "
    "(cluster.name)"
}
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


async def make_schema(
    connection: Any, name: str, place: str, *, mark: str, foreign: Mapping[str, str], statements: Iterable[str]
) -> bool:
    """Make a schema and its tables within a transaction, unless the table `mark` is there; of several brokers that come
    at once, one makes them. `place`: for people; `foreign`: why it is refused, by tables that others make.

    Returns:
        Whether it was made.

    Raises:
        StoreError: it has others' tables, or the database has another encoding.
    """
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreError(f"{place} is a database in {encoding}: make one with ENCODING 'UTF8'")
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"canopy {name}")
    if not await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", name):
        await connection.execute(f'CREATE SCHEMA "{name}"')
    if await connection.fetchval("SELECT to_regclass($1)::text", mark):
        return False
    for table, why in foreign.items():
        if await connection.fetchval("SELECT to_regclass($1)::text", table):
            raise StoreError(f"{place} {why}")
    if await connection.fetchval(OTHERS, name):
        raise StoreError(f"{place} has another program's tables: name another schema (store.name)")
    for text in statements:
        await connection.execute(text)
    return True


def check_version(version: int, known: int, place: str) -> None:
    """Raise StoreError if this broker does not know the version of the tables."""
    if version != known:
        raise StoreError(
            f"{place} is of version {version}, and this broker's is {known}: run the Canopy that made it, or name"
            " another schema (store.name)"
        )


async def _make(database: Database) -> None:
    """Make the schema and its tables, all or none, unless they are there."""
    connection = await database.connection()
    async with connection.transaction():
        made = await make_schema(
            connection, database.name, database.place, mark="canopy", foreign=FOREIGN, statements=(schema.SCHEMA,)
        )
        if made:
            await connection.execute("INSERT INTO canopy VALUES ($1)", schema.VERSION)
            await connection.execute("INSERT INTO owner VALUES ('', '', 0, '-infinity', 0)")
        check_version(await connection.fetchval("SELECT version FROM canopy"), schema.VERSION, database.place)
