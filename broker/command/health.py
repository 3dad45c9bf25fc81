"""Asks a broker whether it serves MQTT: one CONNECT, one CONNACK, and what `$SYS` says of its store.

Owns: the check behind `canopy health`, which containers and supervisors call.

Promises: it ends within the time given, leaves no session behind, and judges by an MQTT answer, not by an open port. A
broker that answers "not authorised" to an anonymous client is healthy: it refuses such clients as it should. A user
that was named has to be let in. A store that cannot be written is unhealthy, where the client may read the topic.
It does without the codec of `broker.core`: a check that shares the code it checks would share its faults.
"""

from __future__ import annotations

import secrets
import socket
import ssl
from typing import Final

from broker.settings import Address, Endpoint
from broker.settings.values import LONGEST_STRING

# MQTT 3.1.1: protocol name and level 4; the flags and a keep alive of 10 s follow, then the client identifier.
PROTOCOL: Final = b"\x00\x04MQTT\x04"
CLEAN_SESSION: Final = 0x02
USER_NAME: Final = 0x80
PASSWORD: Final = 0x40
KEEP_ALIVE: Final = b"\x00\x0a"
DISCONNECT: Final = b"\xe0\x00"
STORE_STATE: Final = b"$SYS/broker/store/state"
WRITTEN: Final = b"written"
"""The value while the store works (`broker.storing`)."""
# SUBSCRIBE with the packet identifier 1 and QoS 0, and a PINGREQ behind its answer.
SUBSCRIBE: Final = (
    b"\x82" + bytes([len(STORE_STATE) + 5]) + b"\x00\x01\x00" + bytes([len(STORE_STATE)]) + STORE_STATE + b"\x00"
)
PING: Final = b"\xc0\x00"
SUBACK: Final = 0x90
PINGRESP: Final = 0xD0
PUBLISH: Final = 0x30
LONGEST_REASON: Final = 200
"""Characters of what is repeated of the state."""
LONGEST_ANSWER: Final = 65_536
"""Bytes of what is read after the CONNACK."""
CONNACK_LENGTH: Final = 4
# Accepted, bad user name or password, not authorised. The others say that the broker cannot serve.
ALIVE: Final = frozenset({0, 4, 5})
ACCEPTED: Final = frozenset({0})

REFUSES_STRANGERS: Final = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
"""OpenSSL's name of the alert of a broker that requires a client certificate (RFC 8446, section 6.2)."""


class UnhealthyError(Exception):
    """Why the broker counts as not serving, in one line."""


def context(ca: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """What a check over TLS trusts and shows: files in PEM, `ca` "" for the authorities that the system trusts.

    Raises:
        UnhealthyError: one of the files cannot be used.
    """
    file = ca
    try:
        made = ssl.create_default_context(cafile=ca or None)
        if certificate:
            file = certificate
            made.load_cert_chain(certificate, key or None, _no_password)
    except (OSError, ValueError) as error:
        words = "no such PEM in it, or a key that needs a password"
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
            words = error.strerror or str(error)
        raise UnhealthyError(f"{file}: cannot be used: {words}") from None
    return made


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal.
    return ""


def check(
    address: Address | Endpoint,
    timeout: float = 5.0,
    user: str | None = None,
    password: str | None = None,
    tls: ssl.SSLContext | None = None,
    server_name: str = "",
) -> None:
    """Connect to the broker at `address` and wait for its CONNACK.

    Args:
        address: where it listens, by TCP, TLS or a Unix socket.
        timeout: seconds for each step (connecting, the answer).
        user: a user name that has to be let in, and
        password: its password, if it has one.
        tls: over TLS, what is trusted and shown; None: what the system trusts.
        server_name: the host name that the broker's certificate has to be for; empty: that of the address.

    Raises:
        UnhealthyError: no connection, no answer in time, or an answer that is no MQTT service; a refused user; or a
            store that cannot be written.
    """
    connect = _connect(user, password)
    state = b""
    try:
        with _connected(address, timeout, tls, server_name) as connection:
            connection.sendall(connect)
            answer = _receive(connection)
            if answer[:2] == b"\x20\x02" and answer[3] == 0:
                state = _store_state(connection)
                connection.sendall(DISCONNECT)
    except TimeoutError:
        raise UnhealthyError(f"{address.url()}: no answer within {timeout:g} s") from None
    except ssl.SSLError as error:
        if error.reason == REFUSES_STRANGERS and user is None:
            return
        raise UnhealthyError(f"{address.url()}: {_about_tls(error)}") from None
    except OSError as error:
        raise UnhealthyError(f"{address.url()}: {error.strerror or error}") from None
    except ValueError as error:
        # A name that cannot be one of a host, of the target or of --server-name.
        raise UnhealthyError(f"{address.url()}: not a host name: {error}") from None
    if answer[:2] != b"\x20\x02":
        raise UnhealthyError(f"{address.url()}: the answer is no MQTT CONNACK")
    if answer[3] not in (ALIVE if user is None else ACCEPTED):
        raise UnhealthyError(f"{address.url()}: refused with return code {answer[3]}")
    if state not in (b"", WRITTEN):
        reason = "".join(char if char.isprintable() else "?" for char in state.decode(errors="replace"))
        raise UnhealthyError(f"{address.url()}: the store cannot be written: {reason[:LONGEST_REASON]}")


def _connected(
    address: Address | Endpoint, timeout: float, tls: ssl.SSLContext | None, server_name: str
) -> socket.socket:
    """A connection to where the broker listens."""
    if isinstance(address, Address):
        return socket.create_connection((address.host, address.port), timeout)
    if address.path:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect(address.path)
        except BaseException:
            connection.close()
            raise
        return connection
    plain = socket.create_connection((address.host, address.port), timeout)
    if not address.tls:
        return plain
    try:
        return (tls or context()).wrap_socket(plain, server_hostname=server_name or address.host)
    except BaseException:
        plain.close()
        raise


def _about_tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message} (--ca FILE, --server-name NAME)"
    if error.reason == REFUSES_STRANGERS:
        return "it asks for a certificate (--cert FILE, --key FILE)"
    return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"


