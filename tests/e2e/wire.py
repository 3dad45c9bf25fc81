"""MQTT by hand: packets built from bytes, packets read back to bytes, one TCP connection to write and read them on.

Owns: what the black-box tests speak. It shares nothing with `canopy_mqtt.core`, so that a mistake made there is not
made here too. Promises: a builder puts on the wire what it is told, right or wrong; a reader takes apart only what is
well-formed and complains about the rest (a length written in more bytes than needed, trailing bytes, a property that
does not belong). No wait is longer than `TIMEOUT`; `expect` takes the next packet as it comes.

Versions are the protocol level of CONNECT: 4 is MQTT 3.1.1, 5 is MQTT 5.0.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

TIMEOUT: Final = 15.0
"""Seconds that any single read may take; far above what a broker needs, far below the test's own limit."""

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = range(1, 9)
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(9, 16)

NAMES: Final = {
    0: "RESERVED",
    CONNECT: "CONNECT",
    CONNACK: "CONNACK",
    PUBLISH: "PUBLISH",
    PUBACK: "PUBACK",
    PUBREC: "PUBREC",
    PUBREL: "PUBREL",
    PUBCOMP: "PUBCOMP",
    SUBSCRIBE: "SUBSCRIBE",
    SUBACK: "SUBACK",
    UNSUBSCRIBE: "UNSUBSCRIBE",
    UNSUBACK: "UNSUBACK",
    PINGREQ: "PINGREQ",
    PINGRESP: "PINGRESP",
    DISCONNECT: "DISCONNECT",
    AUTH: "AUTH",
}

# Property identifiers (MQTT 5.0, section 2.2.2.2).
PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_ID: Final = 0x0B
SESSION_EXPIRY: Final = 0x11
ASSIGNED_CLIENT_ID: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTH_METHOD: Final = 0x15
AUTH_DATA: Final = 0x16
REQUEST_PROBLEM: Final = 0x17
WILL_DELAY: Final = 0x18
REQUEST_RESPONSE: Final = 0x19
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
SHARED_AVAILABLE: Final = 0x2A

_BYTE: Final = {0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A}
_SHORT: Final = {0x13, 0x21, 0x22, 0x23}
_LONG: Final = {0x02, 0x11, 0x18, 0x27}
_VARINT: Final = {0x0B}
_BINARY: Final = {0x09, 0x16}
_STRING: Final = {0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F}
_REPEATS: Final = {USER_PROPERTY, SUBSCRIPTION_ID}

# Which properties a server may put on which packet (same table; a subscription identifier only on PUBLISH).
_ALLOWED: Final[dict[int, set[int]]] = {
    CONNACK: {0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2A},
    PUBLISH: {0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26},
    PUBACK: {0x1F, 0x26},
    PUBREC: {0x1F, 0x26},
    PUBREL: {0x1F, 0x26},
    PUBCOMP: {0x1F, 0x26},
    SUBACK: {0x1F, 0x26},
    UNSUBACK: {0x1F, 0x26},
    DISCONNECT: {0x1C, 0x1F, 0x26},  # a Session Expiry Interval is the client's alone: section 3.14.2.2.2
    AUTH: {0x15, 0x16, 0x1F, 0x26},
}

Value = int | str | bytes | tuple[str, str]
Property = tuple[int, Value]
Properties = Sequence[Property]


class WireError(AssertionError):
    """The broker sent bytes that are not well-formed MQTT."""


class Closed(Exception):
    """The broker closed the connection where a packet was expected."""


# ------------------------------------------------------------------------------------------------------------ building


def varint(value: int) -> bytes:
    """A variable byte integer in as few bytes as it needs."""
    out = bytearray()
    while True:
        value, digit = divmod(value, 128)
        out.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(out)


def binary(data: bytes) -> bytes:
    """Length-prefixed bytes."""
    return struct.pack("!H", len(data)) + data


def string(text: str | bytes) -> bytes:
    """A length-prefixed string. Bytes go out as they are, valid UTF-8 or not."""
    return binary(text if isinstance(text, bytes) else text.encode())


