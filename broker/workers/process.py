"""One worker as the supervisor sees it: its process, what it writes, and what it is asked.

Owns the process from its start to its end, and the pipe of its log. Promises: what it writes comes out in whole lines,
whoever else writes; nothing it was asked is left without an answer or `WorkerGoneError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from broker.process.notify import NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC
from broker.settings import Settings
from broker.workers.listening import SharedListener
from broker.workers.wire import Channel, Message

COMMAND: Final = (sys.executable, "-P", "-m", "broker.workers")
"""What is run, with the descriptor of its side of the conversation."""

NOT_ITS: Final = frozenset({NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID})
"""Variables that are for the supervisor alone."""

PIECE: Final = 65_536
LONGEST_LINE: Final = 1_048_576
"""Bytes of what a worker writes without an end of line that are kept together."""

LAST_WORDS: Final = 1.0
"""Seconds for which what an ended worker has written is waited for."""


class WorkerGoneError(Exception):
    """The worker has ended, in one line. `told`: by its own words, which no second start would change."""

    def __init__(self, why: str, told: bool = False) -> None:
        super().__init__(why)
        self.told = told


class WorkerProcess:
    """One process. Made on the event loop by `begin`."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, sock: socket.socket, log: Callable[[str], Any]
    ) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log = log
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._meets: Callable[[], None] | None = None
        # How far it has come with ending.
        self._stages: dict[str, asyncio.Event] = {}
        self.why = ""
        """What it said why it could not start, or end as it was to."""
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._last = 0
        self._channel = Channel(sock, self._told, lambda: None)
        self.ended: asyncio.Task[int] = loop.create_task(self._end())
        """Done when it has ended: with its exit code, or minus the number of the signal that ended it."""

    @classmethod
    async def begin(cls, name: str, log: Callable[[str], Any]) -> WorkerProcess:
        """Start a process. `log` takes lines, each with its end. Raises OSError."""
        mine, its = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                str(its.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(its.fileno(),),
                # Ctrl-C is for the supervisor.
                start_new_session=True,
                env={name: value for name, value in os.environ.items() if name not in NOT_ITS},
            )
        except BaseException:
            mine.close()
            raise
        finally:
            its.close()
        return cls(name, process, mine, log)

    async def serve(
        self,
        settings: Settings,
        listeners: Sequence[SharedListener],
        worker: int,
        folder: Path,
        nodes: Sequence[str],
        machine: str,
        owner: str,
        meets: Callable[[], None],
        gathered: tuple[socket.socket, str] | None = None,
    ) -> None:
        """Have it serve with these settings; returns when it does.

        `nodes`: those that it is to have met before; `machine`: as in `Plan`; `owner`: whose its store is; `meets` is
        called when it waits for the nodes. `gathered`: where its events go, and the page of their numbers; the socket
        is closed here.

        Raises:
            WorkerGoneError: it has ended in place of that.
        """
        start = {
            "name": self.name,
            "first": worker == 0,
            "folder": str(folder),
            "nodes": list(nodes),
            "machine": machine,
            "owner": owner,
            "page": gathered[1] if gathered is not None else "",
            "settings": settings.model_dump_json(exclude_unset=True),
        }
        self._meets = meets
        self._send(start, listeners, worker, gathered[:1] if gathered is not None else ())
        if gathered is not None:
            gathered[0].close()
        await asyncio.wait((self._ready, self.ended), return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            raise WorkerGoneError(self.why or how_it_ended(self.ended.result()), told=bool(self.why))

    async def reload(self, settings: Settings, listeners: Sequence[SharedListener], worker: int) -> Message:
        """Have it take up other settings, with these listeners that are new. Raises WorkerGoneError."""
        message = {"do": "reload", "settings": settings.model_dump_json(exclude_unset=True)}
        return await self._ask(message, listeners, worker)

    async def ping(self) -> None:
        """Returns when its event loop has gone round. Raises WorkerGoneError."""
        await self._ask({"do": "ping"})

    async def join(self, others: Sequence[str], seconds: float) -> None:
        """Returns when it is one broker with these other nodes.

        Raises:
            WorkerGoneError: it is not, after so many seconds; or it has ended.
        """
        answer = await self._ask({"do": "join", "others": list(others), "seconds": seconds})
        if answer.get("missing", True):
            raise WorkerGoneError(f"does not reach the other workers within {seconds:g} s")

    async def leave(self, seconds: float) -> Message:
        """Have it accept nobody any more, and move its clients within so many seconds. Raises WorkerGoneError."""
        return await self._ask({"do": "leave", "seconds": seconds})

    async def caught_up(self, seconds: float) -> bool:
        """Whether it has all that the others retain, at the latest after so many seconds. Raises WorkerGoneError."""
        return not (await self._ask({"do": "catch up", "seconds": seconds})).get("missing", True)

    def stop(self, together: bool = False, remove: bool = False) -> None:
        """Have it end in order. `together`: stage by stage (`has_come_to`, `go`). `remove`: its store, too, then."""
        self._channel.send({"do": "stop", "together": together, "remove": remove})

    async def has_come_to(self, stage: str) -> None:
        """Returns when it has come so far with ending, or has ended."""
        come = asyncio.ensure_future(self._stage(stage).wait())
        try:
            await asyncio.wait((come, self.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            come.cancel()

    def go(self, stage: str) -> None:
        """All have come so far: it may go on."""
        self._channel.send({"do": "go", "stage": stage})

    def _stage(self, name: str) -> asyncio.Event:
        return self._stages.setdefault(name, asyncio.Event())

    async def _ask(self, message: Message, listeners: Sequence[SharedListener] = (), worker: int = 0) -> Message:
        self._last += 1
        number = self._last
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send({**message, "id": number}, listeners, worker)
            await asyncio.wait((answer, self.ended), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise WorkerGoneError(how_it_ended(self.ended.result()))
            given: Message = answer.result()
            return given
        finally:
            del self._asked[number]

    def _send(
        self, message: Message, listeners: Sequence[SharedListener], worker: int, more: Sequence[socket.socket] = ()
    ) -> None:
        names: list[tuple[str, int]] = []
        sockets: list[socket.socket] = []
        for each in listeners:
            its = each.of(worker)
            names.append((each.name, len(its)))
            sockets += its
        self._channel.send({**message, "listeners": names}, [*sockets, *more])

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _told(self, message: Message, sockets: list[socket.socket]) -> None:
        del sockets
        if message["say"] == "ready" and not self._ready.done():
            self._ready.set_result(None)
        elif message["say"] == "meets" and self._meets is not None:
            self._meets()
        elif message["say"] == "come to":
            self._stage(message["stage"]).set()
        elif message["say"] == "failed":
            self.why = message["why"]
        elif message["say"] == "answer":
            asked = self._asked.get(message["to"])
            if asked is not None and not asked.done():
                asked.set_result(message["answer"])

    async def _end(self) -> int:
        """Hand on what it writes until it has ended."""
        reading = asyncio.get_running_loop().create_task(self._hand_on())
        code = await self._process.wait()
        # A program that it started may have the pipe still.
        await asyncio.wait((reading,), timeout=LAST_WORDS)
        reading.cancel()
        self._channel.drain()
        self._channel.close()
        return code

    async def _hand_on(self) -> None:
        assert self._process.stderr is not None
        rest = b""
        while piece := await self._process.stderr.read(PIECE):
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > LONGEST_LINE:
                whole, rest = [*whole, rest], b""
            for line in whole:
                self._log(line.decode("utf-8", "replace") + "\n")
        if rest:
            self._log(rest.decode("utf-8", "replace") + "\n")


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
