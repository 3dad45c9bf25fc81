"""Decodes the packets of one network connection (section 3 of both specifications).

The owner of a `Decoder` calls `feed` for each read, then `next_frame` until it returns False, and for each frame
`publish` or `short_ack` (if it is one), `filters` or `packet`. The decoder makes every check that needs one packet
only. Invalid input raises only `ProtocolError`, which has the reason code; then the connection ends. Checks that need
state (a second CONNECT, aliases, packet identifiers in use, keep alive) are made elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.codec import packets, properties, reason_codes
from canopy_mqtt.core.codec.framing import Frames
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
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from canopy_mqtt.core.codec.primitives import Reader, utf8
from canopy_mqtt.core.codec.properties import NO_PROPERTIES, ForwardScan, Properties
from canopy_mqtt.core.codec.reason_codes import MalformedPacket, ProtocolViolation, Refused
from canopy_mqtt.core.codec.topic_names import SHARE_PREFIX, has_control, parse_shared, scan_filter, validate_filter

if TYPE_CHECKING:
    from mypy_extensions import i64

# What only a client and what only a server may send (section 2.1.2).
_FROM_CLIENT: Final = 1 << 1 | 1 << 8 | 1 << 10 | 1 << 12
_FROM_SERVER: Final = 1 << 2 | 1 << 9 | 1 << 11 | 1 << 13

_V3_BRIDGE: Final = 0x80

# Reason codes that a packet may carry, from the table in its section.
_CONNACK_CODES: Final = frozenset(
    (
        0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A,
        0x9B, 0x9C, 0x9D, 0x9F,
    )
)  # fmt: skip
_PUBACK_CODES: Final = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_PUBREL_CODES: Final = frozenset((0x00, 0x92))
_SUBACK_CODES: Final = frozenset((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2))
_SUBACK_CODES_V3: Final = frozenset((0x00, 0x01, 0x02, 0x80))
_UNSUBACK_CODES: Final = frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91))
_DISCONNECT_CODES_CLIENT: Final = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
)
# 0x8C is in the table of section 2.4 for DISCONNECT, though not in the one of section 3.14.2.1.
_DISCONNECT_CODES_SERVER: Final = frozenset(
    (
        0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97,
        0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
    )
)  # fmt: skip
_AUTH_CODES_CLIENT: Final = frozenset((reason_codes.CONTINUE_AUTHENTICATION, reason_codes.REAUTHENTICATE))
_AUTH_CODES_SERVER: Final = frozenset((reason_codes.SUCCESS, reason_codes.CONTINUE_AUTHENTICATION))


class FilterList:
    """The topic filters of one SUBSCRIBE or UNSUBSCRIBE (sections 3.8 and 3.10), and a cursor over them.

    There may be a quarter of a million. They are read in turns, first to check them and then to act on them, without an
    object for each.

    After `next` said True the current filter is `data[filter_at:filter_end]`, with its subscription options in
    `options` (SUBSCRIBE alone). The packet's bytes stay as they are while this lasts: it refers to them.
    """

    def __init__(self, decoder: Decoder) -> None:
        """Begin with the decoder's current frame.

        Raises:
            ProtocolError: its packet identifier or its properties are not right, or it has no filter.
        """
        data = decoder.buffer
        start: i64 = decoder.body
        end: i64 = decoder.end
        kind: i64 = decoder.header >> 4
        self.packet_id = 0
        self.properties = NO_PROPERTIES
        # The common case: an identifier, and in 5.0 no properties.
        if decoder.version == 5 and start + 3 <= end and data[start + 2] == 0:
            self.packet_id = data[start] << 8 | data[start + 1]
            start += 3
        if self.packet_id == 0:
            reader = Reader(data, decoder.body, end)
            self.packet_id = decoder.packet_id(reader)
            self.properties = decoder.section(kind, reader)
            start = reader.position
        if start >= end:  # [MQTT-3.8.3-2] [MQTT-3.10.3-2]
            raise ProtocolViolation("SUBSCRIBE or UNSUBSCRIBE without a topic filter")
        self.subscribes = kind == packets.SUBSCRIBE
        # Whether all filters that were checked are printable ASCII, and none begins with "$".
        self.plain = True
        self.filter_at: i64 = 0
        self.filter_end: i64 = 0
        self.options: i64 = 0
        # Where the next filter is, and the last one ends. Set `position` back to `start` to begin again.
        self.start: i64 = start
        self.position: i64 = start
        self.end: i64 = end
        self._v5 = decoder.version == packets.V5
        self._data = data

    def next(self, checks: bool, controls: bool = True) -> bool:
        """Go to the next filter, and check it and its options against the grammar; False behind the last one.

        `checks`: False for one that was checked. `controls`: whether it may hold control characters, which a server may
        take for malformed (section 1.5.4).

        Raises:
            MalformedPacket: the filter is no topic filter [MQTT-3.8.3-1] [MQTT-3.10.3-1], reserved bits are set, or it
                runs past the end of the packet.
            ProtocolViolation: options that do not exist, or No Local on a shared subscription.
        """
        at: i64 = self.position
        end: i64 = self.end
        if at >= end:
            return False
        if at + 2 > end:
            raise MalformedPacket("a field runs past the end of the packet")
        data = self._data
        high: i64 = data[at]
        low: i64 = data[at + 1]
        at += 2
        stop: i64 = at + (high << 8) + low
        behind: i64 = stop
        if self.subscribes:
            behind += 1
            if behind <= end:
                self.options = data[stop]
        if behind > end:
            raise MalformedPacket("a field runs past the end of the packet")
        self.filter_at = at
        self.filter_end = stop
        self.position = behind
        if not checks:
            return True
        options: i64 = self.options
        if self.subscribes:
            if not self._v5:
                if options > 2:  # [MQTT3-3.8.3-4]
                    raise MalformedPacket(f"SUBSCRIBE with the requested QoS byte {options:#04x}")
            elif options & 0xC0:  # [MQTT-3.8.3-5]
                raise MalformedPacket("reserved bits in the subscription options")
            elif options & 3 == 3 or options & 0x30 == 0x30:  # section 3.8.3.1
                raise ProtocolViolation("subscription options with QoS 3 or retain handling 3")
        if scan_filter(data, at, stop) == 0:
            self.plain = False
            name = utf8(data[at:stop])
            if not controls and has_control(name):
                raise MalformedPacket("a topic filter with a control character")
            validate_filter(parse_shared(name)[1])
            if self.subscribes and options & 4 and name.startswith(SHARE_PREFIX):  # [MQTT-3.8.3-4]
                raise ProtocolViolation("No Local on a shared subscription")
        return True

    def topic_filter(self) -> str:
        """Return the current filter, once it was checked."""
        return self._data[self.filter_at : self.filter_end].decode()

    def request(self) -> SubscriptionRequest:
        """Return the current filter of a SUBSCRIBE with its options, once it was checked."""
        options: i64 = self.options
        topic_filter = self._data[self.filter_at : self.filter_end].decode()
        return SubscriptionRequest(topic_filter, options & 3, options & 4 != 0, options & 8 != 0, options >> 4 & 3)


class Decoder(Frames):
    """The incoming packets of one network connection. `server`: whether this side is the server.

    `version` is 0 until a CONNECT was decoded (the decoder sets it) or the owner sets it (a client does, before it
    feeds). See `Frames` for the current frame and for `max_packet_size`.
    """

    def __init__(
        self, max_packet_size: int, server: bool = True, version: int = 0, max_user_properties: int = 0
    ) -> None:
        super().__init__(max_packet_size, version)
        # In one packet, and in a will; 0: any number.
        self.max_user_properties = max_user_properties
        self.server: bool = server
        # Of the CONNECT, as soon as it is known: also of one that is malformed further on.
        self.client_id: str = ""

    def short_ack(self) -> int:
        """The packet identifier, if the current frame is PUBACK, PUBREC, PUBREL or PUBCOMP and means only "success".

        -1 otherwise; `packet` then tells what it is. For the hot path: no object is made.
        """
        data = self.buffer
        body: i64 = self.body
        size: i64 = self.end - body
        kind: i64 = self.header >> 4
        if size < 2 or size > 4 or kind < 4 or kind > 7 or self.version == 0:
            return -1
        if size > 2 and (self.version < 5 or data[body + 2] != 0 or (size == 4 and data[body + 3] != 0)):
            return -1
        high: i64 = data[body]
        low: i64 = data[body + 1]
        packet_id: i64 = (high << 8) + low
        if packet_id == 0:
            return -1
        return packet_id

    def publish(self) -> Publish:
        """Decode the current frame, a PUBLISH (section 3.3).

        Raises:
            MalformedPacket, ProtocolViolation, TopicAliasInvalid: as the section says.
        """
        if self.version == 0:
            raise ProtocolViolation("the first packet is not a CONNECT")  # [MQTT-3.1.0-1]
        reader = Reader(self.buffer, self.body, self.end)
        header: i64 = self.header
        qos: i64 = header >> 1 & 3
        retain = header & 1 == 1
        dup = header & 8 == 8
        topic = reader.binary()  # [MQTT-3.3.2-1]
        utf8(topic)
        if (
            43 in topic or 35 in topic
        ):  # + and # [MQTT-3.3.2-2]; as numbers, since `in` with bytes is fifty times slower
            raise MalformedPacket("a topic name with a wildcard")
        packet_id: i64 = 0
        if qos > 0:  # [MQTT-2.2.1-2]
            packet_id = self.packet_id(reader)
        elif dup:  # [MQTT-3.3.1-2]
            raise MalformedPacket("DUP in a PUBLISH with QoS 0")
        if self.version < 5:
            if not topic:  # [MQTT3-4.7.3-1]
                raise MalformedPacket("an empty topic name")
            return Publish(topic, reader.data[reader.position : reader.end], qos, retain, dup, packet_id)
        scan = self._scan(reader, packets.PUBLISH)
        if not topic and scan.topic_alias == 0:  # [MQTT-4.7.3-1]
            raise ProtocolViolation("an empty topic name without a topic alias")
        if self.server and scan.subscription_ids:  # [MQTT-3.3.4-6]
            raise ProtocolViolation("a subscription identifier in a PUBLISH from a client")
        return Publish(
            topic, reader.data[reader.position : reader.end], qos, retain, dup, packet_id,
            scan.forward, scan.topic_alias, scan.message_expiry, scan.subscription_ids, scan.request,
        )  # fmt: skip

    def packet(self) -> Packet:
        """Decode the current frame, whatever its type (section 3).

        Raises:
            ProtocolError: of the class, and with the reason code, that its section asks for.
        """
        kind = self.header >> 4
        if self.version == 0 and kind != packets.CONNECT:  # [MQTT-3.1.0-1]
            raise ProtocolViolation(f"the first packet is not a CONNECT but a {packets.NAMES[kind]}")
        if kind == packets.PUBLISH:
            return self.publish()
        if (_FROM_SERVER if self.server else _FROM_CLIENT) >> kind & 1:
            raise ProtocolViolation(f"{packets.NAMES[kind]} goes the other way")
        reader = Reader(self.buffer, self.body, self.end)
        packet = self._body(kind, reader)
        if reader.position != reader.end:
            raise MalformedPacket(f"{reader.end - reader.position} bytes too many in a {packets.NAMES[kind]}")
        return packet

    def _body(self, kind: int, reader: Reader) -> Packet:
        if packets.PUBACK <= kind <= packets.PUBCOMP:
            return self._ack(kind, reader)
        if kind == packets.SUBSCRIBE:
            return self._subscribe(reader)
        if kind == packets.UNSUBSCRIBE:
            return self._unsubscribe(reader)
        if kind == packets.PINGREQ:
            return Pingreq()
        if kind == packets.DISCONNECT:
            return self._disconnect(reader)
        if kind == packets.CONNECT:
            return self._connect(reader)
        if kind == packets.SUBACK:
            return self._suback(reader)
        if kind == packets.UNSUBACK:
            return self._unsuback(reader)
        if kind == packets.PINGRESP:
            return Pingresp()
        if kind == packets.CONNACK:
            return self._connack(reader)
        return self._auth(reader)

    def section(self, kind: int, reader: Reader) -> Properties:
        """The property section of 5.0; empty, and nothing read, before it."""
        return properties.parse(reader, kind, self.max_user_properties) if self.version >= 5 else NO_PROPERTIES

    def _connect(self, reader: Reader) -> Connect:
        """Section 3.1 [MQTT-3.1.4-1] [MQTT3-3.1.4-1]. Sets `version` as soon as the protocol level is known.

        The payload has its fields in the order of [MQTT-3.1.3-1], and exactly those that the flags announce
        [MQTT-3.1.2-9] [MQTT-3.1.2-16] [MQTT-3.1.2-17] [MQTT-3.1.2-18] [MQTT-3.1.2-19]: a missing one runs past the end,
        and one too many is left over.
        """
        name = reader.binary()
        level = reader.byte()
        bridge = level == packets.V31 | _V3_BRIDGE or level == packets.V311 | _V3_BRIDGE
        if bridge:
            level &= 127
        if name == b"MQTT":
            known = level == packets.V311 or level == packets.V5
        elif name == b"MQIsdp":
            known = level == packets.V31
        else:  # [MQTT-3.1.2-1]: no answer can be right for a protocol that we do not know
            raise ProtocolViolation("the protocol name is neither MQTT nor MQIsdp")
        if not known:  # [MQTT-3.1.2-2] [MQTT3-3.1.2-2]: answered in the form that every client knows
            self.version = packets.V311
            raise Refused(f"protocol level {level} is not supported", reason_codes.UNSUPPORTED_PROTOCOL_VERSION)
        self.version = level
        flags = reader.byte()
        if level == packets.V31:
            # Bits that 3.1 does not use say nothing: the reserved one, and those of a will where there is none.
            flags &= 0xFE if flags & 4 else 0xC6
        elif self.header & 15:  # [MQTT-2.1.3-1] [MQTT3-2.2.2-2]
            raise MalformedPacket(f"fixed header flags {self.header & 15:#06b} in CONNECT")
        if flags & 1:  # [MQTT-3.1.2-3]
            raise MalformedPacket("the reserved flag of CONNECT is set")
        will_qos = flags >> 3 & 3
        if flags & 4:
            if will_qos == 3:  # [MQTT-3.1.2-12]
                raise MalformedPacket("a will with QoS 3")
        elif flags & 0x38:  # [MQTT-3.1.2-11] [MQTT-3.1.2-13]
            raise MalformedPacket("will QoS or will retain without a will")
        if level < 5 and flags & 0xC0 == 0x40:  # [MQTT3-3.1.2-22]
            raise MalformedPacket("a password without a user name")
        keep_alive = reader.two_bytes()
        section = self.section(packets.CONNECT, reader)
        if (
            properties.AUTHENTICATION_DATA in section.binaries
            and properties.AUTHENTICATION_METHOD not in section.strings
        ):
            raise ProtocolViolation("authentication data without an authentication method")  # section 3.1.2.11.10
        client_id = reader.string()  # [MQTT-3.1.3-3] [MQTT-3.1.3-4]
        self.client_id = client_id
        if not client_id and (level == packets.V31 or (level == packets.V311 and not flags & 2)):
            # [MQTT3-3.1.3-7] [MQTT3-3.1.3-8]; 3.1 knows no empty client identifier at all.
            raise Refused(
                "a client without an identifier cannot keep its session", reason_codes.CLIENT_IDENTIFIER_NOT_VALID
            )
        will = self._will(reader, will_qos, flags & 0x20 != 0) if flags & 4 else None
        user_name: str | None = None
        password: bytes | None = None
        # MQTT 3.1 lets both fields be missing whatever the flags say.
        if flags & 0x80 and not (level == packets.V31 and reader.position == reader.end):
            user_name = reader.string()  # [MQTT-3.1.3-12]
        if flags & 0x40 and not (level == packets.V31 and reader.position == reader.end):
            password = reader.binary()
        return Connect(
            client_id=client_id, version=level, clean_start=flags & 2 != 0, keep_alive=keep_alive, will=will,
            user_name=user_name, password=password, properties=section, bridge=bridge,
        )  # fmt: skip

    def _scan(self, reader: Reader, place: int) -> ForwardScan:
        """The properties of a PUBLISH or a will (`place`): the reader is left behind them."""
        length = reader.varint()
        start = reader.position
        stop = start + length
        if stop > reader.end:
            whose = "will properties" if place == properties.WILL else "properties"
            raise MalformedPacket(f"the {whose} run past the end of the packet")
        reader.position = stop
        return ForwardScan(reader.data, start, stop, place, self.max_user_properties)

    def _will(self, reader: Reader, qos: int, retain: bool) -> Will:
        """Sections 3.1.3.2 to 3.1.3.4."""
        delay = 0
        expiry = -1
        forward = b""
        if self.version >= 5:
            scan = self._scan(reader, properties.WILL)
            delay = scan.will_delay
            expiry = scan.message_expiry
            forward = scan.forward
        topic = reader.string()  # [MQTT-3.1.3-11]
        payload = reader.binary()
        if not topic or "+" in topic or "#" in topic:  # [MQTT-4.7.3-1] [MQTT-4.7.1-1]
            raise MalformedPacket("the will topic is not a topic name")
        return Will(
            topic=topic, payload=payload, qos=qos, retain=retain, delay=delay, message_expiry=expiry, properties=forward
        )

    def _connack(self, reader: Reader) -> Connack:
        """Section 3.2."""
        flags = reader.byte()
        if flags & 0xFE:  # [MQTT-3.2.2-1]
            raise MalformedPacket("reserved flags of CONNACK are set")
        code = reader.byte()
        if self.version < 5:
            if code > reason_codes.V3_NOT_AUTHORIZED:
                raise ProtocolViolation(f"CONNACK with the reserved return code {code}")
            section = Properties()
        elif reader.position == reader.end and code == reason_codes.V3_UNACCEPTABLE_PROTOCOL_VERSION:
            # How a server that knows 3.1.1 only answers a CONNECT of 5.0 [MQTT3-3.1.2-2].
            code = reason_codes.UNSUPPORTED_PROTOCOL_VERSION
            section = Properties()
        else:
            if code not in _CONNACK_CODES:
                raise ProtocolViolation(f"CONNACK with the reason code {code:#04x}")  # [MQTT-3.2.2-8]
            section = properties.parse(reader, packets.CONNACK)
        if flags and code:  # [MQTT-3.2.2-6]
            raise ProtocolViolation("session present in a CONNACK that refuses")
        return Connack(session_present=flags == 1, reason_code=code, properties=section)

    def packet_id(self, reader: Reader) -> int:
        packet_id = reader.two_bytes()
        if packet_id == 0:  # [MQTT-2.2.1-3] [MQTT-2.2.1-4] [MQTT3-2.3.1-1]
            raise ProtocolViolation("a packet identifier of 0")
        return packet_id

    def _ack(self, kind: int, reader: Reader) -> Ack:
        """Sections 3.4 to 3.7 [MQTT-2.2.1-5]."""
        packet_id = self.packet_id(reader)
        if self.version < 5 or reader.position == reader.end:
            return Ack(kind=kind, packet_id=packet_id)
        code = reader.byte()
        if code not in (_PUBACK_CODES if kind <= packets.PUBREC else _PUBREL_CODES):
            # [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1]
            raise ProtocolViolation(f"{packets.NAMES[kind]} with the reason code {code:#04x}")
        section = Properties() if reader.position == reader.end else self.section(kind, reader)
        return Ack(kind=kind, packet_id=packet_id, reason_code=code, properties=section)

    def _subscribe(self, reader: Reader) -> Subscribe:
        """Section 3.8."""
        filters = FilterList(self)
        reader.position = reader.end
        requests: list[SubscriptionRequest] = []
        while filters.next(True):
            requests.append(filters.request())
        return Subscribe(packet_id=filters.packet_id, requests=requests, properties=filters.properties)

    def _suback(self, reader: Reader) -> Suback:
        """Section 3.9."""
        packet_id = self.packet_id(reader)
        section = self.section(packets.SUBACK, reader)
        codes = self._codes(reader, _SUBACK_CODES if self.version >= 5 else _SUBACK_CODES_V3)  # [MQTT-3.9.3-2]
        return Suback(packet_id=packet_id, reason_codes=codes, properties=section)

    def _codes(self, reader: Reader, allowed: frozenset[int]) -> list[int]:
        codes: list[int] = []
        while reader.position < reader.end:
            code = reader.byte()
            if code not in allowed:
                raise ProtocolViolation(f"the reason code {code:#04x} in an acknowledgement")
            codes.append(code)
        if not codes:
            raise ProtocolViolation("an acknowledgement without reason codes")
        return codes

    def _unsubscribe(self, reader: Reader) -> Unsubscribe:
        """Section 3.10."""
        filters = FilterList(self)
        reader.position = reader.end
        topic_filters: list[str] = []
        while filters.next(True):
            topic_filters.append(filters.topic_filter())
        return Unsubscribe(packet_id=filters.packet_id, topic_filters=topic_filters, properties=filters.properties)

    def _unsuback(self, reader: Reader) -> Unsuback:
        """Section 3.11; no payload before 5.0."""
        packet_id = self.packet_id(reader)
        if self.version < 5:
            return Unsuback(packet_id=packet_id)
        section = properties.parse(reader, packets.UNSUBACK)
        codes = self._codes(reader, _UNSUBACK_CODES)  # [MQTT-3.11.3-2]
        return Unsuback(packet_id=packet_id, reason_codes=codes, properties=section)

    def _disconnect(self, reader: Reader) -> Disconnect:
        """Section 3.14."""
        if self.version < 5:
            if not self.server:
                raise ProtocolViolation("a DISCONNECT from a server of 3.1.1")
            return Disconnect()
        if reader.position == reader.end:
            return Disconnect()
        code = reader.byte()
        if code not in (_DISCONNECT_CODES_CLIENT if self.server else _DISCONNECT_CODES_SERVER):  # [MQTT-3.14.2-1]
            raise ProtocolViolation(f"DISCONNECT with the reason code {code:#04x}")
        section = Properties() if reader.position == reader.end else self.section(packets.DISCONNECT, reader)
        if self.server:
            if properties.SERVER_REFERENCE in section.strings:  # section 3.14.2.2.5
                raise ProtocolViolation("a server reference from a client")
        elif properties.SESSION_EXPIRY_INTERVAL in section.integers:  # [MQTT-3.14.2-2]
            raise ProtocolViolation("a session expiry interval in a DISCONNECT from a server")
        return Disconnect(reason_code=code, properties=section)

    def _auth(self, reader: Reader) -> Auth:
        """Section 3.15. A short form without properties exists for success only, and only a server sends that."""
        code = reason_codes.SUCCESS if reader.position == reader.end else reader.byte()
        if code not in (_AUTH_CODES_CLIENT if self.server else _AUTH_CODES_SERVER):  # [MQTT-3.15.2-1]
            raise ProtocolViolation(f"AUTH with the reason code {code:#04x}")
        if reader.end == self.body:
            return Auth()
        section = self.section(packets.AUTH, reader)
        if properties.AUTHENTICATION_METHOD not in section.strings:  # section 3.15.2.2.2
            raise ProtocolViolation("AUTH without an authentication method")
        return Auth(reason_code=code, properties=section)