def properties(items: Properties) -> bytes:
    """A property list with its length."""
    out = bytearray()
    for ident, value in items:
        out += varint(ident)
        if isinstance(value, tuple):
            out += string(value[0]) + string(value[1])
        elif isinstance(value, str | bytes):
            out += string(value)
        elif ident in _BYTE:
            out.append(value)
        elif ident in _SHORT:
            out += struct.pack("!H", value)
        elif ident in _LONG:
            out += struct.pack("!I", value)
        else:
            out += varint(value)
    return varint(len(out)) + bytes(out)


def packet(kind: int, flags: int, body: bytes = b"") -> bytes:
    """Fixed header and body."""
    return bytes([kind << 4 | flags]) + varint(len(body)) + body


@dataclass(frozen=True)
class Will:
    """The will fields of a CONNECT."""

    topic: str | bytes
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False
    properties: Properties = ()


def connect(
    client_id: str | bytes = "",
    *,
    version: int = 5,
    clean: bool = True,
    keep_alive: int = 0,
    props: Properties = (),
    will: Will | None = None,
    user: str | bytes | None = None,
    password: bytes | None = None,
    name: str | bytes = "MQTT",
    flags: int | None = None,
    payload: bytes | None = None,
    header: int = 0,
) -> bytes:
    """A CONNECT. `flags` and `payload` replace what follows from the rest; `header` is the fixed header's flags."""
    bits = 0x02 if clean else 0
    fields = string(client_id)
    if will is not None:
        bits |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        fields += (properties(will.properties) if version == 5 else b"") + string(will.topic) + binary(will.payload)
    if user is not None:
        bits |= 0x80
        fields += string(user)
    if password is not None:
        bits |= 0x40
        fields += binary(password)
    head = string(name) + bytes([version, bits if flags is None else flags]) + struct.pack("!H", keep_alive)
    head += properties(props) if version == 5 else b""
    return packet(CONNECT, header, head + (fields if payload is None else payload))


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    *,
    version: int = 5,
    qos: int = 0,
    packet_id: int | None = None,
    retain: bool = False,
    dup: bool = False,
    props: Properties = (),
) -> bytes:
    """A PUBLISH. A packet identifier is written when one is given, whatever the QoS."""
    body = string(topic)
    if packet_id is not None:
        body += struct.pack("!H", packet_id)
    body += properties(props) if version == 5 else b""
    return packet(PUBLISH, (8 if dup else 0) | qos << 1 | (1 if retain else 0), body + payload)


def ack(kind: int, packet_id: int, code: int = 0, props: Properties = (), *, version: int = 5) -> bytes:
    """A PUBACK, PUBREC, PUBREL or PUBCOMP, in its short form where nothing but success is said."""
    body = struct.pack("!H", packet_id)
    if version == 5 and (code or props):
        body += bytes([code]) + properties(props)
    return packet(kind, 2 if kind == PUBREL else 0, body)


def subscribe(
    packet_id: int, filters: Iterable[tuple[str | bytes, int]], props: Properties = (), *, version: int = 5
) -> bytes:
    """A SUBSCRIBE; the number beside each filter is its options byte (for 3.1.1 the requested QoS)."""
    body = struct.pack("!H", packet_id) + (properties(props) if version == 5 else b"")
    for topic_filter, options in filters:
        body += string(topic_filter) + bytes([options])
    return packet(SUBSCRIBE, 2, body)


def unsubscribe(packet_id: int, filters: Iterable[str | bytes], props: Properties = (), *, version: int = 5) -> bytes:
    """An UNSUBSCRIBE."""
    body = struct.pack("!H", packet_id) + (properties(props) if version == 5 else b"")
    return packet(UNSUBSCRIBE, 2, body + b"".join(string(topic_filter) for topic_filter in filters))


def disconnect(code: int = 0, props: Properties = (), *, version: int = 5) -> bytes:
    """A DISCONNECT, in its short form where nothing but success is said."""
    if version != 5 or not (code or props):
        return packet(DISCONNECT, 0)
    return packet(DISCONNECT, 0, bytes([code]) + properties(props))


