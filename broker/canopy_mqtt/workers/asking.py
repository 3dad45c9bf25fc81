"""Workers ask each other and their supervisor, over Unix sockets in a folder of the broker's user alone.

Owns the socket at which one process answers. Promises: a question waits no longer than its patience; a process that did
not answer in that time is not asked again for `SILENT` seconds, so that one process that hangs holds up no line of
requests; a process does nothing for a question whose time is over. Times are those of the system's monotonic
clock, which all processes have.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from canopy_mqtt.store.division import name_of
from canopy_mqtt.workers.kept_counters import KeptCounters
from canopy_mqtt.workers.wire import HEADER, Frame, encoded

PATIENCE: Final = 5.0
"""Seconds that an answer may take."""

SILENT: Final = 5.0
"""Seconds for which a process that did not answer in time is not asked."""

SUPERVISOR: Final = "supervisor"

Answers: TypeAlias = dict[str, Callable[..., Awaitable[Any]]]


class Away(Exception):
    """A process does not answer. Its name is the only argument."""


class Heard(NamedTuple):
    """The answers of the workers."""

    found: dict[str, Any]
    """By the name of the worker, in their order."""
    missing: list[str]
    """Workers that have not answered."""


def socket_of(folder: Path, name: str) -> Path:
    """Return the socket at which a process answers."""
    return folder / f"{name}.ask"


async def _next(reader: asyncio.StreamReader) -> tuple[Any, ...]:
    """Read what another process says. Raises asyncio.IncompleteReadError: it is gone."""
    length, _ = HEADER.unpack(await reader.readexactly(HEADER.size))
    return Frame(await reader.readexactly(length), None).said()


class Answering:
    """The socket at which a process answers."""

    def __init__(self, folder: Path, name: str, answers: Answers, broke: Callable[[str, Exception], None]) -> None:
        """`broke` is called with the faults of answers; the process that asks takes them for no answer."""
        self.name = name
        self.answers = answers
        """The answers of the process, by the name of the question."""
        self._folder = folder
        self._path = socket_of(folder, name)
        self._broke = broke
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Answer. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def renew(self) -> None:
        """Open the socket again if its file is gone: programs that clean up remove old ones."""
        if self._server is not None and not await asyncio.to_thread(self._path.exists):
            self._server.close()
            with contextlib.suppress(OSError):
                await self.start()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            until, what, *given = await _next(reader)
            if time.monotonic() > until:
                # This process stood still. Who asked has said that it did nothing.
                return
            writer.write(encoded(await self.answers[what](*given)))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            # Who asked has given up.
            pass
        except asyncio.CancelledError:
            # `stop`. Before Python 3.12, asyncio logs a cancelled task of a server as an error.
            pass
        except Exception as error:
            self._broke("workers", error)
        finally:
            self._tasks.discard(task)
            writer.close()


class Siblings(Answering):
    """This worker, the others, and the supervisor, as this one asks them, and answers."""

    def __init__(self, folder: Path, number: int, count: int, broke: Callable[[str, Exception], None]) -> None:
        super().__init__(folder, name_of(number), {}, broke)
        self.number = number
        self.names = [name_of(each) for each in range(count)]
        self.counters: defaultdict[str, KeptCounters] = defaultdict(KeptCounters)
        """The counters of all workers, by the question for figures."""
        # Until when those who did not answer are not asked, in seconds of the loop's clock.
        self._silent: dict[str, float] = {}

    async def ask(self, name: str, what: str, *given: object, patience: float = PATIENCE) -> Any:
        """Ask a process, which may be this one. Raises Away."""
        if name == self.name:
            return await self.answers[what](*given)
        loop = asyncio.get_running_loop()
        if self._silent.get(name, 0.0) > loop.time():
            raise Away(name)
        try:
            async with asyncio.timeout(patience):
                reader, writer = await asyncio.open_unix_connection(socket_of(self._folder, name))
                try:
                    writer.write(encoded(time.monotonic() + patience, what, *given))
                    return (await _next(reader))[0]
                finally:
                    writer.close()
        except TimeoutError:
            if patience <= PATIENCE:
                # One that needs longer for a reload may serve all the same.
                self._silent[name] = loop.time() + SILENT
            raise Away(name) from None
        except (OSError, asyncio.IncompleteReadError):
            raise Away(name) from None

    async def ask_all(self, what: str, *given: object) -> Heard:
        """Ask all workers at the same time."""
        answers = await asyncio.gather(*(self.ask(name, what, *given) for name in self.names), return_exceptions=True)
        heard = Heard({}, [])
        for name, answer in zip(self.names, answers, strict=True):
            if isinstance(answer, Away):
                heard.missing.append(name)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                heard.found[name] = answer
        return heard
