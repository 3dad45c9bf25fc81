"""MQTT 5.0 properties (section 2.2.2): the table of all properties, their container, and their codec.

The table has each property's type, the packets that may contain it, whether it may be repeated, and its valid values.
`parse` and `encode` convert a whole section into `Properties` and back. `ForwardScan`, for PUBLISH and Will, validates
a section as completely, extracts the properties for this hop, and passes the rest on unchanged, without building
objects. An unknown or misplaced identifier and a value of a wrong type are a Malformed Packet; a repetition and a value
out of range are a Protocol Error (section 2.2.2.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.codec import reasons
from broker.core.codec.errors import MalformedPacket, ProtocolViolation, Refused, TopicAliasInvalid
from broker.core.codec.primitives import Reader, four_bytes, string, text, two_bytes, utf8, varint

if TYPE_CHECKING:
    from mypy_extensions import i64

PAYLOAD_FORMAT_INDICATOR: Final = 0x01
MESSAGE_EXPIRY_INTERVAL: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY_INTERVAL: Final = 0x11
ASSIGNED_CLIENT_IDENTIFIER: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY_INTERVAL: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIER_AVAILABLE: Final = 0x29
SHARED_SUBSCRIPTION_AVAILABLE: Final = 0x2A

# Wire types, section 1.5.
BYTE: Final = 1
TWO_BYTES: Final = 2
FOUR_BYTES: Final = 3
VARINT: Final = 4
BINARY: Final = 5
STRING: Final = 6
STRING_PAIR: Final = 7

# Where a property may stand: a control packet type, or the will inside a CONNECT. `1 << place` is its bit in a mask.
WILL: Final = 0
# The same numbers as in `packets`, which imports this file.
_CONNECT: Final = 1 << 1
_CONNACK: Final = 1 << 2
_PUBLISH: Final = 1 << 3
_PUBACK: Final = 1 << 4
_PUBREC: Final = 1 << 5
_PUBREL: Final = 1 << 6
_PUBCOMP: Final = 1 << 7
_SUBSCRIBE: Final = 1 << 8
_SUBACK: Final = 1 << 9
_UNSUBSCRIBE: Final = 1 << 10
_UNSUBACK: Final = 1 << 11
_DISCONNECT: Final = 1 << 14
_AUTH: Final = 1 << 15
_WILL: Final = 1 << WILL
_ACKS: Final = _PUBACK | _PUBREC | _PUBREL | _PUBCOMP
_MESSAGE: Final = _PUBLISH | _WILL
_ANSWERS: Final = _CONNACK | _ACKS | _SUBACK | _UNSUBACK | _DISCONNECT | _AUTH
_EVERYWHERE: Final = _CONNECT | _MESSAGE | _ANSWERS | _SUBSCRIBE | _UNSUBSCRIBE

_PUBLISH_PLACE: Final = 3


class PropertyInfo:
    """One row of the table in section 2.2.2.2.

    `packets` is a mask of `1 << place`. `minimum` and `maximum` bound numbers (inclusive) and mean nothing for others.
    """

    def __init__(
        self, identifier: int, name: str, wire_type: int, packets: int, minimum: int = 0, maximum: int = 0
    ) -> None:
        self.identifier = identifier
        self.name = name
        self.wire_type = wire_type
        self.packets = packets
        self.minimum = minimum
        self.maximum = maximum

    def allowed_in(self, place: int) -> bool:
        """Whether it may stand in the control packet type `place`, or in the will (`WILL`)."""
        return self.packets >> place & 1 == 1


_U16: Final = 65_535
_U32: Final = 4_294_967_295

TABLE: Final[dict[int, PropertyInfo]] = {
    row.identifier: row
    for row in (
        PropertyInfo(PAYLOAD_FORMAT_INDICATOR, "Payload Format Indicator", BYTE, _MESSAGE, 0, 1),
        PropertyInfo(MESSAGE_EXPIRY_INTERVAL, "Message Expiry Interval", FOUR_BYTES, _MESSAGE, 0, _U32),
        PropertyInfo(CONTENT_TYPE, "Content Type", STRING, _MESSAGE),
        PropertyInfo(RESPONSE_TOPIC, "Response Topic", STRING, _MESSAGE),
        PropertyInfo(CORRELATION_DATA, "Correlation Data", BINARY, _MESSAGE),
        PropertyInfo(SUBSCRIPTION_IDENTIFIER, "Subscription Identifier", VARINT, _PUBLISH | _SUBSCRIBE, 1, 268_435_455),
        PropertyInfo(
            SESSION_EXPIRY_INTERVAL, "Session Expiry Interval", FOUR_BYTES, _CONNECT | _CONNACK | _DISCONNECT, 0, _U32
        ),
        PropertyInfo(ASSIGNED_CLIENT_IDENTIFIER, "Assigned Client Identifier", STRING, _CONNACK),
        PropertyInfo(SERVER_KEEP_ALIVE, "Server Keep Alive", TWO_BYTES, _CONNACK, 0, _U16),
        PropertyInfo(AUTHENTICATION_METHOD, "Authentication Method", STRING, _CONNECT | _CONNACK | _AUTH),
        PropertyInfo(AUTHENTICATION_DATA, "Authentication Data", BINARY, _CONNECT | _CONNACK | _AUTH),
        PropertyInfo(REQUEST_PROBLEM_INFORMATION, "Request Problem Information", BYTE, _CONNECT, 0, 1),
        PropertyInfo(WILL_DELAY_INTERVAL, "Will Delay Interval", FOUR_BYTES, _WILL, 0, _U32),
        PropertyInfo(REQUEST_RESPONSE_INFORMATION, "Request Response Information", BYTE, _CONNECT, 0, 1),
        PropertyInfo(RESPONSE_INFORMATION, "Response Information", STRING, _CONNACK),
        PropertyInfo(SERVER_REFERENCE, "Server Reference", STRING, _CONNACK | _DISCONNECT),
        PropertyInfo(REASON_STRING, "Reason String", STRING, _ANSWERS),
        PropertyInfo(RECEIVE_MAXIMUM, "Receive Maximum", TWO_BYTES, _CONNECT | _CONNACK, 1, _U16),
        PropertyInfo(TOPIC_ALIAS_MAXIMUM, "Topic Alias Maximum", TWO_BYTES, _CONNECT | _CONNACK, 0, _U16),
        PropertyInfo(TOPIC_ALIAS, "Topic Alias", TWO_BYTES, _PUBLISH, 1, _U16),
        PropertyInfo(MAXIMUM_QOS, "Maximum QoS", BYTE, _CONNACK, 0, 1),
        PropertyInfo(RETAIN_AVAILABLE, "Retain Available", BYTE, _CONNACK, 0, 1),
        PropertyInfo(USER_PROPERTY, "User Property", STRING_PAIR, _EVERYWHERE),
        PropertyInfo(MAXIMUM_PACKET_SIZE, "Maximum Packet Size", FOUR_BYTES, _CONNECT | _CONNACK, 1, _U32),
        PropertyInfo(WILDCARD_SUBSCRIPTION_AVAILABLE, "Wildcard Subscription Available", BYTE, _CONNACK, 0, 1),
        PropertyInfo(SUBSCRIPTION_IDENTIFIER_AVAILABLE, "Subscription Identifier Available", BYTE, _CONNACK, 0, 1),
        PropertyInfo(SHARED_SUBSCRIPTION_AVAILABLE, "Shared Subscription Available", BYTE, _CONNACK, 0, 1),
    )
}
"""Every property of MQTT 5.0 by identifier."""

FORWARDED: Final = frozenset((PAYLOAD_FORMAT_INDICATOR, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA, USER_PROPERTY))
"""What a server passes on unaltered [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-20]."""


class Properties:
    """Properties of one packet: numbers, strings and binary by identifier, user properties in order.

    `integers[id]`, `strings[id]`, `binaries[id]` hold what was present; `user` keeps name/value pairs in the order
    of the wire (section 3.3.2.3.7 and its like). A SUBSCRIBE has at most one subscription identifier, so it is in
    `integers`; a PUBLISH does not use this class for what it forwards.
    """

    def __init__(self) -> None:
        self.integers: dict[int, int] = {}
        self.strings: dict[int, str] = {}
        self.binaries: dict[int, bytes] = {}
        self.user: list[tuple[str, str]] = []

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Properties)
            and self.integers == other.integers
            and self.strings == other.strings
            and self.binaries == other.binaries
            and self.user == other.user
        )

    def __hash__(self) -> int:
        return hash((len(self.integers), len(self.strings), len(self.binaries), len(self.user)))

    def __repr__(self) -> str:
        return f"Properties({self.integers!r}, {self.strings!r}, {self.binaries!r}, user={self.user!r})"

    def __bool__(self) -> bool:
        return bool(self.integers or self.strings or self.binaries or self.user)


NO_PROPERTIES: Final = Properties()
"""What a packet of 3.1 or 3.1.1 has. Read it; never change it."""


def _row(identifier: int, place: int) -> PropertyInfo:
    """The table row of an identifier that may stand in `place`; a Malformed Packet otherwise (section 2.2.2.2)."""
    row = TABLE.get(identifier)
    if row is None:
        raise MalformedPacket(f"no property has the identifier {identifier}")
    if not row.allowed_in(place):
        raise MalformedPacket(f"the property {row.name} is not allowed in this packet")
    return row


def _check_number(row: PropertyInfo, value: int) -> None:
    """Refuse a number that its row does not allow (sections 3.1.2.11, 3.2.2.3, 3.3.2.3, 3.8.2.1)."""
    if row.minimum <= value <= row.maximum:
        return
    if row.identifier == TOPIC_ALIAS:  # [MQTT-3.3.2-8]
        raise TopicAliasInvalid("a topic alias of 0")
    raise ProtocolViolation(f"the property {row.name} may not be {value}")


def check_response_topic(topic: str) -> None:
    """A response topic is a topic name: not empty [MQTT-4.7.3-1] and without wildcards [MQTT-3.3.2-14].

    Raises:
        MalformedPacket: it is not.
    """
    if not topic or "+" in topic or "#" in topic:
        raise MalformedPacket("the response topic is not a topic name")


def _number(reader: Reader, row: PropertyInfo) -> int:
    wire_type = row.wire_type
    if wire_type == BYTE:
        value = reader.byte()
    elif wire_type == TWO_BYTES:
        value = reader.two_bytes()
    elif wire_type == FOUR_BYTES:
        value = reader.four_bytes()
    else:
        value = reader.varint()
    _check_number(row, value)
    return value


def _too_many(most: int) -> Refused:
    return Refused(f"more than {most} user properties in a packet", reasons.QUOTA_EXCEEDED)


def parse(reader: Reader, place: int, most: int = 0) -> Properties:
    """Read a property section, length included, and leave the reader behind it (section 2.2.2) [MQTT-2.2.2-1].

    `place` is the control packet type, or `WILL`. `most`: user properties that are taken; 0: any number. Not for
    PUBLISH and Will: they take `ForwardScan`.

    Raises:
        MalformedPacket: it cannot be parsed, or a property does not belong here.
        ProtocolViolation: a property is repeated or its value is not allowed.
        Refused: more than `most` user properties.
    """
    length = reader.varint()
    if length == 0:
        return Properties()
    stop = reader.position + length
    if stop > reader.end:
        raise MalformedPacket("the properties run past the end of the packet")
    section = Reader(reader.data, reader.position, stop)
    reader.position = stop
    return _parse_section(section, place, most)


def _parse_section(section: Reader, place: int, most: int = 0) -> Properties:
    """The properties from the reader's position to its end."""
    found = Properties()
    seen = 0
    while section.position < section.end:
        identifier = section.varint()
        row = _row(identifier, place)
        if identifier == USER_PROPERTY:
            name = section.string()  # [MQTT-1.5.7-1]
            found.user.append((name, section.string()))
            if 0 < most < len(found.user):
                raise _too_many(most)
            continue
        if seen >> identifier & 1:
            raise ProtocolViolation(f"the property {row.name} is there twice")
        seen |= 1 << identifier
        if row.wire_type == STRING:
            found.strings[identifier] = section.string()
        elif row.wire_type == BINARY:
            found.binaries[identifier] = section.binary()
        else:
            found.integers[identifier] = _number(section, row)
    return found


