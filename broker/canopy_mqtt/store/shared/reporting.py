"""What operators ask of a shared store, and how they end a session that may be anywhere.

A session ends as by a client that claims it with Clean Start, and leaves: so the node that has it hears of that as of
any claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX
from canopy_mqtt.store.base import MAX_COUNTED, NodeReport, SessionLine, SessionReport, SharedReports, StoreError
from canopy_mqtt.store.postgresql.database import FAILURES
from canopy_mqtt.store.shared.calls import Content, NewWill, Owner, Terms, Waiting
from canopy_mqtt.store.shared.database import SharedDatabase
from canopy_mqtt.store.shared.holder import UNAVAILABLE
from canopy_mqtt.store.shared.node import Node, Session
from canopy_mqtt.store.shared.schema import NEVER

NODES: Final = """
SELECT n.name, n.alive, extract(epoch FROM clock_timestamp() - b.at)::float8, n.version, s.clients, s.durable
    FROM node n JOIN beat b ON b.node = n.id CROSS JOIN LATERAL (
        SELECT count(*) AS clients, count(*) FILTER (WHERE expiry > 0) AS durable
            FROM session WHERE node = n.id AND n.alive AND incarnation = n.incarnation
    ) s ORDER BY n.name
"""
SESSION: Final = f"""
SELECT s.id, s.principal, s.account, coalesce(n.name, ''), s.epoch, CASE WHEN s.expiry < {NEVER} THEN s.expiry END,
        CASE WHEN isfinite(s.expires_at) THEN greatest(extract(epoch FROM s.expires_at - clock_timestamp()), 0)::float8
            END,
        (SELECT count(*) FROM delivery d WHERE d.session = s.id AND state = 0),
        (SELECT count(*) FROM delivery d WHERE d.session = s.id AND state > 0),
        (SELECT count(*) FROM subscription b WHERE b.session = s.id)
    FROM session s LEFT JOIN node n ON n.id = s.node WHERE s.client_id = $1
"""
SESSIONS: Final = f"""
SELECT s.client_id, s.account, coalesce(n.name, ''), CASE WHEN s.expiry < {NEVER} THEN s.expiry END,
        CASE WHEN isfinite(s.expires_at) THEN greatest(extract(epoch FROM s.expires_at - clock_timestamp()), 0)::float8
            END,
        (SELECT count(*) FROM (SELECT FROM delivery d WHERE d.session = s.id AND state = 0 LIMIT {MAX_COUNTED}) c),
        (SELECT count(*) FROM subscription b WHERE b.session = s.id)
    FROM (
        SELECT * FROM session
            WHERE client_id > $1 AND NOT starts_with(client_id, '{SHARE_PREFIX}') AND expiry > 0
                AND ($2 = '' OR position(lower($2) IN lower(client_id)) > 0)
                AND ($3::boolean IS NULL OR $3 = (node IS NULL))
            ORDER BY client_id LIMIT $4
    ) s LEFT JOIN node n ON n.id = s.node ORDER BY s.client_id
"""
SUBSCRIPTIONS: Final = """
SELECT f.name, b.qos FROM subscription b JOIN filter f ON f.id = b.filter WHERE b.session = $1 ORDER BY f.name LIMIT $2
"""
LISTED: Final = 1_000
"""Subscriptions that are named of a session."""


class Reports(SharedReports):
    """Asks the database of a node."""

    def __init__(self, database: SharedDatabase, node: Node, flush: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`flush`: waits until all that is noted is written; raises StoreError."""
        self._database, self._node, self._flush = database, node, flush

    async def nodes(self) -> Sequence[NodeReport]:
        return [NodeReport(*row) for row in await self._ask(NODES)]

    async def session(self, client_id: str) -> SessionReport | None:
        for number, _, *row in await self._ask(SESSION, client_id):
            filters = [(name, qos) for name, qos in await self._ask(SUBSCRIPTIONS, number, LISTED)]
            return SessionReport._make([*row, filters])
        return None

    async def sessions(self, after: str, like: str, away: bool | None, limit: int) -> Sequence[SessionLine]:
        return [SessionLine(*row) for row in await self._ask(SESSIONS, after, like, away, limit)]

    async def end_session(self, client_id: str) -> bool:
        found = await self._ask(SESSION, client_id)
        if not found or client_id.startswith(SHARE_PREFIX):
            # The queue of a share group goes with the last subscription.
            return False
        if self._node.joined is None:
            raise StoreError(UNAVAILABLE)
        ending = Ending(self._node, found[0][1])
        self._node.claim(client_id, ending)
        if not await ending.done:
            raise StoreError(UNAVAILABLE)
        await self._flush()
        return True

    async def _ask(self, statement: str, *values: object) -> Sequence[Any]:
        try:
            return await self._database.report(statement, *values)
        except FAILURES as error:
            raise StoreError(UNAVAILABLE) from error


class Ending:
    """Claims a session, and has it end (`node.Client`)."""

    is_gone = False
    room = share_room = 0

    def __init__(self, node: Node, principal: str) -> None:
        """`principal`: whose the session is."""
        self.terms = Terms(clean=True, expiry=0, principal=principal)
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._node = node

    def will_of(self, owner: Owner) -> NewWill | None:
        """It has none."""

    def restored(self, session: Session, content: Content) -> None:
        del content
        self._node.leave(session, 0)
        self._say(True)

    def end(self) -> None:
        """Another claim was later: its client has come, and begun anew."""
        self._say(True)

    def failed(self) -> None:
        self._say(False)

    foreign = failed

    def take(self, waiting: Sequence[Waiting]) -> int:
        del waiting
        return 0

    def go_on(self) -> None:
        """Nothing is sent."""

    def _say(self, ended: bool) -> None:
        if not self.done.done():
            self.done.set_result(ended)
