"""One application message inside the broker, and its encoded forms.

`Message` owns the bytes of a publish and every wire form that was made of it, so that a fanout encodes at most once
for each layout (protocol version × QoS × retain flag): the frame of a QoS 0 publish is shared by all its receivers,
and often is the very frame that came in; with QoS 1 and 2 only the packet identifier differs from receiver to
receiver. A message is never changed after it was routed. On its way to one session it is a `Delivery` (`delivery`).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i32, i64, mypyc_attr, u8

from canopy_mqtt.core.codec.framing import head
from canopy_mqtt.core.codec.primitives import BYTE, MAX_FIELD, MAX_VARINT, two_bytes, varint
from canopy_mqtt.core.codec.properties import MESSAGE_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER, unmount_properties
from canopy_mqtt.core.codec.topic_names import unmount_topic

HEADROOM: Final = 16
"""Bytes of a frame beyond `Message.size`: fixed header, packet identifier, expiry."""

OVERHEAD: Final = 368
"""Bytes that a queued message is counted with beyond its topic, payload and properties: what it takes beside them when
one client alone gets it. Compiled, that is a `Message` of 120, a `Delivery` of 136, 33 for each bytes object, what the
allocator rounds up, and its places in a queue and in flight. Where several get it, they share all but the delivery."""

IDENTIFIER_PREFIX: Final = bytes((SUBSCRIPTION_IDENTIFIER,))

MANY_IDENTIFIERS: Final = 16
"""Subscription identifiers of a delivery whose bytes are kept for the next one."""

MAX_EXPIRY: Final = 0xFFFFFFFF
"""The largest Message Expiry Interval, in seconds (section 3.3.2.3.3)."""

NEAR_MAX_SIZE: Final = 268_000_000
"""Message size from which on it must be worked out whether a frame can hold it."""

NO_HEAD: Final = 255
"""The key of a head of a frame while none was made."""

NO_PROPERTIES: Final = b"\0"
"""The property length of a 5.0 PUBLISH without properties."""


@mypyc_attr(acyclic=True)
class Message:
    """An application message from a publisher, as it was accepted.

    `topic` is validated UTF-8; `properties` the encoded v5 properties that are forwarded unaltered; `expires_at` the
    time (s, monotonic) after which no delivery may start, 0.0: never; `publisher` its client identifier.
    """

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,
        properties: bytes,
        expires_at: float,
        publisher: str,
    ) -> None:
        # Thousands of these are alive under load: small fields stand together.
        self.topic = topic
        self._payload = payload
        self.properties = properties
        self.publisher = publisher
        # Frames of QoS 0 without the retain flag; None until one is needed.
        self.frame_v3: bytes | None = None
        self.frame_v5: bytes | None = None
        # The last head of a QoS 1 or 2 frame that was made, and what it was made for (QoS and version): a fanout asks
        # for the same again.
        self._head = b""
        self._tail_v5: bytes | None = None
        self.expires_at = expires_at
        # Bytes that it counts for in a queue.
        self.size: i64 = len(topic) + len(payload) + len(properties) + OVERHEAD
        # The name that a store gave it last; 0: none.
        self.record: i64 = 0
        # Where the payload starts in the frame that came in, while it has not been cut out of it.
        self._payload_start: i32 = -1
        self._head_key: u8 = NO_HEAD
        self.qos: u8 = qos
        self.retain = retain
        # From another node, which sends it again unless its receipt was committed here: with QoS 1, too, sessions that
        # a store keeps get it after that (`SendWindow.push`).
        self.held = False

    def adopt_frame(self, frame: bytes, v5: bool, payload_start: int) -> None:
        """Take the QoS 0 frame as it came in for the one of its version; its payload starts at `payload_start`."""
        self._payload_start = payload_start
        self.size = len(self.topic) + len(frame) - payload_start + len(self.properties) + OVERHEAD
        if v5:
            self.frame_v5 = frame
        else:
            self.frame_v3 = frame

    def adopt_head(self, head: bytes, v5: bool) -> None:
        """Take what stood before the packet identifier in the QoS 1 or 2 frame as it came in: it may go on so.

        The frame had neither DUP, retain flag nor, in 5.0, properties.
        """
        self._head = head
        key: i64 = i64(self.qos) * 2
        if v5:
            key += 1
        self._head_key = u8(key)

    def plain_frame(self) -> bytes | None:
        """The whole QoS 0 frame as it came in, while its payload was not cut out of it; else None."""
        if self._payload_start < 0 or self.retain or self.qos > 0 or self.properties:
            return None
        return self.frame_v5 if self.frame_v5 is not None else self.frame_v3

    def payload(self) -> bytes:
        """The payload; cut out of the incoming frame when it is first asked for."""
        if self._payload_start >= 0:
            frame = self.frame_v3 if self.frame_v3 is not None else self.frame_v5
            assert frame is not None
            self._payload = frame[self._payload_start :]
            self._payload_start = -1
        return self._payload

    def unmounted(self, mount: bytes) -> Message | None:
        """The same message as a client under a mount knows it; None: it has no name for its topic."""
        topic = unmount_topic(mount, self.topic)
        if topic is None:
            return None
        properties = self.properties
        if properties:
            properties = unmount_properties(mount, properties)
        return Message(topic, self.payload(), self.qos, self.retain, properties, self.expires_at, self.publisher)

    def shared_frame_suits(self) -> bool:
        """True if all receivers of a version can share a frame: nothing in it counts down, and it fits a packet."""
        return self.expires_at == 0.0 and self.size < NEAR_MAX_SIZE

    def expired(self, now: float) -> bool:
        """Return whether its message expiry interval has passed: no delivery may start any more [MQTT-3.3.2-5]."""
        return self.expires_at != 0.0 and self.expires_at <= now

    def remaining_expiry(self, now: float) -> int:
        """Seconds left of the message expiry interval, rounded up [MQTT-3.3.2-6]; -1: does not expire; 0: expired."""
        if self.expires_at == 0.0:
            return -1
        left = self.expires_at - now
        if left <= 0.0:
            return 0
        # A microsecond more is an error of floating point and no second: it must not grow on its way.
        return min(int(left + 0.999999), MAX_EXPIRY)

    def qos0_frame(self, v5: bool) -> bytes:
        """The QoS 0 frame without retain flag for one version, made once. Not for v5 when the message expires.

        QoS 0 and DUP 0 [MQTT-4.3.1-1], also where the message came with a higher QoS.
        """
        frame = self.frame_v5 if v5 else self.frame_v3
        if frame is None:
            frame = self.frame(v5, 0, False, False, 0, (), -1, 0, True)
            if v5:
                self.frame_v5 = frame
            else:
                self.frame_v3 = frame
        return frame

    def qos12_frame(self, v5: bool, qos: int, packet_id: int) -> bytes:
        """The frame of a first QoS 1 or 2 delivery without retain flag, subscription identifiers or expiry.

        It has DUP 0, since it is the first [MQTT-4.3.2-2] [MQTT-4.3.3-2].
        """
        payload = self._payload if self._payload_start < 0 else self.payload()
        if v5:
            tail = self._tail_v5
            if tail is None:
                properties = self.properties
                tail = varint(len(properties)) + properties + payload if properties else NO_PROPERTIES + payload
                if properties:
                    self._tail_v5 = tail
        else:
            tail = payload
        key: i64 = qos * 2
        if v5:
            key += 1
        if key != self._head_key:
            self._head = head(0x30 | (qos << 1), self.topic, len(tail))
            self._head_key = u8(key)
        # From left to right: for few parts that is half of what a join costs.
        number: i64 = packet_id
        return self._head + BYTE[number >> 8] + BYTE[number & 255] + tail

    def frame(
        self,
        v5: bool,
        qos: int,
        retain: bool,
        dup: bool,
        packet_id: int,
        identifiers: tuple[int, ...],
        expiry: int,
        alias: int,
        with_topic: bool,
    ) -> bytes:
        """Any PUBLISH frame of this message (section 3.3), made anew. `expiry` -1 and `alias` 0: absent.

        Raises:
            ValueError: it would be longer than a packet can be.
        """
        header: i64 = 0x30 | (qos << 1)
        if retain:
            header |= 0x01
        if dup:
            header |= 0x08
        encoded = b""
        if v5 and alias == 0 and expiry < 0 and not identifiers:
            encoded = varint(len(self.properties)) + self.properties if self.properties else NO_PROPERTIES
        elif v5:
            section: list[bytes] = []
            if alias > 0:
                section.append(b"\x23" + alias.to_bytes(2, "big"))
            if expiry >= 0:
                section.append(bytes((MESSAGE_EXPIRY_INTERVAL,)) + expiry.to_bytes(4, "big"))
            section.append(self.properties)
            if identifiers:
                section.append(_identifier_section(identifiers))
            joined = b"".join(section)
            encoded = varint(len(joined)) + joined
        payload = self._payload if self._payload_start < 0 else self.payload()
        topic = self.topic if with_topic else b""
        identifier = two_bytes(packet_id) if qos > 0 else b""
        length: i64 = len(topic)
        if length > MAX_FIELD:
            raise ValueError(f"a topic of {length} bytes: at most {MAX_FIELD} can be written")
        size = 2 + length + len(identifier) + len(encoded) + len(payload)
        start = BYTE[header] + (BYTE[size] if size < 128 else varint(size))
        return b"".join((start, BYTE[length >> 8], BYTE[length & 255], topic, identifier, encoded, payload))

    def frame_size(self, v5: bool, qos: int, identifiers: tuple[int, ...], expires: bool) -> int:
        """The exact size in bytes of a PUBLISH of this message without a topic alias.

        Above `MAX_PACKET` where the protocol has none.
        """
        # The topic and the payload; the topic's length, and a packet identifier.
        size = self.size - len(self.properties) - OVERHEAD + 2 + (2 if qos > 0 else 0)
        if v5:
            section = len(self.properties) + (5 if expires else 0)
            for identifier in identifiers:
                section += 1 + _varint_size(identifier)
            size += section + _varint_size(section)
        if size > MAX_VARINT:
            return MAX_VARINT * 2
        return 1 + _varint_size(size) + size


class MessageCopy(Message):
    """A copy of a message with further or other properties, without its wire forms."""

    def __init__(self, message: Message, properties: bytes | None = None) -> None:
        super().__init__(
            message.topic,
            message.payload(),
            message.qos,
            message.retain,
            message.properties if properties is None else properties,
            message.expires_at,
            message.publisher,
        )
        self.held = message.held


_last: list[tuple[tuple[int, ...], bytes]] = []
"""Very many identifiers, and how they stand in a packet: each copy of each message to one client has the same ones."""


def _identifier_section(identifiers: tuple[int, ...]) -> bytes:
    """The properties that subscription identifiers are."""
    many = len(identifiers) >= MANY_IDENTIFIERS
    if many and _last and _last[0][0] is identifiers:
        return _last[0][1]
    section = b"".join([IDENTIFIER_PREFIX + varint(identifier) for identifier in identifiers])
    if many:
        _last[:] = [(identifiers, section)]
    return section


def _varint_size(value: int) -> int:
    """Bytes of a variable byte integer; 4 also where none can hold it."""
    if value < 128:
        return 1
    if value < 16_384:
        return 2
    return 3 if value < 2_097_152 else 4
