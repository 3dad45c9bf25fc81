"""The figures of a store in a database, as `figures` has those of a file, beside a broker that may be running.

Promises: everything that is told of one schema is of one moment, and nothing is changed. Faults are `StoreError`, in
one line.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import asyncpg

from broker.store.base import StoreError
from broker.store.groups import checksums
from broker.store.postgresql.database import FAILURES, Database
from broker.store.postgresql.schema import VERSION
from broker.store.times import Note, ahead_of_wall
from broker.store.tools.figures import COUNTS, DELIVERIES, OLDEST, QUEUES
from broker.store.tools.rows import LONGEST_NAME, STATES
from broker.store.tools.verifying import DISAGREE

USER: Final = "SELECT node FROM owner WHERE lease_until > clock_timestamp()"
CLOCK: Final = "SELECT time, wall, uptime, boot, clock_checksum FROM owner"
SIZE: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0)::bigint FROM pg_class"
    " JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = $1 AND relkind = 'r'"
)


def info(url: str, name: str) -> dict[str, Any]:
    """The figures of the store in the schema `name`, as `canopy store info --json` prints them. Raises StoreError."""
    return asyncio.run(_info(_database(url, name)))


def _database(url: str, name: str) -> Database:
    return Database(url, name, node="store info", synchronous="off", stall_timeout=0.0, lease_timeout=0.0)


async def _info(database: Database) -> dict[str, Any]:
    try:
        return await _look(database, _figures)
    finally:
        await database.disconnect()


def verify(url: str, name: str) -> list[str]:
    """What is wrong with the rows of a store in the schema `name`, a line each. Raises StoreError."""
    return asyncio.run(_verify(_database(url, name)))


async def _verify(database: Database) -> list[str]:
    try:
        return (await _look(database, _rows))["faults"]  # type: ignore[no-any-return]
    finally:
        await database.disconnect()


async def _rows(database: Database, connection: Any, version: int) -> dict[str, Any]:
    del database, version
    faults: list[str] = []
    for table in checksums.OF:
        async for row in connection.cursor(f"SELECT * FROM {table}", prefetch=1_000):
            values = tuple(row)
            why = checksums.fault(table, values)
            if not why and table == "session" and (will := checksums.will_fault(values)):
                why = f"the will: {will}"
            if why:
                faults.append(f"{table} {values[0]!r:.{LONGEST_NAME}}: {why}")
    for statement, line in DISAGREE:
        faults += [line.format(*values) for values in await connection.fetch(statement)]
    return {"faults": faults}


async def _look(database: Database, figures: Any) -> dict[str, Any]:
    """What `figures` makes of one moment of a schema. Raises StoreError."""
    try:
        connection = await database.connection()
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            version = await connection.fetchval("SELECT version FROM canopy")
            if (version or 0) > VERSION:
                raise StoreError(
                    f"{database.place} is of version {version}, newer than {VERSION}: use the newer canopy"
                )
            found: dict[str, Any] = await figures(database, connection, version)
            return found
    except asyncpg.UndefinedTableError as error:
        raise StoreError(f"{database.place} holds no store: name the schema of store.name (--schema)") from error
    except (*FAILURES, ValueError) as error:
        raise StoreError(database.told(error)) from error


async def _figures(database: Database, connection: Any, version: int) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "path": database.place,
        "version": version,
        "used_by": await connection.fetchval(USER),
        "bytes": await connection.fetchval(SIZE, database.name),
    }
    for name, statement in COUNTS.items():
        figures[name] = int(await connection.fetchval(statement))
    figures["deliveries"] = await _deliveries(connection)
    clock = await connection.fetchrow(CLOCK)
    ahead = ahead_of_wall(Note.of(clock))
    oldest = await connection.fetchrow(OLDEST)
    figures["oldest"] = None if oldest is None else {"client_id": oldest[0], "disconnected_at": oldest[1] - ahead}
    figures["largest"] = [
        {"client_id": client_id, "messages": count, "bytes": int(size)}
        for client_id, count, size in await connection.fetch(QUEUES)
    ]
    return figures


async def _deliveries(connection: Any) -> dict[str, int]:
    counted = dict(await connection.fetch(DELIVERIES))
    return {name: counted.get(state, 0) for state, name in STATES.items()}
