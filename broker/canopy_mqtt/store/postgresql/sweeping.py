"""Removes what ended sessions left in the database, a piece at a time, between groups.

Owns the progress. A session ends with its own row; its subscriptions, packet identifiers and deliveries then belong to
no session, and are skipped when they are read. Promises: a piece is one transaction, bounded in rows; a round visits
each delivery once, for any number of sessions.
"""

from __future__ import annotations

from typing import Any, Final

from canopy_mqtt.store.postgresql.database import Database
from canopy_mqtt.store.postgresql.schema import FINISHED

SEEN: Final = 20_000
"""Deliveries that a piece looks at."""

REMOVED: Final = 2_000
"""Rows that a piece removes."""

LAST: Final = "SELECT max(id) FROM gone_session"
FORGET_SUBSCRIPTIONS: Final = (
    "DELETE FROM subscription USING (SELECT session, filter FROM gone_session JOIN subscription ON session = id"
    " WHERE id <= $1 LIMIT $2) AS over WHERE subscription.session = over.session AND subscription.filter = over.filter"
)
FORGET_RECEIVED: Final = (
    "DELETE FROM received USING (SELECT session, packet_id FROM gone_session JOIN received ON session = id"
    " WHERE id <= $1 LIMIT $2) AS over"
    " WHERE received.session = over.session AND received.packet_id = over.packet_id"
)
SOME: Final = (
    "WITH seen AS (SELECT number, session IN (SELECT id FROM gone_session WHERE id <= $2) AS gone FROM delivery"
    " WHERE number > $1 ORDER BY number LIMIT $3)"
    " SELECT (SELECT count(*) FROM seen), (SELECT max(number) FROM seen),"
    " ARRAY(SELECT number FROM seen WHERE gone ORDER BY number LIMIT $4)"
)
"""How many deliveries were looked at, the last one, and those that are to go, in their order: some of them."""
FORGET_GONE: Final = "DELETE FROM gone_session WHERE id <= $1"


class Sweep:
    """Removes the rows of ended sessions piece by piece, as long as there are any."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # The last session that this round is about; None: there is no round.
        self._last: int | None = None
        self._phase = 0
        # Up to this delivery there is nothing left.
        self._number = 0

    async def piece(self) -> bool:
        """Remove some rows; False: there is nothing left. Raises what asyncpg raises; then the round begins again."""
        try:
            await self._database.hold()
            connection = self._database.begun()
            if self._last is None:
                self._last = await connection.fetchval(LAST)
                self._phase = self._number = 0
            if self._last is not None and await self._some(connection, self._last):
                self._phase += 1
            await connection.execute("COMMIT")
        except BaseException:
            self._last = None
            raise
        if self._last is None:
            return False
        if self._phase > 2:
            self._last = None
        return True

    async def _some(self, connection: Any, last: int) -> bool:
        if self._phase == 0:
            return _rows(await connection.execute(FORGET_SUBSCRIPTIONS, last, REMOVED)) < REMOVED
        if self._phase == 1:
            return _rows(await connection.execute(FORGET_RECEIVED, last, REMOVED)) < REMOVED
        seen, behind, over = await connection.fetchrow(SOME, self._number, last, SEEN, REMOVED + 1)
        if over:
            await connection.execute(FINISHED, over[:REMOVED])
        if len(over) > REMOVED:
            self._number = over[REMOVED - 1]
            return False
        if seen == SEEN:
            self._number = behind
            return False
        await connection.execute(FORGET_GONE, last)
        return True


def _rows(tag: str) -> int:
    """Return how many rows a statement was about, from PostgreSQL's command tag."""
    return int(tag.rpartition(" ")[2])
