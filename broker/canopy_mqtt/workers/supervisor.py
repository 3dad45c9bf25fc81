"""Starts the workers, keeps them going, and passes clients on to them: the daemon runs it in place of a broker.

Promises: clients come in once all workers serve and are linked with each other; one worker that cannot start at the
beginning ends all, in one line. A worker that ends later is started again, at once and then later each time, and its
clients wait meanwhile (`lines`). At the end all workers stop in order, at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog

from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.sockets import OWN_DESCRIPTORS
from canopy_mqtt.workers.entrance import Entrance
from canopy_mqtt.workers.lines import MAX_WAIT, Line, Newcomer, Room
from canopy_mqtt.workers.placing import worker_of
from canopy_mqtt.workers.plan import Plan, name_of, run_folder, take_store
from canopy_mqtt.workers.process import Start, WorkerError, WorkerProcess, how_it_ended
from canopy_mqtt.workers.wire import Arrival

FIRST_PAUSE: Final = 0.5
MAX_PAUSE: Final = 30.0
"""Seconds until a worker is started again that has ended soon, the second time in a row, and at most."""

STEADY: Final = 5.0
"""Seconds after which a worker has served long enough to be started again at once."""

LINKING: Final = 10.0
"""Seconds that a worker waits for its links to the others; then it serves without."""

PATIENCE: Final = 10.0
"""Seconds beyond `shutdown.flush_timeout` that a worker has to end in order, before it is killed."""

FEW: Final = 64
MANY: Final = 65_536
"""Connections that may wait, or be read, at a time: a quarter of the file descriptors, within these bounds."""


class Slot:
    """The place of one worker: its process, if there is one that has started, and the line of its connections."""

    def __init__(self, number: int, room: Room) -> None:
        self.number = number
        self.name = name_of(number)
        self.line = Line(room)
        self.process: WorkerProcess | None = None


class Supervisor:
    """All workers, as the daemon runs them (`canopy_mqtt.assembly.daemon.Service`)."""

    before_listening: Callable[[], None]
    suspended: Callable[[], float]

    def __init__(self, settings: Settings, people: bool, write: Callable[[str], object]) -> None:
        """`people`: they read the log. `write` takes the lines of the workers' logs."""
        self.settings = settings
        self.log: Any = structlog.get_logger("canopy")
        self.slots: list[Slot] = []
        self._people = people
        self._write = write
        self._folder: Path | None = None
        # Of the store's folder; -1: none.
        self._lock = -1
        self._keepers: list[asyncio.Task[None]] = []
        # For clients without an identifier, and those that are not known yet.
        self._turns = itertools.count()
        # From `start` on.
        self._plan: Plan
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
        most = _quarter_of_descriptors()
        room = Room(most)
        self.slots = [Slot(number, room) for number in range(self.settings.workers.count)]
        self._entrance = Entrance(self.settings, self.log, most, self._arrived)
        try:
            await self._entrance.bind()
            self._lock = await asyncio.to_thread(take_store, self.settings)
            self._folder = await asyncio.to_thread(run_folder, len(self.slots))
            self._plan = Plan(self.settings, self._folder, self._people)
            await _together([self._begin(slot) for slot in self.slots])
            await _together([self._open(slot) for slot in self.slots])
            await _together([self._join(slot) for slot in self.slots])
            self._entrance.open()
        except BaseException as error:
            await self.stop()
            if isinstance(error, WorkerError):
                raise StartupError(str(error)) from error
            raise
        self._keepers = [loop.create_task(self._keep(slot)) for slot in self.slots]
        self.log.info("workers serve", pids={slot.name: slot.process.pid for slot in self.slots if slot.process})

    async def stop(self) -> None:
        """End all workers in order, at the same time."""
        for task in self._keepers:
            task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self._entrance.close()
        await asyncio.gather(*(self._end(slot) for slot in self.slots))
        for slot in self.slots:
            slot.line.close()
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def broken(self) -> str:
        """Wait for ever: workers that end are started again."""
        return await asyncio.shield(self._broken)

    async def reload(self, new: Settings) -> list[str]:
        """Refuse: workers read settings at their start alone. Raises SettingsError."""
        del new
        raise SettingsError(["workers.count: settings of several workers take a restart"])

    # -- clients -------------------------------------------------------------------------------------------------------

    def _arrived(self, newcomer: Newcomer, client_id: bytes) -> None:
        """Pass a connection on to the worker of its client, or to any, if there is no client identifier."""
        if client_id:
            slot = self.slots[worker_of(client_id, len(self.slots))]
        else:
            there = [slot for slot in self.slots if slot.line.open] or self.slots
            slot = there[next(self._turns) % len(there)]
        slot.line.add(newcomer)

    def _relayed(self, arrival: Arrival, sock: socket.socket) -> None:
        """Pass a connection on that a worker has for another one."""
        until = asyncio.get_running_loop().time() + (self.settings.limits.connect_timeout or MAX_WAIT)
        self.slots[arrival.worker].line.add(Newcomer(arrival, sock, until))

    # -- workers -------------------------------------------------------------------------------------------------------

    async def _begin(self, slot: Slot) -> None:
        """Start the process of a worker, and wait until the others can reach it. Raises WorkerError."""
        ports = [place.endpoint.port for place in self._entrance.places]
        start = Start(slot.number, self._plan.settings(slot.number), ports)
        process = await WorkerProcess.begin(slot.name, start, self._write, self._people, slot.line.taken, self._relayed)
        slot.process = process
        await process.bound()

    async def _open(self, slot: Slot) -> None:
        """Wait until a worker serves. Raises WorkerError."""
        assert slot.process is not None
        await slot.process.opened()

    async def _join(self, slot: Slot) -> None:
        """Wait until a worker and all others that run are linked, in both directions; then pass clients on to it.

        Raises WorkerError: it has ended.
        """
        process = slot.process
        assert process is not None
        others = [other for other in self.slots if other is not slot and other.process is not None]
        links = [process.linked(other.number) for other in others]
        links += [_unless_gone(other.process, slot.number) for other in others]
        try:
            async with asyncio.timeout(LINKING):
                await _together(links)
        except TimeoutError:
            self.log.error("worker is not linked with the others", worker=slot.name, seconds=LINKING)
        if not process.ended.done():
            slot.line.begin(process.channel)

    async def _keep(self, slot: Slot) -> None:
        """Start a worker again whenever it has ended."""
        loop = asyncio.get_running_loop()
        failures, since = 0, loop.time()
        while True:
            process = slot.process
            if process is not None:
                code = await asyncio.shield(process.ended)
                slot.process = None
                slot.line.end()
                failures = 0 if loop.time() - since > STEADY else failures + 1
                self.log.error("worker ended", worker=slot.name, pid=process.pid, reason=how_it_ended(code))
            if failures > 1:
                await asyncio.sleep(min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 2, 16)))
            since = loop.time()
            try:
                await self._begin(slot)
                await self._open(slot)
                await self._join(slot)
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
            self.log.warning("worker serves again", worker=slot.name, pid=slot.process.pid if slot.process else 0)

    async def _end(self, slot: Slot) -> None:
        """End a worker in order, or by force where that takes too long."""
        process, slot.process = slot.process, None
        if process is None:
            return
        process.stop()
        seconds = self.settings.shutdown.flush_timeout + PATIENCE
        await asyncio.wait((process.ended,), timeout=seconds)
        if not process.ended.done():
            self.log.error("worker does not end", worker=slot.name, pid=process.pid, seconds=seconds)
            process.kill()
        await process.ended


async def _unless_gone(process: WorkerProcess | None, other: int) -> None:
    """Wait until a worker is linked with another one; one that ends meanwhile is linked when it is back."""
    try:
        assert process is not None
        await process.linked(other)
    except WorkerError:
        return


async def _together(works: list[Any]) -> None:
    """Do all of this at the same time. Raises the first error, when all others have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors


def _quarter_of_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MANY
    return max(FEW, min(MANY, (soft - OWN_DESCRIPTORS) // 4))
