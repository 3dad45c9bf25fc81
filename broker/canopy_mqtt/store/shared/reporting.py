"""What operators ask of a shared store, and how they end a session that may be anywhere.

A session ends as by a client that claims it with Clean Start, and leaves: so the node that has it hears of that as of
any claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX
from canopy_mqtt.store.base import NodeReport, SessionLine, SessionReport, SharedReports, StoreError
from canopy_mqtt.store.postgresql.database import FAILURES
from canopy_mqtt.store.shared.calls import Content, NewWill, Owner, Terms, Waiting
from canopy_mqtt.store.shared.database import SharedDatabase
from canopy_mqtt.store.shared.holder import UNAVAILABLE
from canopy_mqtt.store.shared.node import Node, Session

T = TypeVar("T")


class Reports(SharedReports):
    """Asks the database of a node."""

    def __init__(self, database: SharedDatabase, node: Node, flush: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`flush`: waits until all that is noted is written; raises StoreError."""
        self._database, self._node, self._flush = database, node, flush

    async def nodes(self) -> Sequence[NodeReport]:
        return await self._ask(self._database.reports())

    async def session(self, client_id: str) -> SessionReport | None:
        found = await self._ask(self._database.report(client_id))
        return None if found is None else found[0]

    async def sessions(self, after: str, like: str, away: bool | None, limit: int) -> Sequence[SessionLine]:
        return await self._ask(self._database.sessions(after, like, away, limit))

    async def end_session(self, client_id: str) -> bool:
        found = await self._ask(self._database.report(client_id))
        if found is None or client_id.startswith(SHARE_PREFIX):
            # The queue of a share group goes with the last subscription.
            return False
        if self._node.joined is None:
            raise StoreError(UNAVAILABLE)
        ending = Ending(self._node, found[1])
        self._node.claim(client_id, ending)
        if not await ending.done:
            raise StoreError(UNAVAILABLE)
        await self._flush()
        return True

    @staticmethod
    async def _ask(asked: Coroutine[Any, Any, T]) -> T:
        try:
            return await asked
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
