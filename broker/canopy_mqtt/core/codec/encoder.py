"""Encodes every packet type for every version and direction (sections 2 and 3 of both specifications).

The encoder omits what the specification allows to omit; 3.1 and 3.1.1 have no properties and reason codes. The decoder
reads a valid packet back as an equal one. A value that cannot be encoded raises `ValueError`, which is always a fault
of this program. `ack`, `publish` and `publish_properties` are for the hot path. There is no state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec import packets, properties
from canopy_mqtt.core.codec.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from canopy_mqtt.core.codec.primitives import BYTE, string, text, two_bytes, varint
from canopy_mqtt.core.codec.properties import NO_PROPERTIES, Properties

if TYPE_CHECKING:
    from mypy_extensions import i64

__all__ = ["PINGREQ", "PINGRESP", "ack", "encode", "publish", "publish_properties", "string", "text", "varint"]

PINGREQ: Final = b"\xc0\x00"
"""Section 3.12."""
PINGRESP: Final = b"\xd0\x00"
"""Section 3.13."""

_NAME_AND_LEVEL: Final[dict[int, bytes]] = {
    packets.V31: b"\x00\x06MQIsdp\x03",
    packets.V311: b"\x00\x04MQTT\x04",
    packets.V5: b"\x00\x04MQTT\x05",
}


# What stands before the packet identifier in an acknowledgement that says "success", by packet type.
_SHORT_ACKS: Final = [b"", b"", b"", b"", b"\x40\x02", b"\x50\x02", b"\x62\x02", b"\x70\x02"]  # [MQTT-3.6.1-1]


def _frame(header: int, body: bytes) -> bytes:
    size: i64 = len(body)
    return BYTE[header] + (BYTE[size] if size < 128 else varint(size)) + body


def _numbered(header: int, packet_id: int, rest: bytes) -> bytes:
    """A packet whose variable header begins with a packet identifier."""
    number: i64 = packet_id
    if number < 1 or number > 65_535:
        raise ValueError(f"a packet identifier of {packet_id}")
    size: i64 = len(rest) + 2
    start = BYTE[header] + (BYTE[size] if size < 128 else varint(size))
    return start + BYTE[number >> 8] + BYTE[number & 255] + rest


def ack(kind: int, packet_id: int, reason: int = 0, version: int = packets.V311) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP without properties, sections 3.4 to 3.7: four bytes when it is success.

    The packet identifier is that of the PUBLISH [MQTT-2.2.1-5]. The broker answers with nothing else, so that no Reason
    String and no User Property of its own can make a PUBACK [MQTT-3.4.2-2] [MQTT-3.4.2-3], PUBREC [MQTT-3.5.2-2]
    [MQTT-3.5.2-3], PUBREL [MQTT-3.6.2-2] [MQTT-3.6.2-3] or PUBCOMP [MQTT-3.7.2-2] [MQTT-3.7.2-3] too large.

    Raises:
        ValueError: another packet type, or a packet identifier outside 1..65,535.
    """
    number: i64 = packet_id
    first: i64 = kind
    if first < 4 or first > 7:
        raise ValueError(f"{kind} is no acknowledgement of a publish")
    if number < 1 or number > 65_535:
        raise ValueError(f"a packet identifier of {packet_id}")
    if reason == 0 or version < 5:
        return _SHORT_ACKS[first] + BYTE[number >> 8] + BYTE[number & 255]
    first = first << 4
    if first == 0x60:  # [MQTT-3.6.1-1]
        first = 0x62
    return bytes((first, 3, number >> 8, number & 255, reason))


def publish_properties(
    forward: bytes, topic_alias: int = 0, message_expiry: int = -1, subscription_ids: tuple[int, ...] = ()
) -> bytes:
    """The property section of a PUBLISH with its length: what is this hop's own, then `forward` as it is.

    Raises:
        ValueError: a value that cannot be written.
    """
    if topic_alias == 0 and message_expiry < 0 and not subscription_ids:
        return varint(len(forward)) + forward if forward else b"\0"
    parts: list[bytes] = []
    if message_expiry >= 0:
        parts.append(properties.encode_one(properties.MESSAGE_EXPIRY_INTERVAL, message_expiry))
    for identifier in subscription_ids:
        parts.append(properties.encode_one(properties.SUBSCRIPTION_IDENTIFIER, identifier))
    if topic_alias:
        parts.append(properties.encode_one(properties.TOPIC_ALIAS, topic_alias))
    parts.append(forward)
    section = b"".join(parts)
    return varint(len(section)) + section


