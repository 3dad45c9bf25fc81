"""What stands between a socket and aiohttp's protocol: how many connections there may be, and how long one may dawdle.

Owns the count, and one timer for each connection. Promises: a client that sends its request too slowly, or takes
nothing of an answer, is cut off after `timeout` seconds; connections beyond `most` are closed at once. aiohttp has a
time-out for connections that are idle between requests, and none for these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast


class Gate(asyncio.Protocol):
    """One connection of clients of HTTP."""

    def __init__(self, doors: Doors, inner: asyncio.Protocol) -> None:
        self._doors = doors
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        # A request is being answered.
        self._answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._doors.enter(self):
            self._transport.abort()
            return
        self._wait()
        self._inner.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._rest()
        if self._doors.leave(self):
            self._inner.connection_lost(error)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if self in self._doors.open:
            if not self._answering:
                self._wait()
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self in self._doors.open else None

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

    def ends(self) -> None:
        """Its answer was made. What is idle from here on is aiohttp's to close."""
        self._answering = False

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
        if self._transport is not None:
            self._transport.abort()


class Doors:
    """All connections of one server."""

    def __init__(self, most: int, timeout: float) -> None:
        """At most `most` connections; `timeout` in seconds."""
        self._most = most
        self.timeout = timeout
        self.open: set[Gate] = set()
        self._by_transport: dict[Any, Gate] = {}
        self.refused = 0
        """Connections that found no place."""
        self.cut = 0
        """Connections that took too long."""

    def factory(self, make: Callable[[], asyncio.BaseProtocol]) -> Callable[[], Gate]:
        """What makes the protocol of a connection, around what `make` makes."""
        return lambda: Gate(self, cast(asyncio.Protocol, make()))

    def enter(self, gate: Gate) -> bool:
        """A connection has come. Whether there is a place for it."""
        if len(self.open) >= self._most:
            self.refused += 1
            return False
        self.open.add(gate)
        self._by_transport[gate._transport] = gate
        return True

    def leave(self, gate: Gate) -> bool:
        """A connection has gone. Whether it had a place."""
        self._by_transport.pop(gate._transport, None)
        if gate not in self.open:
            return False
        self.open.remove(gate)
        return True

    def of(self, transport: object) -> Gate | None:
        """The connection with this transport."""
        return self._by_transport.get(transport)
