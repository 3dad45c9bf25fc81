"""Inspects the first bytes of a connection: a CONNECT, or another protocol, which the log names."""

from __future__ import annotations

from typing import Final

from broker.core.codec.errors import ProtocolViolation
from broker.core.connection import phases

SHOWN: Final = 8
"""Bytes that `guess` looks at."""

_HTTP: Final = (
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"TRACE ",
    b"CONNECT ",
    b"PRI ",
)


def check(data: bytes) -> None:
    """Hold them against a CONNECT at once: what looks like a long packet of another kind would be waited for.

    Raises:
        ProtocolViolation: they begin no CONNECT [MQTT-3.1.0-1].
    """
    action = phases.action(phases.CONNECTING, data[0] >> 4)
    if action >= phases.NOT_CONNECT:
        raise ProtocolViolation(phases.ERRORS[action])


def guess(data: bytes) -> str:
    """What the bytes at the beginning of a connection look like; empty where nobody can tell."""
    first = data[:SHOWN]
    if first[:2] == b"\x16\x03":
        return "looks like TLS; this listener is plain MQTT"
    for method in _HTTP:
        if len(first) >= 3 and first.startswith(method[:SHOWN][: len(first)]):
            return "looks like HTTP or WebSocket; this listener is plain MQTT"
    if first.startswith(b"PROXY ") or first == b"\r\n\r\n\x00\r\nQ":
        return "looks like the PROXY protocol; this listener does not take it"
    if first.startswith(b"SSH-"):
        return "looks like SSH; this listener is plain MQTT"
    return ""
