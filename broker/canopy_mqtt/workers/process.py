"""One worker as the supervisor sees it: its process, its log, and what the two say to each other.

Owns the process from its start to its end. Promises: its log comes out in whole lines, each with the worker's name,
whatever other workers write; nobody waits for an answer of a process that has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from canopy_mqtt.assembly.notify import NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC
from canopy_mqtt.settings import Settings
from canopy_mqtt.settings.errors import SettingsError
from canopy_mqtt.workers.wire import (
    CONNECTION,
    SAYS,
    TAKEN,
    Arrival,
    Channel,
    Frame,
    Said,
    arrival,
    reloads,
    says,
    starts,
)

COMMAND: Final = (sys.executable, "-P", "-m", "canopy_mqtt.workers.worker")
"""What is run, with the descriptor of its side of the conversation."""

NOT_ITS: Final = frozenset({NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID})
"""Variables that are for the supervisor alone."""

PIECE: Final = 65_536
MAX_LINE: Final = 1_048_576
"""Bytes without an end of line that are kept together."""

LAST_WORDS: Final = 1.0
"""Seconds for which the last lines of an ended worker are waited for: a program that it started may have its pipe."""


class Start(NamedTuple):
    """What a worker is told first."""

    worker: int
    settings: Settings
    ports: list[int]
    """The real ports of the listeners, 0 for a Unix socket."""


class WorkerError(Exception):
    """A worker has ended, or cannot start; the message says why in one line."""


class WorkerProcess:
    """One process. Made on the event loop by `begin`."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        sock: socket.socket,
        write: Callable[[str], object],
        people: bool,
        taken: Callable[[], None],
        arrived: Callable[[Arrival, socket.socket], None],
    ) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._write = write
        self._taken = taken
        self._arrived = arrived
        self._people = people
        loop = asyncio.get_running_loop()
        # How far it has come: the others can reach it, and it serves.
        self._stages: dict[str, asyncio.Future[None]] = {stage: loop.create_future() for stage in ("bound", "open")}
        # What it is asked for: to be linked with a worker.
        self._linked: dict[int, asyncio.Future[None]] = {}
        # Why it could not start.
        self._why = ""
        # The answer to the last reload.
        self._problems: list[str] = []
        self._lines: list[str] = []
        self._finished = loop.create_future()
        self.channel = Channel(sock, self._received, self._all_read)
        self.ended: asyncio.Task[int] = loop.create_task(self._end())
        """Its exit code, or minus the number of the signal that ended it; all that it said was heard by then."""

    @classmethod
    async def begin(
        cls,
        name: str,
        start: Start,
        write: Callable[[str], object],
        people: bool,
        taken: Callable[[], None],
        arrived: Callable[[Arrival, socket.socket], None],
    ) -> WorkerProcess:
        """Start a process. `write` takes lines of its log, which `people` read, or programs; `taken` is called for each
        connection that it has, and `arrived` with each that it has for another worker.

        Raises:
            WorkerError: the system starts no process.
        """
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
                env={key: value for key, value in os.environ.items() if key not in NOT_ITS},
            )
        except OSError as error:
            mine.close()
            raise WorkerError(f"worker {name} cannot be started: {error.strerror}") from error
        except BaseException:
            mine.close()
            raise
        finally:
            its.close()
        made = cls(name, process, mine, write, people, taken, arrived)
        made.channel.send(starts(start))
        return made

    async def bound(self) -> None:
        """Wait until the other workers can reach it. Raises WorkerError."""
        await self._answer(self._stages["bound"])

    async def opened(self) -> None:
        """Have it go on, as the other workers can be reached, and wait until it serves. Raises WorkerError."""
        self.channel.send(says({"do": "go on"}))
        await self._answer(self._stages["open"])

    async def linked(self, other: int) -> None:
        """Wait until it has a link to another worker, which knows all that it wants. Raises WorkerError."""
        future = self._linked.setdefault(other, asyncio.get_running_loop().create_future())
        self.channel.send(says({"do": "link", "to": other}))
        await self._answer(future)

    async def reload(self, takes: bool, settings: Settings) -> list[str]:
        """Have it take up other settings, or only check them. Returns a line for each that takes a restart.

        Raises:
            SettingsError: they cannot be used.
            WorkerError: it has ended.
        """
        self._stages["reloaded"] = asyncio.get_running_loop().create_future()
        self.channel.send(reloads(takes, settings))
        await self._answer(self._stages["reloaded"])
        if self._problems:
            raise SettingsError(self._problems)
        return self._lines

    async def drained(self) -> None:
        """Wait until it has no message for another worker. Raises WorkerError."""
        self._stages["drained"] = asyncio.get_running_loop().create_future()
        self.channel.send(says({"do": "drain"}))
        await self._answer(self._stages["drained"])

    async def ping(self) -> None:
        """Wait until its event loop has answered. Raises WorkerError."""
        self._stages["pong"] = asyncio.get_running_loop().create_future()
        self.channel.send(says({"do": "ping"}))
        await self._answer(self._stages["pong"])

    def stop(self) -> None:
        """Have it end in order."""
        self.channel.send(says({"do": "stop"}))

    def kill(self) -> None:
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)

    async def _answer(self, future: asyncio.Future[None]) -> None:
        await asyncio.wait((future, self.ended), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise WorkerError(self._why or f"worker {self.name} {how_it_ended(self.ended.result())}")

    def _received(self, frame: Frame) -> None:
        if frame.kind == TAKEN:
            self._taken()
        elif frame.kind == CONNECTION and frame.sock is not None:
            self._arrived(arrival(frame.body), frame.sock)
        elif frame.kind == SAYS:
            self._told(frame.said())

    def _told(self, said: Said) -> None:
        if said["say"] == "failed":
            self._why = said["why"]
            return
        if said["say"] == "reloaded":
            self._problems, self._lines = said["problems"], said["lines"]
        future = self._linked.pop(said["to"], None) if said["say"] == "linked" else self._stages[said["say"]]
        if future is not None and not future.done():
            future.set_result(None)

    def _all_read(self) -> None:
        if not self._finished.done():
            self._finished.set_result(None)

    async def _end(self) -> int:
        """Hand its log on until it has ended."""
        reading = asyncio.get_running_loop().create_task(self._hand_on())
        code = await self._process.wait()
        await asyncio.wait((reading, self._finished), timeout=LAST_WORDS)
        reading.cancel()
        self.channel.close()
        return code

    async def _hand_on(self) -> None:
        assert self._process.stderr is not None
        rest = b""
        while piece := await self._process.stderr.read(PIECE):
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > MAX_LINE:
                whole, rest = [*whole, rest], b""
            for line in whole:
                self._write(self._with_name(line))
        if rest:
            self._write(self._with_name(rest))

    def _with_name(self, line: bytes) -> str:
        text = line.decode("utf-8", "replace")
        if text.startswith("{") and text.endswith("}"):
            return f'{text[:-1]}, "worker": "{self.name}"}}\n'
        if self._people:
            return f"{self.name}: {text}\n"
        # A last word of Python, or of a library.
        return json.dumps({"event": text, "level": "error", "worker": self.name}) + "\n"


def how_it_ended(code: int) -> str:
    """Return an exit code in words."""
    return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
