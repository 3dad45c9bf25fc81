"""MQTT frames as the load generator needs them: built once, counted many times.

Owns: the bytes of CONNECT, SUBSCRIBE, UNSUBSCRIBE and PUBLISH as the bench sends them, the layout of the bench's
payload, and ``PublishShape``: where things lie in a PUBLISH that a broker sent.

Promises: builders are written apart from the broker's own codec, so that a fault there cannot hide itself here. All
frames of one topic, QoS and payload size have the same length, which is what lets a subscriber count bytes.

It is no codec: it reads just enough of a packet to find its end and, for a PUBLISH, its parts; properties are skipped,
not understood.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MQTT_3_1_1: Final = 4
MQTT_5: Final = 5

# First bytes (packet type and flags). Section 2.1 of both specifications.
CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SUBACK: Final = 0x90
UNSUBACK: Final = 0xB0
PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"
DISCONNECT: Final = b"\xe0\x00"

PACKET_NAMES: Final = (
    "reserved",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
)

PAYLOAD_HEAD: Final = struct.Struct(">HHIQ")
MIN_PAYLOAD: Final = PAYLOAD_HEAD.size
SEQUENCE_OFFSET: Final = 2


class FrameError(Exception):
    """A broker sent bytes that the benchmark cannot read."""


def variable_byte_integer(value: int) -> bytes:
    """Encode 0..268,435,455 as a Variable Byte Integer (section 1.5.5); ValueError outside."""
    if not 0 <= value <= 268_435_455:
        raise ValueError(f"{value} does not fit a Variable Byte Integer")
    out = bytearray()
    while True:
        value, low = divmod(value, 128)
        out.append(low | 0x80 if value else low)
        if not value:
            return bytes(out)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">H", len(raw)) + raw


def _frame(first: int, body: bytes) -> bytes:
    return bytes((first,)) + variable_byte_integer(len(body)) + body


def _properties(level: int) -> bytes:
    return b"\x00" if level == MQTT_5 else b""


def connect(client_id: str, level: int = MQTT_3_1_1, keep_alive: int = 0, clean: bool = True) -> bytes:
    """CONNECT with a keep alive of 0..65,535 seconds; 0 is none: no pings needed. ``clean``: clean session or clean
    start."""
    head = _string("MQTT") + struct.pack(">BBH", level, 0x02 if clean else 0x00, keep_alive)
    return _frame(0x10, head + _properties(level) + _string(client_id))


def subscribe(packet_id: int, filters: Sequence[tuple[str, int]], level: int = MQTT_3_1_1) -> bytes:
    """SUBSCRIBE to (topic filter, maximum QoS) pairs in one packet."""
    body = struct.pack(">H", packet_id) + _properties(level)
    return _frame(0x82, body + b"".join(_string(text) + bytes((qos,)) for text, qos in filters))


def unsubscribe(packet_id: int, filters: Sequence[str], level: int = MQTT_3_1_1) -> bytes:
    """UNSUBSCRIBE from topic filters in one packet."""
    body = struct.pack(">H", packet_id) + _properties(level)
    return _frame(0xA2, body + b"".join(_string(text) for text in filters))


def publish(
    topic: str, payload: bytes, qos: int = 0, packet_id: int = 0, level: int = MQTT_3_1_1, retain: bool = False
) -> bytes:
    """PUBLISH without DUP or properties; ``packet_id`` counts only for QoS 1 and 2."""
    body = _string(topic)
    if qos:
        body += struct.pack(">H", packet_id)
    return _frame(PUBLISH | qos << 1 | retain, body + _properties(level) + payload)


def payload(publisher: int, sequence: int, size: int, stamp: int = 0) -> bytes:
    """A payload of ``size`` bytes (at least MIN_PAYLOAD) in this layout.

    Big-endian, followed by filler up to the payload's size:

        0  publisher index  u16   who sent it
        2  sequence number  u16   counts up for each publisher, modulo the load's cycle
        4  reserved         u32   zero
        8  send time        u64   nanoseconds of the monotonic clock, zero in loads that measure no latency
    """
    if size < MIN_PAYLOAD:
        raise ValueError(f"a bench payload has at least {MIN_PAYLOAD} bytes, not {size}")
    return PAYLOAD_HEAD.pack(publisher, sequence, 0, stamp) + b"x" * (size - MIN_PAYLOAD)


def read_variable_byte_integer(data: bytes | bytearray | memoryview, offset: int) -> tuple[int, int]:
    """Value and number of bytes of the Variable Byte Integer at ``offset``; (0, 0) if it is not all there yet."""
    value = 0
    for used in range(4):
        if offset + used >= len(data):
            return 0, 0
        byte = data[offset + used]
        value |= (byte & 0x7F) << (7 * used)
        if not byte & 0x80:
            return value, used + 1
    raise FrameError("the broker sent a Variable Byte Integer of more than four bytes")


def packet_size(data: bytes | bytearray | memoryview, offset: int = 0) -> int:
    """Size in bytes of the packet that begins at ``offset``, or 0 while its fixed header is incomplete."""
    length, used = read_variable_byte_integer(data, offset + 1)
    return 1 + used + length if used else 0


def packet_name(first: int) -> str:
    """The name of a packet by its first byte, for messages to people."""
    return PACKET_NAMES[first >> 4]


@dataclass(frozen=True)
class PublishShape:
    """The parts of one PUBLISH, as offsets from its first byte; ``packet_id`` is 0 for QoS 0."""

    size: int
    topic: str
    qos: int
    packet_id: int
    payload: int

    @classmethod
    def read(cls, data: bytes | bytearray | memoryview, offset: int, level: int) -> PublishShape:
        """Return the shape of the complete PUBLISH at ``offset``. Raises FrameError if it is another packet or
        malformed."""
        first = data[offset]
        if first & 0xF0 != PUBLISH:
            raise FrameError(f"the broker sent {packet_name(first)} where a PUBLISH was expected")
        length, used = read_variable_byte_integer(data, offset + 1)
        cursor = 1 + used
        end = cursor + length
        qos = first >> 1 & 3
        topic_size = data[offset + cursor] << 8 | data[offset + cursor + 1] if length >= 2 else length
        if cursor + 2 + topic_size > end:
            raise FrameError("the broker sent a PUBLISH shorter than its topic")
        topic = bytes(data[offset + cursor + 2 : offset + cursor + 2 + topic_size]).decode(errors="replace")
        cursor += 2 + topic_size
        packet_id = 0
        if qos:
            packet_id = cursor
            cursor += 2
        if level == MQTT_5:
            properties, used = read_variable_byte_integer(data, offset + cursor)
            cursor += used + properties
        if end - cursor < MIN_PAYLOAD:
            raise FrameError(f"the broker sent a PUBLISH on {topic!r} that is not one of the bench's")
        return cls(end, topic, qos, packet_id, cursor)
