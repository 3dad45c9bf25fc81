"""`wire.Peer` over WebSocket: a client by hand whose packets travel in frames."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Self, cast

from tests.e2e import wire
from tests.net.websocket.framing import BINARY, CLOSE, Frame, frame, frames, request


class Frames:
    """The reader and the writer of a `wire.Peer`, over a stream that carries frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.transport = writer.transport
        self._raw = b""
        self._payload = b""
        # The frames that were no binary ones, in order.
        self.others: list[Frame] = []

    async def upgrade(self, asked: bytes) -> bytes:
        """Ask for a WebSocket; the head of the answer."""
        self._writer.write(asked)
        async with asyncio.timeout(wire.TIMEOUT):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def readexactly(self, size: int) -> bytes:
        """As a `StreamReader`'s. A close frame is answered, and is the end of the stream."""
        while len(self._payload) < size:
            data = b""
            if not any(one.opcode == CLOSE for one in self.others):
                data = await self._reader.read(65_536)
            if not data:
                raise asyncio.IncompleteReadError(self._payload, size)
            found, self._raw = frames(self._raw + data)
            for one in found:
                if one.opcode == BINARY:
                    self._payload += one.payload
                else:
                    self.others.append(one)
                    if one.opcode == CLOSE:
                        self._writer.write(frame(one.payload, CLOSE))
        taken, self._payload = self._payload[:size], self._payload[size:]
        return taken

    def write(self, data: bytes) -> None:
        """As a `StreamWriter`'s: one binary frame."""
        self._writer.write(frame(data))

    def write_raw(self, data: bytes) -> None:
        """Bytes of the WebSocket itself."""
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    def get_extra_info(self, name: str) -> Any:
        return self._writer.get_extra_info(name)


class WebPeer(wire.Peer):
    """One WebSocket to the broker."""

    frames: Frames

    @classmethod
    async def open(cls, host: str, port: int, version: int = 5) -> Self:
        """Connect and upgrade, and send nothing yet."""
        return await cls.over(host, port, version)

    @classmethod
    async def over(
        cls, host: str, port: int, version: int = 5, *, context: ssl.SSLContext | None = None, before: bytes = b""
    ) -> Self:
        """The same, with TLS if there is a context, and with bytes that come before everything."""
        async with asyncio.timeout(wire.TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(before)
            if context is not None:
                await writer.start_tls(context, server_hostname="localhost")
        stream = Frames(reader, writer)
        answer = await stream.upgrade(request())
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        return cls.of(stream, version)

    @classmethod
    def of(cls, stream: Frames, version: int) -> Self:
        """A peer of a WebSocket that is there."""
        made = cls(cast(asyncio.StreamReader, stream), cast(asyncio.StreamWriter, stream), version)
        made.frames = stream
        return made

    @property
    def close_code(self) -> int:
        """Of the close frame that the broker has sent; 0: it has not."""
        return next((one.code for one in self.frames.others if one.opcode == CLOSE), 0)
