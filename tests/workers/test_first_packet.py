"""The client identifier in the first bytes: found as soon as it is there, in whatever pieces they come."""

from __future__ import annotations

import pytest

from canopy_mqtt.net.websocket.upgrade import UpgradeTerms
from canopy_mqtt.workers.first_packet import First, Opening
from tests.e2e import wire
from tests.e2e.wire import USER_PROPERTY, Will, connect
from tests.net.websocket.framing import CLOSE, PING, TEXT, close, frame, request

MOST = 100_000
V1_HEADER = b"PROXY TCP4 192.0.2.7 192.0.2.1 4000 1883\r\n"
V2_HEADER = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12)


def read(data: bytes, proxy: int, most: int) -> First | None:
    return Opening(proxy, None, most).feed(data)


@pytest.mark.parametrize(
    ("proxy", "header"), [(0, b""), (1, V1_HEADER), (2, V2_HEADER)], ids=["direct", "proxy v1", "proxy v2"]
)
@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (connect("sensor-17"), 5),
        (connect("sensor-17", props=[(USER_PROPERTY, ("a" * 50, "b" * 200))], will=Will("a/b"), user="u"), 5),
        (connect("sensor-17", version=4, user="someone", password=b"x"), 4),
        (connect("sensor-17", version=3, name="MQIsdp"), 3),
        (connect("sensor-17", version=0x84), 4),
    ],
    ids=["5.0", "5.0 with much", "3.1.1", "3.1", "bridge"],
)
def test_every_cut(packet: bytes, version: int, proxy: int, header: bytes) -> None:
    whole = header + packet
    end = whole.index(b"sensor-17") + len(b"sensor-17")
    for size in range(len(whole) + 1):
        assert read(whole[:size], proxy, MOST) == (First(b"sensor-17", version) if size >= end else None)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        wire.PING,
        connect("a", name="HTTP"),
        b"\x10\xff\xff\xff\xff\x01",
        b"\x10\x05\x00\x04MQTT\x05",
        connect("a", payload=b"\xff\xffa"),
        wire.packet(wire.CONNECT, 0, wire.string("MQTT") + b"\x05\x02\x00\x00\xff\x7f" + wire.string("a")),
    ],
    ids=["http", "another packet", "another protocol", "length", "cut short", "identifier too long", "property length"],
)
def test_what_is_no_connect_is_for_any_worker(data: bytes) -> None:
    found = read(data, 0, MOST)
    assert found is not None
    assert found.client_id == b""


def test_a_packet_that_is_too_large_is_for_any_worker_at_once() -> None:
    packet = connect("a", props=[(USER_PROPERTY, ("k", "v" * 5_000))])
    assert read(packet[:8], 0, len(packet) - 4) == First(b"", 0)
    assert read(packet[:8], 0, len(packet) - 3) is None


def test_without_an_identifier() -> None:
    assert read(connect(""), 0, MOST) == First(b"", 5)


@pytest.mark.parametrize("proxy", [1, 2])
def test_a_header_that_is_none_is_for_any_worker(proxy: int) -> None:
    assert read(connect("a"), proxy, MOST) == First(b"", 0)


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize("header", [b"", V1_HEADER])
def test_in_a_websocket(header: bytes, step: int) -> None:
    """The request is answered, and the worker gets the frames as they came."""
    opening = Opening(1 if header else 0, UpgradeTerms("", (), 4_096), MOST)
    packet = connect("sensor-17")
    sent = frame(packet[:5]) + frame(packet[5:] + wire.PING)
    asked = header + request()
    for at in range(0, len(asked), step):
        assert opening.feed(asked[at : at + step]) is None
    assert opening.answer.startswith(b"HTTP/1.1 101 ")
    assert opening.upgraded
    found = [opening.feed(sent[at : at + step]) for at in range(0, len(sent), step)]
    first = next(number for number, each in enumerate(found) if each is not None)
    assert found[first] == First(b"sensor-17", 5)
    assert opening.data == header + sent


@pytest.mark.parametrize("after", [close(), frame(b"x", TEXT), frame(bytes(MOST + 200_000))])
def test_whatever_frame_follows_a_connect_its_client_is_known(after: bytes) -> None:
    """The worker serves the CONNECT before it looks at the next frame."""
    opening = Opening(0, UpgradeTerms("", (), 4_096), MOST)
    opening.feed(request())
    assert opening.feed(frame(connect("sensor-17")) + after) == First(b"sensor-17", 5)


def test_control_frames_do_not_go_on_for_ever() -> None:
    """A worker answers them, and holds none of them."""
    opening = Opening(0, UpgradeTerms("", (), 4_096), MOST)
    opening.feed(request())
    pings = frame(b"", PING) * 10_000
    while opening.feed(pings) is None:
        assert len(opening.data) < MOST + 2 * len(pings)


@pytest.mark.parametrize("asked", [request(protocols="other"), connect("a"), b"GET / HTTP/1.1\r\n\r\n"])
def test_a_request_that_is_refused_is_for_any_worker_as_it_came(asked: bytes) -> None:
    opening = Opening(0, UpgradeTerms("", (), 4_096), MOST)
    assert opening.feed(asked) == First(b"", 0)
    assert (opening.answer, opening.upgraded, bytes(opening.data)) == (b"", False, asked)


def test_a_websocket_that_is_closed_is_for_any_worker() -> None:
    opening = Opening(0, UpgradeTerms("", (), 4_096), MOST)
    assert opening.feed(request() + frame(b"", CLOSE)) == First(b"", 0)