class ForwardScan:
    """Reads the properties of a PUBLISH or a Will without building a `Properties`.

    After `run`: `forward` holds the encoded properties to pass on, in their order [MQTT-3.3.2-18]; what concerns this
    hop alone is in `topic_alias` (0: none), `message_expiry` (s, -1: none), `will_delay` (s, 0: none) and
    `subscription_ids`; `request` tells of a Response Topic. One object can be used for any number of packets.
    """

    def __init__(self) -> None:
        # User properties, and subscription identifiers, that are taken; 0: any number.
        self.most: i64 = 0
        self.forward: bytes = b""
        self.topic_alias: int = 0
        self.message_expiry: int = -1
        self.will_delay: int = 0
        self.subscription_ids: tuple[int, ...] = ()
        self.request: bool = False

    def run(self, data: bytes, start: int, stop: int, place: int) -> None:
        """Validate and sort out `data[start:stop]`, a section without its length. `place`: PUBLISH or `WILL`.

        Raises:
            MalformedPacket: it cannot be parsed, a property does not belong here, or the response topic is no name.
            ProtocolViolation: a property is repeated or its value is not allowed.
            TopicAliasInvalid: a topic alias of 0.
            Refused: more than `most` user properties.
        """
        self.topic_alias = 0
        self.message_expiry = -1
        self.will_delay = 0
        self.subscription_ids = ()
        self.request = False
        section = Reader(data, start, stop)
        kept: list[bytes] = []
        subscription_ids: list[int] = []
        run_start: i64 = start
        end: i64 = stop
        seen: i64 = 0
        repeated: i64 = 0
        most: i64 = self.most
        while section.position < end:
            before: i64 = section.position
            identifier = section.varint()
            if identifier == USER_PROPERTY:  # the one that may be repeated anywhere, and the commonest
                utf8(section.binary())  # [MQTT-1.5.7-1]
                utf8(section.binary())
                repeated += 1
                if 0 < most < repeated:
                    raise _too_many(most)
                continue
            row = _row(identifier, place)
            bit: i64 = 1  # a variable on purpose: compiled, the literal in `1 << n` would be 32 bits wide
            bit <<= identifier
            if seen & bit and identifier != SUBSCRIPTION_IDENTIFIER:
                raise ProtocolViolation(f"the property {row.name} is there twice")
            seen |= bit
            if row.wire_type == BINARY:
                section.binary()
                continue
            if row.wire_type == STRING:
                value_text = section.string()  # [MQTT-3.3.2-13] [MQTT-3.3.2-19]
                if identifier == RESPONSE_TOPIC:
                    check_response_topic(value_text)
                    self.request = True
                continue
            value = _number(section, row)
            if identifier == PAYLOAD_FORMAT_INDICATOR:
                continue
            if identifier == MESSAGE_EXPIRY_INTERVAL:
                self.message_expiry = value
            elif identifier == TOPIC_ALIAS:
                self.topic_alias = value
            elif identifier == WILL_DELAY_INTERVAL:
                self.will_delay = value
            else:
                subscription_ids.append(value)
                repeated += 1
                if 0 < most < repeated:
                    raise _too_many(most)
            if before > run_start:
                kept.append(data[run_start:before])
            run_start = section.position
        if subscription_ids:
            self.subscription_ids = tuple(subscription_ids)
        if not kept:
            self.forward = data[run_start:end]
        else:
            kept.append(data[run_start:end])
            self.forward = b"".join(kept)


