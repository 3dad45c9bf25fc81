"""The client's side of a WebSocket, byte by byte, against what a server may answer."""

from __future__ import annotations

import base64
import hashlib

import pytest

from canopy_mqtt.client.websocket import GUID, MAX_HEAD, WebSocketMachine
from tests.support.runs import for_each


class Case:
    """A WebSocket that has sent its request."""

    def __init__(self) -> None:
        self.web = WebSocketMachine("h:1", "/mqtt")
        fields = dict(line.split(": ", 1) for line in self.web.take().decode().split("\r\n")[1:] if line)
        self.key = fields["Sec-WebSocket-Key"]

    def answer(self, status: str = "101 Switching Protocols", protocol: str = "mqtt", key: str = "") -> bytes:
        accept = base64.b64encode(hashlib.sha1(((key or self.key) + GUID).encode()).digest()).decode()
        return (
            f"HTTP/1.1 {status}\r\nupgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n"
            f"Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        ).encode()

    def open(self) -> Case:
        assert self.web.receive(self.answer()) == b""
        assert self.web.open
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


@for_each("size", [1, 3, 4, 125, 126, 65_535, 65_536])
def test_what_is_sent_is_one_masked_binary_frame(size: int) -> None:
    case = Case().open()
    payload = bytes(number % 251 for number in range(size))
    case.web.send(payload)
    assert unmask(case.web.take()) == (0x82, payload)


@for_each("step", [1, 2, 7, 100_000])
def test_frames_come_whole_or_in_any_pieces(step: int) -> None:
    case = Case()
    data = case.answer() + b"".join(
        [
            frame(2, b"ab"), frame(9, b"hi"), frame(2, b"c", final=False), frame(0, b"d" * 200), frame(2, b""),
            frame(2, b"e" * 70_000), frame(10, b""),
        ]
    )  # fmt: skip
    heard = b"".join(case.web.receive(data[at : at + step]) for at in range(0, len(data), step))
    assert heard == b"abc" + b"d" * 200 + b"e" * 70_000
    assert unmask(case.web.take()) == (0x8A, b"hi")


@for_each(
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
def test_what_rfc_6455_forbids_ends_the_connection_with_its_reason(data: bytes, why: str) -> None:
    case = Case().open()
    with pytest.raises(ConnectionError, match=why):
        case.web.receive(data)


def test_a_goodbye_of_the_server_is_answered_once() -> None:
    case = Case().open()
    assert case.web.receive(frame(8, b"\x03\xe8") + frame(2, b"late")) == b""
    case.web.close()
    case.web.send(b"late")
    assert unmask(case.web.take()) == (0x88, b"\x03\xe8")
    assert case.web.closed


@for_each(
    ("change", "why"),
    [
        ({"status": "404 Not Found"}, "refused the WebSocket: HTTP/1.1 404 Not Found"),
        ({"protocol": "chat"}, "subprotocol mqtt"),
        ({"key": "another"}, "another WebSocket's handshake"),
    ],
)
def test_an_answer_that_opens_nothing(change: dict[str, str], why: str) -> None:
    case = Case()
    with pytest.raises(ConnectionError, match=why):
        case.web.receive(case.answer(**change))
    assert not case.web.open


def test_an_answer_without_an_end_is_not_kept() -> None:
    case = Case()
    with pytest.raises(ConnectionError, match="too long"):
        case.web.receive(b"x" * (MAX_HEAD + 1))
