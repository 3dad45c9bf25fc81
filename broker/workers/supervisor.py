"""Starts the workers, keeps them going, and is what the daemon runs in place of a broker.

Owns the listening sockets, the run folder, and which worker may get connections. Promises: a worker that ends is
started again, later each time it fails; after `workers.max_start_failures` failed starts of one, all end, with an exit
code. What keeps the first worker from starting is told once, and the others are not tried. A reload that one worker
refuses is refused, and told once. In a rolling restart there is always a worker that accepts connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from broker.configuration.reading import SettingsError
from broker.configuration.wording import show
from broker.net.listening.listeners import StartupError
from broker.net.listening.tls import TlsError
from broker.net.log import Faults
from broker.process import logs
from broker.process.without_rich import structlog
from broker.recording import start_recording
from broker.security.errors import SecurityError
from broker.settings import Settings, flatten
from broker.store import StoreError
from broker.storing import make
from broker.workers.emptying import empty
from broker.workers.ending import end_together
from broker.workers.listening import SharedListener, SharedListeners
from broker.workers.plan import STAYS, Plan, as_they_are, run_folder, unusable
from broker.workers.process import WorkerGoneError, WorkerProcess, how_it_ended
from broker.workers.slots import Slot

if TYPE_CHECKING:
    from broker.admin.host import Host
    from broker.admin.server import AdminServer, Prepared
    from broker.record.workers.gathering import Gathering
    from broker.workers.front.asking import Workers

FIRST_DELAY: Final = 0.5
"""Seconds until a worker is started again that has ended."""

STEADY: Final = 60.0
"""Seconds after which a worker has served well enough to be started again as if it had never ended."""

PATIENCE: Final = 10.0
"""Seconds beyond `shutdown.flush_timeout` that a worker has to end in order, before it is killed."""

PINGS: Final = 3
"""Questions within `workers.hang_timeout`, whether a worker still answers."""


class Supervisor:
    """All workers, as a daemon runs them (`broker.process.daemon.Service`)."""

    def __init__(
        self,
        settings: Settings,
        workers: int,
        people: bool,
        write: Callable[[str], Any],
        read: Callable[[], Settings] | None = None,
        joined: bool = True,
    ) -> None:
        """`people`: they read the log; `write` takes its lines. `read` reads the settings again, in a thread; None:
        there is nothing to read. `joined`: the workers are one broker, and not each by itself."""
        self.settings = settings
        self.workers = workers
        self.slots: list[Slot] = []
        self.leavers: list[Slot] = []
        """Those that are there for what is left in their stores (`emptying`)."""
        self.log: Any = structlog.get_logger("canopy")
        self.faults = Faults(lambda: self.log)
        self.read = read
        self.stopping = False
        self._people = people
        self._write = write
        self._joined = joined
        self._listeners = SharedListeners(workers)
        self._admin: AdminServer | None = None
        self._asked: Workers | None = None
        self._recording: Gathering | None = None
        # From `start` on.
        self._since: float
        self._plan: Plan
        self._broken: asyncio.Future[str]
        self._keepers: list[asyncio.Task[None]] = []
        self._rolling: asyncio.Task[None] | None = None
        self._emptying: asyncio.Task[None] | None = None
        # Reloads and rolling restarts come one after the other.
        self._turn = asyncio.Lock()

    @property
    def listening(self) -> list[str]:
        """URLs that the workers share."""
        return self._listeners.urls

    @property
    def http(self) -> list[str]:
        """URLs on which it answers for all."""
        return [] if self._admin is None else self._admin.urls

    @property
    def kept(self) -> Sequence[Slot]:
        """All workers that there should be."""
        return self.slots

    @property
    def uptime(self) -> float:
        """Seconds since all served."""
        return asyncio.get_running_loop().time() - self._since

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Have all workers serve. Raises StartupError or SettingsError, in one line."""
        loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        self.slots = [Slot(number) for number in range(self.workers)]
        self.leavers = [Slot(number) for number in await left_over(self.settings, self.workers)]
        folder = await asyncio.to_thread(run_folder, self.settings.workers.directory)
        try:
            leavers = [slot.number for slot in self.leavers]
            self._plan = Plan(folder, self.workers, self._people, self._joined, leavers, self.settings.mesh)
            self._listeners.adopt(await self._listeners.prepare(self.settings))
            self._recording = await start_recording(self.settings.recorder, self.workers, self.log, self._break)
            await self._start_all()
            for slot in self._all:
                if slot.process is not None:
                    await self._join(slot, slot.process)
            self._since = loop.time()
            if self.settings.http.listen:
                await self._answer()
        except BaseException as error:
            await self.stop()
            if isinstance(error, ExceptionGroup):
                raise error.exceptions[0] from error
            if isinstance(error, (SettingsError, WorkerGoneError)):
                raise StartupError(str(error)) from error
            raise
        self._steer()
        self._keepers = [loop.create_task(self._keep(slot)) for slot in self._all]
        if self.leavers:
            left = [slot.name for slot in self.leavers]
            self.log.warning("stores of former workers are emptied", workers=left)
            self._emptying = loop.create_task(empty(self))
        loop.add_signal_handler(signal.SIGUSR2, self.restart)
        pids = {slot.name: slot.process.pid for slot in self.slots if slot.process is not None}
        self.log.info("workers serve", pids=pids, folder=str(folder))

    @property
    def _all(self) -> list[Slot]:
        return [*self.slots, *self.leavers]

    async def _start_all(self) -> None:
        """Start all workers. Raises StartupError, alone or in a group."""
        first, *others = self._all
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            # What is wrong with the settings, the first one tells.
            started = group.create_task(self._first_start(first))
            # With a store it serves when it has met the others: clients must not miss sessions that are kept there.
            met = loop.create_task(first.meets.wait())
            try:
                await asyncio.wait((started, met) if self._meets else (started,), return_when=asyncio.FIRST_COMPLETED)
            finally:
                met.cancel()
            if not started.done() or started.exception() is None:
                for slot in others:
                    group.create_task(self._first_start(slot))

    def _break(self, why: str) -> None:
        """Something without which the workers must not serve is gone."""
        if not self._broken.done():
            self.log.error("the broker stops", reason=why)
            self._broken.set_result(why)

    @property
    def _meets(self) -> bool:
        """Whether workers wait for each other before they take clients: each may have sessions in its store."""
        return self._joined and self.settings.store.kept

    async def _answer(self) -> None:
        """Answer over HTTP, for all. Raises StartupError."""
        # Not before: aiohttp takes 20 MB.
        from broker.admin.server import AdminServer
        from broker.workers.front.asking import Workers
        from broker.workers.front.routes import Front

        settings = self.settings.http
        self._asked = Workers({slot.name: self._plan.http(slot.number) for slot in self.slots}, settings.timeout)
        # Its routes ask no more of it than it has.
        host = cast("Host", self)
        admin = AdminServer(host, settings, Front(self, self._asked).routes())
        await admin.start()
        self._admin = admin

    async def _first_start(self, slot: Slot) -> None:
        """Start a worker at the beginning. Raises StartupError."""
        while True:
            try:
                await self._begin(slot)
                return
            except WorkerGoneError as error:
                slot.failures += 1
                if error.told or slot.failures >= self.settings.workers.max_start_failures:
                    raise StartupError(str(error) if error.told else f"worker {slot.name}: {error}") from error
                delay = self._delay(slot)
                self.log.error("worker did not start", worker=slot.name, reason=str(error), delay=delay)
                await asyncio.sleep(delay)

    async def _begin(self, slot: Slot) -> None:
        """Start the slot's process; returns when it serves. Raises WorkerGoneError."""
        try:
            process = await WorkerProcess.begin(slot.name, self._write)
        except OSError as error:
            raise WorkerGoneError(f"cannot be started: {error.strerror or error}") from error
        settings = self._plan.settings(self._with_listeners(), slot.number, slot.generation)
        slot.generation += 1
        try:
            kept = settings.store.kept
            nodes = [self._plan.node(each.number, 0, kept) for each in self._all if each is not slot]
            listeners = [] if slot in self.leavers else self._listeners.open
            folder, owner = self._plan.folder, self._plan.owner(slot.number)
            met = nodes if self._meets else ()
            recording = None if slot in self.leavers else self._recording
            gathered = None if recording is None else await recording.open(slot.number)
            machine = self._plan.machine
            await process.serve(settings, listeners, slot.number, folder, met, machine, owner, slot.meets.set, gathered)
            await self._join(slot, process)
        except BaseException:
            process.signal(signal.SIGKILL)
            await asyncio.wait((process.ended,))
            raise
        slot.process = process
        self._steer()

    async def _join(self, slot: Slot, process: WorkerProcess) -> None:
        """Wait until a worker is one broker with the others that are there. Raises WorkerGoneError."""
        if self._joined:
            kept, there = self.settings.store.kept, (each for each in self._all if each.process is not None)
            others = [self._plan.node(each.number, each.generation - 1, kept) for each in there if each is not slot]
            await process.join(others, self.settings.mesh.node_timeout)

    def _with_listeners(self) -> Settings:
        """The settings, with the listeners that there are: others may take a restart of the supervisor."""
        settings = self.settings
        wanted = {each.called: each for each in settings.listeners}
        if wanted.keys() == {each.name for each in self._listeners.open}:
            return settings
        tables = tuple(wanted.get(each.name, each.settings) for each in self._listeners.open)
        made = settings.model_copy(update={"listener": tables})
        made.model_fields_set.discard("listen")
        return made

    def _delay(self, slot: Slot) -> float:
        """Seconds until it is started again."""
        return min(self.settings.workers.max_restart_delay, FIRST_DELAY * 2.0 ** min(slot.failures - 1, 30))

    def _steer(self) -> None:
        """Have connections go to those who are there."""
        self._listeners.steer([slot.number for slot in self.slots if slot.process is not None])

    async def _keep(self, slot: Slot) -> None:
        """Start a worker again whenever it has ended."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while not slot.over:
            process = slot.process
            if process is None:
                async with slot.turn:
                    if slot.process is None and not slot.over:
                        await self._again(slot)
                since = loop.time()
            else:
                await self._watch(slot, process)
                if not process.ended.done():
                    continue
                async with slot.turn:
                    if slot.process is not process:
                        # It was replaced.
                        since = loop.time()
                        continue
                    slot.process = None
                    self._steer()
                slot.failures = 1 if loop.time() - since > STEADY else slot.failures + 1
                slot.restarts += 1
                why = how_it_ended(process.ended.result())
                self.log.error("worker ended", worker=slot.name, pid=process.pid, reason=why, delay=self._delay(slot))
            if slot.process is None:
                await asyncio.sleep(self._delay(slot))

    async def _again(self, slot: Slot) -> bool:
        """Try to start a worker; whether it serves. Too many failures in a row end all."""
        try:
            await self._begin(slot)
        except Exception as error:
            # Whatever it was, it may pass: nobody else would try again.
            if not isinstance(error, WorkerGoneError):
                self.faults.broke("workers", error)
            slot.failures += 1
            slot.failed_starts += 1
            most = self.settings.workers.max_start_failures
            if slot.failed_starts >= most and not self._broken.done():
                self._broken.set_result(f"worker {slot.name} did not start {slot.failed_starts} times: {error}")
            delay = self._delay(slot)
            self.log.error("worker did not start", worker=slot.name, reason=str(error), delay=delay)
            return False
        slot.failed_starts = 0
        assert slot.process is not None
        self.log.warning("worker serves again", worker=slot.name, pid=slot.process.pid)
        return True

    async def _watch(self, slot: Slot, process: WorkerProcess) -> None:
        """Wait for a worker to end, for as long as a question may take; one that does not answer is killed."""
        hang = self.settings.workers.hang_timeout
        if not hang:
            await asyncio.wait((process.ended,))
            return
        await asyncio.wait((process.ended,), timeout=hang / PINGS)
        if process.ended.done():
            return
        try:
            async with asyncio.timeout(hang):
                await process.ping()
        except WorkerGoneError:
            return
        except TimeoutError:
            self.log.error("worker does not answer", worker=slot.name, pid=process.pid, seconds=hang)
            process.signal(signal.SIGKILL)
            await asyncio.wait((process.ended,))

    async def stop(self) -> None:
        """End all workers in order, all at the same time."""
        self.stopping = True
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR2)
        tasks = [*self._keepers, *(each for each in (self._rolling, self._emptying) if each is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._listeners.close()
        if self._joined:
            processes = [slot.process for slot in self._all if slot.process is not None]
            await end_together(processes, self.settings.shutdown.flush_timeout + PATIENCE)
        await asyncio.gather(*(self.end(slot) for slot in self._all))
        if self._recording is not None:
            await self._recording.stop()
        admin, self._admin = self._admin, None
        if admin is not None:
            # Last: until then it says that the broker is not ready.
            await admin.stop()
        if self._asked is not None:
            await self._asked.close()
        if hasattr(self, "_plan"):
            await asyncio.to_thread(shutil.rmtree, self._plan.folder, ignore_errors=True)

    async def end(self, slot: Slot, remove: bool = False) -> int:
        """End a worker in order, or by force where it takes too long; its exit code. `remove`: its store, too."""
        process, slot.process = slot.process, None
        if process is None:
            return 0
        process.stop(remove=remove)
        patience = self.settings.shutdown.flush_timeout + PATIENCE
        await asyncio.wait((process.ended,), timeout=patience)
        if not process.ended.done():
            self.log.error("worker does not answer", worker=slot.name, pid=process.pid, seconds=patience)
            process.signal(signal.SIGKILL)
        return await process.ended

    async def broken(self) -> str:
        """Why they end: a worker cannot be started any more."""
        return await asyncio.shield(self._broken)

    # -- reload --------------------------------------------------------------------------------------------------------

    async def reload(self, new: Settings) -> list[str]:
        """Have all workers take up other settings; a line for each that takes a restart.

        Raises:
            SettingsError: they are not for several workers, or a worker refuses them.
        """
        async with self._turn:
            if lines := unusable(new):
                raise SettingsError(lines)
            http = self.settings.http
            admitted: Prepared | None = None
            if self._admin is not None:
                try:
                    admitted = await self._admin.prepare(new.http)
                except (SecurityError, TlsError) as error:
                    raise SettingsError([str(error)]) from error
                http = admitted.settings
            # The bounds of the supervisor, how many there are, and where they and their stores are, stay.
            applied = as_they_are(self.settings, new).model_copy(update={"http": http})
            if "listen" not in new.model_fields_set:
                applied.model_fields_set.discard("listen")
            try:
                added = await self._listeners.prepare(applied)
            except StartupError as error:
                raise SettingsError([str(error)]) from error
            async with contextlib.AsyncExitStack() as turns:
                # Nobody starts with the old ones meanwhile.
                for slot in self.slots:
                    await turns.enter_async_context(slot.turn)
                lines = await self._reload_all(applied, added)
            if admitted is not None and self._admin is not None:
                self._admin.apply(admitted)
            for line in self._unchanged(new):
                self.log.warning("setting takes a restart", detail=line)
                lines.append(line)
            return lines

    def _unchanged(self, new: Settings) -> list[str]:
        """A line for each setting of the supervisor that stays as it is."""
        has, wanted = flatten(self.settings), flatten(new)
        return [
            f"{name}: {show(has[name])} stays in force; {show(wanted[name])} takes a restart"
            for name in has
            if has[name] != wanted[name]
            and (name.startswith(("http.", "workers.")) or name in STAYS or name == "recorder.required")
        ]

    async def _reload_all(self, applied: Settings, added: list[SharedListener]) -> list[str]:
        answers = await asyncio.gather(*(self._reload(slot, applied, added) for slot in self.slots))
        problems = list(dict.fromkeys(line for answer in answers for line in answer.get("problems", ())))
        if problems:
            await self._listeners.discard(added)
            raise SettingsError(problems)
        self.settings = applied
        logs.set_level(applied.log.level)
        self._listeners.adopt(added)
        served = [set(answer["open"]) for answer in answers if answer]
        if served:
            await self._listeners.keep(set.union(*served))
        self._steer()
        return list(dict.fromkeys(line for answer in answers for line in answer.get("lines", ())))

    async def _reload(self, slot: Slot, settings: Settings, added: list[SharedListener]) -> dict[str, Any]:
        """A worker's answer; empty: it has ended meanwhile, and begins with them."""
        process = slot.process
        if process is None:
            return {}
        try:
            made = self._plan.settings(settings, slot.number, slot.generation - 1)
            return await process.reload(made, added, slot.number)
        except WorkerGoneError:
            return {}

    # -- rolling restart -----------------------------------------------------------------------------------------------

    def restart(self) -> bool:
        """Begin to restart one worker after the other. Whether none was under way."""
        if self._rolling is not None and not self._rolling.done():
            return False
        self._rolling = asyncio.get_running_loop().create_task(self._roll())
        return True

    async def _roll(self) -> None:
        async with self._turn:
            self.log.warning("rolling restart", workers=self.workers)
            for slot in self.slots:
                async with slot.turn:
                    if slot.process is not None and not await self._replace(slot, slot.process):
                        # What one does not survive, the others are spared.
                        self.log.error("rolling restart given up", worker=slot.name)
                        return
            self.log.warning("rolling restart done", workers=self.workers)

    async def _replace(self, slot: Slot, process: WorkerProcess) -> bool:
        """Move a worker's clients to the others, end it, and start the next; whether that serves."""
        # From here on nobody new comes to it; what waits there already, the next one gets.
        self._listeners.steer([each.number for each in self.slots if each.process is not None and each is not slot])
        left: dict[str, Any] = {}
        # One that has ended by itself has gone the sooner.
        with contextlib.suppress(WorkerGoneError):
            left = await process.leave(self.settings.workers.drain_timeout)
        await self.end(slot)
        sessions, messages = left.get("sessions", 0), left.get("messages", 0)
        self.log.warning("worker leaves", worker=slot.name, pid=process.pid, sessions=sessions, messages=messages)
        return await self._again(slot)


async def left_over(settings: Settings, workers: int) -> list[int]:
    """The numbers of workers that have stores, beyond so many. Raises StartupError."""
    store = make(settings)
    try:
        found = [] if store is None else await store.parts()
    except StoreError as error:
        raise StartupError(str(error)) from error
    return [part.worker for part in found if part.worker >= workers]