def auth(code: int, props: Properties = ()) -> bytes:
    """An AUTH."""
    return packet(AUTH, 0, bytes([code]) + properties(props))


PING: Final = packet(PINGREQ, 0)

# Subscription options (MQTT 5.0, section 3.8.3.1), to be added to the QoS.
NO_LOCAL: Final = 0x04
RETAIN_AS_PUBLISHED: Final = 0x08
RETAIN_IF_NEW: Final = 0x10
RETAIN_NEVER: Final = 0x20


# ------------------------------------------------------------------------------------------------------------- reading


class _Cursor:
    """Reads fields off a body, and complains where they do not fit."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise WireError(f"{count} bytes expected at {self.at} of {self.data.hex()}")
        self.at += count
        return self.data[self.at - count : self.at]

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)

    def byte(self) -> int:
        return self.take(1)[0]

    def short(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def string(self) -> str:
        return self.take(self.short()).decode("utf-8", "strict")

    def varint(self) -> int:
        start = self.at
        value = shift = 0
        while True:
            digit = self.byte()
            value |= (digit & 0x7F) << shift
            shift += 7
            if not digit & 0x80:
                break
        if varint(value) != self.data[start : self.at]:
            raise WireError(f"{value} written as {self.data[start : self.at].hex()}")
        return value

    def properties(self, kind: int) -> list[Property]:
        inner = _Cursor(self.take(self.varint()))
        found: list[Property] = []
        while inner.at < len(inner.data):
            ident = inner.varint()
            if ident not in _ALLOWED[kind]:
                raise WireError(f"property 0x{ident:02x} on {NAMES[kind]}")
            if ident not in _REPEATS and any(ident == other for other, _ in found):
                raise WireError(f"property 0x{ident:02x} twice on {NAMES[kind]}")
            value: Value
            if ident in _BYTE:
                value = inner.byte()
            elif ident in _SHORT:
                value = inner.short()
            elif ident in _LONG:
                value = int.from_bytes(inner.take(4), "big")
            elif ident in _VARINT:
                value = inner.varint()
            elif ident in _BINARY:
                value = inner.take(inner.short())
            elif ident in _STRING:
                value = inner.string()
            else:
                value = (inner.string(), inner.string())
            found.append((ident, value))
        return found


@dataclass
class Packet:
    """One packet from the broker, taken apart. Fields that its kind does not have keep their defaults."""

    kind: int
    flags: int
    size: int
    packet_id: int | None = None
    code: int = 0
    codes: tuple[int, ...] = ()
    session_present: bool = False
    topic: str = ""
    payload: bytes = b""
    properties: list[Property] = field(default_factory=list)

    @property
    def qos(self) -> int:
        return self.flags >> 1 & 3

    @property
    def dup(self) -> bool:
        return bool(self.flags & 8)

    @property
    def retain(self) -> bool:
        return bool(self.flags & 1)

    def all(self, ident: int) -> list[Value]:
        """Every value of a property, in order."""
        return [value for found, value in self.properties if found == ident]

    def get(self, ident: int) -> Value | None:
        """The only value of a property, or None."""
        values = self.all(ident)
        assert len(values) <= 1
        return values[0] if values else None

    def number(self, ident: int) -> int:
        """The value of a numeric property that has to be there."""
        value = self.get(ident)
        assert isinstance(value, int), f"property 0x{ident:02x} is not there: {self}"
        return value

    def __str__(self) -> str:
        return f"{NAMES[self.kind]} {vars(self)}"


def parse(kind: int, flags: int, body: bytes, version: int) -> Packet:
    """Take apart one packet that a server may send. Raises WireError on anything out of place."""
    size = 1 + len(varint(len(body))) + len(body)
    found = Packet(kind, flags, size)
    at = _Cursor(body)
    five = version == 5
    if kind != PUBLISH and flags != (2 if kind == PUBREL else 0):
        raise WireError(f"flags {flags:04b} on {NAMES[kind]}")
    if kind == CONNACK:
        acknowledge = at.byte()
        if acknowledge & 0xFE:
            raise WireError(f"acknowledge flags {acknowledge:08b}")
        found.session_present, found.code = bool(acknowledge), at.byte()
        # A server that refuses the version may answer in the form of another one, which has no properties.
        if five and (found.code not in (0x01, 0x84) or at.at < len(body)):
            found.properties = at.properties(kind)
    elif kind == PUBLISH:
        if found.qos == 3:
            raise WireError("QoS 3")
        found.topic = at.string()
        found.packet_id = at.short() if found.qos else None
        found.properties = at.properties(kind) if five else []
        found.payload = at.rest()
    elif kind in (PUBACK, PUBREC, PUBREL, PUBCOMP):
        found.packet_id = at.short()
        if five and at.at < len(body):
            found.code = at.byte()
        if five and at.at < len(body):
            found.properties = at.properties(kind)
    elif kind in (SUBACK, UNSUBACK):
        found.packet_id = at.short()
        found.properties = at.properties(kind) if five else []
        found.codes = tuple(at.rest()) if five or kind == SUBACK else ()
    elif kind in (DISCONNECT, AUTH) and five:
        if at.at < len(body):
            found.code = at.byte()
        if at.at < len(body):
            found.properties = at.properties(kind)
    elif kind != PINGRESP:
        raise WireError(f"{NAMES[kind]} from a server")
    if at.at != len(body):
        raise WireError(f"{len(body) - at.at} bytes too many on {NAMES[kind]}: {body.hex()}")
    return found


# ---------------------------------------------------------------------------------------------------------- connection


class Peer:
    """One connection to the broker. What it sends is up to the test; what it reads it takes apart."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self.reader = reader
        self.writer = writer
        self.version = version
        self.connack = Packet(CONNACK, 0, 0)
        self._set_aside: deque[Packet] = deque()
        self._packet_id = 0

    @classmethod
    async def open(cls, host: str, port: int, version: int = 5) -> Self:
        """Connect by TCP, and send nothing yet."""
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port)
        return cls(reader, writer, version)

    @classmethod
    async def join(
        cls, port: int, client_id: str = "", *filters: str | tuple[str, int], wishes: Properties = (), **options: Any
    ) -> Self:
        """Connect, be accepted, and subscribe to `filters`, with `wishes`. Options are those of `connect`."""
        peer = await cls.open("127.0.0.1", port, options.get("version", 5))
        try:
            await peer.send(connect(client_id, **options))
            peer.connack = await peer.expect(CONNACK)
            assert peer.connack.code == 0, peer.connack
            if filters:
                codes = await peer.subscribe(*filters, props=wishes)
                assert all(code < 0x80 for code in codes), codes
        except BaseException:
            peer.abort()
            raise
        return peer

    @property
    def client_id(self) -> str:
        """The client identifier that the broker assigned."""
        value = self.connack.get(ASSIGNED_CLIENT_ID)
        assert isinstance(value, str)
        return value

    def next_id(self) -> int:
        """A packet identifier not used before on this connection."""
        self._packet_id += 1
        return self._packet_id

    async def send(self, *packets: bytes) -> None:
        """Write packets, all in one."""
        self.writer.write(b"".join(packets))
        async with asyncio.timeout(TIMEOUT):
            await self.writer.drain()

    async def _read(self) -> Packet:
        try:
            async with asyncio.timeout(TIMEOUT):
                first = (await self.reader.readexactly(1))[0]
                length = shift = count = 0
                while True:
                    digit = (await self.reader.readexactly(1))[0]
                    length |= (digit & 0x7F) << shift
                    shift += 7
                    count += 1
                    if not digit & 0x80:
                        break
                if count != len(varint(length)):
                    raise WireError(f"remaining length {length} written in {count} bytes")
                body = await self.reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError) as error:
            if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                raise WireError(f"the connection ended inside a packet: {error.partial.hex()}") from error
            raise Closed from error
        return parse(first >> 4, first & 15, body, self.version)

    async def recv(self) -> Packet:
        """The next packet. Raises Closed when there is none to come."""
        return self._set_aside.popleft() if self._set_aside else await self._read()

    async def expect(self, kind: int) -> Packet:
        """The next packet, which must be of this kind."""
        found = await self.recv()
        assert found.kind == kind, f"{NAMES[kind]} expected, {found} came"
        return found

    async def wait_for(self, kind: int) -> Packet:
        """The next packet of this kind; others that come before it are set aside for later reads."""
        before = list(self._set_aside)
        self._set_aside.clear()
        for index, found in enumerate(before):
            if found.kind == kind:
                self._set_aside.extend(before[:index] + before[index + 1 :])
                return found
        try:
            while (found := await self._read()).kind != kind:
                before.append(found)
        finally:
            self._set_aside.extend(before)
        return found

    async def fence(self) -> list[Packet]:
        """Everything that the broker had to say before now: PINGREQ, and what comes ahead of its PINGRESP."""
        await self.send(PING)
        found = []
        while (one := await self.recv()).kind != PINGRESP:
            found.append(one)
        return found

    def put_back(self, packets: Iterable[Packet]) -> None:
        """Put these packets before all others that are read next."""
        self._set_aside.extendleft(reversed(list(packets)))

    async def closed(self) -> list[Packet]:
        """Everything up to the end of the connection, which the broker has to close."""
        found = []
        try:
            while True:
                found.append(await self.recv())
        except Closed:
            return found

    async def subscribe(self, *filters: str | tuple[str, int], props: Properties = ()) -> tuple[int, ...]:
        """Subscribe and return the codes of the SUBACK. A filter alone asks for QoS 0."""
        pairs = [(item, 0) if isinstance(item, str) else item for item in filters]
        packet_id = self.next_id()
        await self.send(subscribe(packet_id, pairs, props, version=self.version))
        found = await self.wait_for(SUBACK)
        assert found.packet_id == packet_id
        return found.codes

    async def unsubscribe(self, *filters: str) -> tuple[int, ...]:
        """Unsubscribe and return the codes of the UNSUBACK (none in 3.1.1)."""
        packet_id = self.next_id()
        await self.send(unsubscribe(packet_id, filters, version=self.version))
        found = await self.wait_for(UNSUBACK)
        assert found.packet_id == packet_id
        return found.codes

    async def publish(
        self,
        topic: str,
        payload: bytes = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        props: Properties = (),
    ) -> int:
        """Publish, see the QoS through, and return the reason code. QoS 0 is fenced: the broker has routed it."""
        packet_id = self.next_id() if qos else None
        await self.send(
            publish(topic, payload, version=self.version, qos=qos, packet_id=packet_id, retain=retain, props=props)
        )
        if packet_id is None:
            await self.send(PING)
            await self.wait_for(PINGRESP)
            return 0
        found = await self.wait_for(PUBACK if qos == 1 else PUBREC)
        assert found.packet_id == packet_id
        if qos == 2 and found.code < 0x80:
            await self.send(ack(PUBREL, packet_id, version=self.version))
            done = await self.wait_for(PUBCOMP)
            assert (done.packet_id, done.code) == (packet_id, 0)
        return found.code

    async def message(self) -> Packet:
        """The next packet, which must be a PUBLISH; its QoS is seen through."""
        found = await self.expect(PUBLISH)
        if found.packet_id is not None:
            if found.qos == 1:
                await self.send(ack(PUBACK, found.packet_id, version=self.version))
            else:
                await self.send(ack(PUBREC, found.packet_id, version=self.version))
                release = await self.wait_for(PUBREL)
                assert (release.packet_id, release.code) == (found.packet_id, 0)
                await self.send(ack(PUBCOMP, found.packet_id, version=self.version))
        return found

    async def disconnect(self, code: int = 0, props: Properties = ()) -> None:
        """Say DISCONNECT, and wait for the broker to close."""
        await self.send(disconnect(code, props, version=self.version))
        await self.closed()
        self.abort()

    def abort(self) -> None:
        """Cut the connection without a word."""
        self.writer.transport.abort()
