"""Attacks on the handshakes of TLS: never begun, never finished, none at all, too many, again and again."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from benchmarks.attack.field import CLOSED, CROWD, Field, attack
from benchmarks.attack.forged_tls import CIPHERS, KEYS_CIPHER, NewKeys, asked_handshakes
from canopy_load.brokers.process import HOST
from canopy_mqtt.core.codec.encoder import encode
from canopy_mqtt.core.codec.packets import V5, Connect, Publish

BATCH: Final = 1_000
"""Records of TLS's own that are sent at once."""
PATIENCE: Final = 2.0
"""Seconds that a handshake may take before the attack goes on to the next."""


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _hello() -> bytes:
    """Return the first record of a TLS client."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        _context().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


@attack()
def handshakes_never_begun(field: Field) -> None:
    """2,000 connections to a TLS listener that send nothing"""
    field.hold(2_000, "tls")


@attack()
def handshakes_never_finished(field: Field) -> None:
    """1,000 connections to a TLS listener that send all but the end of a ClientHello"""
    field.hold(1_000, "tls", _hello()[:-1])


@attack()
def handshakes_that_fail_and_stay(field: Field) -> None:
    """4,000 connections to a TLS listener that send what is no TLS, and stay open"""
    field.hold(4_000, "tls", encode(Connect("x", V5), V5))


def _crowds(field: Field, size: int, data: bytes) -> None:
    """Open one crowd of connections after the other; all of one send this at the same time."""
    while not field.over:
        crowd = [field.socket("tls") for _ in field.rounds(size)]
        for each in crowd:
            each.send(data)
        for each in crowd:
            each.close()


@attack(growth=CROWD)
def handshakes_that_begin_at_once(field: Field) -> None:
    """500 connections to a TLS listener that all send a ClientHello, again and again"""
    _crowds(field, 500, _hello())


@attack(growth=CROWD)
def handshakes_in_fragments(field: Field) -> None:
    """Connections to a TLS listener that send a ClientHello of 130,000 bytes, each in a record of its own"""
    begun = b"\x16\x03\x01\0\1\1" * 2
    _crowds(field, 100, begun + b"\x16\x03\x01\0\1\0" * field.some(130_000))


@attack()
def no_handshakes(field: Field) -> None:
    """Connections to a TLS listener that send garbage, as fast as it can be done"""
    while not field.over:
        hostile = field.socket("tls")
        hostile.send(b"\x16\x03\x01\x40\x00" + os.urandom(16_384))
        hostile.close()


@attack()
def handshake_flood(field: Field) -> None:
    """TLS handshakes that are finished and left, as fast as it can be done"""
    context = _context()
    while not field.over:
        with suppress(OSError), _plain(field) as plain, context.wrap_socket(plain):
            field.answers["handshake"] += 1


@attack()
def records_of_a_byte(field: Field) -> None:
    """A TLS client that sends PUBLISHes in records of a byte each"""
    with suppress(OSError), _plain(field) as plain, _context().wrap_socket(plain) as secured:
        secured.sendall(encode(Connect("bytes", V5), V5))
        data = encode(Publish(b"t", b"x" * 100), V5)
        while not field.over:
            for at in range(len(data)):
                secured.sendall(data[at : at + 1])
            field.sent += len(data)


@attack()
def new_handshakes_asked_for(field: Field) -> None:
    """Clients of TLS 1.2 that ask for a new handshake a thousand times at once and read no answer"""

    def handshakes(keys: str, answers: bytes) -> Callable[[], bytes]:
        parts = count(1, BATCH)
        return lambda: asked_handshakes(keys, answers, next(parts), BATCH)

    _forge(field, handshakes, old=True)


@attack()
def new_keys_asked_for(field: Field) -> None:
    """Clients of TLS 1.3 that ask for new keys a thousand times at once and read no answer"""
    _forge(field, lambda keys, _: partial(NewKeys(keys, asking=True).records, field.some(BATCH)))


@attack()
def new_keys_without_end(field: Field) -> None:
    """Clients of TLS 1.3 that come with thousands of new keys, and never stop"""
    _forge(field, lambda keys, _: partial(NewKeys(keys, asking=False).records, field.some(BATCH)))


def _forge(field: Field, making: Callable[[str, bytes], Callable[[], bytes]], old: bool = False) -> None:
    """Open one connection after the other, each of which sends the records that are made from its secrets."""
    with tempfile.TemporaryDirectory() as folder:
        for number in field.rounds(10_000):
            context = _context()
            if old:
                context.maximum_version = ssl.TLSVersion.TLSv1_2
                context.set_ciphers(CIPHERS)
            keys = Path(folder, str(number))
            with suppress(OSError, RuntimeError), _forger(field, context, keys) as (plain, data, answers):
                make = making(keys.read_text(), answers)
                try:
                    while not field.over:
                        data += make()
                        plain.sendall(data)
                        field.sent += len(data)
                        data = b""
                except OSError:
                    field.answers[CLOSED] += 1


def _plain(field: Field) -> socket.socket:
    field.connections += 1
    return socket.create_connection((HOST, field.ports["tls"]), PATIENCE)


@contextmanager
def _forger(field: Field, context: ssl.SSLContext, keys: Path) -> Iterator[tuple[socket.socket, bytes, bytes]]:
    """Yield a connection at the end of its handshake: its socket, the bytes to send yet, and those that the broker has
    sent."""
    context.keylog_filename = str(keys)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    answers = b""
    with _plain(field) as plain:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                answers += (more := plain.recv(1 << 16))
                if not more:
                    raise ConnectionResetError from None
                incoming.write(more)
        cipher = tls.cipher()
        if cipher is None or cipher[0] not in (*CIPHERS.split(":"), KEYS_CIPHER):
            raise ValueError(f"records cannot be made for {cipher}")
        yield plain, outgoing.read(), answers
