"""Finds the schemas of former workers' stores in a database, and removes empty ones."""

from __future__ import annotations

import contextlib
import re
from typing import Final

import asyncpg

from broker.store.base import Part, StoreError
from broker.store.parts import REMAINS
from broker.store.postgresql import schema
from broker.store.postgresql.database import FAILURES, Database, place
from broker.store.postgresql.opening import begin

STORES: Final = (
    "SELECT nspname::text FROM pg_namespace JOIN pg_class ON relnamespace = pg_namespace.oid"
    " WHERE relname = 'canopy' AND starts_with(nspname::text, $1)"
)
TABLES: Final = tuple(re.findall(r"CREATE TABLE (\w+)", schema.SCHEMA))


async def parts(database: Database) -> list[Part]:
    """The stores of workers beside that of the first one. Raises StoreError."""
    try:
        rows = await database.fetch(STORES, f"{database.name}_w")
    except FAILURES as error:
        database.drop()
        raise StoreError(database.told(error)) from error
    numbers = [row[0].removeprefix(f"{database.name}_w") for row in rows]
    where = place(database.url)
    return sorted(
        Part(int(number), f"{where}, schema {database.name}_w{number}")
        for number in numbers
        if re.fullmatch("[1-9][0-9]?", number)
    )


async def remove(database: Database) -> None:
    """Remove the tables of a store that has no session of a client, and its schema. Raises StoreError."""
    await begin(database, "", lambda _: None)
    try:
        # Nobody else takes it from here on.
        await database.hold()
        for what, statement in REMAINS:
            [[count]] = await database.fetch(statement)
            if count:
                raise StoreError(f"{database.place} is not removed: {count} {what} are in it")
        connection = database.begun()
        await connection.execute(f"DROP TABLE {', '.join(TABLES)}")
        await connection.execute("COMMIT")
        # Unless it is not this user's, or something else is in it.
        with contextlib.suppress(asyncpg.PostgresError):
            await connection.execute(f'DROP SCHEMA "{database.name}"')
    except FAILURES as error:
        raise StoreError(database.told(error)) from error
    except StoreError:
        database.drop()
        await database.give_up()
        raise
    finally:
        await database.disconnect()
