"""Attacks on what comes before MQTT: the upgrade and the frames of WebSocket, and PROXY headers."""

from __future__ import annotations

import os
import struct

from benchmarks.attack.attacks.registry import CROWD, attack
from benchmarks.attack.field import Field, Hostile
from broker.core.codec.encoder import encode
from broker.core.codec.packets import V5, Connect

REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
BINARY, PING = 0x82, 0x89
FRAGMENT, MORE = 0x02, 0x00
MASK = bytes(4)
PINGREQ = b"\xc0\x00"
PROXY = b"\r\n\r\n\x00\r\nQUIT\n" + struct.pack("!BBH", 0x21, 0x11, 12) + bytes(12)
MANY = 10_000
"""Frames in one piece of a flood."""


def frame(first: int, payload: bytes = b"") -> bytes:
    """A frame of at most 65,535 bytes, masked with zeros."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack("!H", size)
    return bytes([first]) + length + MASK + payload


def joined(field: Field) -> Hostile:
    """A client over WebSocket that was let in, without waiting for the word of it."""
    hostile = field.raw(field.listeners.web)
    hostile.send(REQUEST + frame(BINARY, encode(Connect("", V5), V5)))
    return hostile


def flood(field: Field, piece: bytes, first: bytes = b"") -> None:
    """The same bytes over and over, from four clients."""
    clients = [joined(field) for _ in range(4)]
    for client in clients:
        client.send(first)
    while not field.over:
        for client in clients:
            client.send(piece)


@attack()
def trickled_upgrades(field: Field) -> None:
    """300 connections that ask for a WebSocket byte by byte"""
    sockets = [field.raw(field.listeners.web) for _ in field.rounds(300)]
    for at in range(len(REQUEST) - 1):
        for each in sockets:
            if field.over:
                return
            each.send(REQUEST[at : at + 1])


@attack(growth=CROWD)
def upgrades_never_finished(field: Field) -> None:
    """2,000 connections that hold all but the end of a request of 16 KiB"""
    data = REQUEST[:-2] + b"Cookie: " + b"x" * (16_000 - len(REQUEST))
    for _ in field.rounds(2_000):
        field.raw(field.listeners.web).send(data)
    field.listen()


@attack()
def upgrade_flood(field: Field) -> None:
    """WebSockets that are agreed on and vanish, as fast as it can be done"""
    while not field.over:
        joined(field).vanish()


@attack()
def websocket_pings(field: Field) -> None:
    """Four clients that send PINGs and read the answers"""
    flood(field, frame(PING, b"?" * 125) * MANY)


@attack()
def websocket_fragments(field: Field) -> None:
    """Four clients that send one message in empty fragments without an end"""
    flood(field, frame(MORE) * MANY, frame(FRAGMENT))


@attack()
def websocket_frames_of_a_byte(field: Field) -> None:
    """Four clients that send PINGREQs in frames of a byte"""
    flood(field, (frame(BINARY, PINGREQ[:1]) + frame(BINARY, PINGREQ[1:])) * MANY)


@attack()
def giant_websocket_frames(field: Field) -> None:
    """Strangers that announce a frame of 2^40 bytes, and a client that sends one"""
    head = bytes([BINARY, 0xFF]) + struct.pack("!Q", 1 << 40) + MASK
    client = joined(field)
    client.send(head)
    while not field.over:
        field.raw(field.listeners.web).send(REQUEST + head + bytes(50_000))
        client.send(PINGREQ * MANY)


@attack()
def websocket_noise(field: Field) -> None:
    """Noise behind the upgrade and in place of it, on as many connections as there is time for"""
    for number in field.rounds(20_000):
        each = field.raw(field.listeners.web)
        each.send((REQUEST if number % 2 else b"") + os.urandom(500))
        if number % 100:
            each.close()


@attack()
def proxy_headers_never_finished(field: Field) -> None:
    """2,000 connections that hold all but the end of a PROXY header"""
    for _ in field.rounds(2_000):
        field.raw(field.listeners.proxied).send(PROXY[:-1])
    field.listen()


@attack()
def forged_proxy_headers(field: Field) -> None:
    """PROXY headers from where none may come, on as many connections as there is time for"""
    for _ in field.rounds(20_000):
        field.raw(field.listeners.forged).send(PROXY + encode(Connect("forged", V5), V5))
