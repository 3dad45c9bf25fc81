"""The client's side of WebSocket, byte by byte: written from RFC 6455 and not from the broker's code."""

from __future__ import annotations

import struct
from dataclasses import dataclass

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
"""The accept value of this key in section 1.3."""


def frame(
    payload: bytes, opcode: int = BINARY, *, fin: bool = True, mask: bytes | None = b"\x12\x34\x56\x78", rsv: int = 0
) -> bytes:
    """A frame of a client; without a mask, one that no client may send."""
    first = opcode | (0x80 if fin else 0) | rsv << 4
    flag = 0 if mask is None else 0x80
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, flag | size)
    elif size < 65_536:
        head = struct.pack("!BBH", first, flag | 126, size)
    else:
        head = struct.pack("!BBQ", first, flag | 127, size)
    if mask is None:
        return head + payload
    return head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))


def close(code: int | None = 1000, reason: str = "") -> bytes:
    return frame(b"" if code is None else struct.pack("!H", code) + reason.encode(), CLOSE)


def request(
    path: str = "/mqtt",
    *,
    protocols: str | None = "mqtt",
    connection: str = "keep-alive, Upgrade",
    leave_out: tuple[str, ...] = (),
    **headers: str,
) -> bytes:
    """An upgrade as Firefox asks for it. More headers as keywords, `_` for `-`."""
    lines = {"Host": "broker.example", "Upgrade": "websocket", "Connection": connection}
    lines |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": KEY.decode()}
    if protocols is not None:
        lines["Sec-WebSocket-Protocol"] = protocols
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if name not in leave_out)
    return f"GET {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1")


@dataclass(frozen=True)
class Frame:
    """A frame of a server."""

    opcode: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of a close frame."""
        return int.from_bytes(self.payload[:2], "big")


def frames(data: bytes) -> tuple[list[Frame], bytes]:
    """The whole, unmasked, unfragmented frames at the beginning of some bytes, and the rest."""
    found: list[Frame] = []
    while len(data) >= 2:
        size, start = data[1], 2
        assert size < 128, "a server does not mask"
        if size == 126:
            size, start = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(data[2:10], "big"), 10
        if len(data) < start + size:
            break
        assert data[0] & 0xF0 == 0x80, "a fragment, or an extension"
        found.append(Frame(data[0] & 0x0F, data[start : start + size]))
        data = data[start + size :]
    return found, data
