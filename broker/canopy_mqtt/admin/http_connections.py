"""Bounds HTTP connections, and the time that each may take: stands between a socket and aiohttp's protocol.

Owns the count, and one timer for each connection. Promises: a connection counts as soon as it is accepted, with https
before its TLS handshake (`net.listening.tls_transport`); a client that is too slow with its handshake or request, or
does not read an answer, is cut off after `timeout` seconds; beyond `limit` a connection without a request in progress
makes room for a new one; connections that send much are read in turns, and requests are answered in turns. aiohttp
itself has a time-out only for connections that are idle between requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

READ: Final = 65_536
"""Bytes after which a connection is read on in another turn: uvloop reads up to 8 MiB at a time, and aiohttp keeps all
bytes behind a malformed request until it has answered that."""

IN_A_TURN: Final = 4
"""Connections that are read on, and requests that are begun, in one turn of the event loop. A read has at most 256 KiB;
an answer takes some tenths of a millisecond, and connections that pipeline requests have one each in every turn."""


class Turns:
    """Does at most `IN_A_TURN` of the things that wait in each turn of the event loop, the oldest first."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, act: Callable[[], object]) -> None:
        """Have `act` called in another turn. It raises nothing."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._waiting.append(act)

    async def wait(self) -> None:
        """Wait for a place in a turn."""
        turn = asyncio.Event()
        self.add(turn.set)
        await turn.wait()

    def _go_on(self) -> None:
        for _ in range(min(IN_A_TURN, len(self._waiting))):
            self._waiting.popleft()()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)


class HttpConnection(asyncio.Protocol):
    def __init__(self, connections: HttpConnections, inner: asyncio.Protocol, tls: bool) -> None:
        """`tls`: the connection begins with a handshake, after which the caller calls `begin`."""
        self._connections = connections
        self._inner = inner
        self._tls = tls
        self.transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The inner protocol knows of its connection.
        self._begun = False
        # A request is being answered.
        self._answering = False
        # What was read since it was read on.
        self._read = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._connections.add(self):
            self.transport.abort()
            return
        self._start_timer()
        if not self._tls:
            self.begin()

    def begin(self) -> None:
        """Pass the connection to aiohttp: nothing has been read yet."""
        assert self.transport is not None
        self._connections.attach(self, self.transport)
        self._begun = True
        self._inner.connection_made(self.transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._cancel_timer()
        self._connections.remove(self)
        if self._begun:
            self._begun = False
            self._inner.connection_lost(error)
        self.transport = None

    def data_received(self, data: bytes) -> None:
        if self not in self._connections.open:
            return
        if not self._answering:
            self._start_timer()
        before = self._read
        self._read += len(data)
        if before <= READ < self._read and self.transport is not None:
            self.transport.pause_reading()
            self._connections.reading.add(self.read_on)
        self._inner.data_received(data)

    def read_on(self) -> None:
        self._read = 0
        transport = self.transport
        # aiohttp pauses it, too, while a body is not read or requests wait, and resumes it itself.
        paused = any(getattr(self._inner, name, False) for name in ("_reading_paused", "_buffer_paused"))
        if transport is not None and not transport.is_closing() and not paused:
            transport.resume_reading()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._begun else None

    def pause_writing(self) -> None:
        self._start_timer()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._cancel_timer()
        self._inner.resume_writing()

    def request_began(self) -> None:
        """Note that a request has come, except for its body."""
        self._answering = True
        self._cancel_timer()
        self._connections.mark_busy(self)

    def request_ended(self) -> None:
        """Note that the request was answered. aiohttp closes the connection if it stays idle."""
        self._answering = False
        self._connections.mark_idle(self)

    def evict(self) -> None:
        """Abort the connection, to make room for another one or to end the server."""
        if self.transport is not None:
            self.transport.abort()

    def _start_timer(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._connections.timeout, self._cut)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut(self) -> None:
        self._timer = None
        self._connections.cut += 1
        self.evict()


class HttpConnections:
    def __init__(self, limit: int, timeout: float) -> None:
        """`limit`: the largest number of connections; `timeout` in seconds."""
        self._limit = limit
        self.timeout = timeout
        self.open: set[HttpConnection] = set()
        # Those without a request under way, the oldest first: that have sent none yet, and that may send another one.
        self._without_request: dict[HttpConnection, None] = {}
        self._idle: dict[HttpConnection, None] = {}
        self._by_transport: dict[Any, HttpConnection] = {}
        self.reading = Turns()
        """Of connections that are read on."""
        self.answering = Turns()
        """Of requests that are answered."""
        self.refused = 0
        """Connections that were refused at the limit."""
        self.evicted = 0
        """Idle connections that were closed to make room."""
        self.cut = 0
        """Connections that took too long."""

    def protocol(self, make: Callable[[], asyncio.BaseProtocol], tls: bool = False) -> HttpConnection:
        """Make the protocol of a connection, around the one that `make` makes. `tls`: a handshake comes first."""
        return HttpConnection(self, cast(asyncio.Protocol, make()), tls)

    def add(self, connection: HttpConnection) -> bool:
        """Add a new connection. Returns False if there is no room for it."""
        if len(self.open) >= self._limit and not self._make_room():
            self.refused += 1
            return False
        self.open.add(connection)
        self._without_request[connection] = None
        return True

    def _make_room(self) -> bool:
        oldest = next(iter(self._without_request or self._idle), None)
        if oldest is None:
            return False
        self.evicted += 1
        self._forget(oldest)
        oldest.evict()
        return True

    def attach(self, connection: HttpConnection, transport: object) -> None:
        self._by_transport[transport] = connection

    def mark_busy(self, connection: HttpConnection) -> None:
        self._without_request.pop(connection, None)
        self._idle.pop(connection, None)

    def mark_idle(self, connection: HttpConnection) -> None:
        if connection in self.open:
            self._idle[connection] = None

    def remove(self, connection: HttpConnection) -> None:
        self._by_transport.pop(connection.transport, None)
        self._forget(connection)

    def _forget(self, connection: HttpConnection) -> None:
        self.open.discard(connection)
        self._without_request.pop(connection, None)
        self._idle.pop(connection, None)

    async def close(self) -> None:
        """Abort all connections, those in a handshake too. Returns when they have gone."""
        for connection in list(self.open):
            connection.evict()
        while self.open:  # noqa: ASYNC110 (their sockets close in the next rounds of the event loop)
            await asyncio.sleep(0)

    def find(self, transport: object) -> HttpConnection | None:
        return self._by_transport.get(transport)