def publish(packet: Publish, version: int) -> bytes:
    """Encode a PUBLISH, section 3.3.

    Raises:
        ValueError: QoS, packet identifier or DUP that do not fit together, a topic of more than 65,535 bytes, a
            property value that cannot be written, more than 268,435,455 bytes in all.
    """
    qos: i64 = packet.qos
    topic = packet.topic
    payload = packet.payload
    head: i64 = 0x30 | qos << 1
    if packet.retain:
        head |= 1
    if qos < 0 or qos > 2:
        raise ValueError(f"a PUBLISH with QoS {packet.qos}")
    length: i64 = len(topic)
    if length > 65_535:
        raise ValueError(f"a topic name of {length} bytes")
    packet_id = packet.packet_id
    identifier = b""
    if qos > 0:
        if packet_id < 1 or packet_id > 65_535:
            raise ValueError(f"a packet identifier of {packet_id}")
        identifier = two_bytes(packet_id)
        if packet.dup:
            head |= 8
    elif packet_id != 0 or packet.dup:  # [MQTT-2.2.1-2] [MQTT-3.3.1-2]
        raise ValueError("a PUBLISH with QoS 0 has no packet identifier and no DUP")
    section = b""
    if version >= 5:
        section = publish_properties(
            packet.properties, packet.topic_alias, packet.message_expiry, packet.subscription_ids
        )
    size = 2 + length + len(identifier) + len(section) + len(payload)
    start = BYTE[head] + (BYTE[size] if size < 128 else varint(size))
    return b"".join((start, BYTE[length >> 8], BYTE[length & 255], topic, identifier, section, payload))


def encode(packet: Packet, version: int) -> bytes:
    """Any packet as it goes on the wire in `version` (3, 4 or 5). A CONNECT is written in its own version.

    Raises:
        ValueError: it has no encoding in that version (section 1.5 for sizes, the packet's section for the rest).
    """
    if isinstance(packet, Publish):
        return publish(packet, version)
    if isinstance(packet, Ack):
        return _ack(packet, version)
    if isinstance(packet, Pingreq):
        return PINGREQ
    if isinstance(packet, Pingresp):
        return PINGRESP
    if isinstance(packet, Subscribe):
        return _subscribe(packet, version)
    if isinstance(packet, (Suback, Unsuback)):
        return filters_ack(packet.kind, packet.packet_id, packet.reason_codes, packet.properties, version)
    if isinstance(packet, Unsubscribe):
        return _unsubscribe(packet, version)
    if isinstance(packet, Connect):
        return _connect(packet)
    if isinstance(packet, Connack):
        return _connack(packet, version)
    if isinstance(packet, Disconnect):
        return _disconnect(packet, version)
    if isinstance(packet, Auth):
        return _auth(packet, version)
    raise ValueError(f"{type(packet).__name__} is not a packet")


def _section(held: Properties, kind: int, version: int) -> bytes:
    """The property section; nothing before 5.0."""
    return properties.encode(held, kind) if version >= 5 else b""


def _qos(value: int) -> int:
    if value < 0 or value > 2:
        raise ValueError(f"QoS {value}")
    return value


def _ack(packet: Ack, version: int) -> bytes:
    if version < 5 or not packet.properties:
        return ack(packet.kind, packet.packet_id, packet.reason_code, version)
    if not packets.PUBACK <= packet.kind <= packets.PUBCOMP:
        raise ValueError(f"{packet.kind} is no acknowledgement of a publish")
    header = packet.kind << 4 | (2 if packet.kind == packets.PUBREL else 0)
    section = properties.encode(packet.properties, packet.kind)
    return _numbered(header, packet.packet_id, bytes((packet.reason_code,)) + section)


def _connect(packet: Connect) -> bytes:
    """Section 3.1."""
    version = packet.version
    if version not in _NAME_AND_LEVEL:
        raise ValueError(f"protocol level {version}")
    name = _NAME_AND_LEVEL[version]
    if packet.bridge:
        if version >= 5:
            raise ValueError("5.0 has no bridge bit")
        name = name[:-1] + bytes((version | 0x80,))
    if version < 5 and packet.password is not None and packet.user_name is None:  # [MQTT3-3.1.2-22]
        raise ValueError("before 5.0 a password needs a user name")
    flags = 2 if packet.clean_start else 0
    payload = text(packet.client_id)
    will = packet.will
    if will is not None:
        flags |= 4 | _qos(will.qos) << 3
        if will.retain:
            flags |= 0x20
        if version >= 5:
            section = will.properties
            if will.message_expiry >= 0:
                section = properties.encode_one(properties.MESSAGE_EXPIRY_INTERVAL, will.message_expiry) + section
            if will.delay:
                section = properties.encode_one(properties.WILL_DELAY_INTERVAL, will.delay) + section
            payload += varint(len(section)) + section
        payload += text(will.topic) + string(will.payload)
    if packet.user_name is not None:
        flags |= 0x80
        payload += text(packet.user_name)
    if packet.password is not None:
        flags |= 0x40
        payload += string(packet.password)
    section = _section(packet.properties, packets.CONNECT, version)
    return _frame(0x10, name + bytes((flags,)) + two_bytes(packet.keep_alive) + section + payload)


