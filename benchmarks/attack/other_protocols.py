"""Attacks before MQTT, or without it: connections, upgrades and frames of WebSocket, PROXY headers, and `[http]`."""

from __future__ import annotations

import os
import struct
from functools import partial
from itertools import cycle
from typing import Final

from benchmarks.attack.field import ATTACKS, CROWD, GROWTH, Attack, Field, Hostile, attack
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import V5, Connect

UPGRADE: Final = (
    b"GET /mqtt HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
UPGRADE_UNFINISHED: Final = UPGRADE[:-2] + b"Cookie: " + b"x" * (16_000 - len(UPGRADE))
BINARY, PING, FRAGMENT, MORE = 0x82, 0x89, 0x02, 0x00
MASK: Final = bytes(4)
PINGREQ: Final = b"\xc0\x00"
FRAMES: Final = 10_000
"""Frames in one piece of a flood."""
PROXY: Final = b"\r\n\r\n\x00\r\nQUIT\n" + struct.pack("!BBH", 0x21, 0x11, 12) + bytes(12)
HTTP: Final = b" HTTP/1.1\r\nHost: localhost\r\n"
SLOW: Final = b"GET /api/v5/clients" + HTTP + b"".join(b"X-%d: %s\r\n" % (number, 20 * b"x") for number in range(40))
LISTS: Final = 50 * (b"GET /api/v5/subscriptions?limit=1000" + HTTP + b"\r\n")
POST: Final = b"POST /api/v5/publish" + HTTP + b"Content-Type: application/json\r\n"
PIECE: Final = (1 << 16) * b"x"
PART: Final = (1 << 20) - 100
"""Bytes that are sent of a packet of 1 MiB."""
STRANGER: Final = encode(Connect("x" * 200, V5), V5)
NAME: Final = "\U0001f600" * 60

CONNECT_UNFINISHED: Final = b"\x10\xf0\xff\x3f\x00\x04MQTT\x05\x02\x00\x00" + bytes(PART)

HELD: Final = (
    ("connections-without-a-word", 2_000, "", b"", GROWTH, "send nothing"),
    ("connects-never-finished", 300, "", CONNECT_UNFINISHED, CROWD, "hold all but the end of a CONNECT of 1 MiB"),
    ("upgrades-never-finished", 2_000, "web", UPGRADE_UNFINISHED, CROWD, "hold all but the end of a request of 16 KiB"),
    ("proxy-headers-never-finished", 2_000, "proxied", PROXY[:-1], GROWTH, "hold all but the end of a PROXY header"),
    ("http-connections", 5_000, "http", SLOW, GROWTH, "begin a request to [http] and stay"),
)
TRICKLED: Final = (
    ("trickled-connects", "", STRANGER[:-1], "a CONNECT"),
    ("trickled-upgrades", "web", UPGRADE[:-1], "a request for a WebSocket"),
    ("trickled-requests", "http", SLOW, "the headers of an HTTP request"),
)


def frame(first: int, payload: bytes = b"") -> bytes:
    """Return a frame of at most 65,535 bytes, masked with zeros."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack("!H", size)
    return bytes([first]) + length + MASK + payload


def joined(field: Field) -> Hostile:
    """Return a client over WebSocket, without waiting for its CONNACK."""
    hostile = field.socket("web")
    hostile.send(UPGRADE + frame(BINARY, encode(Connect("", V5), V5)))
    return hostile


def _frames(piece: bytes, first: bytes, field: Field) -> None:
    """Send the same frames over and over, from four clients."""
    clients = [joined(field) for _ in range(4)]
    for client in clients:
        client.send(first)
    while not field.over:
        for client in clients:
            client.send(piece)


FLOODED: Final = (
    ("websocket-pings", frame(PING, b"?" * 125), b"", "PINGs and read the answers"),
    ("websocket-fragments", frame(MORE), frame(FRAGMENT), "one message in empty fragments without an end"),
    ("websocket-frames-of-a-byte", frame(BINARY, b"\xc0") + frame(BINARY, b"\0"), b"", "PINGREQs in frames of a byte"),
)

for name, most, listener, data, growth, what in HELD:
    run = partial(Field.hold, connections=most, listener=listener, data=data)
    ATTACKS[name] = Attack(f"{most:,} connections that {what}", run, growth)
for name, listener, data, what in TRICKLED:
    run = partial(Field.trickle, listener=listener, data=data)
    ATTACKS[name] = Attack(f"300 connections that send {what} byte by byte", run)
for name, data, begin, what in FLOODED:
    ATTACKS[name] = Attack(f"Four clients that send {what}", partial(_frames, data * FRAMES, begin))


def _visits(field: Field, listener: str, said: tuple[bytes, ...], leave: bool = True) -> None:
    """Open as many connections as there is time for, each with the next of these; most leave at once."""
    for number in field.rounds(20_000):
        each = field.socket(listener)
        each.send(said[number % len(said)])
        if leave and number % 100:
            each.close()


@attack()
def no_mqtt(field: Field) -> None:
    """HTTP, TLS and noise, on as many connections as there is time for"""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    _visits(field, "", (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", hello, os.urandom(500)))


@attack()
def websocket_noise(field: Field) -> None:
    """Noise behind the upgrade and in place of it, on as many connections as there is time for"""
    _visits(field, "web", tuple(begin + os.urandom(500) for begin in (b"", UPGRADE) * 50))


@attack()
def forged_proxy_headers(field: Field) -> None:
    """PROXY headers from where none may come, on as many connections as there is time for"""
    _visits(field, "forged", (PROXY + encode(Connect("forged", V5), V5),), leave=False)


@attack()
def upgrade_flood(field: Field) -> None:
    """WebSockets that are agreed on and vanish, as fast as it can be done"""
    while not field.over:
        joined(field).vanish()


@attack()
def giant_websocket_frames(field: Field) -> None:
    """Strangers that announce a frame of 2^40 bytes, and a client that sends one"""
    head = bytes([BINARY, 0xFF]) + struct.pack("!Q", 1 << 40) + MASK
    client = joined(field)
    client.send(head)
    while not field.over:
        field.socket("web").send(UPGRADE + head + bytes(50_000))
        client.send(PINGREQ * FRAMES)


@attack()
def connect_flood(field: Field) -> None:
    """Clients that come, are let in and vanish, as fast as it can be done"""
    while not field.over:
        field.client().vanish()


@attack()
def names_that_fill_the_log(field: Field) -> None:
    """Clients with names that JSON writes at length, which come and go as fast as it can be done"""
    for number in cycle(range(50)):
        if field.over:
            break
        hostile = field.socket()
        hostile.send(encode(Connect(f"{number}{NAME}", V5, user_name=NAME * 4), V5) + b"\xe0\0")
        hostile.wait_for("CONNACK")
        hostile.close()


def _all_send(field: Field, hostiles: list[Hostile], piece: bytes) -> None:
    """Send the same bytes over and over on all of them, until all are closed."""
    while not field.over and not all(each.closed for each in hostiles):
        for each in hostiles:
            each.send(piece)


@attack()
def endless_headers(field: Field) -> None:
    """20 connections whose header never ends, at the same time"""
    asking = [field.socket("http") for _ in field.rounds(20)]
    for each in asking:
        each.send(b"GET /" + HTTP + b"X: ")
    _all_send(field, asking, PIECE)


@attack(growth=CROWD)
def lists_for_nobody(field: Field) -> None:
    """100 connections that ask for lists one behind the other, and read no answer"""
    _all_send(field, [field.socket("http", narrow=True, reads=False) for _ in field.rounds(100)], LISTS)


@attack(growth=CROWD)
def huge_bodies(field: Field) -> None:
    """100 connections with bodies of a gigabyte: as they say, or in pieces without an end"""
    lengths = cycle((b"Content-Length: 1073741824\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"))
    for each, length in zip([field.socket("http") for _ in field.rounds(100)], lengths, strict=False):
        piece = PIECE if length.startswith(b"C") else b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
        each.send(POST + length)
        for _ in field.rounds(64):
            if not each.send(piece):
                break


@attack(growth=CROWD)
def pages_that_read_nothing(field: Field) -> None:
    """200 pages that are open, and take nothing of what they are told each second"""
    for _ in field.rounds(200):
        field.socket("http", narrow=True, reads=False).send(b"GET /events" + HTTP + b"\r\n")
    field.listen()
