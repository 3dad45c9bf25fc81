"""A WebSocket as the transport of a simulated client, and what that hears of its end."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import pytest

from broker.client.websocket import GUID
from loadtest.load.engine.websocket import WebSocket
from tests.client.test_websocket import frame, unmask


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


async def test_bytes_go_through() -> None:
    case = Case()
    case.web.data_received(case.answer() + frame(2, b"first"))
    assert case.web.opened.done()
    assert case.inner.heard == b"first"
    case.web.write(b"answer")
    assert unmask(case.socket.sent) == (0x82, b"answer")


async def test_a_breach_ends_the_connection_with_its_reason() -> None:
    case = Case().open()
    case.web.data_received(frame(1, b"text"))
    assert case.web.is_closing()
    case.web.connection_lost(None)
    assert "a text frame" in str(case.inner.lost[0])


async def test_a_goodbye_of_the_server_is_answered_once() -> None:
    case = Case().open()
    case.web.data_received(frame(8, b"\x03\xe8") + frame(2, b"late"))
    case.web.close()
    case.web.write(b"late")
    assert unmask(case.socket.sent) == (0x88, b"\x03\xe8")
    assert case.inner.heard == b""
    assert case.socket.closed


async def test_an_answer_that_opens_nothing() -> None:
    case = Case()
    case.web.data_received(case.answer("404 Not Found"))
    assert case.socket.aborted
    case.web.connection_lost(None)
    with pytest.raises(OSError, match="refused the WebSocket"):
        await case.web.opened
    assert case.inner.transport is None
    assert case.inner.lost == []


async def test_a_server_that_hangs_up_is_an_error_for_who_waits() -> None:
    case = Case()
    case.web.connection_lost(None)
    with pytest.raises(ConnectionError, match="instead of opening"):
        await asyncio.wait_for(case.web.opened, 5)