def _connack(packet: Connack, version: int) -> bytes:
    """Section 3.2."""
    if version < 5 and not 0 <= packet.reason_code <= 5:
        raise ValueError(f"3.1.1 has no return code {packet.reason_code}")
    if packet.session_present and packet.reason_code:  # [MQTT-3.2.2-6]
        raise ValueError("session present in a CONNACK that refuses")
    if version < 5 and packet.reason_code == 0:
        return b"\x20\x02\x01\x00" if packet.session_present else b"\x20\x02\x00\x00"
    head = bytes((1 if packet.session_present else 0, packet.reason_code))
    return _frame(0x20, head + _section(packet.properties, packets.CONNACK, version))


def _subscribe(packet: Subscribe, version: int) -> bytes:
    """Section 3.8; before 5.0 only the QoS of the options is written."""
    if not packet.requests:  # [MQTT-3.8.3-2]
        raise ValueError("SUBSCRIBE without a topic filter")
    parts = [_section(packet.properties, packets.SUBSCRIBE, version)]
    for request in packet.requests:
        options = _qos(request.qos)
        if version >= 5:
            if request.retain_handling < 0 or request.retain_handling > 2:
                raise ValueError(f"retain handling {request.retain_handling}")
            options |= request.retain_handling << 4
            if request.no_local:
                options |= 4
            if request.retain_as_published:
                options |= 8
        parts.append(text(request.topic_filter))
        parts.append(bytes((options,)))
    return _numbered(0x82, packet.packet_id, b"".join(parts))


def filters_ack(kind: int, packet_id: int, codes: list[int], held: Properties, version: int) -> bytes:
    """SUBACK or UNSUBACK, sections 3.9 and 3.11: codes in the order of the filters [MQTT-3.9.3-1] [MQTT-3.11.3-1].

    Before 5.0 every failure of a SUBACK is 0x80 [MQTT3-3.9.3-2], and an UNSUBACK has no codes.
    """
    if version >= 5:
        rest = (b"\0" if held is NO_PROPERTIES else properties.encode(held, kind)) + bytes(codes)
    elif kind == packets.SUBACK:
        rest = bytes([code if code < 0x80 else 0x80 for code in codes])
    else:
        rest = b""
    number: i64 = packet_id
    if number < 1 or number > 65_535:
        raise ValueError(f"a packet identifier of {packet_id}")
    size: i64 = len(rest) + 2
    start = BYTE[kind << 4] + (BYTE[size] if size < 128 else varint(size))
    return start + BYTE[number >> 8] + BYTE[number & 255] + rest


def _unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    """Section 3.10."""
    if not packet.topic_filters:  # [MQTT-3.10.3-2]
        raise ValueError("UNSUBSCRIBE without a topic filter")
    parts = [_section(packet.properties, packets.UNSUBSCRIBE, version)]
    for topic_filter in packet.topic_filters:
        parts.append(text(topic_filter))
    return _numbered(0xA2, packet.packet_id, b"".join(parts))


def _reason(header: int, code: int, held: Properties, kind: int) -> bytes:
    """The common form of DISCONNECT and AUTH: what is at its default at the end is left out."""
    if held:
        return _frame(header, bytes((code,)) + properties.encode(held, kind))
    if code:
        return _frame(header, bytes((code,)))
    return bytes((header, 0))


def _disconnect(packet: Disconnect, version: int) -> bytes:
    """Section 3.14."""
    if version < 5:
        return b"\xe0\x00"
    return _reason(0xE0, packet.reason_code, packet.properties, packets.DISCONNECT)


def _auth(packet: Auth, version: int) -> bytes:
    """Section 3.15; there is no short form but the empty one."""
    if version < 5:
        raise ValueError("AUTH does not exist before 5.0")
    if packet.reason_code == 0 and not packet.properties:
        return b"\xf0\x00"
    return _frame(0xF0, bytes((packet.reason_code,)) + properties.encode(packet.properties, packets.AUTH))
