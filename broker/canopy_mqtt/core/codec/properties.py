"""MQTT 5.0 properties (section 2.2.2): the table of all properties, their container, and their codec.

`PropertyReader` reads and validates one property after another by the table. Loops over it convert a section into
`Properties` (`parse`), find the properties of a PUBLISH or Will for this hop and pass the others on unchanged
(`ForwardScan`), and add or remove the mount of a Response Topic. An unknown or misplaced identifier and a value of a
wrong type are a Malformed Packet; a repetition and a value out of range are a Protocol Error (section 2.2.2.2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.primitives import BYTE as BYTES
from canopy_mqtt.core.codec.primitives import Reader, four_bytes, string, text, two_bytes, utf8, varint
from canopy_mqtt.core.codec.reason_codes import MalformedPacket, ProtocolViolation, Refused, TopicAliasInvalid
from canopy_mqtt.core.codec.topic_names import mount_topic, unmount_topic

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
        """Return True if it may stand in the control packet type `place`, or in the will (`WILL`)."""
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
"""A server passes these on unaltered [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-20]."""


class Data:
    """Has a value, which is that of its `FIELDS`."""

    FIELDS: ClassVar[tuple[str, ...]] = ()

    def _values(self) -> list[object]:
        return [getattr(self, name) for name in self.FIELDS]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Data) and type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(type(self).__name__)  # equal values have equal ones, whatever the order of their properties

    def __repr__(self) -> str:
        values = [f"{name}={getattr(self, name)!r}" for name in self.FIELDS]
        return f"{type(self).__name__}({', '.join(values)})"


class Properties(Data):
    """Properties of one packet: numbers, strings and binary by identifier, user properties in order.

    `integers[id]`, `strings[id]`, `binaries[id]` have the properties of these types; `user` has name/value pairs in
    the order of the wire (section 3.3.2.3.7). A SUBSCRIBE has at most one subscription identifier, so that it is in
    `integers`. A PUBLISH keeps its forwarded properties encoded instead.
    """

    FIELDS = ("integers", "strings", "binaries", "user")

    def __init__(self) -> None:
        self.integers: dict[int, int] = {}
        self.strings: dict[int, str] = {}
        self.binaries: dict[int, bytes] = {}
        self.user: list[tuple[str, str]] = []

    def __bool__(self) -> bool:
        return bool(self.integers or self.strings or self.binaries or self.user)


NO_PROPERTIES: Final = Properties()
"""The properties of a packet of 3.1 or 3.1.1. Read it; never change it."""


def check_response_topic(topic: str) -> None:
    """Check that a response topic is not empty [MQTT-4.7.3-1] and has no wildcards [MQTT-3.3.2-14].

    Raises:
        MalformedPacket: it is not a topic name.
    """
    if not topic or "+" in topic or "#" in topic:
        raise MalformedPacket("the response topic is not a topic name")


class PropertyReader(Reader):
    """Reads and validates the properties of a section, one after another.

    The current property begins at `start`, and has its `identifier` and its value: a `number`, or the bytes `value` of
    a string or of binary data. A user property has a `name` too. The reader does not check that strings are UTF-8.
    """

    def __init__(self, data: bytes, start: int, end: int, place: int) -> None:
        """`data[start:end]` is a section without its length. `place`: the control packet type, or `WILL`."""
        super().__init__(data, start, end)
        self.identifier: i64 = 0
        self.wire_type: i64 = 0
        self.start: i64 = start
        self.number: int = 0
        self.name: bytes = b""
        self.value: bytes = b""
        self._place: i64 = place
        self._seen: i64 = 0

    def next(self) -> bool:
        """Read the next property. Return False at the end of the section.

        Raises:
            MalformedPacket: the property runs past the end, does not exist, or does not belong here.
            ProtocolViolation: the property is repeated, or its value is not allowed.
            TopicAliasInvalid: the property is a topic alias of 0.
        """
        if self.position >= self.end:
            return False
        self.start = self.position
        identifier: i64 = self.varint()
        self.identifier = identifier
        if identifier == USER_PROPERTY:  # the commonest; it may stand in each packet that has properties, repeatedly
            self.wire_type = STRING_PAIR
            self.name = self.binary()
            self.value = self.binary()
            return True
        row = TABLE.get(identifier)
        if row is None:
            raise MalformedPacket(f"no property has the identifier {identifier}")
        packets: i64 = row.packets
        if packets >> self._place & 1 == 0:
            raise MalformedPacket(f"the property {row.name} is not allowed in this packet")
        bit: i64 = 1  # a variable on purpose: compiled, the literal in `1 << n` would be 32 bits wide
        bit <<= identifier
        if self._seen & bit and (identifier != SUBSCRIPTION_IDENTIFIER or self._place != _PUBLISH_PLACE):
            raise ProtocolViolation(f"the property {row.name} is there twice")
        self._seen |= bit
        wire_type: i64 = row.wire_type
        self.wire_type = wire_type
        if wire_type >= BINARY:
            self.value = self.binary()
            return True
        if wire_type == BYTE:
            number = self.byte()
        elif wire_type == TWO_BYTES:
            number = self.two_bytes()
        elif wire_type == FOUR_BYTES:
            number = self.four_bytes()
        else:
            number = self.varint()
        if not row.minimum <= number <= row.maximum:  # sections 3.1.2.11, 3.2.2.3, 3.3.2.3, 3.8.2.1
            if identifier == TOPIC_ALIAS:  # [MQTT-3.3.2-8]
                raise TopicAliasInvalid("a topic alias of 0")
            raise ProtocolViolation(f"the property {row.name} may not be {number}")
        self.number = number
        return True

    def replaced(self, value: bytes | None) -> bytes:
        """Return all of `data` with another value of the current string; None: without this property."""
        before = self.data[: self.start]
        if value is not None:
            before += BYTES[self.identifier] + string(value)
        return before + self.data[self.position :]


def _too_many(most: int) -> Refused:
    return Refused(f"more than {most} user properties in a packet", reason_codes.QUOTA_EXCEEDED)


def parse(reader: Reader, place: int, most: int = 0) -> Properties:
    """Read a property section, length included, and leave the reader behind it (section 2.2.2) [MQTT-2.2.2-1].

    `place` is the control packet type, or `WILL`. `most`: the allowed number of user properties; 0: any. PUBLISH and
    Will take `ForwardScan` instead.

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
    section = PropertyReader(reader.data, reader.position, stop, place)
    reader.position = stop
    return _collect(section, most)


