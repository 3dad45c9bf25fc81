"""Writes a trace as a pcapng file (draft-ietf-opsawg-pcapng) that Wireshark opens and decodes.

The network may have carried TLS, a WebSocket or a Unix socket. The file has the MQTT inside, as TCP on port 1883, with
headers made up around it: Ethernet, IP with the real addresses, TCP with the client's port and consistent sequence
numbers. If the CONNECT of a connection is missing, from which Wireshark learns the version, one is made up and a
comment says so. Secrets have their real lengths, but not their bytes.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from canopy_mqtt.core.codec import encoder
from canopy_mqtt.core.codec.packets import CONNECT, V311, Connect
from canopy_mqtt.observe.trace.as_text import refusal
from canopy_mqtt.observe.trace.entries import CLOSED, PACKET, Entry, TracedConnection
from canopy_mqtt.observe.trace.fields import shortened

PORT: Final = 1883
"""The port on which Wireshark expects MQTT."""

FIRST_PORT: Final = 49_152
"""The first port for clients that have none (RFC 6335: dynamic ports)."""

SEGMENT: Final = 32_768
"""Bytes of the largest part of a packet: an IP packet has no more than 65,535."""

SYN: Final = 0x02
ACK: Final = 0x10
PSH_ACK: Final = 0x18
FIN_ACK: Final = 0x11

_SECTION: Final = 0x0A0D0D0A
_INTERFACE: Final = 1
_PACKET: Final = 6
_ETHERNET: Final = 1
_COMMENT: Final = 1
_IF_NAME: Final = 2
_IF_TSRESOL: Final = 9
_APPLICATION: Final = 4
_CLIENT_MAC: Final = bytes.fromhex("020000000001")
_BROKER_MAC: Final = bytes.fromhex("020000000002")

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def blocks(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield the file, one piece for each entry."""
    yield _block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + _options((_APPLICATION, b"Canopy")))
    options = _options((_IF_NAME, b"mqtt"), (_IF_TSRESOL, b"\x09"))
    yield _block(_INTERFACE, struct.pack("<HHI", _ETHERNET, 0, 0) + options)
    flows: dict[TracedConnection, Flow] = {}
    for entry in entries:
        flow = flows.get(entry.connection)
        if flow is None:
            flow = flows[entry.connection] = Flow(entry.connection)
        yield b"".join(flow.packets(entry))
        if entry.what == CLOSED:
            del flows[entry.connection]


class Flow:
    """One connection as a TCP flow."""

    def __init__(self, connection: TracedConnection) -> None:
        self._traced = connection
        host, here = _addresses(connection)
        port = _port(connection)
        self._ends = ((host, port, _CLIENT_MAC), (here, PORT, _BROKER_MAC))
        self._next = [0, 0]  # sequence numbers: the client's, the broker's
        self._begun = self._introduced = False

    def packets(self, entry: Entry) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            yield self._segment(entry.time, True, SYN, b"")
            yield self._segment(entry.time, False, SYN | ACK, b"")
            yield self._segment(entry.time, True, ACK, b"")
        if entry.what == PACKET:
            if not self._introduced:
                self._introduced = True
                if not entry.inward or entry.data[0] >> 4 != CONNECT:
                    yield from self._data(entry.time, True, self._connect(entry), "made up: the trace has no CONNECT")
            data = shortened(entry.data, entry.size)
            comment = f"{entry.size} bytes, {len(entry.data)} kept" if len(entry.data) < entry.size else ""
            yield from self._data(entry.time, entry.inward, data, comment)
        elif entry.denied is not None:
            # An empty segment of the broker's, for its comment.
            yield self._segment(entry.time, False, ACK, b"", refusal(entry.denied, entry.note))
        elif entry.what == CLOSED:
            yield self._segment(entry.time, True, FIN_ACK, b"", entry.note)
            yield self._segment(entry.time, False, FIN_ACK, b"")
            yield self._segment(entry.time, True, ACK, b"")

    def _connect(self, entry: Entry) -> bytes:
        version = entry.version or V311
        return encoder.encode(Connect(self._traced.client_id, version), version)

    def _data(self, time: int, inward: bool, data: bytes, comment: str) -> Iterator[bytes]:
        for at in range(0, len(data), SEGMENT):
            yield self._segment(time, inward, PSH_ACK, data[at : at + SEGMENT], comment if at == 0 else "")

    def _segment(self, time: int, inward: bool, flags: int, data: bytes, comment: str = "") -> bytes:
        """Return one TCP segment with its headers, as a block."""
        sender, receiver = (0, 1) if inward else (1, 0)
        source, source_port, source_mac = self._ends[sender]
        target, target_port, target_mac = self._ends[receiver]
        acknowledged = self._next[receiver] if flags & ACK else 0
        tcp = struct.pack(
            ">HHIIBBHHH", source_port, target_port, self._next[sender], acknowledged, 5 << 4, flags, 65_535, 0, 0
        )
        self._next[sender] = (self._next[sender] + len(data) + (1 if flags & (SYN | 1) else 0)) & 0xFFFFFFFF
        length = len(tcp) + len(data)
        pseudo = source.packed + target.packed + struct.pack(">II", length, 6)
        checksum = _checksum(pseudo + tcp + data)
        segment = tcp[:16] + struct.pack(">H", checksum) + tcp[18:] + data
        if source.version == 4:
            head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + length, 0, 0x4000, 64, 6, 0) + source.packed + target.packed
            packet = head[:10] + struct.pack(">H", _checksum(head)) + head[12:] + segment
            ethernet = target_mac + source_mac + b"\x08\x00"
        else:
            packet = struct.pack(">IHBB", 6 << 28, length, 6, 64) + source.packed + target.packed + segment
            ethernet = target_mac + source_mac + b"\x86\xdd"
        frame = ethernet + packet
        head = struct.pack("<IIIII", 0, time >> 32, time & 0xFFFFFFFF, len(frame), len(frame))
        options = _options((_COMMENT, comment.encode())) if comment else b""
        return _block(_PACKET, head + _padded(frame) + options)


def _addresses(connection: TracedConnection) -> tuple[Address, Address]:
    """Return the addresses of a connection, both of one version of IP."""
    here = _address(connection.local[0] if connection.local is not None else "")
    host = _address(connection.host)
    if host.version == here.version:
        return host, here
    return _mapped(host), _mapped(here)


def _address(host: str) -> Address:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        # A Unix socket has none.
        return ipaddress.IPv4Address("127.0.0.1")


def _mapped(address: Address) -> ipaddress.IPv6Address:
    if isinstance(address, ipaddress.IPv6Address):
        return address
    return ipaddress.IPv6Address(f"::ffff:{address}")


def _port(connection: TracedConnection) -> int:
    last = connection.address.rpartition(":")[2]
    if connection.host and last.isdecimal() and 0 < int(last) < 65_536:
        return int(last)
    return FIRST_PORT + connection.number % (65_536 - FIRST_PORT)


def _checksum(data: bytes) -> int:
    """Compute the Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def _options(*options: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack("<HH", code, len(text)) + _padded(text) for code, text in options) + b"\0\0\0\0"


def _block(kind: int, body: bytes) -> bytes:
    size = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + size + body + size
