"""The sessions of nodes that are dead, taken over from the database that both used.

Owns when this node does it: for a store that no broker holds, whose node has been gone for `mesh.dead_after`. One node
is chosen for each store (rendezvous hashing), and any other where that one has not done it `AGAIN` seconds later.
Promises: one store at a time; the work of one turn is bounded; what fails is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from broker.mesh.bus import Bus
from broker.mesh.ownership.leaving import chosen
from broker.mesh.ownership.room import Ownership
from broker.store.adoptions import Abandoned, Adoptions, Estate
from broker.store.base import StoreError

if TYPE_CHECKING:
    from broker.net.server import Server

PIECE: Final = 250
"""Sessions, subscriptions and messages that are put here in one turn, about: some milliseconds."""

AGAIN: Final = 30.0
"""Seconds after which any node takes what the one that was chosen has not."""

LOOK: Final = (0.05, 5.0)
"""Seconds between two looks at the database, at least and at most; between them a quarter of `mesh.dead_after`."""


class Adoption:
    """What this node takes over."""

    def __init__(
        self,
        server: Server,
        bus: Bus,
        ownership: Ownership,
        adoptions: Adoptions,
        dead_after: float,
        down: Callable[[], dict[str, float]],
        wake: Callable[[], None],
    ) -> None:
        """`down`: for how many seconds each node that is known has been gone; 0.0: it is there."""
        self._server = server
        self._log: Any = server.log
        self._bus = bus
        self._ownership = ownership
        self._adoptions = adoptions
        self._dead_after = dead_after
        self._down = down
        self._wake = wake
        # When each store that nobody holds was seen so first, by name and epoch.
        self._seen: dict[tuple[str, int], float] = {}
        self._task = server.loop.create_task(self._run(), name="canopy-adoption")

    async def stop(self) -> None:
        """This node ends: what has not come yet is another's."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _run(self) -> None:
        least, most = LOOK
        joined = False
        while True:
            try:
                if not joined:
                    await self._adoptions.join(self._bus.node)
                    joined = True
                await self._look()
            except StoreError as error:
                # The store tells of its own troubles.
                self._log.debug("sessions of dead nodes not looked for", reason=str(error))
            except Exception as error:
                self._server.faults.broke("mesh", error)
            await asyncio.sleep(min(max(self._dead_after / 4, least), most))

    async def _look(self) -> None:
        found = await self._adoptions.abandoned()
        now = self._server.loop.time()
        self._seen = {(each.name, each.epoch): self._seen.get((each.name, each.epoch), now) for each in found}
        for store in found:
            if self._is_due(store):
                await self._take(store)

    def _is_due(self, store: Abandoned) -> bool:
        """Whether its node is dead, and this one is to see to it."""
        there = self._bus.nodes()
        if store.node in there or store.node == self._bus.node:
            return False  # it lives; or an earlier process of this node had another store
        free = self._server.loop.time() - self._seen[store.name, store.epoch]
        gone = max(self._down().get(store.node, 0.0), free)
        # One that was started anew in order was free for a moment, however long others have not reached it.
        if gone < self._dead_after or free < self._dead_after / 2:
            return False
        return chosen(store.name, [self._bus.node, *there]) == self._bus.node or free >= self._dead_after + AGAIN

    async def _take(self, store: Abandoned) -> None:
        estate = await self._adoptions.take(store)
        if estate is None:
            return
        began = self._server.loop.time()
        sessions = 0
        self._log.warning("node is dead", node=store.node, sessions=len(estate.sessions))
        try:
            while estate.sessions and store.node not in self._bus.nodes():
                came = self._put(estate)
                sessions += len(came)
                await self._kept(estate)
                if not came:
                    # All that are left are on their way to other nodes.
                    await asyncio.sleep(LOOK[0])
        finally:
            await estate.close()
            seconds = round(self._server.loop.time() - began, 3)
            self._log.warning("sessions adopted", node=store.node, sessions=sessions, seconds=seconds)

    def _put(self, estate: Estate) -> list[str]:
        came = self._ownership.adopter.adopt(estate, PIECE)
        self._server.after_batch()
        self._wake()
        return came

    async def _kept(self, estate: Estate) -> None:
        """Until what has come is in the database: it is not there any more then."""
        while True:
            with suppress(StoreError):
                await estate.kept()
                return
            await asyncio.sleep(LOOK[1])
