"""Opens the schema of a shared store for a node: makes it where it is not there, and refuses what cannot serve.

Promises: every refusal is one line with the place, the fault and the remedy (`StoreError`). Nothing is written into a
schema of another program, or of another version.
"""

from __future__ import annotations

from typing import Any, Final

from canopy_mqtt.store.base import StoreError
from canopy_mqtt.store.postgresql.opening import check_version, make_schema
from canopy_mqtt.store.shared.functions import FUNCTIONS
from canopy_mqtt.store.shared.schema import PARTITIONS, TABLES, TYPES, VERSION

OLDEST: Final = 13
"""The oldest PostgreSQL that will do."""

FOREIGN: Final = {"owner": "is the store of a single broker: name another schema (store.name)"}


async def open_schema(connection: Any, name: str, cluster: str, place: str) -> str:
    """Open the schema `name` of a cluster over a connection, and return its identity; of several nodes one makes it.

    Raises StoreError.
    """
    await _check_server(connection, place)
    async with connection.transaction():
        statements = (TYPES, TABLES, PARTITIONS, *FUNCTIONS)
        if await make_schema(connection, name, place, mark="cluster", foreign=FOREIGN, statements=statements):
            await connection.execute("INSERT INTO cluster (version, name) VALUES ($1, $2)", VERSION, cluster)
        version, owner, identity = await connection.fetchrow("SELECT version, name, id::text FROM cluster")
    check_version(version, VERSION, place)
    if owner != cluster:
        raise StoreError(
            f'{place} has the sessions of the cluster "{owner}", and this is a node of "{cluster}" (cluster.name): '
            "name another schema (store.name)"
        )
    return str(identity)


async def _check_server(connection: Any, place: str) -> None:
    if connection.get_server_version().major < OLDEST:
        raise StoreError(
            f"{place} is PostgreSQL {connection.get_server_version().major}: a cluster needs {OLDEST} or newer"
        )
    # A pooler has process numbers of its own, and gives each transaction another session.
    if await connection.fetchval("SELECT pg_backend_pid()") != connection.get_server_pid():
        raise StoreError(
            f"{place} is reached through a pooler, which keeps no session: name the database itself in store.url"
        )
