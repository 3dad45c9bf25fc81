"""The PROXY protocol, versions 1 and 2: who the client is, how much of what came is the header, and what is refused."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.net.listening.proxy_protocol import (
    MAX_V1_BYTES,
    MAX_V2_BYTES,
    V1,
    V2,
    ProxyError,
    ProxyHeader,
    TrustedProxies,
)
from tests.support.runs import for_each

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
BEHIND = b"\x10\x0c\x00\x04MQTT"


def v2(command: int, family: int, body: bytes, length: int | None = None) -> bytes:
    return SIGNATURE + struct.pack("!BBH", command, family, len(body) if length is None else length) + body


def tcp4(source: str = "192.0.2.1", port: int = 4711, more: bytes = b"") -> bytes:
    packed = ipaddress.IPv4Address(source).packed + ipaddress.IPv4Address("198.51.100.7").packed
    return v2(0x21, 0x11, packed + struct.pack("!HH", port, 1883) + more)


def tcp6(source: str = "2001:db8::1", port: int = 4711) -> bytes:
    packed = ipaddress.IPv6Address(source).packed + ipaddress.IPv6Address("2001:db8::7").packed
    return v2(0x21, 0x21, packed + struct.pack("!HH", port, 1883))


GOOD = [
    (V1, b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 1883\r\n", "192.0.2.1", "192.0.2.1:4711"),
    (V1, b"PROXY TCP6 2001:db8::1 2001:db8::7 4711 1883\r\n", "2001:db8::1", "[2001:db8::1]:4711"),
    (V1, b"PROXY TCP6 ::ffff:192.0.2.1 ::1 4711 1883\r\n", "192.0.2.1", "192.0.2.1:4711"),
    (V1, b"PROXY UNKNOWN\r\n", "", ""),
    (V1, b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", "", ""),
    (V2, tcp4(), "192.0.2.1", "192.0.2.1:4711"),
    (V2, tcp4(more=b"\x20\x00\x03\x01\x02\x03"), "192.0.2.1", "192.0.2.1:4711"),
    (V2, tcp6(), "2001:db8::1", "[2001:db8::1]:4711"),
    (V2, tcp6("::ffff:192.0.2.1"), "192.0.2.1", "192.0.2.1:4711"),
    (V2, v2(0x21, 0x31, b"/run/client".ljust(108, b"\0") + b"/run/canopy".ljust(108, b"\0")), "", "unix"),
    (V2, v2(0x21, 0x00, b"anything"), "", ""),
    (V2, v2(0x20, 0x00, b""), "", ""),
    (V2, v2(0x20, 0x77, b"whatever a LOCAL brings is skipped"), "", ""),
    (V2, tcp4(more=bytes(MAX_V2_BYTES - 28)), "192.0.2.1", "192.0.2.1:4711"),
]


@pytest.mark.parametrize(("version", "header", "host", "address"), GOOD)
@given(data=st.data())
def test_a_header_is_read_however_it_is_split(
    version: int, header: bytes, host: str, address: str, data: st.DataObject
) -> None:
    """Bytes behind the header, in whichever read, are the client's."""
    whole = header + BEHIND
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=6)))
    reader = ProxyHeader(version)
    behind = b""
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        piece = whole[start:end]
        used = 0 if reader.done else reader.feed(piece)
        assert used <= len(piece)
        behind += piece[used:]
        assert len(reader._held) <= len(header)
    assert reader.done
    assert (reader.host, reader.address, behind) == (host, address, BEHIND)