def _collect(section: PropertyReader, most: int) -> Properties:
    found = Properties()
    while section.next():
        identifier: int = section.identifier
        wire_type: i64 = section.wire_type
        if wire_type == STRING_PAIR:  # [MQTT-1.5.7-1]
            found.user.append((utf8(section.name), utf8(section.value)))
            if 0 < most < len(found.user):
                raise _too_many(most)
        elif wire_type == STRING:
            found.strings[identifier] = utf8(section.value)
        elif wire_type == BINARY:
            found.binaries[identifier] = section.value
        else:
            found.integers[identifier] = section.number
    return found


class ForwardScan:
    """Reads the properties of a PUBLISH or a Will without building a `Properties`.

    `forward` holds the encoded properties to pass on, in their order [MQTT-3.3.2-18]. The others concern
    this hop alone: `topic_alias` (0: none), `message_expiry` (s, -1: none), `will_delay` (s, 0: none) and
    `subscription_ids`. `request` is True if there is a Response Topic.
    """

    def __init__(self, data: bytes, start: int, stop: int, place: int, most: i64 = 0) -> None:
        """Validate and sort out `data[start:stop]`, a section without its length. `place`: PUBLISH or `WILL`.

        `most`: the allowed number of user properties and subscription identifiers; 0: any.

        Raises:
            MalformedPacket: it cannot be parsed, a property does not belong here, or the response topic is no name.
            ProtocolViolation: a property is repeated or its value is not allowed.
            TopicAliasInvalid: a topic alias of 0.
            Refused: more than `most` user properties.
        """
        self.forward: bytes = b""
        self.topic_alias: int = 0
        self.message_expiry: int = -1
        self.will_delay: int = 0
        self.subscription_ids: tuple[int, ...] = ()
        self.request: bool = False
        section = PropertyReader(data, start, stop, place)
        kept: list[bytes] = []
        subscription_ids: list[int] = []
        run_start: i64 = start
        repeated: i64 = 0
        while section.next():
            identifier: i64 = section.identifier
            wire_type: i64 = section.wire_type
            if wire_type == STRING_PAIR:
                utf8(section.name)  # [MQTT-1.5.7-1]
                utf8(section.value)
                repeated += 1
                if 0 < most < repeated:
                    raise _too_many(most)
                continue
            if wire_type == STRING:
                value = utf8(section.value)  # [MQTT-3.3.2-13] [MQTT-3.3.2-19]
                if identifier == RESPONSE_TOPIC:
                    check_response_topic(value)
                    self.request = True
                continue
            if identifier == PAYLOAD_FORMAT_INDICATOR or wire_type == BINARY:
                continue
            number = section.number
            if identifier == MESSAGE_EXPIRY_INTERVAL:
                self.message_expiry = number
            elif identifier == TOPIC_ALIAS:
                self.topic_alias = number
            elif identifier == WILL_DELAY_INTERVAL:
                self.will_delay = number
            else:
                subscription_ids.append(number)
                repeated += 1
                if 0 < most < repeated:
                    raise _too_many(most)
            before: i64 = section.start
            if before > run_start:
                kept.append(data[run_start:before])
            run_start = section.position
        self.subscription_ids = tuple(subscription_ids)
        kept.append(data[run_start:stop])
        self.forward = b"".join(kept)


