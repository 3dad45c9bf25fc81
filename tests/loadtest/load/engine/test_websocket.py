"""The client's side of a WebSocket, byte by byte, against what a server may answer."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import pytest

from loadtest.load.engine.websocket import GUID, MAX_HEAD, WebSocket


class Socket:
    """The transport below, which keeps what is written."""

    def __init__(self) -> None:
        self.sent = b""
        self.aborted = self.closed = False

    def write(self, data: bytes) -> None:
        self.sent += data

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted


class Inner:
    """Who speaks MQTT."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.heard = b""
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Case:
    """A WebSocket that has sent its request."""

    def __init__(self) -> None:
        self.inner, self.socket = Inner(), Socket()
        self.web = WebSocket(self.inner, "h:1", "/mqtt")
        self.web.connection_made(self.socket)  # type: ignore[arg-type]
        fields = dict(line.split(": ", 1) for line in self.socket.sent.decode().split("\r\n")[1:] if line)
        self.key = fields["Sec-WebSocket-Key"]
        self.socket.sent = b""

    def answer(self, status: str = "101 Switching Protocols", protocol: str = "mqtt", key: str = "") -> bytes:
        accept = base64.b64encode(hashlib.sha1(((key or self.key) + GUID).encode()).digest()).decode()
        return (
            f"HTTP/1.1 {status}\r\nupgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n"
            f"Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        ).encode()

    def open(self) -> Case:
        self.web.data_received(self.answer())
        assert self.inner.transport is self.web
        return self


def frame(kind: int, payload: bytes, final: bool = True) -> bytes:
    size = len(payload)
    form = (b"", 1) if size < 126 else (b"\x7e", 2) if size < 65_536 else (b"\x7f", 8)
    length = form[0] + size.to_bytes(form[1], "big")
    return bytes(((0x80 if final else 0) | kind,)) + length + payload


def unmask(data: bytes) -> tuple[int, bytes]:
    """Kind and payload of the one frame that a client has sent."""
    assert data[1] & 0x80
    size, at = data[1] & 0x7F, 2
    if size >= 126:
        at = 4 if size == 126 else 10
        size = int.from_bytes(data[2:at], "big")
    mask = data[at : at + 4]
    payload = bytes(each ^ mask[number % 4] for number, each in enumerate(data[at + 4 :]))
    assert len(payload) == size
    return data[0], payload


@pytest.mark.parametrize("size", [0, 1, 3, 4, 125, 126, 65_535, 65_536])
async def test_what_is_written_is_one_masked_binary_frame(size: int) -> None:
    case = Case().open()
    payload = bytes(number % 251 for number in range(size))
    case.web.write(payload)
    assert unmask(case.socket.sent) == (0x82, payload)


@pytest.mark.parametrize("step", [1, 2, 7, 100_000])
async def test_frames_come_whole_or_in_any_pieces(step: int) -> None:
    case = Case()
    data = case.answer() + b"".join(
        [
            frame(2, b"ab"), frame(9, b"hi"), frame(2, b"c", final=False), frame(0, b"d" * 200), frame(2, b""),
            frame(2, b"e" * 70_000), frame(10, b""),
        ]
    )  # fmt: skip
    for at in range(0, len(data), step):
        case.web.data_received(data[at : at + step])
    assert case.web.opened.done()
    assert case.inner.heard == b"abc" + b"d" * 200 + b"e" * 70_000
    assert unmask(case.socket.sent) == (0x8A, b"hi")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame(1, b"text"), "a text frame"),
        (bytes((0x82, 0x81, 0, 0, 0, 0, 0)), "a masked frame"),
        (bytes((0xC2, 0)), "an unknown frame"),
        (frame(9, b"x" * 126), "a control frame"),
        (frame(9, b"", final=False), "a control frame"),
        (frame(8, b"\x03\xea"), "closed the WebSocket with 1002"),
    ],
)
async def test_what_rfc_6455_forbids_ends_the_connection_with_its_reason(data: bytes, why: str) -> None:
    case = Case().open()
    case.web.data_received(data)
    assert case.web.is_closing()
    case.web.connection_lost(None)
    assert why in str(case.inner.lost[0])


async def test_a_goodbye_of_the_server_is_answered_once() -> None:
    case = Case().open()
    case.web.data_received(frame(8, b"\x03\xe8") + frame(2, b"late"))
    case.web.close()
    case.web.write(b"late")
    assert unmask(case.socket.sent) == (0x88, b"\x03\xe8")
    assert case.inner.heard == b""
    assert case.socket.closed


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"status": "404 Not Found"}, "refused the WebSocket: HTTP/1.1 404 Not Found"),
        ({"protocol": "chat"}, "subprotocol mqtt"),
        ({"key": "another"}, "another WebSocket's handshake"),
    ],
)
async def test_an_answer_that_opens_nothing(change: dict[str, str], why: str) -> None:
    case = Case()
    case.web.data_received(case.answer(**change))
    assert case.socket.aborted
    case.web.connection_lost(None)
    with pytest.raises(OSError, match=why):
        await case.web.opened
    assert case.inner.transport is None
    assert case.inner.lost == []


async def test_an_answer_without_an_end_is_not_kept() -> None:
    case = Case()
    case.web.data_received(b"x" * (MAX_HEAD + 1))
    assert case.socket.aborted
    case.web.connection_lost(None)
    with pytest.raises(OSError, match="too long"):
        await case.web.opened


async def test_a_server_that_hangs_up_is_an_error_for_who_waits() -> None:
    case = Case()
    case.web.connection_lost(None)
    with pytest.raises(ConnectionError, match="instead of opening"):
        await asyncio.wait_for(case.web.opened, 5)
