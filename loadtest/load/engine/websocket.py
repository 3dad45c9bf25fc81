"""The client's side of MQTT over WebSocket (RFC 6455, MQTT 6): frames around the bytes of a connection.

Owns: the opening handshake, masking, and taking frames apart. It is the protocol of a socket and the transport of an
MQTT client, both by their methods.

Promises: nothing that a server sends is kept but 16 KiB of its answer and a control frame: payloads go on as they come,
however long their frame is. What RFC 6455 forbids ends the connection.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from typing import Any, Final, cast

GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
MAX_HEAD: Final = 16_384
"""Bytes of the server's answer to the handshake."""
MAX_CONTROL: Final = 125

CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10


class WebSocket:
    """Between a socket and `inner`, which speaks MQTT. `opened` is done when MQTT may begin."""

    def __init__(self, inner: Any, authority: str, path: str) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inner = inner
        self._authority = authority
        self._path = path
        self._key = base64.b64encode(os.urandom(16)).decode()
        self._transport: asyncio.Transport | None = None
        self._open = False
        self._closing = False
        self._buffer = b""
        self._left = 0
        """Bytes of the data frame that is being read."""
        self._fault = ""

    # -- as a protocol -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the WebSocket."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(
            f"GET {self._path} HTTP/1.1\r\nHost: {self._authority}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {self._key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: mqtt\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer, or of frames."""
        if not self._open:
            self._buffer += data
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                if len(self._buffer) > MAX_HEAD:
                    self._fail("the answer to the WebSocket's handshake is too long")
                return
            self._buffer = b""
            if wrong := self._refusal(head):
                self._fail(wrong)
                return
            self._open = True
            if not self.opened.done():
                self.opened.set_result(None)
            self._inner.connection_made(self)
            data = rest
        if data:
            self._frames(data)

    def eof_received(self) -> bool:
        """The server will send no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._transport = None
        if self._open:
            self._inner.connection_lost(ConnectionError(self._fault) if self._fault else exc)
        elif not self.opened.done():
            why = self._fault or "the server closed the connection instead of opening a WebSocket"
            self.opened.set_exception(exc if isinstance(exc, OSError) else ConnectionError(why))

    def pause_writing(self) -> None:
        """The socket has more than it can send."""
        if self._open:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """There is room again."""
        if self._open:
            self._inner.resume_writing()

    # -- as a transport ------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes of MQTT, as one frame."""
        if not self._closing:
            self._send(BINARY, data)

    def close(self) -> None:
        """Say goodbye and close, behind what was written."""
        if self._transport is not None:
            if self._open and not self._closing:
                self._send(CLOSE, b"\x03\xe8")
            self._closing = True
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._closing or self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Read no more for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As the socket's transport has it."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As the socket's transport has it."""
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    # -- frames --------------------------------------------------------------------------------------------------------

    def _refusal(self, head: bytes) -> str:
        """Why an answer opens no WebSocket for MQTT; empty: it does."""
        status, *lines = head.decode("latin-1").split("\r\n")
        if status.split(" ")[1:2] != ["101"]:
            return f"the server refused the WebSocket: {status[:80]}"
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        wanted = base64.b64encode(hashlib.sha1((self._key + GUID).encode(), usedforsecurity=False).digest()).decode()
        if fields.get("sec-websocket-accept") != wanted:
            return "the server's answer is to another WebSocket's handshake"
        if fields.get("sec-websocket-protocol") != "mqtt":
            return "the server does not speak the WebSocket subprotocol mqtt"
        return ""

    def _frames(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        at = 0
        while at < len(data) and not self._closing and not self._fault:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self._inner.data_received(piece)
                continue
            found = self._head(data, at)
            if found is None:
                self._buffer = data[at:]
                return
            kind, length, at = found
            if kind in (BINARY, CONTINUATION):
                self._left = length
            else:
                self._control(kind, data[at : at + length])
                at += length

    def _head(self, data: bytes, at: int) -> tuple[int, int, int] | None:
        """Kind and length of the frame at a place, and where its payload begins; None: there is more to come."""
        if len(data) - at < 2:
            return None
        kind, length, size = data[at] & 15, data[at + 1], 2
        if data[at] & 0x70 or length & 0x80 or kind not in (CONTINUATION, BINARY, CLOSE, PING, PONG):
            what = "a text frame" if kind == TEXT else "a masked frame" if length & 0x80 else "an unknown frame"
            self._fail(f"the server broke the WebSocket protocol: {what}")
            return None
        if length >= 126:
            size = 4 if length == 126 else 10
            if len(data) - at < size:
                return None
            length = int.from_bytes(data[at + 2 : at + size], "big")
        if kind >= CLOSE:
            if length > MAX_CONTROL or not data[at] & 0x80:
                self._fail("the server broke the WebSocket protocol: a control frame that is too long or in parts")
                return None
            if len(data) - at - size < length:
                return None
        return kind, length, at + size

    def _control(self, kind: int, payload: bytes) -> None:
        if kind == PING:
            self._send(PONG, payload)
        elif kind == CLOSE:
            code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 0
            if code not in (0, 1000):
                self._fault = f"the server closed the WebSocket with {code}"
            self.close()

    def _send(self, kind: int, payload: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        size = len(payload)
        if size < 126:
            head = bytes((0x80 | kind, 0x80 | size))
        elif size < 65_536:
            head = bytes((0x80 | kind, 0xFE)) + size.to_bytes(2, "big")
        else:
            head = bytes((0x80 | kind, 0xFF)) + size.to_bytes(8, "big")
        mask = os.urandom(4)
        # As numbers: byte by byte it would take a hundred times as long.
        stream = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
        masked = (int.from_bytes(payload, "little") ^ stream).to_bytes(size, "little")
        transport.write(head + mask + masked)

    def _fail(self, why: str) -> None:
        self._fault = why
        self.abort()
