"""What stands between a socket and aiohttp's protocol: how many connections there may be, and how long one may dawdle.

Owns the count, one timer for each connection, and TLS below it. Promises: a connection counts from the moment that it
is accepted; a client that sends its request too slowly, or takes nothing of an answer, is cut off after `timeout`
seconds; beyond `most` a connection that has no request under way makes room for a new one; those that send much are
read from in turns. aiohttp has a time-out for connections that are idle between requests, and none for these.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

READ: Final = 65_536
"""Bytes beyond which a connection is read on in another turn: uvloop reads up to 8 MiB at a time, and aiohttp keeps all
that follows a request which is no HTTP, until it has had the time to say so."""

READ_ON: Final = 4
"""So many of these connections are read on in one turn; a read has at most 256 KiB."""


class Gate(asyncio.Protocol):
    """One connection of clients of HTTP."""

    def __init__(self, doors: Doors, inner: asyncio.Protocol, tls: ssl.SSLContext | None) -> None:
        self._doors = doors
        self._inner = inner
        self._tls = tls
        # The socket's, and from the end of a TLS handshake on that of TLS.
        self.transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The inner protocol knows of its connection. What comes before is kept: a read at most.
        self._begun = False
        self._early: list[bytes] = []
        # A request is being answered.
        self._answering = False
        # What was read since it was read on.
        self._read = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._doors.enter(self):
            self.transport.abort()
            return
        self._wait()
        if self._tls is None:
            self._begin(self.transport)
        else:
            self._doors.secures(self._secure(self.transport, self._tls))

    async def _secure(self, below: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Make the TLS handshake. Python's listening sockets tell of a connection only when that is through."""
        secured: asyncio.Transport | None = None
        try:
            if not below.is_closing():
                loop = asyncio.get_running_loop()
                secured = await loop.start_tls(
                    below, self, tls, server_side=True, ssl_handshake_timeout=self._doors.timeout
                )
        except OSError:
            # No TLS, a handshake that was given up, a client that has gone.
            below.abort()
        if secured is None or below.is_closing() or self not in self._doors.open:
            below.abort()
            self._rest()
            self._doors.leave(self)
            return
        self._begin(secured)

    def _begin(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._doors.carries(self, transport)
        self._begun = True
        self._inner.connection_made(transport)
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._rest()
        self._doors.leave(self)
        if self._begun:
            self._begun = False
            self._inner.connection_lost(error)
        self.transport = None

    def data_received(self, data: bytes) -> None:
        if self not in self._doors.open:
            return
        if not self._begun:
            self._early.append(data)
            return
        if not self._answering:
            self._wait()
        before = self._read
        self._read += len(data)
        if before <= READ < self._read and self.transport is not None:
            self.transport.pause_reading()
            self._doors.reads_much(self)
        self._inner.data_received(data)

    def read_on(self) -> None:
        """It is this connection's turn again."""
        self._read = 0
        transport = self.transport
        # aiohttp pauses it, too, while nobody takes a body or while requests wait, and resumes it then.
        paused = any(getattr(self._inner, name, False) for name in ("_reading_paused", "_buffer_paused"))
        if transport is not None and not transport.is_closing() and not paused:
            transport.resume_reading()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._begun else None

    def pause_writing(self) -> None:
        self._wait()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._rest()
        self._inner.resume_writing()

    def begins(self) -> None:
        """A request is here, as a whole but for its body."""
        self._answering = True
        self._rest()
        self._doors.asks(self)

    def ends(self) -> None:
        """Its answer was made. What is idle from here on is aiohttp's to close."""
        self._answering = False
        self._doors.answered(self)

    def evict(self) -> None:
        """Make room for another connection, or for the end of the server."""
        if self.transport is not None:
            self.transport.abort()

    def _wait(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._doors.timeout, self._cut)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut(self) -> None:
        self._timer = None
        self._doors.cut += 1
        self.evict()


class Doors:
    """All connections of one server."""

    def __init__(self, most: int, timeout: float) -> None:
        """At most `most` connections; `timeout` in seconds."""
        self._most = most
        self.timeout = timeout
        self.open: set[Gate] = set()
        # Those without a request under way, the oldest first: that have sent none yet, and that may send another one.
        self._silent: dict[Gate, None] = {}
        self._idle: dict[Gate, None] = {}
        self._by_transport: dict[Any, Gate] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        # Those that are read on in turns.
        self._sending: deque[Gate] = deque()
        self.refused = 0
        """Connections that found no place."""
        self.evicted = 0
        """Connections that made room for others."""
        self.cut = 0
        """Connections that took too long."""

    def factory(
        self, make: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None = None
    ) -> Callable[[], Gate]:
        """What makes the protocol of a connection, around what `make` makes."""
        return lambda: Gate(self, cast(asyncio.Protocol, make()), tls)

    def enter(self, gate: Gate) -> bool:
        """A connection has come. Whether there is a place for it."""
        if len(self.open) >= self._most and not self._make_room():
            self.refused += 1
            return False
        self.open.add(gate)
        self._silent[gate] = None
        return True

    def _make_room(self) -> bool:
        oldest = next(iter(self._silent or self._idle), None)
        if oldest is None:
            return False
        self.evicted += 1
        self._forget(oldest)
        oldest.evict()
        return True

    def carries(self, gate: Gate, transport: object) -> None:
        """Requests of the connection come over this transport."""
        self._by_transport[transport] = gate

    def asks(self, gate: Gate) -> None:
        """A request of the connection is being answered."""
        self._silent.pop(gate, None)
        self._idle.pop(gate, None)

    def answered(self, gate: Gate) -> None:
        """It was answered."""
        if gate in self.open:
            self._idle[gate] = None

    def leave(self, gate: Gate) -> None:
        """A connection has gone."""
        self._by_transport.pop(gate.transport, None)
        self._forget(gate)

    def _forget(self, gate: Gate) -> None:
        self.open.discard(gate)
        self._silent.pop(gate, None)
        self._idle.pop(gate, None)

    def reads_much(self, gate: Gate) -> None:
        """A connection has sent much: it is read on in a turn of its own."""
        if not self._sending:
            asyncio.get_running_loop().call_soon(self._read_on)
        self._sending.append(gate)

    def _read_on(self) -> None:
        for _ in range(min(READ_ON, len(self._sending))):
            self._sending.popleft().read_on()
        if self._sending:
            asyncio.get_running_loop().call_soon(self._read_on)

    def secures(self, handshake: Coroutine[Any, Any, None]) -> None:
        """A connection begins with this handshake."""
        task = asyncio.get_running_loop().create_task(handshake)
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def close(self) -> None:
        """End all that are there, handshakes under way too."""
        for gate in list(self.open):
            gate.evict()
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    def of(self, transport: object) -> Gate | None:
        """The connection with this transport."""
        return self._by_transport.get(transport)