BAD = [
    (V1, b"\x10\x0c\x00\x04MQTT", "no PROXY line"),
    (V1, b"GET / HTTP/1.1\r\n", "no PROXY line"),
    (V1, tcp4(), "a header of version 2, and the listener takes version 1"),
    (V1, b"PROXY TCP4 192.0.2.1 198.51.100.7 4711\r\n", "a malformed PROXY line"),
    (V1, b"PROXY TCP4 192.0.2.1  198.51.100.7 4711 1883\r\n", "a malformed PROXY line"),
    (V1, b"PROXY UDP4 192.0.2.1 198.51.100.7 4711 1883\r\n", "a malformed PROXY line"),
    (V1, b"PROXY \r\n", "a malformed PROXY line"),
    (V1, b"PROXY TCP4 192.0.2.256 198.51.100.7 4711 1883\r\n", "a PROXY line without IP addresses"),
    (V1, b"PROXY TCP4 \xff\xff 198.51.100.7 4711 1883\r\n", "a PROXY line without IP addresses"),
    (V1, b"PROXY TCP4 2001:db8::1 2001:db8::7 4711 1883\r\n", "of another family than it says"),
    (V1, b"PROXY TCP6 192.0.2.1 198.51.100.7 4711 1883\r\n", "of another family than it says"),
    (V1, b"PROXY TCP4 192.0.2.1 198.51.100.7 65536 1883\r\n", "without port numbers"),
    (V1, b"PROXY TCP4 192.0.2.1 198.51.100.7 047 1883\r\n", "without port numbers"),
    (V1, b"PROXY TCP4 192.0.2.1 198.51.100.7 4711 -1\r\n", "without port numbers"),
    (V1, b"PROXY " + b"A" * MAX_V1_BYTES, f"a PROXY line longer than {MAX_V1_BYTES} bytes"),
    (V2, b"\x10\x0c\x00\x04MQTT", "no header of version 2"),
    (V2, b"PROXY TCP4 192.0.2.1", "a header of version 1, and the listener takes version 2"),
    (V2, v2(0x11, 0x11, bytes(12)), "an unknown version or command: 0x11"),
    (V2, v2(0x22, 0x11, bytes(12)), "an unknown version or command: 0x22"),
    (V2, v2(0x21, 0x12, bytes(12)), "an unknown address family or transport: 0x12"),
    (V2, v2(0x21, 0x11, bytes(11)), "too short for its addresses"),
    (V2, v2(0x21, 0x21, bytes(12)), "too short for its addresses"),
    (V2, v2(0x21, 0x11, b"", MAX_V2_BYTES - 15), f"a header of {MAX_V2_BYTES + 1} bytes, more than {MAX_V2_BYTES}"),
]


def feed(reader: ProxyHeader, data: bytes, step: int) -> None:
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])


@for_each(("version", "header", "why"), BAD)
@for_each("step", [1, 1000])
def test_what_is_no_header_is_refused(version: int, header: bytes, why: str, step: int) -> None:
    """As soon as it can be told: byte by byte, the first one that is wrong says no more than that."""
    with pytest.raises(ProxyError) as refusal:
        feed(ProxyHeader(version), header, step)
    if step > 1 or "takes version" not in why:
        assert why in str(refusal.value)


@given(st.sampled_from([V1, V2]), st.binary(max_size=300), st.booleans())
def test_whatever_comes_is_a_header_or_refused(version: int, tail: bytes, begins_well: bool) -> None:
    """Nothing else is raised, and no more is kept than the longest header has."""
    reader = ProxyHeader(version)
    begin = (b"PROXY TCP4 " if version == V1 else SIGNATURE) if begins_well else b""
    try:
        reader.feed(begin + tail)
    except ProxyError:
        return
    assert len(reader._held) <= (MAX_V1_BYTES if version == V1 else MAX_V2_BYTES)


@pytest.mark.parametrize(
    ("host", "trusted"),
    [
        ("10.1.2.3", True),
        ("11.1.2.3", False),
        ("::ffff:10.1.2.3", True),
        ("2001:db8::5", True),
        ("2001:db9::5", False),
        ("fe80::1%eth0", False),
        ("192.0.2.9", True),
        ("unknown", False),
        ("", True),
    ],
)
def test_only_these_networks_are_believed(host: str, trusted: bool) -> None:
    assert TrustedProxies(["10.0.0.0/8", "2001:db8::/32", "192.0.2.9"]).trusts(host) is trusted
