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
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from canopy_mqtt.assembly import logs
from canopy_mqtt.guards.log import Faults
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.observe.figures.catalogue import Found, of_process
from canopy_mqtt.observe.figures.process import Process
from canopy_mqtt.settings import Listener, Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.settings.reloadable import COUNTED, with_reloadable
from canopy_mqtt.sockets import OWN_DESCRIPTORS
from canopy_mqtt.workers.asking import SUPERVISOR, Answering, Answers
from canopy_mqtt.workers.crew import Crew, Slot
from canopy_mqtt.workers.entrance import Entrance
from canopy_mqtt.workers.homes import Homes
from canopy_mqtt.workers.http_door import HttpDoor
from canopy_mqtt.workers.lines import MAX_WAIT, Newcomer
from canopy_mqtt.workers.moving import take_store
from canopy_mqtt.workers.plan import unusable
from canopy_mqtt.workers.process import WorkerError, how_it_ended, nursery
from canopy_mqtt.workers.rolling import Roll
from canopy_mqtt.workers.wire import ANY, Arrival, Channel

FIRST_PAUSE: Final = 0.5
MAX_PAUSE: Final = 30.0
"""Seconds until a worker is started again that has ended soon, the second time in a row, and at most."""

STEADY: Final = 5.0
"""Seconds after which a worker has served long enough to be started again at once."""

FEW: Final = 64
MANY: Final = 65_536
"""Connections that may wait for all workers at a time: half of the file descriptors, within these bounds. Half as many
may be read."""

OF_LISTENERS: Final = (
    "url",
    "mode",
    "group",
    "path",
    "origins",
    "proxy_protocol",
    "proxy_from",
    "max_connections",
    "max_connections_per_address",
    "max_connect_rate",
)
"""The settings of a listener that the supervisor uses, before a worker has a connection."""


