"""The PROXY protocol header, which HAProxy and others send first: the address of the client.

Owns `ProxyHeader`, which reads one header, version 1 (a line) or 2 (binary), and `TrustedProxies`, the networks that
may send one. Sans-IO: it takes bytes, and returns how many belong to the header.

Refuses: headers of another version than the listener's settings name, longer than `LONGEST_V1` or `LONGEST_V2` bytes,
or malformed. TLVs of version 2 are skipped. Source: haproxy.org/download/2.6/doc/proxy-protocol.txt.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from typing import Final

V1: Final = 1
V2: Final = 2

LONGEST_V1: Final = 107
"""Bytes of the longest line of version 1, its CRLF counted (section 2.1)."""

LONGEST_V2: Final = 4096
"""Bytes of a header of version 2 that is taken, TLVs and all; 65,551 would fit the format."""

_PREFIX: Final = b"PROXY "
_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_FIXED: Final = 16
"""Bytes of the part of version 2 that is always there."""

_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_UNSPEC: Final = 0x00
_TCP4: Final = 0x11
_TCP6: Final = 0x21
_UNIX: Final = 0x31
_ADDRESSES: Final = {_UNSPEC: 0, _TCP4: 12, _TCP6: 36, _UNIX: 216}
"""Family and transport of version 2 → bytes of its addresses."""


class ProxyError(Exception):
    """Why bytes are no header of the PROXY protocol, as a clause for the log."""


class ProxyHeader:
    """One header, read from bytes as they come."""

    def __init__(self, version: int) -> None:
        """`version`: V1 or V2; the other one is refused."""
        self._version = version
        self._held = b""
        # The header is complete.
        self.done = False
        # The client's IP address, and all of its address for the log; "": the connection's own addresses count, as for
        # the health checks of the proxy itself (LOCAL, UNSPEC, UNKNOWN).
        self.host = ""
        self.address = ""

    def feed(self, data: bytes) -> int:
        """Take more bytes. Answers how many of them belong to the header; once it is `done`, the rest does not.

        Raises:
            ProxyError: this is no header of this version, or a longer one than is taken.
        """
        before = len(self._held)
        held = self._held + data[: LONGEST_V2 - before]
        end = self._end_v1(held) if self._version == V1 else self._end_v2(held)
        if end == 0:
            self._held = held
            return len(data)
        if self._version == V1:
            self._parse_v1(held[: end - 2])
        else:
            self._parse_v2(held[:end])
        self.done = True
        self._held = b""
        return end - before

    @property
    def held_size(self) -> int:
        """Bytes of an incomplete header."""
        return len(self._held)

    # -- version 1 -----------------------------------------------------------------------------------------------------

    def _end_v1(self, held: bytes) -> int:
        """Where the header ends; 0: not here yet."""
        if held[: len(_PREFIX)] != _PREFIX[: len(held)]:
            raise ProxyError(_what_it_is(held, "no PROXY line"))
        end = held.find(b"\r\n", 0, LONGEST_V1)
        if end < 0:
            if len(held) >= LONGEST_V1:
                raise ProxyError(f"a PROXY line longer than {LONGEST_V1} bytes")
            return 0
        return end + 2

    def _parse_v1(self, line: bytes) -> None:
        words = line.split(b" ")
        if words[1] == b"UNKNOWN":
            return
        versions = {b"TCP4": 4, b"TCP6": 6}
        if len(words) != 6 or words[1] not in versions:
            raise ProxyError("a malformed PROXY line")
        try:
            source, target = (ipaddress.ip_address(word.decode("ascii")) for word in words[2:4])
        except ValueError:  # UnicodeDecodeError is one
            raise ProxyError("a PROXY line without IP addresses") from None
        if source.version != versions[words[1]] or target.version != source.version:
            raise ProxyError("a PROXY line whose addresses are of another family than it says")
        port, _ = (_port(word) for word in words[4:6])
        self._set(source, port)

    # -- version 2 -----------------------------------------------------------------------------------------------------

    def _end_v2(self, held: bytes) -> int:
        if held[: len(_SIGNATURE)] != _SIGNATURE[: len(held)]:
            raise ProxyError(_what_it_is(held, "no header of version 2"))
        if len(held) < _FIXED:
            return 0
        command, family, length = struct.unpack_from("!BBH", held, len(_SIGNATURE))
        if command not in (_LOCAL, _PROXY):
            raise ProxyError(f"an unknown version or command: 0x{command:02X}")
        if _FIXED + length > LONGEST_V2:
            raise ProxyError(f"a header of {_FIXED + length} bytes, more than {LONGEST_V2}")
        if command == _PROXY:
            if family not in _ADDRESSES:
                raise ProxyError(f"an unknown address family or transport: 0x{family:02X}")
            if length < _ADDRESSES[family]:
                raise ProxyError("a header too short for its addresses")
        end: int = _FIXED + length
        return end if len(held) >= end else 0

    def _parse_v2(self, header: bytes) -> None:
        command, family = header[12], header[13]
        if command == _LOCAL or family == _UNSPEC:
            return
        if family == _UNIX:
            # A client of the proxy's own machine, without an IP address; its path tells the log nothing that it needs.
            self.address = "unix"
            return
        size = 4 if family == _TCP4 else 16
        (port,) = struct.unpack_from("!H", header, _FIXED + 2 * size)
        self._set(ipaddress.ip_address(header[_FIXED : _FIXED + size]), port)

    def _set(self, source: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
        if isinstance(source, ipaddress.IPv6Address):
            # An IPv4 client of a proxy that listens on IPv6 is the same client: limits and bans count it once.
            mapped = source.ipv4_mapped
            if mapped is None:
                self.host = str(source)
                self.address = f"[{source}]:{port}"
                return
            source = mapped
        self.host = str(source)
        self.address = f"{source}:{port}"


def _port(word: bytes) -> int:
    if not word.isdigit() or len(word) > 5 or (word[:1] == b"0" and len(word) > 1) or int(word) > 65_535:
        raise ProxyError("a PROXY line without port numbers")
    return int(word)


def _what_it_is(held: bytes, otherwise: str) -> str:
    """What came in place of the header: most often the setting and the proxy disagree, or nobody is in between."""
    if held.startswith(_PREFIX):
        return "a header of version 1, and the listener takes version 2"
    if held.startswith(_SIGNATURE):
        return "a header of version 2, and the listener takes version 1"
    return otherwise


class TrustedProxies:
    """The networks from which a header of the PROXY protocol is believed."""

    def __init__(self, networks: Iterable[str]) -> None:
        """`networks`: as "10.0.0.0/8", or a single address.

        Raises:
            ValueError: one of them is no network.
        """
        self._networks = tuple(ipaddress.ip_network(network, strict=False) for network in networks)

    def trusts(self, host: str) -> bool:
        """Whether a peer's IP address is of these networks. "" (a Unix socket) is: its file mode says who may come."""
        if not host:
            return True
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return any(
            one in network
            for one in (address, mapped)
            if one is not None
            for network in self._networks
            if network.version == one.version
        )
