"""The addresses of `[http]`: the supervisor accepts connections there, and one worker has all of them.

It is always the same worker while that serves, so that limits, streams and wrong passwords are counted at one place, by
the code of a broker of one process; if it ends, or does not answer, the next one has the connections that come then.
TLS, authentication and answers are there (`http_server`): here no byte is read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

from canopy_mqtt import sockets
from canopy_mqtt.net.listening.listeners import BACKLOG, StartupError
from canopy_mqtt.settings import Endpoint, Http
from canopy_mqtt.workers.wire import HTTP, Channel, Frame

UNSENT: Final = 16
"""Connections that are on their way at a time; others wait in the system. Clients' go the same way."""

PAUSE: Final = 1.0
"""Seconds for which nothing is accepted where the system has no descriptor left."""


class HttpDoor:
    """The listening sockets of `[http]`. Made on the event loop."""

    def __init__(self, settings: Http, log: Any, worker: Callable[[], Channel | None]) -> None:
        """`worker` returns the way to the worker that answers; None: there is none, and a connection is closed."""
        self._settings = settings
        self._log = log
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self.open: list[Endpoint] = []
        """The addresses, with their real ports."""
        self._sockets: list[tuple[int, socket.socket]] = []
        self._files: list[sockets.SocketFile] = []
        self._unsent = 0
        self._reading = False
        self._pause: asyncio.TimerHandle | None = None

    async def bind(self) -> None:
        """Take all addresses. Raises StartupError, in one line; then none is taken."""
        try:
            for number, endpoint in enumerate(self._settings.endpoints):
                self.open.append(await self._bind(number, endpoint))
        except BaseException:
            await self.close()
            raise

    async def _bind(self, number: int, endpoint: Endpoint) -> Endpoint:
        if endpoint.path:
            mode = int(self._settings.socket_mode, 8)
            try:
                sock, file = await asyncio.to_thread(sockets.bind_unix, endpoint.path, mode, "")
            except sockets.SocketFileError as error:
                raise StartupError(f"cannot listen on {endpoint.url()}: {error}") from error
            self._files.append(file)
            self._sockets.append((number, sock))
            return endpoint
        try:
            bound = await sockets.bind_tcp(endpoint.bind_host, endpoint.port)
        except OSError as error:
            raise StartupError(sockets.why_not_listening(endpoint.url(), endpoint.host, error)) from error
        self._sockets += [(number, sock) for sock in bound]
        return endpoint._replace(port=bound[0].getsockname()[1])

    def listen(self) -> None:
        """Let clients in. Raises StartupError, in one line."""
        try:
            for _, sock in self._sockets:
                sock.listen(BACKLOG)
        except OSError as error:
            raise StartupError(f"http.listen: {error.strerror}") from error
        self._resume()
        if self.open:
            self._log.info("http listens", urls=[each.url() for each in self.open], guarded=self._settings.guarded)

    async def close(self) -> None:
        self._rest()
        if self._pause is not None:
            self._pause.cancel()
        for _, sock in self._sockets:
            sock.close()
        self._sockets.clear()
        for file in self._files:
            await asyncio.to_thread(file.remove)
        self._files.clear()

    def _resume(self) -> None:
        self._pause = None
        self._reading = True
        for number, sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, number, sock)

    def _rest(self) -> None:
        self._reading = False
        for _, sock in self._sockets:
            self._loop.remove_reader(sock.fileno())

    def _accept(self, number: int, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            self._log.error("connections cannot be accepted", reason=str(error), seconds=PAUSE)
            self._rest()
            self._pause = self._loop.call_later(PAUSE, self._resume)
            return
        channel = self._worker()
        if channel is None:
            sock.close()
            return
        sock.setblocking(False)
        self._unsent += 1
        if self._unsent >= UNSENT:
            self._rest()
        channel.send(Frame(HTTP, number.to_bytes(2), sock), lambda: self._sent(sock))

    def _sent(self, sock: socket.socket) -> None:
        """The worker has it, or it is lost with its worker."""
        sock.close()
        self._unsent -= 1
        if not self._reading and self._pause is None and self._sockets:
            self._resume()