def encode_one(identifier: int, value: int) -> bytes:
    """A numeric property with its identifier, section 2.2.2.2.

    Raises:
        ValueError: no such numeric property, or a value that it may not have.
    """
    row = TABLE.get(identifier)
    if row is None or row.wire_type > VARINT:
        raise ValueError(f"no numeric property has the identifier {identifier}")
    if not row.minimum <= value <= row.maximum:
        raise ValueError(f"the property {row.name} may not be {value}")
    head = bytes((identifier,))
    if row.wire_type == BYTE:
        return head + bytes((value,))
    if row.wire_type == TWO_BYTES:
        return head + two_bytes(value)
    if row.wire_type == FOUR_BYTES:
        return head + four_bytes(value)
    return head + varint(value)


def _encode_user(user: list[tuple[str, str]]) -> bytes:
    return b"".join([b"\x26" + text(name) + text(value) for name, value in user])


def encode(properties: Properties, place: int) -> bytes:
    """A property section with its length: by identifier, then the user properties in their order (section 2.2.2).

    `place` is the control packet type, or `WILL`.

    Raises:
        ValueError: a property that may not stand there, is of another type, or has a value that cannot be written.
    """
    if not properties:
        return b"\0"
    parts: list[tuple[int, bytes]] = []
    for identifier, number in properties.integers.items():
        parts.append((identifier, encode_one(identifier, number)))
    for identifier, value in properties.strings.items():
        _require(identifier, STRING)
        parts.append((identifier, bytes((identifier,)) + text(value)))
    for identifier, raw in properties.binaries.items():
        _require(identifier, BINARY)
        parts.append((identifier, bytes((identifier,)) + string(raw)))
    for identifier, _ in parts:
        if not TABLE[identifier].allowed_in(place):
            raise ValueError(f"the property {TABLE[identifier].name} is not allowed in this packet")
    parts.sort()
    section = b"".join([encoded for _, encoded in parts]) + _encode_user(properties.user)
    return varint(len(section)) + section


