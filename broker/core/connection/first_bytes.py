"""What a connection speaks whose first byte is not that of a CONNECT: for the log, so that it says what is wrong."""

from __future__ import annotations

from typing import Final

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