def encode_one(identifier: int, value: int) -> bytes:
    """Encode a numeric property with its identifier, section 2.2.2.2.

    Raises:
        ValueError: there is no such numeric property, or it may not have this value.
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
    """Encode a property section with its length: by identifier, then the user properties in order (section 2.2.2).

    `place` is the control packet type, or `WILL`.

    Raises:
        ValueError: a property does not belong there, has another type, or has a value that cannot be written.
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
    """Encode properties for `Publish.properties` or `Will.properties` (section 3.3.2.3).

    Raises:
        ValueError: a value cannot be written, or the response topic is no topic name [MQTT-3.3.2-14].
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


def response_topic(forward: bytes) -> PropertyReader | None:
    """Return a reader that stands at the Response Topic of forwarded properties; None: they have none."""
    if RESPONSE_TOPIC in forward:  # a search for one byte is quicker than the walk
        section = PropertyReader(forward, 0, len(forward), _PUBLISH_PLACE)
        while section.next():
            if section.identifier == RESPONSE_TOPIC:
                return section
    return None


def mount_properties(mount: bytes, forward: bytes) -> bytes | None:
    """Put the Response Topic of a client's message below its mount; None: that has no such topic (`mount_topic`)."""
    found = response_topic(forward)
    if found is None:
        return forward
    topic = mount_topic(mount, found.value)
    return None if topic is None else found.replaced(topic)


def unmount_properties(mount: bytes, forward: bytes) -> bytes:
    """Take the mount of a client from the Response Topic of a message.

    It leaves out a Response Topic outside of the mount: that would show the topics of others, and the client's answer
    would go elsewhere.
    """
    found = response_topic(forward)
    return forward if found is None else found.replaced(unmount_topic(mount, found.value))


def decode_forward(raw: bytes) -> Properties:
    """Decode `Publish.properties` or `Will.properties`.

    Raises:
        MalformedPacket: the bytes are no properties, or a property is not forwarded.
        ProtocolViolation: a property is repeated or its value is not allowed.
    """
    found = _collect(PropertyReader(raw, 0, len(raw), _PUBLISH_PLACE), 0)
    for identifier in found.integers:
        if identifier not in FORWARDED:
            raise MalformedPacket(f"the property {TABLE[identifier].name} is not forwarded")
    if RESPONSE_TOPIC in found.strings:
        check_response_topic(found.strings[RESPONSE_TOPIC])
    return found