def _require(identifier: int, wire_type: int) -> None:
    row = TABLE.get(identifier)
    if row is None or row.wire_type != wire_type:
        raise ValueError(f"no property of this type has the identifier {identifier}")


def encode_forward(
    payload_format: int | None = None,
    content_type: str | None = None,
    response_topic: str | None = None,
    correlation_data: bytes | None = None,
    user: list[tuple[str, str]] | None = None,
) -> bytes:
    """The encoded properties that `Publish.properties` and `Will.properties` carry (section 3.3.2.3).

    Raises:
        ValueError: a value that cannot be written, or a response topic that is no topic name [MQTT-3.3.2-14].
    """
    section = b""
    if payload_format is not None:
        section += encode_one(PAYLOAD_FORMAT_INDICATOR, payload_format)
    if content_type is not None:
        section += b"\x03" + text(content_type)
    if response_topic is not None:
        if not response_topic or "+" in response_topic or "#" in response_topic:
            raise ValueError(f"{response_topic!r} is not a topic name")
        section += b"\x08" + text(response_topic)
    if correlation_data is not None:
        section += b"\x09" + string(correlation_data)
    if user is not None:
        section += _encode_user(user)
    return section


def properties_of(forward: bytes) -> list[tuple[int, int, int]]:
    """Where the properties stand that a message carries on: identifier, start (that of the identifier) and end of each.

    `forward` was validated when it came in (`ForwardScan`).
    """
    found: list[tuple[int, int, int]] = []
    reader = Reader(forward, 0, len(forward))
    while reader.position < len(forward):
        start = reader.position
        identifier = reader.varint()
        if identifier == PAYLOAD_FORMAT_INDICATOR:
            reader.byte()
        else:
            reader.binary()
            if identifier == USER_PROPERTY:
                reader.binary()
        found.append((identifier, start, reader.position))
    return found


def decode_forward(raw: bytes) -> Properties:
    """What `Publish.properties` or `Will.properties` says, for those who look into it.

    Raises:
        MalformedPacket: not encoded properties, or not only ones that are forwarded.
        ProtocolViolation: a property is repeated or its value is not allowed.
    """
    found = _parse_section(Reader(raw, 0, len(raw)), _PUBLISH_PLACE)
    for identifier in found.integers:
        if identifier not in FORWARDED:
            raise MalformedPacket(f"the property {TABLE[identifier].name} is not forwarded")
    response_topic = found.strings.get(RESPONSE_TOPIC)
    if response_topic is not None:
        check_response_topic(response_topic)
    return found
