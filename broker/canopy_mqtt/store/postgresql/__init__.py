"""A store in a PostgreSQL database: one schema, written in groups over one connection, on the event loop.

Owns everything between a group and the database: `database` is the connection and the lease of the schema, `opening`
makes and migrates its tables, `writing` writes a group in one transaction, `reading` reads at the start and what is in
the database only, `sweeping` removes what ended sessions left, `store` does one after another. `schema` is what an
operator sees. Needs the extra `postgresql` (asyncpg).
"""

from __future__ import annotations

from canopy_mqtt.store.postgresql.store import PostgresStore

__all__ = ["PostgresStore"]
