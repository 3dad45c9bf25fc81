"""The sessions of nodes that are dead, taken over from the database that both used.

Owns when this node does it, and which sessions: for a store that no broker holds, whose node has been gone for
`mesh.dead_after`, those that rendezvous hashing of the client identifier gives to it among the nodes that are there.
The nodes take their shares in turn, as the store's lease comes to them; what nobody takes for `AGAIN` seconds any node
takes. Promises: one store at a time; the work of one turn is bounded; what fails is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from broker.mesh.bus import Bus
from broker.mesh.ownership.moves.leaving import chosen
from broker.mesh.ownership.room import Ownership
from broker.store.adoptions import Abandoned, Adoptions, Estate
from broker.store.base import StoreError

if TYPE_CHECKING:
    from broker.net.server import Server

PIECE: Final = 250
"""Sessions, subscriptions and messages that are put here in one turn, about: some milliseconds."""

AGAIN: Final = 30.0
"""Seconds after which any node takes what those have not that were chosen, and after which this one tries again where
that failed."""

LOOK: Final = (0.05, 5.0)
"""Seconds between two looks at the database, at least and at most; between them a quarter of `mesh.dead_after`."""

IN_TURN: Final = 0.5
"""Seconds between two looks at most while a store's sessions go to several nodes."""


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
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
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
        self._sleep = sleep
        self._joined = False
        # When each store that nobody holds was seen so first, by name and epoch.
        self._seen: dict[tuple[str, int], float] = {}
        # By the name of a store: the nodes among which this one has taken its share of it.
        self._done: dict[str, list[str]] = {}
        # By the name of a store of which the sessions could not be taken: when that is tried again.
        self._broken: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = self._server.loop.create_task(self._run(), name="canopy-adoption")

    async def stop(self) -> None:
        """This node ends: what has not come yet is another's."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        while True:
            await self._sleep(await self.look())

    async def look(self) -> float:
        """Take over what is this node's to take: the seconds until the next look."""
        least, most = LOOK
        pause = min(max(self._dead_after / 4, least), most)
        try:
            if not self._joined:
                await self._adoptions.join(self._bus.node)
                self._joined = True
            if await self._look():
                pause = min(pause, IN_TURN)
        except StoreError as error:
            # The store tells of its own troubles.
            self._log.debug("sessions of dead nodes not looked for", reason=str(error))
        except Exception as error:
            self._server.faults.broke("mesh", error)
        return pause

    async def _look(self) -> bool:
        """Whether the sessions of a dead node are on their way to others."""
        found = await self._adoptions.abandoned()
        now = self._server.loop.time()
        free = [(each.name, each.epoch) for each in found if not each.held]
        self._seen = {each: self._seen.get(each, now) for each in free}
        names = {each.name for each in found}
        self._done = {name: nodes for name, nodes in self._done.items() if name in names}
        self._broken = {name: until for name, until in self._broken.items() if name in names}
        soon = False
        for store in found:
            # Its node lives; or an earlier process of this one had another store.
            if store.node in (self._bus.node, *self._bus.nodes()) or self._broken.get(store.name, now) > now:
                continue
            soon = soon or store.begun
            nodes = [] if store.held else self._sharers(store)
            if nodes:
                soon = True
                await self._take(store, nodes)
        return soon

    def _sharers(self, store: Abandoned) -> list[str]:
        """The nodes among which its sessions are shared where its node is dead and this one is to take its share now;
        this one alone: all that are left."""
        free = self._server.loop.time() - self._seen[store.name, store.epoch]
        dead_after = 0.0
        if not store.begun:
            dead_after = self._dead_after
            gone = max(self._down().get(store.node, 0.0), free)
            # One that was started anew in order was free for a moment, however long others have not reached it.
            if gone < dead_after or free < dead_after / 2:
                return []
        if free >= dead_after + AGAIN:
            return [self._bus.node]
        nodes = sorted([self._bus.node, *self._bus.nodes()])
        return nodes if self._done.get(store.name) != nodes else []

    async def _take(self, store: Abandoned, nodes: list[str]) -> None:
        try:
            estate = await self._adoptions.take(store, partial(_is_for, self._bus.node, nodes))
            if estate is not None:
                await self._move(store, estate, nodes)
        except Exception as error:
            self._broken[store.name] = self._server.loop.time() + AGAIN
            if not isinstance(error, StoreError):
                raise
            self._log.warning("sessions not adopted", node=store.node, reason=str(error))

    async def _move(self, store: Abandoned, estate: Estate, nodes: list[str]) -> None:
        began = self._server.loop.time()
        sessions = 0
        told = False
        try:
            waiting = True
            while waiting:
                waiting = False
                while await estate.more():
                    if not told:
                        told = True
                        self._log.warning("node is dead", node=store.node, sessions=estate.count)
                    while estate.sessions:
                        await estate.prepare(PIECE)
                        if store.node in self._bus.nodes():
                            return
                        came = self._put(estate)
                        sessions += len(came)
                        await self._kept(estate)
                        if not came:
                            # These are on their way to other nodes. They are read again when all others have come.
                            estate.sessions.clear()
                            waiting = True
                if waiting:
                    await self._sleep(LOOK[0])
            self._done[store.name] = nodes
        finally:
            await estate.close()
            if sessions:
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
            await self._sleep(LOOK[1])


def _is_for(node: str, nodes: list[str], client_id: str) -> bool:
    return chosen(client_id, nodes) == node
