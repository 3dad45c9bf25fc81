"""One worker: a broker in a process of its own, started by the supervisor and steered by it.

Owns the worker's side of the conversation. Run as `python -m broker.workers DESCRIPTOR`, where the descriptor
is that of the socket to the supervisor. Promises: it ends in order when the supervisor tells it to, or is gone, or
at SIGTERM; it does not outlive a supervisor by more than that takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from broker.app import Broker, StartupError
from broker.configuration.absent_files import to_be_made
from broker.configuration.reading import SettingsError
from broker.net.companions import Companions
from broker.net.listening.handed import HandedSockets
from broker.process import daemon, logs
from broker.process.logwriter import BackgroundWriter
from broker.process.process import Process
from broker.recording import Gathered
from broker.settings import Settings
from broker.store import StoreError
from broker.workers.addresses import worker_of
from broker.workers.wire import Channel, Message, frame, receive

TOLD_ONCE: Final = frozenset({"suspicious setting", "setting takes a restart", "certificate"})
"""Events about settings, which the first worker tells for all."""

LOOK: Final = 0.05
"""Seconds between two looks at the workers that are still to come."""

HAND_OVER: Final = 30.0
"""Seconds that a worker's sessions have to go to the others, from when the last client was told to go."""

ABORTED: Final = 128 + signal.SIGTERM
"""The exit code of a worker whose supervisor ended while it was stopping."""


class Others(Companions):
    """The other workers, by what the supervisor says of them."""

    def __init__(self, nodes: tuple[str, ...], machine: str, folder: Path, say: Callable[[Message], None]) -> None:
        """`machine`: as in `Plan`."""
        self.nodes = nodes
        self._machine = machine
        self._folder = folder
        self.alone = False
        """This one goes, and the others stay."""
        self.together = False
        """All end at the same time, stage by stage."""
        self._say = say
        self._stages: dict[str, asyncio.Event] = {}

    def socket(self, node: str) -> Path | None:
        """See `Companions.socket`."""
        if not self._machine:
            return self._folder / f"{node}.link"
        worker = worker_of(node, self._machine)
        return None if worker is None else self._folder / f"w{worker}.link"

    def may_come(self, node: str) -> bool:
        """See `Companions.may_come`."""
        return node in self.nodes or not self._is_here(node)

    def takers(self, nodes: list[str]) -> list[str]:
        """See `Companions.takers`. Where only this worker goes, those of this machine; else those of others."""
        return [node for node in nodes if self._is_here(node) == self.alone] or nodes

    def _is_here(self, node: str) -> bool:
        return not self._machine or worker_of(node, self._machine) is not None

    def meets(self) -> None:
        """See `Companions.meets`."""
        self._say({"say": "meets"})

    async def emptied(self) -> bool:
        """See `Companions.emptied`."""
        await self._come_to("emptied")
        return self.together

    async def settled(self) -> None:
        """See `Companions.settled`."""
        await self._come_to("settled")

    def go(self, stage: str) -> None:
        """All have come so far."""
        self._stages.setdefault(stage, asyncio.Event()).set()

    def end_alone(self) -> None:
        """Nobody says any more how far the others are."""
        self.together = False
        for stage in self._stages.values():
            stage.set()

    async def _come_to(self, stage: str) -> None:
        if self.together:
            self._say({"say": "come to", "stage": stage})
            await self._stages.setdefault(stage, asyncio.Event()).wait()


