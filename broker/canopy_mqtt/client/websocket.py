"""The client's side of MQTT over WebSocket (RFC 6455; MQTT, section 6), without a socket.

Owns: the opening handshake, masking, and taking frames apart. The owner writes what `take` returns, after each call.

Promises: nothing that a server sends is kept but 16 KiB of its answer and a control frame: payloads go on as they come,
however long their frame is. What RFC 6455 forbids is a `ConnectionError`.
"""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Final

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


class WebSocketMachine:
    """One WebSocket of a client. `open`: whether MQTT may begin; `closed`: whether either side has closed it."""

    def __init__(self, authority: str, path: str) -> None:
        self.open = False
        self.closed = False
        self._key = base64.b64encode(os.urandom(16)).decode()
        self._out = bytearray(
            f"GET {path} HTTP/1.1\r\nHost: {authority}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {self._key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: mqtt\r\n\r\n".encode()
        )
        self._buffer = b""
        self._left = 0
        """Bytes of the data frame that is being read."""

    def take(self) -> bytes:
        """Return the bytes to write now, and forget them."""
        data = bytes(self._out)
        self._out.clear()
        return data

    def send(self, data: bytes) -> None:
        """Send bytes of MQTT, as one frame."""
        if data and not self.closed:
            self._frame(BINARY, data)

    def close(self) -> None:
        """Send a close frame."""
        if self.open and not self.closed:
            self._frame(CLOSE, b"\x03\xe8")
        self.closed = True

    def receive(self, data: bytes) -> bytes:
        """Process a read, and return the bytes of MQTT in it.

        Raises:
            ConnectionError: the server refuses the WebSocket, breaks the protocol, or closes with an error.
        """
        if not self.open:
            self._buffer += data
            head, end, data = self._buffer.partition(b"\r\n\r\n")
            if not end:
                if len(self._buffer) > MAX_HEAD:
                    raise ConnectionError("the answer to the WebSocket's handshake is too long")
                return b""
            self._buffer = b""
            self._accepted(head)
            self.open = True
        pieces: list[bytes] = []
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        at = 0
        while at < len(data) and not self.closed:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                pieces.append(piece)
                continue
            found = self._head(data, at)
            if found is None:
                self._buffer = data[at:]
                break
            kind, length, at = found
            if kind in (BINARY, CONTINUATION):
                self._left = length
            else:
                self._control(kind, data[at : at + length])
                at += length
        return b"".join(pieces)

    def _accepted(self, head: bytes) -> None:
        status, *lines = head.decode("latin-1").split("\r\n")
        if status.split(" ")[1:2] != ["101"]:
            raise ConnectionError(f"the server refused the WebSocket: {status[:80]}")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        wanted = base64.b64encode(hashlib.sha1((self._key + GUID).encode(), usedforsecurity=False).digest()).decode()
        if fields.get("sec-websocket-accept") != wanted:
            raise ConnectionError("the server's answer is to another WebSocket's handshake")
        if fields.get("sec-websocket-protocol") != "mqtt":
            raise ConnectionError("the server does not speak the WebSocket subprotocol mqtt")

    def _head(self, data: bytes, at: int) -> tuple[int, int, int] | None:
        """Return kind and length of the frame at a place, and where its payload begins; None: there is more to come."""
        if len(data) - at < 2:
            return None
        kind, length, size = data[at] & 15, data[at + 1], 2
        if data[at] & 0x70 or length & 0x80 or kind not in (CONTINUATION, BINARY, CLOSE, PING, PONG):
            what = "a text frame" if kind == TEXT else "a masked frame" if length & 0x80 else "an unknown frame"
            raise ConnectionError(f"the server broke the WebSocket protocol: {what}")
        if length >= 126:
            size = 4 if length == 126 else 10
            if len(data) - at < size:
                return None
            length = int.from_bytes(data[at + 2 : at + size], "big")
        if kind >= CLOSE:
            if length > MAX_CONTROL or not data[at] & 0x80:
                raise ConnectionError(
                    "the server broke the WebSocket protocol: a control frame that is too long or in parts"
                )
            if len(data) - at - size < length:
                return None
        return kind, length, at + size

    def _control(self, kind: int, payload: bytes) -> None:
        if kind == PING:
            self._frame(PONG, payload)
        elif kind == CLOSE:
            code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 0
            self.close()
            if code not in (0, 1000):
                raise ConnectionError(f"the server closed the WebSocket with {code}")

    def _frame(self, kind: int, payload: bytes) -> None:
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
        self._out += head + mask + (int.from_bytes(payload, "little") ^ stream).to_bytes(size, "little")
