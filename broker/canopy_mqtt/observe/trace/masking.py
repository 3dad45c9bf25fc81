"""Masks secrets in packets before a trace keeps them: passwords, authentication data, tokens.

Promises: a packet keeps its length and its layout, so that a decoder finds all other fields; in a malformed CONNECT or
AUTH, all bytes behind the last known field are masked too.
"""

from __future__ import annotations

from typing import Final

from canopy_mqtt.core.codec import packets, properties
from canopy_mqtt.core.codec.decoder import Decoder
from canopy_mqtt.core.codec.framing import MAX_PACKET, frame_body
from canopy_mqtt.core.codec.packets import V5
from canopy_mqtt.core.codec.primitives import Reader
from canopy_mqtt.core.codec.reason_codes import MalformedPacket, ProtocolError
from canopy_mqtt.net.connections.connection_log import TOKEN

MASK: Final = 0x2A
"""An asterisk."""

MAX_PROPERTIES: Final = 256
"""Properties of a packet that are examined; all later ones are masked. Each takes about a microsecond."""

_TOKEN: Final = TOKEN.encode()
_SECRET: Final = (packets.CONNECT, packets.AUTH)
_NAMES: Final = (b"\0\4MQTT", b"\0\6MQIsdp")
_SECRET_PROPERTIES: Final = frozenset({properties.AUTHENTICATION_DATA})


def masked(data: bytes, version: int) -> bytes:
    """Return a packet, or the beginning of one, without its secrets; the same object if it has none.

    `version`: the protocol level in force, 0: not known yet. User properties are no more secret than payloads.
    """
    if len(data) < 2:
        return data
    kind = data[0] >> 4
    if version == 0 and kind != packets.CONNECT:
        # Unknown: no MQTT client begins like this.
        return data[:2] + bytes((MASK,)) * (len(data) - 2)
    if version < V5 and kind not in _SECRET:
        return data
    if kind not in _SECRET and kind != packets.CONNACK:
        return data
    changed = bytearray(data)
    if kind == packets.CONNECT and not _well_formed(data):
        _fill(changed, _beginning(data), len(data))
        return bytes(changed)
    try:
        reader = Reader(data, frame_body(data, 0), len(data))
        if kind == packets.CONNECT:
            _connect(reader, changed)
        else:
            reader.position += 1 if kind == packets.AUTH else 2
            if reader.position < reader.end:
                _section(reader, changed)
    except (MalformedPacket, IndexError):
        if kind in _SECRET:
            _fill(changed, 2, len(data))
    return bytes(changed)


def _well_formed(data: bytes) -> bool:
    """True if a CONNECT is complete, and its fields fit its lengths."""
    decoder = Decoder(MAX_PACKET, max_user_properties=MAX_PROPERTIES)
    decoder.feed(data)
    try:
        if not decoder.next_frame() or decoder.end != len(data):
            return False
        decoder.packet()
    except ProtocolError:
        return False
    return True


def _beginning(data: bytes) -> int:
    """Return the length of the beginning of a malformed CONNECT that may be shown: its protocol name and level, if
    present.
    """
    for name in _NAMES:
        at = data.find(name, 2, 2 + 5 + len(name))
        if at > 0:
            return min(at + len(name) + 1, len(data))
    return min(2, len(data))


def _fill(changed: bytearray, start: int, end: int) -> None:
    changed[start:end] = bytes((MASK,)) * (end - start)


def _field(reader: Reader, changed: bytearray, secret: bool) -> None:
    """Skip or mask a field with a length before it; one that is cut off is masked as far as it goes."""
    length = reader.two_bytes()
    start = reader.position
    end = min(start + length, reader.end)
    if secret:
        _fill(changed, start, end)
    if start + length > reader.end:
        raise MalformedPacket("cut off")
    reader.position = end


def _section(reader: Reader, changed: bytearray) -> None:
    """Mask a section of properties, which begins with its length."""
    length = reader.varint()
    stop = reader.position + length
    inside = Reader(reader.data, reader.position, min(stop, reader.end))
    seen = 0
    while inside.position < inside.end:
        seen += 1
        if seen > MAX_PROPERTIES:
            _fill(changed, inside.position, inside.end)
            break
        identifier = inside.varint()
        row = properties.TABLE.get(identifier)
        if row is None:
            raise MalformedPacket(f"no property has the identifier {identifier}")
        kind = row.wire_type
        if kind == properties.BYTE:
            inside.byte()
        elif kind == properties.TWO_BYTES:
            inside.two_bytes()
        elif kind == properties.FOUR_BYTES:
            inside.four_bytes()
        elif kind == properties.VARINT:
            inside.varint()
        else:
            _field(inside, changed, identifier in _SECRET_PROPERTIES)
            if kind == properties.STRING_PAIR:
                _field(inside, changed, False)
    if stop > reader.end:
        raise MalformedPacket("cut off")
    reader.position = stop


def _connect(reader: Reader, changed: bytearray) -> None:
    """Mask a CONNECT (section 3.1)."""
    _field(reader, changed, False)
    level = reader.byte() & 0x7F
    flags = reader.byte()
    reader.two_bytes()
    if level == V5:
        _section(reader, changed)
    _field(reader, changed, False)
    if flags & 4:
        if level == V5:
            _section(reader, changed)
        _field(reader, changed, False)
        _field(reader, changed, False)
    if flags & 0x80 and reader.position < reader.end:
        here = reader.position + 2
        _field(reader, changed, reader.data[here : here + len(_TOKEN)] == _TOKEN)
    if flags & 0x40 and reader.position < reader.end:
        _field(reader, changed, True)
