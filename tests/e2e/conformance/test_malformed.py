"""Packets that are none, and that only their sender has to suffer for them.

Each fault that a packet can have is a case of `tests/core/codec/wire_cases.py`; here are some of each kind, over a
socket.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e import wire
from tests.e2e.conformance.conftest import Joined, Opened, Unique
from tests.e2e.conformance.outcomes import MALFORMED, UNREADABLE, alive, thrown_out
from tests.support.runs import for_each

# (what is wrong, 3.1.1, 5.0); None where the version has no such packet
BAD_PACKETS: list[tuple[str, bytes | None, bytes | None]] = [
    ("PUBLISH whose topic is cut short", b"\x30\x04\0\x05ab", b"\x30\x04\0\x05ab"),
    ("PUBLISH whose properties are cut short", None, b"\x30\x04\0\1t\x05"),
    ("PUBACK with half an identifier", b"\x40\1\0", b"\x40\1\0"),
    ("SUBSCRIBE without options", b"\x82\5\0\1\0\1t", b"\x82\6\0\1\0\0\1t"),
    ("UNSUBSCRIBE with a byte left over", b"\xa2\6\0\1\0\1t\0", b"\xa2\7\0\1\0\0\1t\0"),
    ("PINGREQ with a body", b"\xc0\1\0", b"\xc0\1\0"),
    ("DISCONNECT that is too long", None, b"\xe0\3\0\0\0"),
    ("AUTH whose properties are cut short", None, b"\xf0\2\x18\x05"),
]


@for_each(
    ("level", "raw"),
    [
        pytest.param(level, raw, id=f"{name} {wrong}")
        for wrong, old, new in BAD_PACKETS
        for level, name, raw in ((4, "3.1.1", old), (5, "5.0", new))
        if raw is not None
    ],
)
async def test_packets_that_cannot_be_read(joined: Joined, unique: Unique, level: int, raw: bytes) -> None:
    """Their connection ends, with nothing after the DISCONNECT; another client notices nothing.

    [MQTT-4.13.1-1] [MQTT-4.13.2-1] [MQTT3-4.8.0-1] [MQTT-3.14.4-1] [MQTT-3.14.4-2] [MQTT-3.14.2-1] [MQTT-3.14.2-2]
    """
    topic = unique("t")
    bystander, peer = await joined(), await joined(version=level)
    await bystander.subscribe(topic)
    await peer.send(wire.publish(topic, b"before", version=level), raw, wire.PING)
    assert await thrown_out(peer, UNREADABLE) == []
    assert (await bystander.message()).payload == b"before"
    await alive(bystander)


# (what is wrong, version, header, what follows the topic name), for a topic that the broker has seen before
BAD_ON_A_KNOWN_TOPIC = [
    ("identifier 0", 4, 0x32, b"\0\0x"),
    ("identifier 0", 5, 0x32, b"\0\0\0x"),
    ("identifier 0", 5, 0x34, b"\0\0\0x"),
    ("no identifier", 4, 0x32, b""),
    ("no identifier", 5, 0x34, b""),
    ("half an identifier", 4, 0x34, b"\1"),
    ("half an identifier", 5, 0x32, b"\1"),
    ("no property length", 5, 0x30, b""),
    ("no property length", 5, 0x32, b"\0\1"),
    ("properties cut short", 5, 0x30, b"\5\1"),
    ("properties cut short", 5, 0x34, b"\0\1\2\x23\0"),
    ("property length of two bytes", 5, 0x30, b"\x80\0x"),
    ("property length of five bytes", 5, 0x32, b"\0\1\x80\x80\x80\x80\1x"),
    ("unknown property", 5, 0x30, b"\2\x7f\0x"),
]


@for_each(
    ("level", "header", "rest"),
    [case[1:] for case in BAD_ON_A_KNOWN_TOPIC],
    ids=[f"{level} {header:02x} {wrong}" for wrong, level, header, _ in BAD_ON_A_KNOWN_TOPIC],
)
async def test_a_known_topic_is_no_excuse(joined: Joined, unique: Unique, level: int, header: int, rest: bytes) -> None:
    """A PUBLISH like those before it, but for one fault, is refused all the same. [MQTT-4.13.1-1] [MQTT3-4.8.0-1]"""
    topic = unique("t")
    watcher, peer = await joined(), await joined(version=level)
    await watcher.subscribe((topic, 2))
    for qos in (0, 1, 2):
        assert await peer.publish(topic, b"good", qos=qos) == 0
        assert (await watcher.message()).payload == b"good"
    await peer.send(wire.packet(header >> 4, header & 15, wire.string(topic) + rest))
    assert await thrown_out(peer, UNREADABLE) == []
    await alive(watcher)


async def test_nothing_behind_an_error_is_done(joined: Joined, unique: Unique, version: int) -> None:
    """Packets behind a malformed one in the same bytes have no effect. [MQTT-4.13.1-1] [MQTT3-4.8.0-1]"""
    topic = unique("t")
    watcher, peer = await joined(), await joined(version=version)
    await watcher.subscribe(topic)
    await peer.send(b"\x82\0", wire.publish(topic, b"x", version=version, retain=True), wire.PING)
    assert await thrown_out(peer, UNREADABLE) == []
    await alive(watcher)


async def test_nothing_behind_a_disconnect_is_done(joined: Joined, unique: Unique, version: int) -> None:
    """A client that said DISCONNECT has said all; the broker closes. [MQTT-3.14.4-3]"""
    topic = unique("t")
    watcher, peer = await joined(), await joined(version=version)
    await watcher.subscribe(topic)
    await peer.send(wire.disconnect(version=version), wire.publish(topic, b"x", version=version), wire.PING)
    assert await peer.closed() == []
    await alive(watcher)


async def test_pinging(joined: Joined, version: int) -> None:
    """Each PINGREQ has its PINGRESP, alone or many in one write. [MQTT-3.12.4-1]"""
    peer = await joined(version=version)
    await peer.send(wire.PING)
    await peer.expect(wire.PINGRESP)
    await peer.send(*[wire.PING] * 100)
    for _ in range(100):
        await peer.expect(wire.PINGRESP)


async def test_packets_in_any_pieces(joined: Joined, unique: Unique, version: int) -> None:
    """The stream may be cut anywhere: packets come out whole. [MQTT-4.2.0-1]"""
    topic = unique("t")
    peer = await joined(version=version)
    await peer.subscribe(topic)
    payloads = [b"", b"x" * 130, b"y" * 20_000, b"z"]
    stream = b"".join(wire.publish(topic, payload, version=version) for payload in payloads) + wire.PING
    for step in (1, 2, 3, 7, 1000, 20_001):
        pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
        for piece in pieces[:400]:
            await peer.send(piece)
            await asyncio.sleep(0)  # let go of the loop, so that the pieces are read as pieces
        await peer.send(*pieces[400:])
        assert [(await peer.message()).payload for _ in payloads] == payloads
        await peer.expect(wire.PINGRESP)


async def test_a_huge_length_is_waited_for_by_nobody(opened: Opened, joined: Joined) -> None:
    """A declared length of 256 MB in a first packet closes the connection without waiting for the bytes."""
    for first in (0x10, 0x30):
        peer = await opened()
        await peer.send(bytes([first]) + wire.varint(268_435_455) + b"\0" * 10)
        assert [one.code for one in await peer.closed()] in ([], [0x95], [MALFORMED], [0x82])
    await alive(await joined())
