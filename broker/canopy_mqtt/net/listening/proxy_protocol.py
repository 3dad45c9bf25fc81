"""The PROXY protocol header, which HAProxy and others send first: the address of the client.

Owns `ProxyHeader`, which reads one header, version 1 (a line) or 2 (binary), and `TrustedProxies`, the networks that
may send one. Sans-IO: it takes bytes, and returns how many belong to the header.

Refuses: headers of another version than the listener's settings name, malformed ones, and those longer than
`MAX_V1_BYTES` or `MAX_V2_BYTES`. It skips TLVs of version 2. Source: haproxy.org/download/2.6/doc/proxy-protocol.txt.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from typing import Final

V1: Final = 1
V2: Final = 2

MAX_V1_BYTES: Final = 107
"""Bytes of a line of version 1, with its CRLF (section 2.1)."""

MAX_V2_BYTES: Final = 4096
"""Bytes of a header of version 2 with its TLVs; the format has room for 65,551."""

_PREFIX: Final = b"PROXY "
_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_FIXED: Final = 16
"""Bytes of the fixed part of version 2."""

_LOCAL: Final = 0x20
_PROXY: Final = 0x21
_UNSPEC: Final = 0x00
_TCP4: Final = 0x11
_TCP6: Final = 0x21
_UNIX: Final = 0x31
_ADDRESSES: Final = {_UNSPEC: 0, _TCP4: 12, _TCP6: 36, _UNIX: 216}
"""Family and transport of version 2 → bytes of its addresses."""


class ProxyError(Exception):
    """Bytes are no header of the PROXY protocol; the message is a clause for the log."""


class ProxyHeader:
    """One header, read from bytes as they come."""

    def __init__(self, version: int) -> None:
        """`version`: V1 or V2; the other one is refused."""
        self._version = version
        self._held = b""
        # The header is complete.
        self.done = False
        # The client's IP address, and its whole address for the log; "": the connection's own addresses count, as for
        # the health checks of the proxy itself (LOCAL, UNSPEC, UNKNOWN).
        self.host = ""
        self.address = ""

    def feed(self, data: bytes) -> int:
        """Take more bytes. Returns how many of them belong to the header; once it is `done`, the rest does not.

        Raises:
            ProxyError: this is no header of this version, or too long a one.
        """
        before = len(self._held)
        held = self._held + data[: MAX_V2_BYTES - before]
        end = self._end_v1(held) if self._version == V1 else self._end_v2(held)
        if end == 0:
            self._held = held
            return len(data)
        if self._version == V1:
            self._parse_v1(held[: end - 2].split(b" "))
        else:
            self._parse_v2(held)
        self.done = True
        self._held = b""
        return end - before

    def _end_v1(self, held: bytes) -> int:
        """Return where the header ends; 0: it is not complete."""
        if held[: len(_PREFIX)] != _PREFIX[: len(held)]:
            other = "a header of version 2, and the listener takes version 1"
            raise ProxyError(other if held.startswith(_SIGNATURE) else "no PROXY line")
        end = held.find(b"\r\n", 0, MAX_V1_BYTES)
        if end < 0 and len(held) >= MAX_V1_BYTES:
            raise ProxyError(f"a PROXY line longer than {MAX_V1_BYTES} bytes")
        return 0 if end < 0 else end + 2

    def _parse_v1(self, words: list[bytes]) -> None:
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
        if not all(map(_is_port, words[4:])):
            raise ProxyError("a PROXY line without port numbers")
        self._set(source, int(words[4]))

    def _end_v2(self, held: bytes) -> int:
        """Return where the header ends; 0: it is not complete."""
        if held[: len(_SIGNATURE)] != _SIGNATURE[: len(held)]:
            other = "a header of version 1, and the listener takes version 2"
            raise ProxyError(other if held.startswith(_PREFIX) else "no header of version 2")
        if len(held) < _FIXED:
            return 0
        command, family, length = struct.unpack_from("!BBH", held, len(_SIGNATURE))
        end: int = _FIXED + length
        if command not in (_LOCAL, _PROXY):
            raise ProxyError(f"an unknown version or command: 0x{command:02X}")
        if end > MAX_V2_BYTES:
            raise ProxyError(f"a header of {end} bytes, more than {MAX_V2_BYTES}")
        if command == _PROXY and family not in _ADDRESSES:
            raise ProxyError(f"an unknown address family or transport: 0x{family:02X}")
        if command == _PROXY and length < _ADDRESSES[family]:
            raise ProxyError("a header too short for its addresses")
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
        # An IPv4 client of a proxy that listens on IPv6 is the same client: limits and bans count it once.
        mapped = source.ipv4_mapped if isinstance(source, ipaddress.IPv6Address) else None
        source = source if mapped is None else mapped
        self.host = str(source)
        self.address = f"[{source}]:{port}" if source.version == 6 else f"{source}:{port}"


def _is_port(word: bytes) -> bool:
    return word.isdigit() and len(word) <= 5 and (word[:1] != b"0" or len(word) == 1) and int(word) <= 65_535


class TrustedProxies:
    """The networks that may send a header of the PROXY protocol."""

    def __init__(self, networks: Iterable[str]) -> None:
        """`networks`: as "10.0.0.0/8", or a single address.

        Raises:
            ValueError: one of them is no network.
        """
        self._networks = tuple(ipaddress.ip_network(network, strict=False) for network in networks)

    def trusts(self, host: str) -> bool:
        """Return whether a peer's IP address is in these networks. "" (a Unix socket) is trusted: its file mode decides
        who may connect."""
        if not host:
            return True
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        # An address is in no network of the other version.
        return any(address in network or (mapped is not None and mapped in network) for network in self._networks)
