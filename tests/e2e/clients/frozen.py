"""A client by hand that misbehaves on purpose: it reads only when it is told to, with small buffers.

Owns: raw sockets beside `wire.Peer`. Promises: bounded waits; what piles up does so in the broker. What the broker does
about it is not known here.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
from collections.abc import Callable
from typing import ClassVar, Final, Self

from tests.e2e import wire

SMALL_BUFFER: Final = 4096
"""Bytes asked for as buffer; the system doubles it and has its own minimum."""

SO_ATTACH_FILTER: Final = 26
"""Linux's socket option, which Python does not name."""


class Frozen:
    """A connection that was accepted by the broker, and that does not read."""

    _opened: ClassVar[list[socket.socket | wire.Peer]] = []

    def __init__(self, connection: socket.socket, version: int) -> None:
        self.socket = connection
        self.version = version
        self.sent = 0

    @classmethod
    async def open(cls, port: int, version: int = 5) -> Self:
        """Connect by TCP with a small receive buffer, and say nothing."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        cls._opened.append(connection)
        # Before connecting: the window's scale is agreed on in the first packets.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        connection.setblocking(False)
        async with asyncio.timeout(wire.TIMEOUT):
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        return cls(connection, version)

    @classmethod
    async def join(
        cls, port: int, connect: bytes, *filters: tuple[str, int], props: wire.Properties = (), version: int = 5
    ) -> Self:
        """Connect, subscribe, and read up to the SUBACK and no further."""
        frozen = await cls.open(port, version)
        await frozen.send(connect)
        kind, _, body = await frozen.read_packet()
        assert (kind, body[1]) == (wire.CONNACK, 0)
        if filters:
            await frozen.send(wire.subscribe(1, filters, props, version=version))
            kind, _, body = await frozen.read_packet()
            assert kind == wire.SUBACK
            assert all(code < 0x80 for code in body[-len(filters) :])
        return frozen

    async def send(self, data: bytes) -> None:
        """Write all of it."""
        async with asyncio.timeout(wire.TIMEOUT):
            await asyncio.get_running_loop().sock_sendall(self.socket, data)
        self.sent += len(data)

    def push(self, data: bytes) -> int:
        """Write as much as goes now; how many bytes went."""
        done = 0
        while done < len(data):
            try:
                done += self.socket.send(data[done:])
            except BlockingIOError:
                break
        self.sent += done
        return done

    async def read(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        loop = asyncio.get_running_loop()
        parts: list[bytes] = []
        left = count
        async with asyncio.timeout(wire.TIMEOUT):
            while left:
                part = await loop.sock_recv(self.socket, min(left, 65_536))
                if not part:
                    raise wire.Closed
                parts.append(part)
                left -= len(part)
        return b"".join(parts)

    async def read_packet(self) -> tuple[int, int, bytes]:
        """Kind, flags and body of the next packet."""
        first = (await self.read(1))[0]
        length = shift = 0
        while True:
            digit = (await self.read(1))[0]
            length |= (digit & 0x7F) << shift
            shift += 7
            if not digit & 0x80:
                break
        return first >> 4, first & 15, await self.read(length)

    async def read_to_end(self) -> bytes:
        """All that comes until the broker closes or resets the connection."""
        loop = asyncio.get_running_loop()
        parts: list[bytes] = []
        async with asyncio.timeout(wire.TIMEOUT):
            try:
                while part := await loop.sock_recv(self.socket, 65_536):
                    parts.append(part)
            except ConnectionResetError:
                pass
        return b"".join(parts)

    def widen(self) -> None:
        """Enlarge the system's buffers, since small ones cost time where they are no longer needed."""
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self.socket.setsockopt(socket.SOL_SOCKET, buffer, 1 << 20)

    def cut(self) -> None:
        """The network is gone: the system throws away all that comes, and acknowledges nothing."""
        drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0 bytes
        self.socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxQ", 1, ctypes.addressof(drop)))

    def close(self) -> None:
        """Be gone."""
        self.socket.close()

    @classmethod
    def close_all(cls) -> None:
        """After a test: nothing stays open, however it ended."""
        for connection in cls._opened:
            if isinstance(connection, wire.Peer):
                connection.abort()
            else:
                connection.close()
        cls._opened.clear()


async def until(what: str, condition: Callable[[], bool], peer: wire.Peer) -> None:
    """Give the broker turns, by pings of `peer`, until something holds."""
    try:
        async with asyncio.timeout(wire.TIMEOUT):
            while not condition():
                await peer.fence()
    except TimeoutError:
        raise AssertionError(f"not within {wire.TIMEOUT:g} s: {what}") from None
