"""One worker as the supervisor sees it: its process, its log, and what the two say to each other.

Owns the process from its start to its end. Promises: its log comes out in whole lines, each with the worker's name,
whatever other workers write; no caller waits for an answer of a process that has ended; one that does not answer any
more, or does not come to that, is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from canopy_mqtt.assembly.nursery import Nursery
from canopy_mqtt.guards.log import Faults
from canopy_mqtt.security.authenticator_factory import LIBRARIES
from canopy_mqtt.settings import Settings
from canopy_mqtt.workers.wire import Arrival, Channel

PARTS: Final = (
    "canopy_mqtt.cluster.cluster", "canopy_mqtt.store.sqlite", "canopy_mqtt.workers.supervisor", "uvloop",
)  # fmt: skip
"""Modules that a worker, or the supervisor, imports when it is running."""

HTTP_PART: Final = "canopy_mqtt.workers.http_server"
"""The module that it imports if there is an address of `[http]`: 20 MB that all share then."""

PIECE: Final = 65_536
MAX_LINE: Final = 1_048_576
"""Bytes without an end of line that are kept together."""

LAST_WORDS: Final = 1.0
"""Seconds for which the last lines of an ended worker are waited for: a program that it started may have its pipe."""

PING: Final = 5.0
HANG: Final = 15.0
STARTING: Final = 60.0
"""Seconds between two questions whether a worker answers, and until one that does not is killed: one that serves, and
one that starts."""

LOOKS: Final = 5
"""Parts of that time, in each of which it is asked."""

_nurseries: list[Nursery] = []


def nursery(settings: Settings | None = None) -> Nursery:
    """Return what forks workers. First called with their settings, before this process has a thread, or an event loop.

    The recorder is not among what they have in common: its libraries have threads.
    """
    if not _nurseries:
        assert settings is not None
        libraries = [LIBRARIES[type(each)] for each in settings.authenticator if type(each) in LIBRARIES]
        http = [HTTP_PART] if settings.http.listen else []
        _nurseries.append(Nursery("canopy_mqtt.workers.worker", [*PARTS, *http, *libraries]))
    return _nurseries[0]


class Start(NamedTuple):
    """The first thing that a worker is told."""

    worker: int
    settings: Settings
    ports: list[int]
    """The real ports of the listeners, 0 for a Unix socket."""
    broker_id: str
    """The name of the broker for others, if the settings have none: the same for all workers of a run."""


class WorkerError(Exception):
    """A worker has ended, or cannot start; the message says why in one line."""


class WorkerProcess:
    """One process. Made on the event loop; `begin` starts it."""

    pid: int
    channel: Channel
    silent = False
    """It has not answered for some seconds."""
    ended: asyncio.Task[int]
    """Its exit code, or minus the number of the signal that ended it; all that it said was heard by then."""

    def __init__(
        self,
        name: str,
        log: Any,
        people: bool,
        write: Callable[[str], object],
        arrived: Callable[[Arrival, socket.socket], None],
        heard: Mapping[str, Callable[..., None]],
    ) -> None:
        """`write` takes lines of its log, which `people` read, or programs; `arrived` is called with each connection
        that it has for another worker; `heard`: what is called with all else that it says unasked, by name."""
        self._heard = heard
        self.name = name
        self._log = log
        self._people = people
        self._write = write
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()
        # Its standard error, and its exit code.
        self._errors: socket.socket
        self._code: asyncio.Future[int]
        # What it is asked for, by the name of the answer.
        self._answers: dict[str, asyncio.Future[list[Any]]] = {}
        # Why it could not start.
        self._why = ""
        self._finished = self._loop.create_future()

    async def begin(self) -> None:
        """Start the process. Raises WorkerError: the system starts none."""
        (mine, its), (self._errors, errors) = socket.socketpair(), socket.socketpair()
        try:
            self.pid, self._code = await nursery().fork(its, errors)
        except BaseException as error:
            mine.close()
            self._errors.close()
            if isinstance(error, OSError):
                raise WorkerError(f"worker {self.name} cannot be started: {error.strerror}") from error
            raise
        finally:
            its.close()
            errors.close()
        self.channel = Channel(mine, self._received, self._all_read, Faults(lambda: self._log).broke)
        self.ended = self._loop.create_task(self._end())

    async def ask(self, answer: str, *said: object) -> list[Any]:
        """Say something, and return what comes with the answer of this name, or with one that was asked for before.

        Raises WorkerError: it has ended.
        """
        future = self._answers.get(answer)
        if future is None or future.done():
            future = self._answers[answer] = self._loop.create_future()
        self.channel.send(*said)
        await asyncio.wait((future, self.ended), return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            raise WorkerError(self._why or f"worker {self.name} {how_it_ended(self.ended.result())}")
        return future.result()

    def stop(self) -> None:
        """Have it end in order."""
        self.channel.send("stop")

    def kill(self) -> None:
        if not self._code.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _received(self, sock: socket.socket | None, name: str, *given: Any) -> None:
        if name == "connection":
            if sock is not None:
                self._arrived(given[0], sock)
        elif name == "failed":
            self._why = given[0]
        elif name in self._heard:
            self._heard[name](*given)
        elif not self._answers[name].done():
            self._answers[name].set_result(list(given))

    def _all_read(self) -> None:
        if not self._finished.done():
            self._finished.set_result(None)

    async def _end(self) -> int:
        """Hand its log on, and see that it answers, until it has ended."""
        beside = [self._loop.create_task(self._hand_on()), self._loop.create_task(self._watch())]
        code = await self._code
        await asyncio.wait((beside[0], self._finished), timeout=LAST_WORDS)
        for task in beside:
            task.cancel()
        # What it had taken by its end no other process may get.
        self.channel.finish()
        return code

    async def _watch(self) -> None:
        """Kill it once it does not answer."""
        while True:
            await asyncio.sleep(PING)
            opened = self._answers.get("open")
            seconds = HANG if opened is not None and opened.done() else STARTING
            for _ in range(LOOKS):
                # In parts, which end one by one: while this process stands still, its own time goes by as well.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds / LOOKS):
                        await self.ask("pong", "ping")
                    self.silent = False
                    break
                self.silent = True
            else:
                self._log.error("worker does not answer", worker=self.name, pid=self.pid, seconds=seconds)
                self.kill()
                return

    async def _hand_on(self) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=self._errors)
        rest = b""
        try:
            while piece := await reader.read(PIECE):
                *whole, rest = (rest + piece).split(b"\n")
                if len(rest) > MAX_LINE:
                    whole, rest = [*whole, rest], b""
                for line in whole:
                    self._write(self._with_name(line))
            if rest:
                self._write(self._with_name(rest))
        finally:
            writer.close()

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
