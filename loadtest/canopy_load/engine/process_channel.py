"""The channel between the conductor and one of its processes: pickled messages, each behind its length.

Owns: framing. Both ends are processes of one run on one machine, started by one another: what comes is trusted.

Promises: messages of any size, in order; nothing blocks the event loop but the pickling.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any, Final, cast

_LENGTH: Final = struct.Struct(">Q")


class ProcessChannel(asyncio.Protocol):
    """One end."""

    def __init__(self, on_message: Callable[[Any], None], on_closed: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.Event()

    @classmethod
    async def open(
        cls, sock: socket.socket, on_message: Callable[[Any], None], on_closed: Callable[[], None]
    ) -> ProcessChannel:
        """Speak over one of a pair of sockets, which is then the channel's."""
        channel = cls(on_message, on_closed)
        await asyncio.get_running_loop().create_connection(lambda: channel, sock=sock)
        return channel

    def send(self, message: object) -> None:
        if self._transport is not None:
            raw = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
            self._transport.write(_LENGTH.pack(len(raw)) + raw)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            await self._closed.wait()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- what asyncio calls --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            end = at + _LENGTH.size + length
            if end > len(buffer):
                break
            message = pickle.loads(memoryview(buffer)[at + _LENGTH.size : end])
            at = end
            self._on_message(message)
        del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._closed.set()
        self._on_closed()
