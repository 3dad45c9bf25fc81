"""The figures of a store in a database, as `figures` has those of a file, beside a broker that may be running.

Promises: everything that is told of one schema is of one moment, and nothing is changed. Faults are `StoreError`, in
one line.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import asyncpg

from broker.store.base import StoreError
from broker.store.parts import CLIENTS, schema_of
from broker.store.postgresql.database import FAILURES, Database
from broker.store.postgresql.removing import parts
from broker.store.postgresql.schema import VERSION
from broker.store.times import Note, ahead_of_wall
from broker.store.tools.figures import COUNTS, DELIVERIES, OLDEST, QUEUES
from broker.store.tools.rows import STATES

USER: Final = "SELECT node FROM owner WHERE lease_until > clock_timestamp()"
CLOCK: Final = "SELECT time, wall, uptime, boot FROM owner"
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
        found = await _look(database, _figures)
        workers = [
            await _worker(database.other(schema_of(database.name, part.worker))) for part in await parts(database)
        ]
        return {**found, "workers": workers}
    finally:
        await database.disconnect()


async def _worker(database: Database) -> dict[str, Any]:
    try:
        return await _look(database, _few)
    except StoreError as error:
        return {"path": database.place, "fault": str(error)}
    finally:
        await database.disconnect()


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


async def _few(database: Database, connection: Any, version: int) -> dict[str, Any]:
    del version
    return {
        "path": database.place,
        "sessions": await connection.fetchval(CLIENTS),
        "messages": sum((await _deliveries(connection)).values()),
        "used_by": await connection.fetchval(USER),
    }


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
    ahead = ahead_of_wall(None if clock[0] is None else Note(*clock))
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