class Supervisor:
    """All workers, as the daemon runs them (`canopy_mqtt.assembly.daemon.Service`)."""

    before_listening: Callable[[], None]
    suspended: Callable[[], float]

    def __init__(
        self,
        settings: Settings,
        people: bool,
        write: Callable[[str], object],
        read: Callable[[], Settings] | None = None,
    ) -> None:
        """`people`: they read the log. `write` takes the lines of the workers' logs. `read` reads the settings again,
        in a thread; None: there is nothing to read."""
        self._read = read
        self._reloads = asyncio.Lock()
        self._process = Process()
        # How often each worker was started again.
        self._restarts: dict[str, int] = {}
        # The worker that has the connections of `[http]`.
        self._http_slot = 0
        self.settings = settings
        self.log: Any = structlog.get_logger("canopy")
        self._people = people
        self._write = write
        # Of the store's folder; -1: none.
        self._lock = -1
        self._keepers: list[asyncio.Task[None]] = []
        # For connections that any worker can have: whose turn it is, and whose client it may be.
        self._round = itertools.count()
        self._homes = Homes(time.monotonic)
        # From `start` on.
        self._crew: Crew
        self._entrance: Entrance
        self._http: HttpDoor
        self._answering: Answering | None = None
        self._broken: asyncio.Future[str]
        self._roll: Roll
        self._rolling: asyncio.Task[None] | None = None
        # What was read last, with what takes a restart.
        self._wanted = settings
        self.signals: Mapping[int, Callable[[], object]] = {signal.SIGUSR2: self.restart_workers}

    @property
    def listening(self) -> list[str]:
        return self._entrance.urls

    @property
    def http(self) -> list[str]:
        return self._http.urls

    async def start(self) -> None:
        """Have all workers serve. Raises StartupError, in one line."""
        loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        nursery().lost = lambda: self._broken.set_result("the process that starts workers has ended")
        most = _half_of_descriptors()
        self._crew = Crew(self.settings, self.log, self._people, self._write, most, self._relayed)
        self._entrance = Entrance(self.settings, self.log, most // 2, self._pass_on)
        self._http = HttpDoor(self.settings.http, self.log, self._for_http)
        try:
            await self._entrance.bind()
            await self._http.bind()
            self._lock = await take_store(self.settings, self.log, self._people, self._write)
            await self._crew.start([place.endpoint.port for place in self._entrance.places])
            answers: Answers = {"figures": self._figures, "reload": self._reload}
            self._answering = Answering(self._crew.folder, SUPERVISOR, answers, Faults(lambda: self.log).broke)
            await self._answering.start()
            self._entrance.open()
            self._http.open()
        except BaseException as error:
            await self.stop()
            if isinstance(error, WorkerError):
                raise StartupError(str(error)) from error
            raise
        self._roll = Roll(self._crew, self.log)
        slots = self._crew.slots
        self._keepers = [loop.create_task(self._keep(slot)) for slot in slots]
        self.log.info("workers serve", pids={slot.name: slot.process.pid for slot in slots if slot.process})

    async def stop(self) -> None:
        """End all workers in order, at the same time."""
        tasks = self._keepers if self._rolling is None else [*self._keepers, self._rolling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._entrance.close()
        await self._http.close()
        if self._answering is not None:
            await self._answering.stop()
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
        async with self._reloads:
            return await self._reload_all(new)

    async def _reload_all(self, new: Settings) -> list[str]:
        # By the number in force.
        if lines := unusable(new.model_copy(update={"workers": self.settings.workers})):
            raise SettingsError(lines)
        applied, lines = self._as_they_are(new)
        await self._crew.reload(False, applied)
        for line in lines:
            self.log.warning("setting takes a restart", detail=line)
        try:
            lines += await self._crew.reload(True, applied)
        finally:
            # Files may have changed since the check. The other workers have these settings all the same.
            self.settings = with_reloadable(self.settings, applied)
            self._entrance.limit(self.settings)
            self._crew.gate.change(self.settings)
            self._crew.bans.change(self.settings.security)
            self._crew.parts.change(self.settings)
            logs.set_level(self.settings.log.level)
        self._wanted = applied
        return lines

    def restart_workers(self) -> None:
        """Restart all workers, one after the other, with the settings that were read last."""
        if self._rolling is not None and not self._rolling.done():
            self.log.warning("rolling restart goes on already")
        else:
            self.log.info("workers are restarted one after the other")
            self._rolling = asyncio.get_running_loop().create_task(self._restart_workers(self._wanted))

    async def _restart_workers(self, wanted: Settings) -> None:
        if await self._roll.run(wanted):
            # There may have been a reload meanwhile.
            self.settings = with_reloadable(wanted, self.settings)

    def _as_they_are(self, new: Settings) -> tuple[Settings, list[str]]:
        """Return other settings, but for what takes a restart of the supervisor, and a line for each of these."""
        has, wanted = self.settings, {each.label: each for each in new.listeners}
        pairs = [(each, wanted.pop(each.label, each)) for each in has.listeners]
        lines = [f'listener "{label}": to open it takes a restart' for label in wanted]
        gone = {each.label for each in has.listeners} - {each.label for each in new.listeners}
        lines += [f'listener "{label}" stays open; to close it takes a restart' for label in sorted(gone)]
        lines += [
            f'listener "{old.label}": another {name} takes a restart'
            for old, other in pairs
            for name in OF_LISTENERS
            if getattr(old, name) != getattr(other, name)
        ]
        if new.workers != has.workers:
            lines.append(f"workers.count: {has.workers.count} stays in force; {new.workers.count} takes a restart")
        if new.http.listen != has.http.listen:
            addresses = ", ".join(has.http.listen) or "no address"
            lines.append(f"http.listen: {addresses} stays in force; another value takes a restart")
        limits = new.limits
        if not self._crew.gate.counts:
            kept = {name.partition(".")[2]: getattr(has.limits, name.partition(".")[2]) for name in COUNTED}
            limits = new.limits.model_copy(update=kept)
            if limits != new.limits:
                lines.append(f"no limit on connections is in force: {', '.join(COUNTED)} take a restart")
        made = new.model_copy(
            update={
                "limits": limits,
                "listener": tuple(_at_its_address(old, other) for old, other in pairs),
                # Each worker has these sockets, whatever it would listen on.
                "http": new.http.model_copy(update={"listen": has.http.listen, "socket_mode": has.http.socket_mode}),
                "workers": has.workers,
                "store": new.store.model_copy(update={"path": has.store.path}),
                "federation": new.federation.model_copy(update={"broker_id": has.federation.broker_id}),
            }
        )
        made.model_fields_set.discard("listen")
        return made, lines

    async def _reload(self) -> tuple[list[str], list[str]]:
        """Reload as an operator asks a worker for it. Returns the problems, and what takes a restart."""
        try:
            new = self.settings if self._read is None else await asyncio.to_thread(self._read)
            return [], await self.reload(new)
        except SettingsError as error:
            return list(error.problems), []

    async def _figures(self) -> dict[str, Found]:
        """Return what the supervisor knows of the workers, and the figures of this process, by name."""
        slots = self._crew.slots
        return of_process(self._process) | {
            "worker_restarts": [((slot.name,), self._restarts.get(slot.name, 0)) for slot in slots],
            "worker_waiting": [((slot.name,), len(slot.line)) for slot in slots],
        }

    def _for_http(self) -> Channel | None:
        """Return the way to the worker that answers HTTP: the one that did, or the next one that serves."""
        slots = self._crew.slots
        for slot in slots[self._http_slot :] + slots[: self._http_slot]:
            if slot.line.open and slot.process is not None and not slot.process.silent:
                self._http_slot = slot.number
                return slot.process.channel
        return None

    def _pass_on(self, newcomer: Newcomer) -> None:
        """Pass a connection on to its worker; or to any, with the shortest line of those that serve."""
        slots, worker = self._crew.slots, newcomer.arrival.worker
        if worker == ANY:
            first = next(self._round) % len(slots)
            slots = slots[first:] + slots[:first]
            home = self._homes.guess(newcomer.host) if newcomer.host else None
            serving = [each for each in slots if each.line.open] or slots
            slot = min(serving, key=lambda each: (len(each.line), each.number != home))
        else:
            slot = slots[worker]
        slot.line.add(newcomer)

    def _relayed(self, arrival: Arrival, sock: socket.socket) -> None:
        """Pass a connection on that a worker has for another one."""
        if not self.settings.limits.connect_timeout:
            arrival = arrival._replace(until=asyncio.get_running_loop().time() + MAX_WAIT)
        assert arrival.source is not None
        self._homes.note(arrival.source.host, arrival.worker)
        self._pass_on(Newcomer(arrival, sock, arrival.source.host))

    async def _keep(self, slot: Slot) -> None:
        """Start a worker again whenever it has ended."""
        loop = asyncio.get_running_loop()
        failures, since = 0, loop.time()
        while True:
            process = slot.process
            if process is not None:
                code = await asyncio.shield(process.ended)
                others = self._crew.empty(slot)
                failures = 0 if loop.time() - since > STEADY else failures + 1
                if self._roll.restarts(slot):
                    self.log.info("worker ended", worker=slot.name, pid=process.pid, reason=how_it_ended(code))
                else:
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
                self._roll.told(slot, str(error))
                failures += slot.process is None
                continue
            except Exception as error:
                # A fault of ours: nothing else would try again.
                self.log.error("worker did not start", worker=slot.name, reason=str(error), exc_info=error)
                self._roll.told(slot, str(error))
                failures += 1
                if slot.process is not None:
                    slot.process.kill()
                continue
            since = loop.time()
            self._restarts[slot.name] = self._restarts.get(slot.name, 0) + 1
            if self._answering is not None:
                await self._answering.renew()
            self.log.warning("worker serves again", worker=slot.name, pid=slot.process.pid if slot.process else 0)
            self._roll.told(slot)


def _at_its_address(has: Listener, wanted: Listener) -> Listener:
    """Return other settings of a listener, but for what the supervisor does before a worker has the connection."""
    if wanted.url != has.url:
        return has
    return wanted.model_copy(update={name: getattr(has, name) for name in OF_LISTENERS})


def _half_of_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MANY
    return max(FEW, min(MANY, (soft - OWN_DESCRIPTORS) // 2))
