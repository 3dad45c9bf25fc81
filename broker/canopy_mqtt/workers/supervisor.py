"""Keeps the workers going, and passes clients on to them: the daemon runs it in place of a broker.

Promises: clients come in once all workers serve and are linked with each other; one worker that cannot start at the
beginning ends all, in one line. A worker that ends later is started again, at once and then later each time, and its
clients wait meanwhile (`lines`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import socket
from collections.abc import Callable
from typing import Any, Final

import structlog

from canopy_mqtt.assembly import logs
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.reloadable import with_reloadable
from canopy_mqtt.sockets import OWN_DESCRIPTORS
from canopy_mqtt.workers.crew import Crew, Slot
from canopy_mqtt.workers.entrance import Entrance
from canopy_mqtt.workers.lines import MAX_WAIT, Newcomer
from canopy_mqtt.workers.moving import take_store
from canopy_mqtt.workers.plan import unusable
from canopy_mqtt.workers.process import WorkerError, how_it_ended, nursery
from canopy_mqtt.workers.wire import ANY, Arrival

FIRST_PAUSE: Final = 0.5
MAX_PAUSE: Final = 30.0
"""Seconds until a worker is started again that has ended soon, the second time in a row, and at most."""

STEADY: Final = 5.0
"""Seconds after which a worker has served long enough to be started again at once."""

FEW: Final = 64
MANY: Final = 65_536
"""Connections that may wait for all workers at a time: half of the file descriptors, within these bounds. Half as many
may be read."""


class Supervisor:
    """All workers, as the daemon runs them (`canopy_mqtt.assembly.daemon.Service`)."""

    before_listening: Callable[[], None]
    suspended: Callable[[], float]

    def __init__(self, settings: Settings, people: bool, write: Callable[[str], object]) -> None:
        """`people`: they read the log. `write` takes the lines of the workers' logs."""
        self.settings = settings
        self.log: Any = structlog.get_logger("canopy")
        self._people = people
        self._write = write
        # Of the store's folder; -1: none.
        self._lock = -1
        self._keepers: list[asyncio.Task[None]] = []
        # For connections that any worker can have.
        self._round = itertools.count()
        # From `start` on.
        self._crew: Crew
        self._entrance: Entrance
        self._broken: asyncio.Future[str]

    @property
    def listening(self) -> list[str]:
        return self._entrance.urls

    @property
    def http(self) -> list[str]:
        return []

    async def start(self) -> None:
        """Have all workers serve. Raises StartupError, in one line."""
        loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        nursery().lost = lambda: self._broken.set_result("the process that starts workers has ended")
        most = _half_of_descriptors()
        self._crew = Crew(self.settings, self.log, self._people, self._write, most, self._relayed)
        self._entrance = Entrance(self.settings, self.log, most // 2, self._pass_on)
        try:
            await self._entrance.bind()
            self._lock = await take_store(self.settings, self.log, self._people, self._write)
            await self._crew.start([place.endpoint.port for place in self._entrance.places])
            self._entrance.open()
        except BaseException as error:
            await self.stop()
            if isinstance(error, WorkerError):
                raise StartupError(str(error)) from error
            raise
        slots = self._crew.slots
        self._keepers = [loop.create_task(self._keep(slot)) for slot in slots]
        self.log.info("workers serve", pids={slot.name: slot.process.pid for slot in slots if slot.process})

    async def stop(self) -> None:
        """End all workers in order, at the same time."""
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self._entrance.close()
        await self._crew.stop()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def broken(self) -> str:
        """Wait for ever: workers that end are started again, as long as there is what starts them."""
        return await asyncio.shield(self._broken)

    async def reload(self, new: Settings) -> list[str]:
        """Have all workers take up other settings, or none. Returns a line for each that takes a restart.

        Raises:
            SettingsError: they are not for several workers, or one of these cannot use them.
        """
        # By the number in force.
        if lines := unusable(new.model_copy(update={"workers": self.settings.workers})):
            raise SettingsError(lines)
        applied, lines = self._as_they_are(new)
        await self._crew.reload(False, applied)
        try:
            lines += await self._crew.reload(True, applied)
        finally:
            # Files may have changed since the check. The other workers have these settings all the same.
            self.settings = with_reloadable(self.settings, applied)
            self._entrance.limit(self.settings)
            logs.set_level(self.settings.log.level)
        return lines

    def _as_they_are(self, new: Settings) -> tuple[Settings, list[str]]:
        """Return other settings, but for what takes a restart of the supervisor, and a line for each of these."""
        has, wanted = self.settings, {each.label: each for each in new.listeners}
        tables = tuple(wanted.pop(each.label, each) for each in has.listeners)
        lines = [f'listener "{label}": to open it takes a restart' for label in wanted]
        gone = {each.label for each in has.listeners} - {each.label for each in new.listeners}
        lines += [f'listener "{label}" stays open; to close it takes a restart' for label in sorted(gone)]
        if new.workers != has.workers:
            lines.append(f"workers.count: {has.workers.count} stays in force; {new.workers.count} takes a restart")
        for line in lines:
            self.log.warning("setting takes a restart", detail=line)
        made = new.model_copy(
            update={
                "listener": tables,
                "workers": has.workers,
                "store": new.store.model_copy(update={"path": has.store.path}),
            }
        )
        made.model_fields_set.discard("listen")
        return made, lines

    def _pass_on(self, newcomer: Newcomer) -> None:
        """Pass a connection on to its worker; or to any, with the shortest line of those that serve."""
        slots, worker = self._crew.slots, newcomer.arrival.worker
        if worker == ANY:
            first = next(self._round) % len(slots)
            slots = slots[first:] + slots[:first]
            slot = min([each for each in slots if each.line.open] or slots, key=lambda each: len(each.line))
        else:
            slot = slots[worker]
        slot.line.add(newcomer)

    def _relayed(self, arrival: Arrival, sock: socket.socket) -> None:
        """Pass a connection on that a worker has for another one."""
        until = asyncio.get_running_loop().time() + (self.settings.limits.connect_timeout or MAX_WAIT)
        self._pass_on(Newcomer(arrival, sock, until))

    async def _keep(self, slot: Slot) -> None:
        """Start a worker again whenever it has ended."""
        loop = asyncio.get_running_loop()
        failures, since = 0, loop.time()
        while True:
            process = slot.process
            if process is not None:
                code = await asyncio.shield(process.ended)
                others = slot.empty()
                failures = 0 if loop.time() - since > STEADY else failures + 1
                self.log.error("worker ended", worker=slot.name, pid=process.pid, reason=how_it_ended(code))
                for newcomer in others:
                    self._pass_on(newcomer)
            if failures > 1:
                await asyncio.sleep(min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 2, 16)))
            since = loop.time()
            try:
                await self._crew.again(slot)
            except WorkerError as error:
                self.log.error("worker did not start", worker=slot.name, reason=str(error))
                failures += slot.process is None
                continue
            except Exception as error:
                # A fault of ours: nobody else would try again.
                self.log.error("worker did not start", worker=slot.name, reason=str(error), exc_info=error)
                failures += 1
                if slot.process is not None:
                    slot.process.kill()
                continue
            since = loop.time()
            self.log.warning("worker serves again", worker=slot.name, pid=slot.process.pid if slot.process else 0)


def _half_of_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MANY
    return max(FEW, min(MANY, (soft - OWN_DESCRIPTORS) // 2))
