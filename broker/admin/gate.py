"""What stands between a socket and aiohttp's protocol: how many connections there may be, and how long one may dawdle.

Owns the count, and one timer for each connection. Promises: a connection counts from the moment that it is accepted,
with https from before its TLS handshake (`net.listening.tls_transport` stands below a gate); a client that makes its
handshake or sends its request too slowly, or takes nothing of an answer, is cut off after `timeout` seconds; beyond
`most` a connection that has no request under way makes room for a new one; those that send much are read from in turns.
aiohttp has a time-out for connections that are idle between requests, and none for these.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

READ: Final = 65_536
"""Bytes beyond which a connection is read on in another turn: uvloop reads up to 8 MiB at a time, and aiohttp keeps all
that follows a request which is no HTTP, until it has had the time to say so."""

READ_ON: Final = 4
"""So many of these connections are read on in one turn; a read has at most 256 KiB."""


class Gate(asyncio.Protocol):
    """One connection of clients of HTTP."""

    def __init__(self, doors: Doors, inner: asyncio.Protocol, tls: bool) -> None:
        """`tls`: the connection begins with a handshake, whose end `begin` is called at."""
        self._doors = doors
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
        if not self._doors.enter(self):
            self.transport.abort()
            return
        self._wait()
        if not self._tls:
            self.begin()

    def begin(self) -> None:
        """Requests may come: nothing has been read yet."""
        assert self.transport is not None
        self._doors.carries(self, self.transport)
        self._begun = True
        self._inner.connection_made(self.transport)

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
        if not self._answering:
            self._wait()
        before = self._read
        self._read += len(data)
        if before <= READ < self._read and self.transport is not None:
            self.transport.pause_reading()
            self._doors.reads_much(self)
        self._inner.data_received(data)

    def read_on(self) -> None:
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
        # Those that are read on in turns.
        self._sending: deque[Gate] = deque()
        self.refused = 0
        """Connections that found no place."""
        self.evicted = 0
        """Connections that made room for others."""
        self.cut = 0
        """Connections that took too long."""

    def gate(self, make: Callable[[], asyncio.BaseProtocol], tls: bool = False) -> Gate:
        """The protocol of a connection, around what `make` makes. `tls`: there is a handshake first."""
        return Gate(self, cast(asyncio.Protocol, make()), tls)

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
        self._by_transport[transport] = gate

    def asks(self, gate: Gate) -> None:
        self._silent.pop(gate, None)
        self._idle.pop(gate, None)

    def answered(self, gate: Gate) -> None:
        if gate in self.open:
            self._idle[gate] = None

    def leave(self, gate: Gate) -> None:
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

    async def close(self) -> None:
        """End all that are there, handshakes under way too. Returns when they have gone."""
        for gate in list(self.open):
            gate.evict()
        while self.open:  # noqa: ASYNC110 (their sockets close in the next rounds of the event loop)
            await asyncio.sleep(0)

    def of(self, transport: object) -> Gate | None:
        return self._by_transport.get(transport)
