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

from benchmarks.attack.attacks.registry import CROWD, attack
from benchmarks.attack.field import Field
from benchmarks.attack.forged_tls import CIPHERS, KEYS_CIPHER, NewKeys, asked_handshakes
from broker.core.codec.encoder import encode
from broker.core.codec.packets import V5, Connect, Publish
from loadtest.brokers.process import HOST

BATCH = 1_000
"""Records of TLS's own that are sent at once."""

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
        field.raw(field.listeners.tls)
    field.listen()


@attack()
def handshakes_never_finished(field: Field) -> None:
    """1,000 connections to a TLS listener that send all but the end of a ClientHello"""
    hello = _hello()
    for _ in field.rounds(1_000):
        field.raw(field.listeners.tls).send(hello[:-1])
    field.listen()


@attack(growth=CROWD)
def handshakes_that_begin_at_once(field: Field) -> None:
    """500 connections to a TLS listener that all send a ClientHello, again and again"""
    hello = _hello()
    while not field.over:
        crowd = [field.raw(field.listeners.tls) for _ in field.rounds(500)]
        for each in crowd:
            each.send(hello)
        for each in crowd:
            each.close()


@attack(growth=CROWD)
def handshakes_in_fragments(field: Field) -> None:
    """Connections to a TLS listener that send a ClientHello of 130,000 bytes, each in a record of its own"""
    begun = b"\x16\x03\x01\0\1\1" + b"\x16\x03\x01\0\1\1"
    while not field.over:
        crowd = [field.raw(field.listeners.tls) for _ in field.rounds(100)]
        for each in crowd:
            each.send(begun + b"\x16\x03\x01\0\1\0" * field.some(130_000))
        for each in crowd:
            each.close()


@attack()
def no_handshakes(field: Field) -> None:
    """Connections to a TLS listener that send garbage, as fast as it can be done"""
    while not field.over:
        hostile = field.raw(field.listeners.tls)
        hostile.send(b"\x16\x03\x01\x40\x00" + os.urandom(16_384))
        hostile.close()


@attack()
def handshakes_that_fail_and_stay(field: Field) -> None:
    """4,000 connections to a TLS listener that send what is no TLS, and stay open"""
    for _ in field.rounds(4_000):
        field.raw(field.listeners.tls).send(encode(Connect("x", V5), V5))
    field.listen()


@attack()
def handshake_flood(field: Field) -> None:
    """TLS handshakes that are finished and left, as fast as it can be done"""
    context = _context()
    while not field.over:
        with suppress(OSError), socket.create_connection((HOST, field.listeners.tls), PATIENCE) as plain:
            field.connections += 1
            with context.wrap_socket(plain):
                field.answers["handshake"] += 1


@attack()
def records_of_a_byte(field: Field) -> None:
    """A TLS client that sends PUBLISHes in records of a byte each"""
    with (
        suppress(OSError),
        socket.create_connection((HOST, field.listeners.tls), PATIENCE) as plain,
        _context().wrap_socket(plain) as secured,
    ):
        field.connections += 1
        secured.sendall(encode(Connect("bytes", V5), V5))
        data = encode(Publish(b"t", b"x" * 100), V5)
        while not field.over:
            for at in range(len(data)):
                secured.sendall(data[at : at + 1])
            field.sent += len(data)


@contextmanager
def _forger(field: Field, context: ssl.SSLContext, keys: Path) -> Iterator[tuple[socket.socket, bytes, bytes]]:
    """A connection at the end of its handshake: its socket, what is to be sent yet, and what the broker has sent."""
    context.keylog_filename = str(keys)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing)
    answers = b""
    with suppress(OSError), socket.create_connection((HOST, field.listeners.tls), PATIENCE) as plain:
        field.connections += 1
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                answers += (more := plain.recv(1 << 16))
                if not more:
                    return
                incoming.write(more)
            else:
                break
        cipher = tls.cipher()
        if cipher is None or cipher[0] not in (*CIPHERS.split(":"), KEYS_CIPHER):
            raise ValueError(f"records cannot be made for {cipher}")
        yield plain, outgoing.read(), answers


def _tell(field: Field, plain: socket.socket, first: bytes, more: Callable[[], bytes]) -> None:
    """Send records, and read no answer, until the broker has enough of it."""
    try:
        data = first + more()
        while not field.over:
            plain.sendall(data)
            field.sent += len(data)
            data = more()
    except OSError:
        field.answers["closed by the broker"] += 1


@attack()
def new_handshakes_asked_for(field: Field) -> None:
    """Clients of TLS 1.2 that ask for a new handshake a thousand times at once and read no answer"""
    with tempfile.TemporaryDirectory() as folder:
        for number in field.rounds(10_000):
            context = _context()
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers(CIPHERS)
            keys = Path(folder, str(number))
            with suppress(RuntimeError), _forger(field, context, keys) as (plain, last, answers):
                # The server ends a handshake of TLS 1.2: there is nothing left to be sent.
                make = partial(asked_handshakes, keys.read_text(), answers)
                parts = count(1, BATCH)
                _tell(field, plain, last, lambda: make(next(parts), BATCH))  # noqa: B023


@attack()
def new_keys_asked_for(field: Field) -> None:
    """Clients of TLS 1.3 that ask for new keys a thousand times at once and read no answer"""
    _new_keys(field, asking=True)


@attack()
def new_keys_without_end(field: Field) -> None:
    """Clients of TLS 1.3 that come with thousands of new keys, and never stop"""
    _new_keys(field, asking=False)


def _new_keys(field: Field, *, asking: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number in field.rounds(10_000):
            keys = Path(folder, str(number))
            with suppress(RuntimeError), _forger(field, _context(), keys) as (plain, last, _):
                made = NewKeys(keys.read_text(), asking=asking)
                _tell(field, plain, last, partial(made.records, field.some(BATCH)))
