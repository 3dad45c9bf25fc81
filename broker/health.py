"""Asks a broker whether it serves MQTT: one CONNECT, one CONNACK.

Owns: the check behind `canopy health`, which containers and supervisors call.

Promises: it ends within the time given, leaves no session behind, and judges by an MQTT answer, not by an open port. A
broker that answers "not authorised" is healthy: it is alive, and refuses strangers as it should.

Refuses: the codec of `broker.core`. A check that shares the code it checks would share its faults.
"""

from __future__ import annotations

import secrets
import socket
from typing import Final

from broker.settings import Address

# MQTT 3.1.1: protocol name, level 4, clean session, keep alive 10 s. What follows is the client identifier.
CONNECT_HEAD: Final = b"\x00\x04MQTT\x04\x02\x00\x0a"
DISCONNECT: Final = b"\xe0\x00"
CONNACK_LENGTH: Final = 4
# Accepted, bad user name or password, not authorised. The others say that the broker cannot serve.
ALIVE: Final = frozenset({0, 4, 5})


class UnhealthyError(Exception):
    """Why the broker counts as not serving, in one line."""


def check(address: Address, timeout: float = 5.0) -> None:
    """Connect to the broker at `address` and wait for its CONNACK.

    Args:
        address: where it listens.
        timeout: seconds for each step (connecting, the answer).

    Raises:
        UnhealthyError: no connection, no answer in time, or an answer that is no MQTT service.
    """
    client = b"canopy-health-" + secrets.token_hex(4).encode()
    body = CONNECT_HEAD + len(client).to_bytes(2, "big") + client
    try:
        with socket.create_connection(address, timeout) as connection:
            connection.sendall(b"\x10" + bytes([len(body)]) + body)
            answer = _receive(connection)
            if answer[:2] == b"\x20\x02" and answer[3] == 0:
                connection.sendall(DISCONNECT)
    except TimeoutError:
        raise UnhealthyError(f"{address.url()}: no answer within {timeout:g} s") from None
    except OSError as error:
        raise UnhealthyError(f"{address.url()}: {error.strerror or error}") from None
    if answer[:2] != b"\x20\x02":
        raise UnhealthyError(f"{address.url()}: the answer is no MQTT CONNACK")
    if answer[3] not in ALIVE:
        raise UnhealthyError(f"{address.url()}: refused with return code {answer[3]}")


def _receive(connection: socket.socket) -> bytes:
    answer = b""
    while len(answer) < CONNACK_LENGTH:
        piece = connection.recv(CONNACK_LENGTH - len(answer))
        if not piece:
            raise ConnectionError("the connection was closed before a CONNACK")
        answer += piece
    return answer