def _connect(user: str | None, password: str | None) -> bytes:
    """The CONNECT of one check: another client each time, whose session ends with its connection."""
    fields = [b"canopy-health-" + secrets.token_hex(4).encode()]
    flags = CLEAN_SESSION
    for flag, text in ((USER_NAME, user), (PASSWORD, password)):
        if text is not None:
            flags |= flag
            fields.append(text.encode())
    if any(len(field) > LONGEST_STRING for field in fields):
        raise UnhealthyError(f"a user name or password of more than {LONGEST_STRING} bytes cannot be sent")
    body = PROTOCOL + bytes([flags]) + KEEP_ALIVE + b"".join(len(each).to_bytes(2, "big") + each for each in fields)
    # The remaining length, seven bits a byte, the lowest first (section 2.2.3).
    size = len(body)
    length = bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return b"\x10" + bytes(length) + body


def _receive(connection: socket.socket) -> bytes:
    answer = b""
    while len(answer) < CONNACK_LENGTH:
        piece = connection.recv(CONNACK_LENGTH - len(answer))
        if not piece:
            raise ConnectionError("the connection was closed before a CONNACK")
        answer += piece
    return answer


def _store_state(connection: socket.socket) -> bytes:
    """The state of the broker's store; empty if it has none, or does not publish it to this client."""
    connection.sendall(SUBSCRIBE)
    received = b""
    pinged = False
    while len(received) < LONGEST_ANSWER:
        while (packet := _first_packet(received)) is not None:
            kind, body, received = packet
            if kind == SUBACK:
                # What is retained comes before the answer to what is asked after it.
                connection.sendall(PING)
                pinged = True
            elif kind & 0xF0 == PUBLISH and body[2 : 2 + len(STORE_STATE)] == STORE_STATE:
                return body[2 + len(STORE_STATE) :]
            elif kind == PINGRESP and pinged:
                return b""
        piece = connection.recv(4096)
        if not piece:
            return b""
        received += piece
    return b""


def _first_packet(data: bytes) -> tuple[int, bytes, bytes] | None:
    """First byte and body of the first packet, and what follows it; None: it is not whole yet."""
    length = at = 0
    # Seven bits a byte, the lowest first, in four bytes at most (section 2.2.3).
    while at < 4 and len(data) > at + 1:
        byte = data[at + 1]
        length |= (byte & 127) << 7 * at
        at += 1
        if byte < 128:
            end = 1 + at + length
            return (data[0], data[1 + at : end], data[end:]) if len(data) >= end else None
    return None
