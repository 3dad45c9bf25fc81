"""Attacks on the handshakes of TLS: never begun, never finished, none at all, too many, in too small pieces."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress

from benchmarks.attack.attacks.registry import CROWD, attack
from benchmarks.attack.field import HOST, Field
from broker.core.codec.encoder import encode
from broker.core.codec.packets import V5, Connect, Publish

PATIENCE = 2.0
"""Seconds that a handshake may take before the attack goes on to the next."""


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _hello() -> bytes:
    """What a client says first."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        _context().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


@attack()
def handshakes_never_begun(field: Field) -> None:
    """2,000 connections to a TLS listener that send nothing"""
    for _ in field.rounds(2_000):
        field.raw(field.doors.tls)
    field.listen()


@attack()
def handshakes_never_finished(field: Field) -> None:
    """1,000 connections to a TLS listener that send all but the end of a ClientHello"""
    hello = _hello()
    for _ in field.rounds(1_000):
        field.raw(field.doors.tls).send(hello[:-1])
    field.listen()


@attack(growth=CROWD)
def handshakes_that_begin_at_once(field: Field) -> None:
    """500 connections to a TLS listener that all send a ClientHello, again and again"""
    hello = _hello()
    while not field.over:
        crowd = [field.raw(field.doors.tls) for _ in field.rounds(500)]
        for each in crowd:
            each.send(hello)
        for each in crowd:
            each.close()


@attack()
def no_handshakes(field: Field) -> None:
    """Connections to a TLS listener that send garbage, as fast as it can be done"""
    while not field.over:
        hostile = field.raw(field.doors.tls)
        hostile.send(b"\x16\x03\x01\x40\x00" + os.urandom(16_384))
        hostile.close()


@attack()
def handshake_flood(field: Field) -> None:
    """TLS handshakes that are finished and left, as fast as it can be done"""
    context = _context()
    while not field.over:
        with suppress(OSError), socket.create_connection((HOST, field.doors.tls), PATIENCE) as plain:
            field.connections += 1
            with context.wrap_socket(plain):
                field.answers["handshake"] += 1


@attack()
def records_of_a_byte(field: Field) -> None:
    """A TLS client that sends PUBLISHes in records of a byte each"""
    with (
        suppress(OSError),
        socket.create_connection((HOST, field.doors.tls), PATIENCE) as plain,
        _context().wrap_socket(plain) as secured,
    ):
        field.connections += 1
        secured.sendall(encode(Connect("bytes", V5), V5))
        data = encode(Publish(b"t", b"x" * 100), V5)
        while not field.over:
            for at in range(len(data)):
                secured.sendall(data[at : at + 1])
            field.sent += len(data)
