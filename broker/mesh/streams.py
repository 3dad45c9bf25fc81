"""Byte streams between two nodes: a Unix socket where both are workers of one machine, else a pipe over the bus.

Owns the socket on which this node takes streams, and those that it has taken or opened. A message through a socket
costs two system calls; through the bus it wakes several threads. Promises: bytes arrive once and in order, or the
stream ends; the streams of a node that leaves end; where a socket cannot be used, the stream is a pipe, and the log has
it once for each node and reason, until a socket can be used again.

Whoever connects says in a first line which node it is. Only this user may enter the folder with the sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from broker.mesh.pipes import Pipes

BACKLOG: Final = 128
"""Streams that the system keeps until this node takes them."""

LONGEST_NAME: Final = 256
"""Bytes of a first line."""

PATIENCE: Final = 10.0
"""Seconds for a first line, and then for its node to be there: this node may hear of that later than the other one."""

DRAIN: Final = 1.0
"""Seconds for what a node has sent before it left."""

Accept = Callable[[str, asyncio.Transport], asyncio.BaseProtocol | None]


class Streams:
    """This node's streams. `accept` makes the protocol of a stream that another node opens, or None to refuse it."""

    def __init__(
        self,
        pipes: Pipes,
        own: str,
        accept: Accept,
        path: Callable[[str], Path | None],
        loop: asyncio.AbstractEventLoop,
        log: Any,
    ) -> None:
        """`own`: this node. `path`: of the socket of a node on this machine; None: it is on another one."""
        self.loop = loop
        self._log = log
        # Why there is no socket to a node, as the log has it.
        self._without: dict[str, str] = {}
        self._pipes = pipes
        self._own = own
        self._accept = accept
        self._path = path
        self._server: asyncio.Server | None = None
        # The nodes that are there: the streams that they opened, and those that this one did.
        self._taken: dict[str, list[asyncio.Transport]] = {}
        self._opened: dict[str, list[asyncio.Transport]] = {}
        # Streams of nodes of which this one has not heard yet.
        self._early: dict[str, _Arrival] = {}
        self._opening: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Take streams, if this node has a socket; where none can be made, all use pipes."""
        path = self._path(self._own)
        sock = None if path is None else self._make_socket(self._own)
        if path is None or sock is None:
            return
        try:
            await asyncio.to_thread(_bind, sock, path)
            self._server = await self.loop.create_unix_server(lambda: _Arrival(self), sock=sock, backlog=BACKLOG)
        except OSError as error:
            sock.close()
            self._no_socket(self._own, error)

    def _make_socket(self, node: str) -> socket.socket | None:
        """None: no file descriptor is left."""
        try:
            return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            self._no_socket(node, error)
            return None

    def _no_socket(self, node: str, error: OSError) -> None:
        why = f"{type(error).__name__}: {error.strerror or error}"
        if self._without.get(node) != why:
            self._without[node] = why
            self._log.warning("no socket between workers", node=node, why=why)

    def open(self, node: str, protocol_factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """A new stream to a node. Its protocol hears `connection_made` in a later turn of the event loop.

        Raises:
            ConnectionError: the node is not there.
        """
        sock = self._connect(node) if node in self._opened else None
        if sock is None:
            self._pipes.open(node, protocol_factory)
            return
        task = self.loop.create_task(self._begin(node, sock, protocol_factory()))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _connect(self, node: str) -> socket.socket | None:
        path = self._path(node)
        sock = None if path is None else self._make_socket(node)
        if path is None or sock is None:
            return None
        sock.setblocking(False)
        try:
            # Nobody is waited for: who listens has room for it, or has not.
            sock.connect(os.fspath(path))
            sock.send(f"{self._own}\n".encode())
        except OSError as error:
            sock.close()
            self._no_socket(node, error)
            return None
        self._without.pop(node, None)
        return sock

    async def _begin(self, node: str, sock: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        try:
            transport, _ = await self.loop.create_unix_connection(lambda: cast(asyncio.Protocol, protocol), sock=sock)
        except (OSError, asyncio.CancelledError) as error:
            sock.close()
            protocol.connection_lost(error if isinstance(error, OSError) else None)
            return
        streams = self._opened.get(node)
        if streams is None:
            transport.abort()
        else:
            _add(streams, transport)

    def joined(self, node: str) -> None:
        """A node is there."""
        self._taken[node] = []
        self._opened[node] = []
        early = self._early.pop(node, None)
        if early is not None:
            early.hand_over()

    def left(self, node: str) -> None:
        """A node is gone, and so are its streams, when what it had sent has been read."""
        _abort(self._opened.pop(node, []))
        taken = [transport for transport in self._taken.pop(node, []) if not transport.is_closing()]
        if taken:
            self.loop.call_later(DRAIN, _abort, taken)

    async def stop(self) -> None:
        """Take no more streams, and end those that there are."""
        for task in self._opening:
            task.cancel()
        if self._opening:
            await asyncio.wait(self._opening)
        if self._server is not None:
            self._server.close()
            self._server = None
            path = self._path(self._own)
            assert path is not None
            with contextlib.suppress(OSError):
                await asyncio.to_thread(path.unlink)
        for arrival in list(self._early.values()):
            arrival.refuse()
        for node in list(self._taken):
            _abort(self._taken.pop(node))
            _abort(self._opened.pop(node))

    def arrived(self, arrival: _Arrival, node: str) -> None:
        """A stream says whose it is. It is handed over when that node is there."""
        if node in self._taken:
            arrival.hand_over()
            return
        before = self._early.pop(node, None)
        if before is not None:
            before.refuse()
        self._early[node] = arrival

    def take(self, node: str, transport: asyncio.Transport) -> asyncio.BaseProtocol | None:
        """The protocol of a stream that has arrived."""
        protocol = self._accept(node, transport)
        if protocol is not None:
            _add(self._taken[node], transport)
        return protocol

    def forget(self, arrival: _Arrival, node: str) -> None:
        """One has ended before its node was there."""
        if self._early.get(node) is arrival:
            del self._early[node]


class _Arrival(asyncio.Protocol):
    """A stream that has been opened to this node, until it is known whose it is and that node is there."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._transport: asyncio.Transport
        self._data = b""
        self._node = ""
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._patience = self._streams.loop.call_later(PATIENCE, self.refuse)

    def data_received(self, data: bytes) -> None:
        self._data += data
        name, end, rest = self._data.partition(b"\n")
        if not end:
            if len(name) > LONGEST_NAME:
                self.refuse()
            return
        self._data = rest
        self._node = name.decode("utf-8", "replace")
        # What comes until it is handed over waits in the socket.
        self._transport.pause_reading()
        self._streams.arrived(self, self._node)

    def hand_over(self) -> None:
        """Its node is there."""
        self._end()
        transport = self._transport
        protocol = self._streams.take(self._node, transport)
        if protocol is None:
            transport.abort()
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._data:
            cast(asyncio.Protocol, protocol).data_received(self._data)
        if not transport.is_closing():
            transport.resume_reading()

    def refuse(self) -> None:
        """Nobody wants the stream."""
        self._end()
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._end()

    def _end(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._streams.forget(self, self._node)


def _bind(sock: socket.socket, path: Path) -> None:
    # An earlier process of this node may have been killed.
    path.unlink(missing_ok=True)
    sock.bind(os.fspath(path))


def _add(streams: list[asyncio.Transport], transport: asyncio.Transport) -> None:
    """Add a stream, and forget those that are over."""
    streams[:] = [each for each in streams if not each.is_closing()]
    streams.append(transport)


def _abort(streams: list[asyncio.Transport]) -> None:
    for transport in streams:
        transport.abort()
