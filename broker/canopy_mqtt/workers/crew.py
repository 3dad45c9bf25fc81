"""All workers of one number: their processes, how they start together, and how they end together.

Owns the slots of the workers. Promises: one worker that does not start ends the start of all; at the end all stop in
order, at the same time, and one that does not end is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import shutil
import socket
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.reloadable import with_reloadable
from canopy_mqtt.store.division import name_of
from canopy_mqtt.workers.gate import Gate
from canopy_mqtt.workers.kept_bans import KeptBans
from canopy_mqtt.workers.kept_wills import KeptWills
from canopy_mqtt.workers.lines import MAX_BYTES, UNTAKEN, Line, Newcomer, Room, refuse
from canopy_mqtt.workers.parts import PERIOD, Parts
from canopy_mqtt.workers.plan import make_again, run_folder, settings_of
from canopy_mqtt.workers.process import Start, WorkerError, WorkerProcess
from canopy_mqtt.workers.wire import Arrival

LINKING: Final = 10.0
LINKING_AGAIN: Final = 3.0
"""Seconds that workers wait for their links to each other at the beginning, and one that starts again for its links to
the others; then it serves without."""

TELL: Final = 10.0
"""Seconds between two log lines about a worker that has not started yet."""

PATIENCE: Final = 10.0
"""Seconds beyond `shutdown.flush_timeout` that a worker has to end in order, before it is killed."""


class Slot:
    """The place of one worker: its process, if there is one, and the line of its connections."""

    def __init__(self, number: int, line: Line) -> None:
        self.number = number
        self.name = name_of(number)
        self.line = line
        self.process: WorkerProcess | None = None
        self.wills = KeptWills()
        self.started = False
        """The process has started: it can be told of a reload, and waited for."""


class Crew:
    """The workers of these settings. Made on the event loop."""

    def __init__(
        self,
        settings: Settings,
        log: Any,
        people: bool,
        write: Callable[[str], object],
        most: int,
        relayed: Callable[[Arrival, socket.socket], None],
    ) -> None:
        """`people`: they read the log. `write` takes the lines of the workers' logs. `most`: connections that wait
        for all of them. `relayed` is called with a connection that a worker has for another one."""
        count = settings.workers.count
        # A quarter is for all lines alike, so that clients that wait for one worker keep out none of another.
        part = max(most // count // 4, min(UNTAKEN, most // count))
        room = Room(most - part * count)
        self._settings = settings
        self.gate = Gate(settings, log, partial(self.tell, "short"))
        """Counts the connections that are passed on."""
        self.bans = KeptBans(settings.security, self.tell)
        self.parts = Parts(settings, self._tell_one)
        self.slots = [self._slot(number, room, part) for number in range(count)]
        self._log = log
        self._people = people
        self._write = write
        self._relayed = relayed
        self._folder: Path | None = None
        self._dividing: asyncio.Task[None] | None = None
        # Two may be out at a time, at a worker that starts during a reload.
        self._questions = itertools.count()
        self._broker_id = secrets.token_hex(4)
        # Those of workers that start: of the start, with what reloads have changed.
        self._in_force = settings
        # From `start` on.
        self._ports: Sequence[int]

    def _slot(self, number: int, room: Room, part: int) -> Slot:
        line = Line(room, part, MAX_BYTES // self._settings.workers.count, partial(self.gate.pass_on, number))
        return Slot(number, line)

    def empty(self, slot: Slot) -> list[Newcomer]:
        """The process of a worker has ended. Returns the connections that any other worker can have."""
        slot.process, slot.started = None, False
        self.gate.gone(slot.number)
        self.parts.gone(slot.number)
        return slot.line.end()

    @property
    def folder(self) -> Path:
        """The folder of the sockets, once it has started."""
        assert self._folder is not None
        return self._folder

    async def start(self, ports: Sequence[int]) -> None:
        """Have all serve, each linked with each other one. `ports`: the real ones of the listeners.

        Raises:
            WorkerError: why one does not; `stop` has to be called all the same.
            StartupError: there is no place for their sockets.
        """
        self._ports = ports
        self._folder = await asyncio.to_thread(run_folder, len(self.slots))
        self._dividing = asyncio.create_task(self._divide())
        await _together([self._begin(slot) for slot in self.slots])
        await _together([self._open(slot) for slot in self.slots])
        await _together([self._join(slot, LINKING) for slot in self.slots])

    async def again(self, slot: Slot) -> None:
        """Have a worker serve whose process has ended. Raises WorkerError."""
        assert self._folder is not None
        try:
            await asyncio.to_thread(make_again, self._folder)
        except OSError as error:
            raise WorkerError(f"the folder {self._folder} cannot be made: {error.strerror}") from error
        settings = self._in_force
        process = await self._begin(slot)
        await self._open(slot)
        while settings is not self._in_force:
            # There was a reload since it began.
            settings = self._in_force
            problems, _ = await self._ask_to_reload(process, slot, True, settings)
            if problems:
                process.kill()
                raise WorkerError("; ".join(problems))
        await self._join(slot, LINKING_AGAIN)

    async def reload(self, takes: bool, settings: Settings) -> list[str]:
        """Have all that run take up other settings, or only check them. Returns a line for each that takes a restart.

        Raises SettingsError: some cannot use them.
        """
        if takes:
            # Before any is told: one that starts meanwhile finds it.
            self._in_force = _in_force(self._settings, settings)
        answers = await asyncio.gather(
            *(
                self._ask_to_reload(slot.process, slot, takes, settings)
                for slot in self.slots
                if slot.process is not None and slot.started
            ),
            return_exceptions=True,
        )
        problems: dict[str, None] = {}
        lines: dict[str, None] = {}
        for answer in answers:
            if isinstance(answer, list):
                problems |= dict.fromkeys(answer[0])
                lines |= dict.fromkeys(answer[1])
            elif not isinstance(answer, WorkerError):
                raise answer
        if problems:
            raise SettingsError(list(problems))
        return list(lines)

    async def _ask_to_reload(self, process: WorkerProcess, slot: Slot, takes: bool, settings: Settings) -> list[Any]:
        """Return the problems that a worker has with settings, and its lines. Raises WorkerError: it has ended."""
        number, own = next(self._questions), settings_of(slot.number, settings, self.folder, self._people)
        return await process.ask(f"reloaded {number}", "reload", number, takes, own)

    def use(self, settings: Settings) -> Settings:
        """Have workers that start from now on use these settings. Returns the former ones."""
        before, self._settings, self._in_force = self._settings, settings, settings
        return before

    def use_again(self, before: Settings) -> None:
        """Have workers that start from now on use former settings, but for what reloads have changed: that stays."""
        self._settings, self._in_force = before, _in_force(before, self._in_force)

    def tell(self, *said: object, but: int = -1) -> None:
        """Say something to all workers that run, but for one of them; -1: to all."""
        for slot in self.slots:
            if slot.process is not None and slot.started and slot.number != but:
                slot.process.channel.send(*said)

    def _tell_one(self, worker: int, *said: object) -> None:
        # One that ends may still say what it uses.
        if (process := self.slots[worker].process) is not None:
            process.channel.send(*said)

    async def _divide(self) -> None:
        """Tell all workers that run their parts of what is limited for all together, again and again."""
        while True:
            await asyncio.sleep(PERIOD)
            for slot in self.slots:
                if slot.process is not None and slot.started:
                    self.parts.tell(slot.number)

    async def drain(self) -> None:
        """Wait until no worker has a message for another one, while no client is connected. Raises WorkerError."""
        # What was on its way to members of a share group at another worker comes back from there, after that one may
        # have said that it has nothing.
        for _ in range(2):
            await _together([slot.process.ask("drained", "drain") for slot in self.slots if slot.process is not None])

    async def stop(self) -> None:
        """End all in order, at the same time. What waits for them is refused at once: some wait for its end."""
        if self._dividing is not None:
            self._dividing.cancel()
        for slot in self.slots:
            slot.line.close()
        await asyncio.gather(*(self.end(slot) for slot in self.slots))
        for slot in self.slots:
            for newcomer in self.empty(slot):
                refuse(newcomer)
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _begin(self, slot: Slot) -> WorkerProcess:
        """Start the process of a worker, and wait until the others can reach it. Raises WorkerError."""
        heard: dict[str, Callable[..., None]] = {
            "taken": slot.line.taken,
            "counted": partial(self.gate.report, slot.number),
            "uses": partial(self.parts.uses, slot.number),
            "will": slot.wills.heard,
            **self.bans.heard(slot.number),
        }
        process = WorkerProcess(slot.name, self._log, self._people, self._write, self._relayed, heard)
        settings = settings_of(slot.number, self._in_force, self.folder, self._people)
        start = Start(slot.number, settings, list(self._ports), self._broker_id)
        await process.begin()
        slot.process = process
        await self._starts(slot, process.ask("bound", start))
        return process

    async def _open(self, slot: Slot) -> None:
        """Have a worker go on, as the others can be reached, and wait until it serves. Raises WorkerError."""
        assert slot.process is not None
        # What it says to this comes before it says that it serves; it has its parts before its clients.
        self.parts.tell(slot.number)
        await self._starts(slot, slot.process.ask("open", "go on"))
        slot.started = True
        slot.process.channel.send(*self.bans.all())

    async def _starts(self, slot: Slot, asked: Coroutine[Any, Any, object]) -> None:
        """Wait for an answer of a worker that starts, and say so again and again: a disk may hang for ever."""
        answer = asyncio.create_task(asked)
        try:
            while not (await asyncio.wait((answer,), timeout=TELL))[0]:
                self._log.warning("worker has not started yet", worker=slot.name)
            answer.result()
        finally:
            answer.cancel()

    async def _join(self, slot: Slot, seconds: float) -> None:
        """Wait until a worker and all others that have started are linked; then pass clients on to it."""
        process = slot.process
        assert process is not None
        others = [each.process for each in self.slots if each is not slot and each.process is not None and each.started]
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(_linked(process, other) for other in others))
        except TimeoutError:
            self._log.error("worker is not linked with the others", worker=slot.name, seconds=seconds)
        # Before a client comes, which may have another will.
        await slot.wills.give_back(process)
        if not process.ended.done():
            slot.line.begin(process.channel)

    async def end(self, slot: Slot) -> None:
        """End a worker in order, or by force where that takes too long."""
        process = slot.process
        if process is None:
            return
        slot.started = False
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
    made = with_reloadable(before, new).model_copy(
        update={"listener": tables, "http": before.http.changed_by(new.http)}
    )
    made.model_fields_set.discard("listen")
    return made


async def _linked(one: WorkerProcess, other: WorkerProcess) -> None:
    """Wait until two workers are linked in both directions, or one of them has ended."""
    asked = [
        asyncio.create_task(one.ask(f"linked {other.name}", "link", other.name)),
        asyncio.create_task(other.ask(f"linked {one.name}", "link", one.name)),
    ]
    try:
        # One that ends raises an error at its own question, and the other is never answered.
        await asyncio.gather(*asked)
    except WorkerError:
        pass
    finally:
        for each in asked:
            each.cancel()


async def _together(works: Sequence[Coroutine[Any, Any, object]]) -> None:
    """Do all of this at the same time. Raises the first error, when all others have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
