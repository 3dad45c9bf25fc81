"""Finds the client identifier in the first bytes of a connection.

Sans-IO, and no decoder: it reads as much of a CONNECT as stands before the identifier (MQTT 5.0 section 3.1, 3.1.1 and
3.1 likewise), and before it the header of a proxy, and the request for a WebSocket, which it answers. Whatever it
cannot read is for the worker to refuse, which reads the same bytes again: so it may be any worker.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from canopy_mqtt.core.codec.packets import V5
from canopy_mqtt.net.listening.proxy_protocol import ProxyError, ProxyHeader
from canopy_mqtt.net.websocket.frames import FrameReader
from canopy_mqtt.net.websocket.upgrade import Upgrade, UpgradeTerms

CONNECT: Final = 0x10
LENGTH_BYTES: Final = 4
"""Bytes of a length at most (section 1.5.5)."""

SWITCHING: Final = 101
"""The HTTP status of a request that is answered with a WebSocket."""

FRAMING: Final = 65_536
"""Bytes beside a CONNECT in a WebSocket at most: the headers of its frames, and control frames before it. One read."""

BRIDGE: Final = 0x80
"""The bit with which bridges of 3.1.1 mark the protocol level."""


class First(NamedTuple):
    """The CONNECT that the first bytes begin. `client_id`: empty where there is none; `version`: the protocol level, 0:
    not known."""

    client_id: bytes
    version: int


NOTHING: Final = First(b"", 0)


class IncompleteError(Exception):
    """More bytes are needed."""


class Opening:
    """The first bytes of one connection, as they come."""

    def __init__(self, proxy: int, upgrade: UpgradeTerms | None, most: int) -> None:
        """`proxy`: the version of the proxy's header that comes first, 0: none. `upgrade`: the requirements on a
        request for a WebSocket, None: there is none. `most`: bytes of a CONNECT at most."""
        self._header = ProxyHeader(proxy) if proxy else None
        self._upgrade = None if upgrade is None else Upgrade(upgrade)
        self._most = most
        self._frames: FrameReader | None = None
        self._connect = bytearray()
        self.data = bytearray()
        """The bytes that the worker gets: all that came, but for a request that was answered."""
        self.answer = b""
        """The bytes that the client has to be sent now."""
        self.host = ""
        """The client's IP address in the header of a proxy; empty: it says none."""
        self.proxied = False
        """The header of a proxy is read."""
        self.upgraded = False
        """The request for a WebSocket was answered."""

    def feed(self, data: bytes) -> First | None:
        """Take more bytes. Return what all say, None: more of them are needed."""
        self.data += data
        if self._header is not None:
            try:
                used = self._header.feed(data)
            except ProxyError:
                return NOTHING
            if not self._header.done:
                return None
            self.proxied = True
            self.host = self._header.host
            self._header = None
            data = data[used:]
            if not data:
                return None
        if self._upgrade is not None:
            if not self._upgrade.feed(data):
                return None
            if self._upgrade.status != SWITCHING:
                return NOTHING
            self._open(self._upgrade)
            data = self._upgrade.rest
            self._upgrade = None
        over = False
        if self._frames is not None:
            parts: list[bytes] = []
            self._frames.read(data, 0, len(data), parts)
            # What came before the end counts all the same. Control frames do not go on for ever.
            over = self._frames.over or len(self.data) > self._most + FRAMING
            data = b"".join(parts)
        self._connect += data
        try:
            return _connect(self._connect, self._most)
        except IncompleteError:
            return NOTHING if over else None

    def _open(self, upgrade: Upgrade) -> None:
        """Answer a request: from now on the client sends frames."""
        self.answer = upgrade.response
        self.upgraded = True
        before = len(self.data) - upgrade.size - len(upgrade.rest)
        self.data[before:] = upgrade.rest
        # A frame may have any size: the worker decides about that one.
        self._frames = FrameReader(0)


def _connect(data: bytearray, most: int) -> First:
    """Read a CONNECT. Raises IncompleteError."""
    if _byte(data, 0) != CONNECT:
        return NOTHING
    length, at = length_at(data, 1)
    if not 0 <= length <= most:
        return NOTHING
    end = at + length
    name, at = _text(data, at, end)
    if name not in (b"MQTT", b"MQIsdp"):
        return NOTHING
    # Version, flags and keep alive: one byte, one, and two.
    version = _byte(data, at) & ~BRIDGE
    at += 4
    if version == V5:
        size, at = length_at(data, at)
        if size < 0:
            return NOTHING
        at += size
    client_id, at = _text(data, at, end)
    return First(b"" if client_id is None else client_id, version)


def _byte(data: bytes | bytearray, at: int) -> int:
    if at >= len(data):
        raise IncompleteError
    return data[at]


def length_at(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """Read a Variable Byte Integer, and where it ends; -1: it is none. Raises IncompleteError."""
    value = 0
    for place in range(LENGTH_BYTES):
        byte = _byte(data, at + place)
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    return -1, at


def _text(data: bytearray, at: int, end: int) -> tuple[bytes | None, int]:
    """Read a text, and where it ends; None: it does not fit into the packet."""
    if at + 2 > end:
        return None, at
    after = at + 2 + ((_byte(data, at) << 8) | _byte(data, at + 1))
    if after > end:
        return None, at
    if after > len(data):
        raise IncompleteError
    return bytes(data[at + 2 : after]), after
