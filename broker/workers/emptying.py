"""The stores of workers that are no more: what is in them goes to the workers that there are.

For each such store there is a worker that takes no connections (a leaver). They are nodes of the mesh from the start
on: no message that is for a session in such a store is missed. One after the other they have their sessions fetched, as
in a rolling restart, and what they retain; then they end, and remove their stores.

Promises: a store goes only when no session of a client is in it; one that cannot be emptied now is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Protocol

from broker.settings import Settings
from broker.workers.process import WorkerGoneError, WorkerProcess
from broker.workers.slots import Slot

PAUSE: Final = 5.0
"""Seconds until it is tried again to empty a store."""


class Host(Protocol):
    """The supervisor, as far as this needs it."""

    log: Any
    settings: Settings
    leavers: list[Slot]

    @property
    def kept(self) -> Sequence[Slot]:
        """The workers that serve."""

    async def end(self, slot: Slot, remove: bool) -> int:
        """End a worker in order, which removes its store; its exit code."""


async def empty(host: Host) -> None:
    """Empty one store after the other, until there is none."""
    while host.leavers:
        slot = host.leavers[0]
        process = slot.process
        try:
            if process is not None and await _has_left(host, slot, process) and await _remove(host, slot, process):
                continue
        except WorkerGoneError:
            # It is started again.
            pass
        # The others have their turn.
        host.leavers.append(host.leavers.pop(0))
        await asyncio.sleep(PAUSE)


async def _has_left(host: Host, slot: Slot, process: WorkerProcess) -> bool:
    """Move what a leaver has to the others. Raises WorkerGoneError."""
    left = await process.leave(0.0)
    if left.get("sessions", 0) or "problems" in left:
        host.log.warning("store not emptied yet", worker=slot.name, sessions=left.get("sessions", 0))
        return False
    for other in host.kept:
        if other.process is None or not await other.process.caught_up(host.settings.mesh.node_timeout):
            host.log.warning("store not emptied yet", worker=slot.name, sessions=0)
            return False
    return True


async def _remove(host: Host, slot: Slot, process: WorkerProcess) -> bool:
    """End a leaver that has nothing any more. Whether its store is gone."""
    async with slot.turn:
        if slot.process is not process:
            return False
        code = await host.end(slot, True)
        slot.over = code == 0
        if slot.over:
            host.leavers.remove(slot)
            host.log.warning("store emptied and removed", worker=slot.name, left=len(host.leavers))
        else:
            host.log.error("store not removed", worker=slot.name, reason=process.why or f"exit code {code}")
        return slot.over
