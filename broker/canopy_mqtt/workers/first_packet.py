"""Finds the client identifier in the first bytes of a connection.

Sans-IO, and no decoder: it reads as much of a CONNECT as stands before the identifier (MQTT 5.0 section 3.1, 3.1.1 and
3.1 likewise), and before it the header of a proxy. Whatever it cannot read is for the worker to refuse, whose own
decoder reads the same bytes again: so it may be any worker.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from canopy_mqtt.core.codec.packets import V5
from canopy_mqtt.net.listening.proxy_protocol import ProxyError, ProxyHeader

CONNECT: Final = 0x10
LENGTH_BYTES: Final = 4
"""Bytes of a length at most (section 1.5.5)."""

BRIDGE: Final = 0x80
"""The bit with which bridges of 3.1.1 mark the protocol level."""


class First(NamedTuple):
    """What the first bytes say. `client_id`: empty where there is none; `version`: the protocol level, 0: not known."""

    client_id: bytes
    version: int


class IncompleteError(Exception):
    """More bytes are needed."""


def read(data: bytes, proxy: int, most: int) -> First | None:
    """Return what a connection's first bytes say; None: more of them are needed.

    `proxy`: the version of the proxy's header that comes before, 0: none. `most`: bytes of a CONNECT at most.
    """
    start = 0
    if proxy:
        header = ProxyHeader(proxy)
        try:
            start = header.feed(data)
        except ProxyError:
            return First(b"", 0)
        if not header.done:
            return None
    try:
        return _connect(data, start, most)
    except IncompleteError:
        return None


def _connect(data: bytes, start: int, most: int) -> First:
    """Read a CONNECT. Raises IncompleteError."""
    nothing = First(b"", 0)
    if _byte(data, start) != CONNECT:
        return nothing
    length, at = _length(data, start + 1)
    if not 0 <= length <= most:
        return nothing
    end = at + length
    name, at = _text(data, at, end)
    if name not in (b"MQTT", b"MQIsdp"):
        return nothing
    # Version, flags and keep alive: one byte, one, and two.
    version = _byte(data, at) & ~BRIDGE
    at += 4
    if version == V5:
        size, at = _length(data, at)
        if size < 0:
            return nothing
        at += size
    client_id, at = _text(data, at, end)
    return First(b"" if client_id is None else client_id, version)


def _byte(data: bytes, at: int) -> int:
    if at >= len(data):
        raise IncompleteError
    return data[at]


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Read a Variable Byte Integer, and where it ends; -1: it is none."""
    value = 0
    for place in range(LENGTH_BYTES):
        byte = _byte(data, at + place)
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    return -1, at


def _text(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Read a text, and where it ends; None: it does not fit into the packet."""
    if at + 2 > end:
        return None, at
    after = at + 2 + ((_byte(data, at) << 8) | _byte(data, at + 1))
    if after > end:
        return None, at
    if after > len(data):
        raise IncompleteError
    return data[at + 2 : after], after
