"""The listening sockets of all workers, which the supervisor makes and holds.

Owns the sockets and the files of Unix sockets. Promises: a port that somebody else listens on is an error in one line,
also where they share it as we do; a worker that ends takes no connection with it that waits to be accepted, since its
sockets stay open here.

Where Linux shares a port, each worker has a socket of its own for each address, and Linux spreads connections over
them: each as it comes, whatever the workers have to do, and it never moves one that is there. Elsewhere, and at Unix
sockets, all accept from the same one.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from broker.net import sockets
from broker.net.listening import unix_sockets
from broker.net.listening.listeners import SERVED, StartupError
from broker.settings import Endpoint, Listener, Settings
from broker.workers.steering import POSSIBLE, steer

TRIES: Final = 10
"""Tries to find a free port that all addresses of a host have."""


class SharedListener:
    """One place of the settings: for each of its addresses the sockets of the workers, in their order."""

    def __init__(self, settings: Listener) -> None:
        self.settings = settings
        self.name = settings.called
        self.endpoint: Endpoint = settings.endpoint
        self._rows: list[list[socket.socket]] = []
        self._file: unix_sockets.SocketFile | None = None

    async def open(self, workers: int, backlog: int) -> None:
        """Listen, for so many workers. Raises StartupError, in one line."""
        told = f'{self.endpoint.url()} (listener "{self.name}")' if self.settings.name else self.endpoint.url()
        if self.endpoint.scheme not in SERVED:
            raise StartupError(f"{told}: {self.endpoint.scheme}:// is not supported by this version")
        try:
            if self.endpoint.path:
                await self._open_unix(backlog)
            else:
                await self._open_tcp(workers, backlog)
        except unix_sockets.SocketFileError as error:
            raise StartupError(f"cannot listen on {told}: {error}") from error
        except OSError as error:
            await self.close()
            raise StartupError(sockets.why_not_listening(told, self.endpoint.host, error)) from error

    async def _open_unix(self, backlog: int) -> None:
        settings = self.settings
        sock, self._file = await asyncio.to_thread(
            unix_sockets.bind, self.endpoint.path, int(settings.mode, 8), settings.group
        )
        sock.listen(backlog)
        self._rows.append([sock])

    async def _open_tcp(self, workers: int, backlog: int) -> None:
        host, port = self.endpoint.host, self.endpoint.port
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = list(dict.fromkeys((each[0], each[4]) for each in found))
        for left in range(TRIES - 1, -1, -1):
            try:
                for family, address in addresses:
                    self._rows.append(_row(family, (address[0], port, *address[2:]), workers, backlog))
                    port = port or self._rows[0][0].getsockname()[1]
                break
            except OSError:
                # What was free at one address may not be at the next.
                if self.endpoint.port or len(addresses) == 1 or not left:
                    raise
                _close(self._rows)
                port = 0
        self.endpoint = self.endpoint._replace(port=port)

    def of(self, worker: int) -> list[socket.socket]:
        """The sockets of a worker, counted from 0."""
        return [row[worker % len(row)] for row in self._rows]

    def steer(self, workers: list[int]) -> None:
        """Have these workers alone get connections from now on, as far as that can be."""
        for row in self._rows:
            if len(row) > 1:
                steer(row[0], workers)

    async def close(self) -> None:
        """Let go of the sockets; what a worker has of them stays open there."""
        _close(self._rows)
        file, self._file = self._file, None
        if file is not None:
            await asyncio.to_thread(file.remove)


def _row(family: int, address: tuple[str | int, ...], workers: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen on one address, one for each worker where the system spreads connections over them."""
    row: list[socket.socket] = []
    try:
        # The first one is alone there: only then may others join it, which have to be of the same user.
        row.append(_listening(family, address, backlog, joins=False))
        if POSSIBLE and workers > 1:
            row[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            address = (address[0], row[0].getsockname()[1], *address[2:])
            row += [_listening(family, address, backlog, joins=True) for _ in range(workers - 1)]
    except BaseException:
        _close([row])
        raise
    return row


def _listening(family: int, address: tuple[str | int, ...], backlog: int, joins: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if joins:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def _close(rows: list[list[socket.socket]]) -> None:
    for row in rows:
        for sock in row:
            sock.close()
    rows.clear()


class SharedListeners:
    """Everywhere that the workers listen."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.open: list[SharedListener] = []

    @property
    def urls(self) -> list[str]:
        """The URLs that are listened on, with their real ports."""
        return [each.endpoint.url() for each in self.open]

    async def prepare(self, settings: Settings) -> list[SharedListener]:
        """Open those of these settings that are not open yet; `adopt` or `discard` them.

        One that would take the place of another is left out: as within a broker, that takes a restart.

        Raises:
            StartupError: why one cannot be opened, in one line; then none is.
        """
        made: list[SharedListener] = []
        has = {each.name for each in self.open}
        places = {each.endpoint._replace(scheme="") for each in self.open}
        try:
            for wanted in settings.listeners:
                if wanted.called in has or wanted.endpoint._replace(scheme="") in places:
                    continue
                listener = SharedListener(wanted)
                await listener.open(self._workers, settings.runtime.tcp_backlog)
                made.append(listener)
        except BaseException:
            await self.discard(made)
            raise
        return made

    def adopt(self, made: list[SharedListener]) -> None:
        """Keep these, in the order in which they were made."""
        self.open += made

    async def discard(self, made: list[SharedListener]) -> None:
        """Nothing comes of these."""
        for each in made:
            await each.close()

    async def keep(self, names: set[str]) -> None:
        """Close those that no worker serves any more."""
        gone = [each for each in self.open if each.name not in names]
        self.open = [each for each in self.open if each.name in names]
        await self.discard(gone)

    def steer(self, workers: list[int]) -> None:
        """Have these workers alone get connections from now on, as far as that can be."""
        for each in self.open:
            each.steer(workers)

    async def close(self) -> None:
        """Hold none any more."""
        gone, self.open = self.open, []
        await self.discard(gone)