class Worker:
    """The broker of this process, as a daemon runs it, and its conversation with the supervisor."""

    def __init__(
        self, settings: Settings, sock: socket.socket, folder: Path, start: Message, gathered: Gathered
    ) -> None:
        """`start`: what the supervisor said. `gathered`: where its events go."""
        self.broker = Broker(settings)
        self.broker.handed = HandedSockets()
        self.broker.companions = self._companions = Others(tuple(start["nodes"]), start["machine"], folder, self._say)
        if not start["listeners"]:
            # It is there for its store alone.
            self.broker.listeners.all = []
        if self.broker.store is not None:
            self.broker.store.owned_by(start["owner"])
        self.broker.gathered = gathered
        # Its settings come from the supervisor.
        self.broker.process = Process(None, logs.set_level)
        self.broker.process.changed = self.broker.log_changed
        self._sock = sock
        self._folder = folder
        self._channel: Channel | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = self._removes = False
        # Its result is why it ends by itself; cancelled, it was told to end.
        self._ending: asyncio.Future[str]

    @property
    def listening(self) -> list[str]:
        """URLs that it shares."""
        return self.broker.listening

    @property
    def http(self) -> list[str]:
        """Where the supervisor asks it."""
        return self.broker.http

    def hand(self, names: list[list[Any]], sockets: list[socket.socket]) -> None:
        """Take the sockets for listeners; `names`: of each listener, and how many are its."""
        assert self.broker.handed is not None
        for name, number in names:
            self.broker.handed.add(name, [sockets.pop(0) for _ in range(number)])

    async def start(self) -> None:
        """Serve, and say so. Raises StartupError."""
        self._ending = asyncio.get_running_loop().create_future()
        self._channel = Channel(self._sock, self._told, self._lost)
        await self.broker.start()
        if self.broker.settings.mesh.name and self.broker.mesh is None:
            raise StartupError("a worker that is on its own must not serve: it is no node of the workers' mesh")
        self._channel.send({"say": "ready"})

    async def stop(self) -> None:
        """End in order."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await self.broker.stop()
        if self._removes and self.broker.store is not None:
            try:
                await self.broker.store.remove()
            except StoreError as error:
                raise daemon.DaemonError(str(error)) from error

    def _say(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    async def broken(self) -> str:
        """Why it stops by itself. Cancelled when the supervisor has it stop."""
        broken = asyncio.ensure_future(self.broker.broken())
        try:
            await asyncio.wait((broken, self._ending), return_when=asyncio.FIRST_COMPLETED)
            return self._ending.result() if self._ending.done() else broken.result()
        finally:
            broken.cancel()

    async def reload(self, new: Settings) -> list[str]:
        """Nothing: the supervisor reads the settings for all (`_reload`)."""
        del new
        return ["a worker is reloaded by its supervisor"]

    def _lost(self) -> None:
        """The supervisor has gone, killed perhaps: nobody is left who would end this process."""
        self._companions.end_alone()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._stopping:
            # It was told to make haste.
            os._exit(ABORTED)
        if not self._ending.done():
            self.broker.log.error("supervisor gone")
            self._ending.set_result("the supervisor of the workers has gone")

    def _told(self, message: Message, sockets: list[socket.socket]) -> None:
        if message["do"] == "stop":
            self._companions.together = message["together"]
            self._removes = message["remove"]
            # No signal: systemd sends one to all processes of a service, and a second one would end it at once.
            self._ending.cancel()
            return
        if message["do"] == "go":
            self._companions.go(message["stage"])
            return
        work: dict[str, Callable[[Message, list[socket.socket]], Any]] = {
            "ping": self._ping,
            "join": self._join,
            "catch up": self._catch_up,
            "reload": self._reload,
            "leave": self._leave,
        }
        task = asyncio.ensure_future(self._answer(work[message["do"]], message, sockets))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, work: Callable[[Message, list[socket.socket]], Any], message: Message, sockets: list[socket.socket]
    ) -> None:
        try:
            answer = await work(message, sockets)
        except SettingsError as error:
            answer = {"problems": list(error.problems)}
        except Exception as error:
            self.broker.faults.broke("workers", error)
            answer = {"problems": [f"{type(error).__name__}: {error}"]}
        assert self._channel is not None
        self._channel.send({"say": "answer", "to": message["id"], "answer": answer})

    async def _ping(self, message: Message, sockets: list[socket.socket]) -> Message:
        """Its event loop goes round."""
        del message, sockets
        return {}

    async def _join(self, message: Message, sockets: list[socket.socket]) -> Message:
        """These other workers are there; or the time is up, and so many are not."""
        del sockets
        mesh, loop = self.broker.mesh, asyncio.get_running_loop()
        assert mesh is not None
        end = loop.time() + message["seconds"]
        others: set[str] = set(message["others"])
        while others.difference(mesh.bus.nodes()) and loop.time() < end:  # noqa: ASYNC110 (the mesh tells nobody)
            await asyncio.sleep(LOOK)
        return {"missing": len(others.difference(mesh.bus.nodes()))}

    async def _catch_up(self, message: Message, sockets: list[socket.socket]) -> Message:
        """It has all that the others retain; or the time is up."""
        del sockets
        mesh, loop = self.broker.mesh, asyncio.get_running_loop()
        assert mesh is not None
        end = loop.time() + message["seconds"]
        while mesh.not_ready() and loop.time() < end:  # noqa: ASYNC110 (the mesh tells nobody)
            await asyncio.sleep(LOOK)
        return {"missing": bool(mesh.not_ready())}

    async def _reload(self, message: Message, sockets: list[socket.socket]) -> Message:
        """Take up other settings: what takes a restart, and which listeners are open now."""
        self.hand(message["listeners"], sockets)
        try:
            lines = await self.broker.reload(Settings.model_validate_json(message["settings"]))
        except RuntimeError as error:
            raise SettingsError([str(error)]) from error
        finally:
            assert self.broker.handed is not None
            self.broker.handed.close()
        return {"lines": lines, "open": [each.name for each in self.broker.listeners.open]}

    async def _leave(self, message: Message, sockets: list[socket.socket]) -> Message:
        """Accept nobody any more, and move the clients to the other workers.

        The answer, when they have gone or the time is up: sessions that end with this worker, and their messages.
        """
        del sockets
        broker = self.broker
        seconds: float = message["seconds"]
        await broker.listeners.close()
        self._companions.alone = True
        broker.draining.start(seconds, for_good=False, reference="", by="rolling restart")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(broker.draining.done.wait(), seconds + HAND_OVER)
        left = self._own_sessions()
        messages = sum(each.queue.messages + len(each.inflight) for each in left)
        return {"sessions": len(left), "messages": messages}

    def _own_sessions(self) -> list[Any]:
        """Sessions of clients that no other worker has fetched."""
        return [each for each in self.broker.router.sessions.values() if not each.own]


def main() -> int:
    """Run a worker; its exit code."""
    logs_to = BackgroundWriter(sys.stderr)
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        message, sockets = receive(sock)
    except EOFError:
        return 1
    settings = Settings.model_validate_json(message["settings"])
    # Behind those of the listeners, where somebody records.
    gathered = (sockets.pop() if message["page"] else None, message["page"])
    left_out = () if message["first"] else TOLD_ONCE
    logs.configure(settings.log.level, settings.log.format, logs_to, message["name"], left_out)

    def make(settings: Settings) -> Worker:
        worker = Worker(settings, sock, Path(message["folder"]), message, gathered)
        worker.hand(message["listeners"], sockets)
        return worker

    try:
        daemon.run(settings, make, announce=lambda *_: None)
    except (daemon.DaemonError, StartupError) as error:
        _fail(sock, to_be_made(settings) or str(error))
        return 1
    finally:
        logs_to.close()
    return 0


def _fail(sock: socket.socket, why: str) -> None:
    """Tell the supervisor why it ends, which tells it once."""
    try:
        sock.setblocking(True)
        sock.sendall(frame({"say": "failed", "why": why}))
    except OSError:
        pass
