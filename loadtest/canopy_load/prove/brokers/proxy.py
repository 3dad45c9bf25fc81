"""A proxy of TCP connections: it makes them slow, holds them up or cuts them.

Owns: `Proxy`, a port of 127.0.0.1 that leads to one port elsewhere. Promises: bytes stay in order and whole until a
connection ends. What one side does not take, the other side does not get to send. While a direction is held up, its
bytes and its end wait; nothing tells either side so.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from canopy_load.brokers.process import HOST, free_port

MAX_HELD: Final = 1 << 18
"""Bytes on their way through a latency, in one direction, above which the sender is not read."""


class _Side(asyncio.Protocol):
    """One end of a connection; what it reads goes to `other`."""

    def __init__(self, proxy: Proxy, up: bool) -> None:
        self.other: _Side | None = None
        self.transport: asyncio.Transport | None = None
        self.over = asyncio.Event()
        self._proxy = proxy
        self._up = up
        self._full = False
        """True while the other side takes no more."""
        self._late: deque[tuple[float, bytes]] = deque()
        self._late_bytes = 0
        self._early = bytearray()
        """What came before there was another side: uvloop reads a little although it was told not to."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._proxy.sides.add(self)
        self.regulate()

    def data_received(self, data: bytes) -> None:
        delay = self._proxy.delay
        if not delay and not self._late:
            self._pass(data)
            return
        loop = asyncio.get_running_loop()
        due = max(loop.time() + delay, self._late[-1][0] if self._late else 0.0)
        self._late.append((due, data))
        self._late_bytes += len(data)
        loop.call_at(due, self._next)
        self.regulate()

    def _next(self) -> None:
        if self._late:
            _, data = self._late.popleft()
            self._late_bytes -= len(data)
            self._pass(data)
            if self.transport is None and self.other is not None and not self._late:
                # The end is as late as what came before it.
                self.other.close()
            self.regulate()

    def _pass(self, data: bytes) -> None:
        if self.other is None:
            self._early += data
        elif self.other.transport is not None:
            self.other.transport.write(data)

    def join(self, other: _Side) -> None:
        """Pass to another side what comes, and what has come."""
        self.other = other
        if self._early:
            self._pass(bytes(self._early))
            self._early.clear()
        self.regulate()

    def pause_writing(self) -> None:
        self._throttle(True)

    def resume_writing(self) -> None:
        self._throttle(False)

    def _throttle(self, full: bool) -> None:
        if self.other is not None:
            self.other._full = full
            self.other.regulate()

    def regulate(self) -> None:
        """Read, or do not."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        held = self._proxy.up if self._up else self._proxy.down
        if held or self._full or self.other is None or self._late_bytes > MAX_HELD:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.over.set()
        self._proxy.sides.discard(self)
        other = self.other
        if other is None:
            return
        if exc is not None:
            self._late.clear()
            other.abort()
        elif not self._late:
            other.close()

    def close(self) -> None:
        """End it after all that was written."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Proxy:
    """`make` returns a new socket, with which `to`, a port of 127.0.0.1, can be reached."""

    def __init__(self, make: Callable[[], socket.socket], to: int) -> None:
        self.port = free_port()
        self.delay = 0.0
        """Seconds, in each direction."""
        self.up = False
        self.down = False
        """True while nothing passes to the port, and from it."""
        self.sides: set[_Side] = set()
        self._make = make
        self._to = to
        self._listening: socket.socket | None = None
        self._beginning: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Accept connections."""
        # No `asyncio.Server`: while it closes it forgets the connections that it has just accepted, and their ends are
        # never told. https://github.com/python/cpython/issues/109564
        if self._listening is None:
            self._listening = socket.create_server((HOST, self.port), backlog=1_024)
            self._listening.setblocking(False)
            asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)

    def refuse(self) -> None:
        """Accept no connections until it is opened again."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except OSError:
            # It was reset before it was accepted, or there are no descriptors left: it is asked again.
            return
        task = asyncio.get_running_loop().create_task(self._begin(sock))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    def hold(self, up: bool, down: bool) -> None:
        """Let nothing pass in these directions."""
        self.up, self.down = up, down
        for each in list(self.sides):
            each.regulate()

    def cut(self) -> None:
        """Reset all connections."""
        for each in list(self.sides):
            each.abort()

    async def _begin(self, sock: socket.socket) -> None:
        """Make a connection of one that was accepted, and connect it with the port behind the proxy."""
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        _, side = await loop.connect_accepted_socket(lambda: _Side(self, True), sock)
        sock = self._make()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, (HOST, self._to))
            other = _Side(self, False)
            other.other = side
            await loop.create_connection(lambda: other, sock=sock)
        except OSError:
            sock.close()
            side.abort()
            return
        except BaseException:
            sock.close()
            raise
        if side.transport is None:
            other.abort()
            return
        side.join(other)

    async def close(self) -> None:
        """End all connections, and accept no more."""
        self.refuse()
        # Those that were accepted last begin first: a task that is cancelled before leaves its socket open.
        await asyncio.sleep(0)
        for task in list(self._beginning):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self.cut()
        for each in list(self.sides):
            await each.over.wait()
