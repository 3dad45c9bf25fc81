"""All workers of one number: their processes, how they start together, and how they end together.

Owns the slots of the workers. Promises: one worker that does not start ends the start of all; at the end all stop in
order, at the same time, and one that does not end is killed.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.reloadable import with_reloadable
from canopy_mqtt.store.division import name_of
from canopy_mqtt.workers.lines import Line, Room
from canopy_mqtt.workers.plan import Plan, run_folder
from canopy_mqtt.workers.process import Start, WorkerError, WorkerProcess
from canopy_mqtt.workers.wire import Arrival

LINKING: Final = 10.0
"""Seconds that a worker waits for its links to the others; then it serves without."""

PATIENCE: Final = 10.0
"""Seconds beyond `shutdown.flush_timeout` that a worker has to end in order, before it is killed."""


class Slot:
    """The place of one worker: its process, if there is one, and the line of its connections."""

    def __init__(self, number: int, room: Room) -> None:
        self.number = number
        self.name = name_of(number)
        self.line = Line(room)
        self.process: WorkerProcess | None = None


class Crew:
    """The workers of these settings. Made on the event loop."""

    def __init__(
        self,
        settings: Settings,
        log: Any,
        people: bool,
        write: Callable[[str], object],
        room: Room,
        relayed: Callable[[Arrival, socket.socket], None],
    ) -> None:
        """`people`: they read the log. `write` takes the lines of the workers' logs. `room`: for connections that wait.
        `relayed` is called with a connection that a worker has for another one."""
        self.slots = [Slot(number, room) for number in range(settings.workers.count)]
        self._settings = settings
        self._log = log
        self._people = people
        self._write = write
        self._relayed = relayed
        self._folder: Path | None = None
        # From `start` on.
        self._plan: Plan
        self._ports: Sequence[int]

    async def start(self, ports: Sequence[int]) -> None:
        """Have all serve, each linked with each other one. `ports`: the real ones of the listeners.

        Raises:
            WorkerError: why one does not; `stop` has to be called all the same.
            StartupError: there is no place for their sockets.
        """
        self._ports = ports
        self._folder = await asyncio.to_thread(run_folder, len(self.slots))
        self._plan = Plan(self._settings, self._folder, self._people)
        await _together([self._begin(slot) for slot in self.slots])
        await _together([_open(slot) for slot in self.slots])
        await _together([self._join(slot) for slot in self.slots])

    async def again(self, slot: Slot) -> None:
        """Have a worker serve whose process has ended. Raises WorkerError."""
        await self._begin(slot)
        await _open(slot)
        await self._join(slot)

    async def reload(self, takes: bool, settings: Settings) -> list[str]:
        """Have all that run take up other settings, or only check them. Returns a line for each that takes a restart.

        Raises SettingsError: some cannot use them.
        """
        plan = self._plan.with_settings(settings)
        there = [(slot.process, slot.number) for slot in self.slots if slot.process is not None]
        answers = await asyncio.gather(
            *(process.reload(takes, plan.settings(number)) for process, number in there), return_exceptions=True
        )
        problems: dict[str, None] = {}
        lines: dict[str, None] = {}
        for answer in answers:
            if isinstance(answer, SettingsError):
                problems |= dict.fromkeys(answer.problems)
            elif isinstance(answer, list):
                lines |= dict.fromkeys(answer)
            elif not isinstance(answer, WorkerError):
                raise answer
        if problems:
            raise SettingsError(list(problems))
        if takes:
            self._plan = self._plan.with_settings(_in_force(self._settings, settings))
        return list(lines)

    async def drain(self) -> None:
        """Wait until no worker has a message for another one. Raises WorkerError."""
        await _together([slot.process.drained() for slot in self.slots if slot.process is not None])

    async def stop(self) -> None:
        """End all in order, at the same time."""
        await asyncio.gather(*(self._end(slot) for slot in self.slots))
        for slot in self.slots:
            slot.line.close()
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _begin(self, slot: Slot) -> None:
        """Start the process of a worker, and wait until the others can reach it. Raises WorkerError."""
        start = Start(slot.number, self._plan.settings(slot.number), list(self._ports))
        process = await WorkerProcess.begin(slot.name, start, self._write, self._people, slot.line.taken, self._relayed)
        slot.process = process
        await process.bound()

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
            self._log.error("worker is not linked with the others", worker=slot.name, seconds=LINKING)
        if not process.ended.done():
            slot.line.begin(process.channel)

    async def _end(self, slot: Slot) -> None:
        """End a worker in order, or by force where that takes too long."""
        process, slot.process = slot.process, None
        if process is None:
            return
        process.stop()
        seconds = self._settings.shutdown.flush_timeout + PATIENCE
        await asyncio.wait((process.ended,), timeout=seconds)
        if not process.ended.done():
            self._log.error("worker does not end", worker=slot.name, pid=process.pid, seconds=seconds)
            process.kill()
        await process.ended


def _in_force(before: Settings, new: Settings) -> Settings:
    """Return the settings of workers that start after a reload: those of the start, with what a reload changes."""
    tables = tuple(
        old.model_copy(update={"tls": other.tls}) if old.tls and other.tls and old.url == other.url else old
        for old, other in zip(before.listeners, new.listeners, strict=True)
    )
    made = with_reloadable(before, new).model_copy(update={"listener": tables})
    made.model_fields_set.discard("listen")
    return made


async def _open(slot: Slot) -> None:
    """Wait until a worker serves. Raises WorkerError."""
    assert slot.process is not None
    await slot.process.opened()


async def _unless_gone(process: WorkerProcess | None, other: int) -> None:
    """Wait until a worker is linked with another one; one that ends meanwhile is linked when it is back."""
    try:
        assert process is not None
        await process.linked(other)
    except WorkerError:
        return


async def _together(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Do all of this at the same time. Raises the first error, when all others have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
