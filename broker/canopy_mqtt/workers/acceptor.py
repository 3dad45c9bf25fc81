"""Accepts connections at the addresses of the supervisor.

Owns the listening sockets. Promises: it listens at all addresses or at none; where the system has no descriptor left,
nothing is accepted for a while.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from canopy_mqtt import sockets
from canopy_mqtt.net.listening.listeners import BACKLOG, StartupError
from canopy_mqtt.settings import Endpoint

ACCEPTS: Final = 64
"""Connections that are accepted in one turn of the event loop."""

PAUSE: Final = 1.0
"""Seconds for which nothing is accepted where the system has no descriptor left."""


class Address:
    """One address, with its listening sockets."""

    def __init__(self, endpoint: Endpoint, mode: str, group: str = "", name: str = "") -> None:
        """`mode` and `group`: of the file of a Unix socket. `name`: of the listener, for messages."""
        self.endpoint = endpoint
        """With its real port, once it is bound."""
        self.sockets: list[socket.socket] = []
        self._mode = int(mode, 8)
        self._group = group
        self._told = f'{endpoint.url()} (listener "{name}")' if name else endpoint.url()
        self._file: sockets.SocketFile | None = None

    async def bind(self) -> None:
        """Take the address. Raises StartupError, in one line."""
        try:
            if self.endpoint.path:
                sock, self._file = await asyncio.to_thread(
                    sockets.bind_unix, self.endpoint.path, self._mode, self._group
                )
                self.sockets.append(sock)
            else:
                self.sockets = await sockets.bind_tcp(self.endpoint.bind_host, self.endpoint.port)
                self.endpoint = self.endpoint._replace(port=self.sockets[0].getsockname()[1])
        except sockets.SocketFileError as error:
            raise StartupError(f"cannot listen on {self._told}: {error}") from error
        except OSError as error:
            raise self._failed(error) from error

    def listen(self) -> None:
        """Have the system take connections. Raises StartupError, in one line."""
        try:
            for sock in self.sockets:
                sock.listen(BACKLOG)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StartupError:
        return StartupError(sockets.why_not_listening(self._told, self.endpoint.host, error))

    async def close(self) -> None:
        for sock in self.sockets:
            sock.close()
        self.sockets.clear()
        file, self._file = self._file, None
        if file is not None:
            await asyncio.to_thread(file.remove)


class Acceptor:
    """Some addresses. Made on the event loop."""

    def __init__(
        self, addresses: Sequence[Address], log: Any, accepted: Callable[[int, socket.socket, str], None]
    ) -> None:
        """`accepted` is called with the number of the address, the connection, and its IP address, "": it has none."""
        self._addresses = addresses
        self._log = log
        self._accepted = accepted
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self._pause: asyncio.TimerHandle | None = None

    @property
    def urls(self) -> list[str]:
        """The URLs of all addresses, with their real ports."""
        return [each.endpoint.url() for each in self._addresses]

    async def bind(self) -> None:
        """Take all addresses; no client can connect yet. Raises StartupError, in one line: then none is taken."""
        try:
            for address in self._addresses:
                await address.bind()
        except BaseException:
            await self.close()
            raise

    def open(self) -> None:
        """Let clients in. Raises StartupError, in one line."""
        for address in self._addresses:
            address.listen()
        self.resume()

    async def close(self) -> None:
        """Stop accepting connections."""
        self.rest()
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        for address in self._addresses:
            await address.close()

    def rest(self) -> None:
        """Accept nothing until `resume`; the system keeps what comes."""
        self._reading = False
        for address in self._addresses:
            for sock in address.sockets:
                self._loop.remove_reader(sock.fileno())

    def resume(self) -> None:
        if not self._reading and self._pause is None:
            self._reading = True
            for number, address in enumerate(self._addresses):
                for sock in address.sockets:
                    self._loop.add_reader(sock.fileno(), self._accept, number, sock)

    def _accept(self, number: int, listening: socket.socket) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                self._log.error("connections cannot be accepted", reason=str(error), seconds=PAUSE)
                self.rest()
                self._pause = self._loop.call_later(PAUSE, self._go_on)
                return
            sock.setblocking(False)
            self._accepted(number, sock, peer[0] if isinstance(peer, tuple) else "")
            if not self._reading:
                return

    def _go_on(self) -> None:
        self._pause = None
        self.resume()
