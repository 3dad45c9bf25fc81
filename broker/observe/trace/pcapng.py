"""A trace as a pcapng file (draft-ietf-opsawg-pcapng) that Wireshark opens and decodes.

What was on the network may have been TLS, a WebSocket or a Unix socket: written is the MQTT inside, as TCP on port
1883, with headers made up around it: Ethernet, IP of the real addresses, TCP with the client's port and with sequence
numbers that fit. Where the file cannot have a connection's CONNECT, from which Wireshark learns the version, one is
made up, and says so in a comment. The lengths of secrets are real, their bytes are not.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from broker.core.codec import encoder
from broker.core.codec.packets import CONNECT, V311, Connect
from broker.observe.trace.as_text import refusal
from broker.observe.trace.fields import shortened
from broker.observe.trace.kept import CLOSED, PACKET, Entry, Party

PORT: Final = 1883
"""Where Wireshark expects MQTT."""

FIRST_PORT: Final = 49_152
"""Ports of clients that have none are made up from here on (RFC 6335: dynamic ports)."""

SEGMENT: Final = 32_768
"""Bytes of the largest piece of a packet: an IP packet has no more than 65,535."""

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
    """The file, a piece for each entry."""
    yield _block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + _options((_APPLICATION, b"Canopy")))
    options = _options((_IF_NAME, b"mqtt"), (_IF_TSRESOL, b"\x09"))
    yield _block(_INTERFACE, struct.pack("<HHI", _ETHERNET, 0, 0) + options)
    flows: dict[Party, Flow] = {}
    for entry in entries:
        flow = flows.get(entry.party)
        if flow is None:
            flow = flows[entry.party] = Flow(entry.party)
        yield b"".join(flow.packets(entry))
        if entry.what == CLOSED:
            del flows[entry.party]


class Flow:
    """One connection as TCP."""

    def __init__(self, party: Party) -> None:
        self._party = party
        host, here = _addresses(party)
        port = _port(party)
        self._ends = ((host, port, _CLIENT_MAC), (here, PORT, _BROKER_MAC))
        self._next = [0, 0]  # sequence numbers: the client's, the broker's
        self._begun = self._introduced = False

    def packets(self, entry: Entry) -> Iterator[bytes]:
        """The blocks of an entry."""
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
        return encoder.encode(Connect(self._party.client_id, version), version)

    def _data(self, time: int, inward: bool, data: bytes, comment: str) -> Iterator[bytes]:
        for at in range(0, len(data), SEGMENT):
            yield self._segment(time, inward, PSH_ACK, data[at : at + SEGMENT], comment if at == 0 else "")

    def _segment(self, time: int, inward: bool, flags: int, data: bytes, comment: str = "") -> bytes:
        """One TCP segment in its frames, as a block."""
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


def _addresses(party: Party) -> tuple[Address, Address]:
    """The addresses of a connection, both of one version of IP."""
    here = _address(party.local[0] if party.local is not None else "")
    host = _address(party.host)
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


def _port(party: Party) -> int:
    last = party.address.rpartition(":")[2]
    if party.host and last.isdecimal() and 0 < int(last) < 65_536:
        return int(last)
    return FIRST_PORT + party.number % (65_536 - FIRST_PORT)


def _checksum(data: bytes) -> int:
    """The checksum of the Internet (RFC 1071)."""
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
