"""The one table of named wire cases: bytes as they stand on the wire, and what they mean or why they are refused.

Owns `CASES`. The bytes are written by hand from the specifications, never by the project's encoder. Decoder, encoder,
session and end-to-end tests draw on them. `canonical=False` marks valid bytes that the encoder would write in another
form. Each case names the statements that it argues from; cases of plain section text have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from canopy_mqtt.core.codec import packets as p
from canopy_mqtt.core.codec.packets import (
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from canopy_mqtt.core.codec.packets import SubscriptionRequest as Request
from canopy_mqtt.core.codec.properties import Properties
from canopy_mqtt.core.codec.reason_codes import (
    MalformedPacket,
    PacketTooLarge,
    ProtocolError,
    ProtocolViolation,
    Refused,
    TopicAliasInvalid,
)

MAX_PACKET_SIZE: Final = 4096
"""Bytes. What the decoders of these cases accept; the cases "too large" depend on it."""


@dataclass(frozen=True)
class Case:
    """One packet on the wire.

    `version` is the one in force before the packet: 0 for a CONNECT and for what stands in its place. `direction` says
    who sends: `c2s`, `s2c` or `both`. A valid case has `packet`, an invalid one `error` and its reason code.
    """

    name: str
    version: int
    direction: str
    raw: bytes
    packet: Packet | None
    error: type[ProtocolError] | None
    reason: int | None
    tags: tuple[str, ...]
    canonical: bool = True


def props(
    *user: tuple[str, str],
    i: dict[int, int] | None = None,
    s: dict[int, str] | None = None,
    b: dict[int, bytes] | None = None,
) -> Properties:
    """A filled bag of properties."""
    bag = Properties()
    bag.integers.update(i or {})
    bag.strings.update(s or {})
    bag.binaries.update(b or {})
    bag.user.extend(user)
    return bag


def ok(name: str, version: int, direction: str, raw: bytes, packet: Packet, *tags: str, canonical: bool = True) -> Case:
    """A valid case."""
    return Case(name, version, direction, raw, packet, None, None, tags, canonical)


_CODES: Final[dict[type[ProtocolError], int]] = {
    MalformedPacket: 0x81,
    ProtocolViolation: 0x82,
    PacketTooLarge: 0x95,
    TopicAliasInvalid: 0x94,
}


def bad(
    name: str,
    version: int,
    direction: str,
    raw: bytes,
    error: type[ProtocolError],
    *tags: str,
    reason: int | None = None,
) -> Case:
    """An invalid case; the reason code is the error's own unless given."""
    return Case(name, version, direction, raw, None, error, _CODES[error] if reason is None else reason, tags)


CONNECT: Final = (
    ok("v4 connect smallest", 0, "c2s", b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
       Connect(), "[MQTT-3.1.2-1]", "[MQTT-3.1.3-3]", "[MQTT-3.1.2-16]", "[MQTT-3.1.2-18]"),
    ok("v4 connect keep alive and session to keep", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x04\x00\x00\x3c\x00\x01a",
       Connect("a", 4, False, 60), "[MQTT-3.1.3-4]"),
    ok("v4 connect everything", 0, "c2s",
       b"\x10\x1c\x00\x04MQTT\x04\xf6\x01\x00\x00\x02id\x00\x01w\x00\x02by\x00\x01u\x00\x02pw",
       Connect("id", 4, True, 256, Will("w", b"by", 2, True), "u", b"pw"),
       "[MQTT-3.1.2-9]", "[MQTT-3.1.2-17]", "[MQTT-3.1.2-19]", "[MQTT-3.1.3-1]"),
    ok("v4 connect user name without password", 0, "c2s", b"\x10\x10\x00\x04MQTT\x04\x82\x00\x00\x00\x01a\x00\x01u",
       Connect("a", user_name="u"), "[MQTT-3.1.2-17]"),
    ok("v4 connect empty will payload", 0, "c2s", b"\x10\x12\x00\x04MQTT\x04\x06\x00\x00\x00\x01a\x00\x01w\x00\x00",
       Connect("a", will=Will("w", b""))),
    ok("v4 connect of a bridge", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x84\x02\x00\x00\x00\x01a", Connect("a", bridge=True)),
    ok("v3 connect", 0, "c2s", b"\x10\x0f\x00\x06MQIsdp\x03\x02\x00\x0a\x00\x01a", Connect("a", 3, True, 10)),
    ok("v3 connect of a bridge", 0, "c2s", b"\x10\x0f\x00\x06MQIsdp\x83\x02\x00\x0a\x00\x01a",
       Connect("a", 3, True, 10, bridge=True)),
    ok("v3 connect with a user name flag and no user name", 0, "c2s",
       b"\x10\x0f\x00\x06MQIsdp\x03\x82\x00\x0a\x00\x01a", Connect("a", 3, True, 10), canonical=False),
    ok("v3 connect with bits that 3.1 does not use", 0, "c2s",
       b"\x10\x0f\x00\x06MQIsdp\x03\x01\x00\x0a\x00\x01p", Connect("p", 3, False, 10), canonical=False),
    ok("v3 connect with QoS and retain of no will", 0, "c2s",
       b"\x10\x0f\x00\x06MQIsdp\x03\x3b\x00\x0a\x00\x01p", Connect("p", 3, True, 10), canonical=False),
    ok("v3 connect with flags in its fixed header", 0, "c2s",
       b"\x1b\x0f\x00\x06MQIsdp\x03\x02\x00\x0a\x00\x01p", Connect("p", 3, True, 10), canonical=False),
    ok("v5 connect smallest", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00",
       Connect(version=5), "[MQTT-2.2.2-1]"),
    ok("v5 connect empty client identifier, session to keep", 0, "c2s",
       b"\x10\x0d\x00\x04MQTT\x05\x00\x00\x00\x00\x00\x00", Connect(version=5, clean_start=False)),
    ok("v5 connect password without user name", 0, "c2s",
       b"\x10\x11\x00\x04MQTT\x05\x42\x00\x00\x00\x00\x01a\x00\x01p", Connect("a", 5, password=b"p")),
    ok("v5 connect all properties", 0, "c2s",
       b"\x10\x38\x00\x04MQTT\x05\x02\x00\x0a\x2a"
       b"\x11\x00\x00\x00\x78\x15\x00\x01m\x16\x00\x02\x00\xff\x17\x00\x19\x01\x21\x00\x14\x22\x00\x0a"
       b"\x27\x00\x00\x10\x00\x26\x00\x01a\x00\x01b\x26\x00\x01a\x00\x00\x00\x01i",
       Connect("i", 5, True, 10, properties=props(("a", "b"), ("a", ""), i={0x11: 120, 0x17: 0, 0x19: 1, 0x21: 20,
               0x22: 10, 0x27: 4096}, s={0x15: "m"}, b={0x16: b"\x00\xff"})), "[MQTT-1.5.7-1]"),
    ok("v5 connect will with properties", 0, "c2s",
       b"\x10\x32\x00\x04MQTT\x05\x2e\x00\x00\x00\x00\x01a"
       b"\x1d\x18\x00\x00\x00\x05\x02\x00\x00\x00\x3c\x01\x01\x03\x00\x01t\x08\x00\x01r\x09\x00\x01\x07"
       b"\x26\x00\x00\x00\x00\x00\x01w\x00\x01x",
       Connect("a", 5, will=Will("w", b"x", 1, True, 5, 60,
               b"\x01\x01\x03\x00\x01t\x08\x00\x01r\x09\x00\x01\x07\x26\x00\x00\x00\x00")), "[MQTT-3.1.2-9]"),
    ok("v5 connect will, hop properties between the others", 0, "c2s",
       b"\x10\x21\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01a"
       b"\x0c\x01\x00\x18\x00\x00\x00\x05\x03\x00\x02tt\x00\x01w\x00\x01x",
       Connect("a", 5, will=Will("w", b"x", delay=5, properties=b"\x01\x00\x03\x00\x02tt")), canonical=False),
    ok("v5 connect client identifier with a BOM and beyond the BMP", 0, "c2s",
       b"\x10\x14\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x07\xef\xbb\xbf\xf0\x9f\x8c\xb3",
       Connect("\ufeff\U0001f333", 5), "[MQTT-1.5.4-3]"),
    bad("connect unknown protocol name", 0, "c2s", b"\x10\x0c\x00\x04MQTX\x04\x02\x00\x00\x00\x00",
        ProtocolViolation, "[MQTT-3.1.2-1]", "[MQTT3-3.1.2-1]"),
    bad("connect protocol name in lower case", 0, "c2s", b"\x10\x0c\x00\x04mqtt\x04\x02\x00\x00\x00\x00",
        ProtocolViolation, "[MQTT-3.1.2-1]"),
    bad("v4 connect with flags in its fixed header", 0, "c2s", b"\x11\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
        MalformedPacket, "[MQTT-2.1.3-1]", "[MQTT3-2.2.2-2]"),
    bad("v5 connect with flags in its fixed header", 0, "c2s", b"\x12\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00",
        MalformedPacket, "[MQTT-2.1.3-1]"),
    bad("connect level 6", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x06\x02\x00\x00\x00\x00\x00",
        Refused, "[MQTT-3.1.2-2]", "[MQTT3-3.1.2-2]", reason=0x84),
    bad("connect level 3 under the new name", 0, "c2s", b"\x10\x0c\x00\x04MQTT\x03\x02\x00\x00\x00\x00",
        Refused, "[MQTT-3.1.2-2]", reason=0x84),
    bad("connect level 4 under the old name", 0, "c2s", b"\x10\x0e\x00\x06MQIsdp\x04\x02\x00\x00\x00\x00",
        Refused, "[MQTT-3.1.2-2]", reason=0x84),
    bad("connect level 5 with the bridge bit", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x85\x02\x00\x00\x00\x00\x00",
        Refused, "[MQTT-3.1.2-2]", reason=0x84),
    bad("connect reserved flag", 0, "c2s", b"\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00",
        MalformedPacket, "[MQTT-3.1.2-3]", "[MQTT3-3.1.2-3]"),
    bad("connect will QoS 3", 0, "c2s", b"\x10\x12\x00\x04MQTT\x04\x1e\x00\x00\x00\x01a\x00\x01w\x00\x00",
        MalformedPacket, "[MQTT-3.1.2-12]"),
    bad("connect will QoS without will", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x04\x0a\x00\x00\x00\x01a",
        MalformedPacket, "[MQTT-3.1.2-11]"),
    bad("connect will retain without will", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x04\x22\x00\x00\x00\x01a",
        MalformedPacket, "[MQTT-3.1.2-13]"),
    bad("v4 connect password without user name", 0, "c2s", b"\x10\x10\x00\x04MQTT\x04\x42\x00\x00\x00\x01a\x00\x01p",
        MalformedPacket, "[MQTT3-3.1.2-22]"),
    bad("v4 connect empty client identifier, session to keep", 0, "c2s",
        b"\x10\x0c\x00\x04MQTT\x04\x00\x00\x00\x00\x00",
        Refused, "[MQTT3-3.1.3-7]", "[MQTT3-3.1.3-8]", reason=0x85),
    bad("v3 connect empty client identifier", 0, "c2s", b"\x10\x0e\x00\x06MQIsdp\x03\x02\x00\x00\x00\x00",
        Refused, reason=0x85),
    bad("connect nothing in it", 0, "c2s", b"\x10\x00", MalformedPacket, "[MQTT-3.1.4-1]"),
    bad("connect ends in the keep alive", 0, "c2s", b"\x10\x09\x00\x04MQTT\x04\x02\x00", MalformedPacket,
        "[MQTT-3.1.4-1]"),
    bad("connect without client identifier", 0, "c2s", b"\x10\x0a\x00\x04MQTT\x04\x02\x00\x00",
        MalformedPacket, "[MQTT-3.1.3-3]", "[MQTT3-3.1.4-1]"),
    bad("connect client identifier runs past the end", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x02a",
        MalformedPacket, "[MQTT-3.1.4-1]"),
    bad("connect user name missing", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x04\x82\x00\x00\x00\x01a",
        MalformedPacket, "[MQTT-3.1.2-17]"),
    bad("connect password missing", 0, "c2s", b"\x10\x10\x00\x04MQTT\x04\xc2\x00\x00\x00\x01a\x00\x01u",
        MalformedPacket, "[MQTT-3.1.2-19]"),
    bad("connect will missing", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x04\x06\x00\x00\x00\x01a",
        MalformedPacket, "[MQTT-3.1.2-9]"),
    bad("connect bytes behind the end", 0, "c2s", b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x01ab",
        MalformedPacket, "[MQTT-3.1.2-16]", "[MQTT-3.1.2-18]"),
    bad("connect client identifier not UTF-8", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01\xff",
        MalformedPacket, "[MQTT-1.5.4-1]", "[MQTT-3.1.3-4]"),
    bad("connect client identifier with U+0000", 0, "c2s", b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01\x00",
        MalformedPacket, "[MQTT-1.5.4-2]"),
    bad("connect client identifier with a surrogate", 0, "c2s",
        b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x00\x00\x03\xed\xa0\x80",
        MalformedPacket, "[MQTT-1.5.4-1]"),
    bad("connect user name not UTF-8", 0, "c2s", b"\x10\x10\x00\x04MQTT\x04\x82\x00\x00\x00\x01a\x00\x01\xc0",
        MalformedPacket, "[MQTT-3.1.3-12]"),
    bad("connect will topic not UTF-8", 0, "c2s", b"\x10\x12\x00\x04MQTT\x04\x06\x00\x00\x00\x01a\x00\x01\x80\x00\x00",
        MalformedPacket, "[MQTT-3.1.3-11]"),
    bad("connect will topic with wildcard", 0, "c2s", b"\x10\x12\x00\x04MQTT\x04\x06\x00\x00\x00\x01a\x00\x01#\x00\x00",
        MalformedPacket, "[MQTT-4.7.0-1]"),
    bad("connect will topic empty", 0, "c2s", b"\x10\x11\x00\x04MQTT\x04\x06\x00\x00\x00\x01a\x00\x00\x00\x00",
        MalformedPacket, "[MQTT-4.7.3-1]"),
    bad("v5 connect authentication data without method", 0, "c2s",
        b"\x10\x11\x00\x04MQTT\x05\x02\x00\x00\x04\x16\x00\x01x\x00\x00", ProtocolViolation),
    bad("v5 connect property cut by the section", 0, "c2s",
        b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x02\x21\x00\x01\x00\x00", MalformedPacket),
    bad("v5 connect properties past the end", 0, "c2s",
        b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x05\x00\x00", MalformedPacket),
    bad("v5 connect property length too long by a byte", 0, "c2s",
        b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x80\x00\x00\x00", MalformedPacket, "[MQTT-1.5.5-1]"),
    bad("v5 connect user property with bad UTF-8", 0, "c2s",
        b"\x10\x13\x00\x04MQTT\x05\x02\x00\x00\x06\x26\x00\x00\x00\x01\xff\x00\x00", MalformedPacket, "[MQTT-1.5.7-1]"),
    bad("v5 connect will properties past the end", 0, "c2s",
        b"\x10\x11\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01a\x09\x18\x00",
        MalformedPacket, "[MQTT-3.1.2-9]"),
    bad("v5 connect will response topic with wildcard", 0, "c2s",
        b"\x10\x18\x00\x04MQTT\x05\x06\x00\x00\x00\x00\x01a\x04\x08\x00\x01+\x00\x01w\x00\x00",
        MalformedPacket, "[MQTT-3.3.2-14]"),
    bad("first packet is not connect", 0, "c2s", b"\xc0\x00", ProtocolViolation, "[MQTT-3.1.0-1]"),
    bad("first packet is a publish", 0, "c2s", b"\x30\x03\x00\x01a", ProtocolViolation, "[MQTT-3.1.0-1]"),
    bad("first bytes are HTTP", 0, "c2s", b"GET / HTTP/1.1\r\n\r\n", MalformedPacket, "[MQTT-2.1.3-1]"),
    bad("connect from a server", 5, "s2c", b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00", ProtocolViolation),
)  # fmt: skip

CONNACK: Final = (
    ok("v4 connack accepted", 4, "s2c", b"\x20\x02\x00\x00", Connack()),
    ok("v4 connack session present", 4, "s2c", b"\x20\x02\x01\x00", Connack(True)),
    ok("v4 connack not authorized", 4, "s2c", b"\x20\x02\x00\x05", Connack(False, 5)),
    ok("v5 connack accepted", 5, "s2c", b"\x20\x03\x00\x00\x00", Connack(), "[MQTT-2.2.2-1]"),
    ok("v5 connack bad credentials", 5, "s2c", b"\x20\x03\x00\x86\x00", Connack(False, 0x86), "[MQTT-3.2.2-8]"),
    ok("v5 connack all properties", 5, "s2c",
       b"\x20\x4f\x01\x00\x4c\x11\x00\x00\x00\x3c\x12\x00\x02id\x13\x00\x1e\x15\x00\x01m\x16\x00\x01\x00\x1a\x00\x01/"
       b"\x1c\x00\x06h:1883\x1f\x00\x03yes\x21\x00\x0a\x22\x00\x10\x24\x01\x25\x01\x27\x00\x10\x00\x00\x28\x01\x29\x00"
       b"\x2a\x01\x26\x00\x02k1\x00\x00\x26\x00\x02k2\x00\x01v",
       Connack(True, 0, props(("k1", ""), ("k2", "v"), i={0x11: 60, 0x13: 30, 0x21: 10, 0x22: 16, 0x24: 1, 0x25: 1,
               0x27: 1048576, 0x28: 1, 0x29: 0, 0x2A: 1}, s={0x12: "id", 0x15: "m", 0x1A: "/", 0x1C: "h:1883",
               0x1F: "yes"}, b={0x16: b"\x00"}))),
    ok("v5 connack of a server that knows 3.1.1 only", 5, "s2c", b"\x20\x02\x00\x01", Connack(False, 0x84),
       "[MQTT3-3.1.2-2]", canonical=False),
    bad("connack reserved flags", 4, "s2c", b"\x20\x02\x02\x00", MalformedPacket, "[MQTT-3.2.2-1]"),
    bad("v4 connack unknown return code", 4, "s2c", b"\x20\x02\x00\x06", ProtocolViolation),
    bad("v5 connack unknown reason code", 5, "s2c", b"\x20\x03\x00\x01\x00", ProtocolViolation, "[MQTT-3.2.2-8]"),
    bad("v5 connack without properties", 5, "s2c", b"\x20\x02\x00\x00", MalformedPacket, "[MQTT-2.2.2-1]"),
    bad("connack session present in a refusal", 4, "s2c", b"\x20\x02\x01\x02", ProtocolViolation, "[MQTT-3.2.2-6]"),
    bad("v5 connack maximum QoS 2", 5, "s2c", b"\x20\x05\x00\x00\x02\x24\x02", ProtocolViolation),
    bad("v4 connack with a third byte", 4, "s2c", b"\x20\x03\x00\x00\x00", MalformedPacket),
    bad("connack from a client", 4, "c2s", b"\x20\x02\x00\x00", ProtocolViolation),
)  # fmt: skip

PUBLISH: Final = (
    ok("v4 publish QoS 0", 4, "both", b"\x30\x07\x00\x03a/bhi", Publish(b"a/b", b"hi"),
       "[MQTT-2.2.1-2]", "[MQTT-3.3.2-1]"),
    ok("v4 publish empty payload, retain", 4, "both", b"\x31\x05\x00\x03a/b", Publish(b"a/b", b"", retain=True)),
    ok("v4 publish QoS 1", 4, "both", b"\x32\x07\x00\x01a\x00\x0ahi", Publish(b"a", b"hi", 1, packet_id=10)),
    ok("v4 publish QoS 2, dup, retain", 4, "both", b"\x3d\x06\x00\x01a\xff\xff!",
       Publish(b"a", b"!", 2, True, True, 65535)),
    ok("v4 publish topics are spaces, slashes and dollars", 4, "both", b"\x30\x06\x00\x04/ /$", Publish(b"/ /$", b"")),
    ok("v4 publish topic beyond ASCII", 4, "both", b"\x30\x07\x00\x05\xc3\xa9/\xc3\xbc", Publish("é/ü".encode(), b"")),
    ok("v4 publish topic with a BOM", 4, "both", b"\x30\x05\x00\x03\xef\xbb\xbf", Publish(b"\xef\xbb\xbf", b""),
       "[MQTT-1.5.4-3]"),
    ok("v4 publish 128 bytes long", 4, "both", b"\x30\x80\x01\x00\x01a" + b"x" * 125, Publish(b"a", b"x" * 125)),
    ok("v4 publish 127 bytes long", 4, "both", b"\x30\x7f\x00\x01a" + b"x" * 124, Publish(b"a", b"x" * 124)),
    ok("v3 publish", 3, "both", b"\x32\x06\x00\x01a\x00\x01x", Publish(b"a", b"x", 1, packet_id=1)),
    ok("v5 publish QoS 0", 5, "both", b"\x30\x06\x00\x01a\x00hi", Publish(b"a", b"hi"), "[MQTT-2.2.2-1]"),
    ok("v5 publish QoS 2", 5, "both", b"\x34\x07\x00\x01a\x01\x00\x00x", Publish(b"a", b"x", 2, packet_id=256)),
    ok("v5 publish every forwarded property", 5, "both",
       b"\x30\x1c\x00\x01a\x17\x01\x01\x03\x00\x01t\x08\x00\x03r/t\x09\x00\x01\xff\x26\x00\x01k\x00\x01vx",
       Publish(b"a", b"x", properties=b"\x01\x01\x03\x00\x01t\x08\x00\x03r/t\x09\x00\x01\xff\x26\x00\x01k\x00\x01v"),
       "[MQTT-3.3.2-13]", "[MQTT-3.3.2-19]"),
    ok("v5 publish user properties in order", 5, "both",
       b"\x30\x19\x00\x01a\x15\x26\x00\x01b\x00\x01\x31\x26\x00\x01a\x00\x01\x32\x26\x00\x01b\x00\x01\x31",
       Publish(b"a", b"", properties=b"\x26\x00\x01b\x00\x011\x26\x00\x01a\x00\x012\x26\x00\x01b\x00\x011"),
       "[MQTT-3.3.2-18]"),
    ok("v5 publish expiry and alias", 5, "both", b"\x30\x0c\x00\x01a\x08\x02\x00\x00\x00\x3c\x23\x00\x01",
       Publish(b"a", b"", message_expiry=60, topic_alias=1)),
    ok("v5 publish alias alone", 5, "both", b"\x30\x07\x00\x00\x03\x23\x00\x05x", Publish(b"", b"x", topic_alias=5)),
    ok("v5 publish hop properties between forwarded ones", 5, "both",
       b"\x30\x12\x00\x01a\x0e\x01\x00\x02\x00\x00\x00\x00\x03\x00\x01t\x23\x00\x07",
       Publish(b"a", b"", message_expiry=0, topic_alias=7, properties=b"\x01\x00\x03\x00\x01t"), canonical=False),
    ok("v5 publish subscription identifiers", 5, "s2c", b"\x30\x0b\x00\x01a\x07\x0b\x01\x0b\xff\xff\xff\x7f",
       Publish(b"a", b"", subscription_ids=(1, 268435455))),
    bad("publish QoS 3", 4, "both", b"\x36\x05\x00\x01a\x00\x01", MalformedPacket, "[MQTT-3.3.1-4]"),
    bad("publish dup with QoS 0", 4, "both", b"\x38\x03\x00\x01a", MalformedPacket, "[MQTT-3.3.1-2]"),
    bad("publish packet identifier 0", 4, "both", b"\x32\x05\x00\x01a\x00\x00",
        ProtocolViolation, "[MQTT-2.2.1-3]", "[MQTT-2.2.1-4]", "[MQTT3-2.3.1-1]"),
    bad("publish without packet identifier", 4, "both", b"\x32\x03\x00\x01a", MalformedPacket),
    bad("publish half a packet identifier", 4, "both", b"\x32\x04\x00\x01a\x00", MalformedPacket),
    bad("publish nothing in it", 4, "both", b"\x30\x00", MalformedPacket, "[MQTT-3.3.2-1]"),
    bad("publish topic past the end", 4, "both", b"\x30\x03\x00\x02a", MalformedPacket),
    bad("publish topic past the end, more in the buffer", 4, "both", b"\x30\x03\x00\x05a\xc0\x00\xc0\x00",
        MalformedPacket),
    bad("publish topic with +", 4, "both", b"\x30\x05\x00\x03a/+", MalformedPacket, "[MQTT-3.3.2-2]",
        "[MQTT-4.7.0-1]"),
    bad("publish topic with # inside", 5, "both", b"\x30\x06\x00\x03a#b\x00", MalformedPacket, "[MQTT-3.3.2-2]"),
    bad("v4 publish empty topic", 4, "both", b"\x30\x03\x00\x00x", MalformedPacket, "[MQTT-4.7.3-1]"),
    bad("v5 publish empty topic", 5, "both", b"\x30\x03\x00\x00\x00", ProtocolViolation, "[MQTT-4.7.3-1]"),
    bad("v5 publish empty topic, properties, no alias", 5, "both", b"\x30\x05\x00\x00\x02\x01\x00", ProtocolViolation),
    bad("publish topic not UTF-8", 4, "both", b"\x30\x04\x00\x02\xc3(", MalformedPacket, "[MQTT-1.5.4-1]"),
    bad("publish topic with an overlong slash", 4, "both", b"\x30\x04\x00\x02\xc0\xaf", MalformedPacket,
        "[MQTT-1.5.4-1]"),
    bad("publish topic with a surrogate", 5, "both", b"\x30\x06\x00\x03\xed\xbf\xbf\x00", MalformedPacket,
        "[MQTT-1.5.4-1]"),
    bad("publish topic with U+0000", 4, "both", b"\x30\x05\x00\x03a\x00b", MalformedPacket, "[MQTT-4.7.3-2]"),
    bad("v5 publish without properties", 5, "both", b"\x30\x03\x00\x01a", MalformedPacket, "[MQTT-2.2.2-1]"),
    bad("v5 publish properties past the end", 5, "both", b"\x30\x05\x00\x01a\x05\x01", MalformedPacket),
    bad("v5 publish property length unfinished", 5, "both", b"\x30\x04\x00\x01a\x80", MalformedPacket),
    bad("v5 publish property length of five bytes", 5, "both", b"\x30\x08\x00\x01a\x80\x80\x80\x80\x01",
        MalformedPacket),
    bad("v5 publish response topic with wildcard", 5, "both", b"\x30\x08\x00\x01a\x04\x08\x00\x01#",
        MalformedPacket, "[MQTT-3.3.2-14]"),
    bad("v5 publish topic alias 0", 5, "both", b"\x30\x07\x00\x01a\x03\x23\x00\x00", TopicAliasInvalid,
        "[MQTT-3.3.2-8]"),
    bad("v5 publish subscription identifier from a client", 5, "c2s", b"\x30\x06\x00\x01a\x02\x0b\x01",
        ProtocolViolation, "[MQTT-3.3.4-6]"),
    bad("v5 publish subscription identifier 0", 5, "s2c", b"\x30\x06\x00\x01a\x02\x0b\x00", ProtocolViolation),
    bad("v5 publish property identifier of two bytes", 5, "both", b"\x30\x07\x00\x01a\x03\x81\x00\x00",
        MalformedPacket),
    bad("v5 publish correlation data past the section", 5, "both", b"\x30\x08\x00\x01a\x03\x09\x00\x01x",
        MalformedPacket),
)  # fmt: skip

ACKS: Final = (
    ok("v4 puback", 4, "both", b"\x40\x02\x12\x34", Ack(p.PUBACK, 0x1234), "[MQTT-2.2.1-5]"),
    ok("v4 pubrec", 4, "both", b"\x50\x02\x00\x01", Ack(p.PUBREC, 1)),
    ok("v4 pubrel", 4, "both", b"\x62\x02\x00\x01", Ack(p.PUBREL, 1), "[MQTT-3.6.1-1]"),
    ok("v4 pubcomp", 4, "both", b"\x70\x02\x00\x01", Ack(p.PUBCOMP, 1)),
    ok("v3 pubrel with dup", 3, "both", b"\x6a\x02\x00\x01", Ack(p.PUBREL, 1), canonical=False),
    ok("v5 puback short", 5, "both", b"\x40\x02\x00\x01", Ack(p.PUBACK, 1)),
    ok("v5 puback success spelt out", 5, "both", b"\x40\x03\x00\x01\x00", Ack(p.PUBACK, 1), canonical=False),
    ok("v5 puback success and no properties spelt out", 5, "both", b"\x40\x04\x00\x01\x00\x00", Ack(p.PUBACK, 1),
       canonical=False),
    ok("v5 puback no matching subscribers", 5, "both", b"\x40\x03\x00\x01\x10", Ack(p.PUBACK, 1, 0x10),
       "[MQTT-3.4.2-1]"),
    ok("v5 pubrec with reason string and user property", 5, "both",
       b"\x50\x10\x00\x02\x97\x0c\x1f\x00\x02no\x26\x00\x01a\x00\x01b",
       Ack(p.PUBREC, 2, 0x97, props(("a", "b"), s={0x1F: "no"})), "[MQTT-3.5.2-1]"),
    ok("v5 pubrel not found", 5, "both", b"\x62\x03\x00\x02\x92", Ack(p.PUBREL, 2, 0x92), "[MQTT-3.6.2-1]"),
    ok("v5 pubcomp not found", 5, "both", b"\x70\x03\x00\x02\x92", Ack(p.PUBCOMP, 2, 0x92), "[MQTT-3.7.2-1]"),
    bad("puback packet identifier 0", 4, "both", b"\x40\x02\x00\x00", ProtocolViolation, "[MQTT-2.2.1-5]"),
    bad("puback one byte", 4, "both", b"\x40\x01\x00", MalformedPacket),
    bad("v4 puback with a reason code", 4, "both", b"\x40\x03\x00\x01\x00", MalformedPacket),
    bad("puback fixed header flags", 4, "both", b"\x42\x02\x00\x01", MalformedPacket, "[MQTT-2.1.3-1]"),
    bad("pubrel without its flags", 5, "both", b"\x60\x02\x00\x01", MalformedPacket, "[MQTT-3.6.1-1]"),
    bad("v5 puback bytes behind the properties", 5, "both", b"\x40\x05\x00\x01\x00\x00\x00", MalformedPacket),
)  # fmt: skip

SUBSCRIPTIONS: Final = (
    ok("v4 subscribe two filters", 4, "c2s", b"\x82\x0d\x00\x0a\x00\x03a/b\x01\x00\x02+/\x02",
       Subscribe(10, [Request("a/b", 1), Request("+/", 2)]), "[MQTT-3.8.1-1]", "[MQTT-3.8.3-1]"),
    ok("v3 subscribe with dup", 3, "c2s", b"\x8a\x06\x00\x01\x00\x01#\x00", Subscribe(1, [Request("#")]),
       canonical=False),
    ok("v5 subscribe all options", 5, "c2s", b"\x82\x0b\x00\x01\x00\x00\x01a\x1d\x00\x01b\x22",
       Subscribe(1, [Request("a", 1, True, True, 1), Request("b", 2, False, False, 2)])),
    ok("v5 subscribe subscription identifier", 5, "c2s", b"\x82\x0a\x00\x01\x03\x0b\x80\x01\x00\x01a\x00",
       Subscribe(1, [Request("a")], props(i={0x0B: 128}))),
    ok("v5 subscribe shared", 5, "c2s", b"\x82\x10\x00\x01\x00\x00\x0a$share/g/a\x01",
       Subscribe(1, [Request("$share/g/a", 1)])),
    ok("v5 subscribe user property", 5, "c2s", b"\x82\x0e\x00\x01\x07\x26\x00\x01a\x00\x01b\x00\x01#\x00",
       Subscribe(1, [Request("#")], props(("a", "b")))),
    bad("subscribe without its flags", 4, "c2s", b"\x80\x06\x00\x01\x00\x01a\x00", MalformedPacket, "[MQTT-3.8.1-1]"),
    bad("subscribe packet identifier 0", 4, "c2s", b"\x82\x06\x00\x00\x00\x01a\x00", ProtocolViolation,
        "[MQTT-2.2.1-3]"),
    bad("subscribe no filter", 4, "c2s", b"\x82\x02\x00\x01", ProtocolViolation, "[MQTT-3.8.3-2]"),
    bad("v5 subscribe no filter", 5, "c2s", b"\x82\x03\x00\x01\x00", ProtocolViolation, "[MQTT-3.8.3-2]"),
    bad("subscribe empty filter", 4, "c2s", b"\x82\x05\x00\x01\x00\x00\x00", MalformedPacket, "[MQTT-4.7.3-1]"),
    bad("subscribe filter without options", 4, "c2s", b"\x82\x05\x00\x01\x00\x01a", MalformedPacket, "[MQTT-3.8.3-2]"),
    bad("v4 subscribe QoS 3", 4, "c2s", b"\x82\x06\x00\x01\x00\x01a\x03", MalformedPacket, "[MQTT3-3.8.3-4]"),
    bad("v4 subscribe reserved bits", 4, "c2s", b"\x82\x06\x00\x01\x00\x01a\x04", MalformedPacket, "[MQTT3-3.8.3-4]"),
    bad("v5 subscribe QoS 3", 5, "c2s", b"\x82\x07\x00\x01\x00\x00\x01a\x03", ProtocolViolation),
    bad("v5 subscribe retain handling 3", 5, "c2s", b"\x82\x07\x00\x01\x00\x00\x01a\x30", ProtocolViolation),
    bad("v5 subscribe reserved bits", 5, "c2s", b"\x82\x07\x00\x01\x00\x00\x01a\x40", MalformedPacket,
        "[MQTT-3.8.3-5]"),
    bad("v5 subscribe no local on shared", 5, "c2s", b"\x82\x10\x00\x01\x00\x00\x0a$share/g/a\x04",
        ProtocolViolation, "[MQTT-3.8.3-4]"),
    bad("subscribe filter not UTF-8", 4, "c2s", b"\x82\x06\x00\x01\x00\x01\xff\x00", MalformedPacket, "[MQTT-3.8.3-1]"),
    bad("subscribe filter with U+0000", 4, "c2s", b"\x82\x06\x00\x01\x00\x01\x00\x00", MalformedPacket,
        "[MQTT-4.7.3-2]"),
    bad("subscribe from a server", 5, "s2c", b"\x82\x07\x00\x01\x00\x00\x01a\x00", ProtocolViolation),
    ok("v4 suback", 4, "s2c", b"\x90\x06\x00\x0a\x00\x01\x02\x80", Suback(10, [0, 1, 2, 0x80]),
       "[MQTT3-3.9.3-2]", "[MQTT-2.2.1-6]"),
    ok("v5 suback", 5, "s2c", b"\x90\x05\x00\x0a\x00\x02\x8f", Suback(10, [2, 0x8F]), "[MQTT-3.9.3-2]"),
    ok("v5 suback reason string", 5, "s2c", b"\x90\x09\x00\x0a\x05\x1f\x00\x02no\x87",
       Suback(10, [0x87], props(s={0x1F: "no"}))),
    bad("v4 suback code of 5.0", 4, "s2c", b"\x90\x03\x00\x0a\x87", ProtocolViolation, "[MQTT3-3.9.3-2]"),
    bad("suback no codes", 4, "s2c", b"\x90\x02\x00\x0a", ProtocolViolation),
    bad("suback from a client", 4, "c2s", b"\x90\x03\x00\x0a\x00", ProtocolViolation),
    ok("v4 unsubscribe", 4, "c2s", b"\xa2\x08\x00\x01\x00\x01a\x00\x01b", Unsubscribe(1, ["a", "b"]),
       "[MQTT-3.10.1-1]", "[MQTT-3.10.3-1]"),
    ok("v5 unsubscribe", 5, "c2s", b"\xa2\x0d\x00\x01\x07\x26\x00\x01a\x00\x01b\x00\x01#",
       Unsubscribe(1, ["#"], props(("a", "b")))),
    bad("unsubscribe without its flags", 4, "c2s", b"\xa0\x05\x00\x01\x00\x01a", MalformedPacket, "[MQTT-3.10.1-1]"),
    bad("unsubscribe no filter", 4, "c2s", b"\xa2\x02\x00\x01", ProtocolViolation, "[MQTT-3.10.3-2]"),
    bad("v5 unsubscribe no filter", 5, "c2s", b"\xa2\x03\x00\x01\x00", ProtocolViolation, "[MQTT-3.10.3-2]"),
    bad("unsubscribe packet identifier 0", 4, "c2s", b"\xa2\x05\x00\x00\x00\x01a", ProtocolViolation, "[MQTT-2.2.1-3]"),
    bad("unsubscribe filter not UTF-8", 4, "c2s", b"\xa2\x05\x00\x01\x00\x01\xf8", MalformedPacket, "[MQTT-3.10.3-1]"),
    ok("v4 unsuback", 4, "s2c", b"\xb0\x02\x00\x01", Unsuback(1)),
    ok("v5 unsuback", 5, "s2c", b"\xb0\x05\x00\x01\x00\x00\x11", Unsuback(1, [0, 0x11]), "[MQTT-3.11.3-2]"),
    bad("v4 unsuback with codes", 4, "s2c", b"\xb0\x03\x00\x01\x00", MalformedPacket),
    bad("unsuback from a client", 5, "c2s", b"\xb0\x04\x00\x01\x00\x00", ProtocolViolation),
)  # fmt: skip

OTHERS: Final = (
    ok("v4 pingreq", 4, "c2s", b"\xc0\x00", p.Pingreq()),
    ok("v5 pingreq", 5, "c2s", b"\xc0\x00", p.Pingreq()),
    ok("v4 pingresp", 4, "s2c", b"\xd0\x00", p.Pingresp()),
    bad("pingreq with a body", 4, "c2s", b"\xc0\x01\x00", MalformedPacket),
    bad("pingreq flags", 4, "c2s", b"\xc1\x00", MalformedPacket, "[MQTT-2.1.3-1]"),
    bad("pingreq from a server", 4, "s2c", b"\xc0\x00", ProtocolViolation),
    bad("pingresp from a client", 4, "c2s", b"\xd0\x00", ProtocolViolation),
    ok("v4 disconnect", 4, "c2s", b"\xe0\x00", Disconnect()),
    ok("v5 disconnect short", 5, "both", b"\xe0\x00", Disconnect()),
    ok("v5 disconnect success spelt out", 5, "both", b"\xe0\x01\x00", Disconnect(), canonical=False),
    ok("v5 disconnect with will", 5, "c2s", b"\xe0\x01\x04", Disconnect(4), "[MQTT-3.14.2-1]"),
    ok("v5 disconnect session expiry", 5, "c2s", b"\xe0\x07\x00\x05\x11\x00\x00\x00\x0a",
       Disconnect(0, props(i={0x11: 10}))),
    ok("v5 disconnect of a server that moved", 5, "s2c", b"\xe0\x0c\x9d\x0a\x1c\x00\x01h\x1f\x00\x03bye",
       Disconnect(0x9D, props(s={0x1C: "h", 0x1F: "bye"}))),
    bad("v4 disconnect with a reason", 4, "c2s", b"\xe0\x01\x00", MalformedPacket),
    bad("v4 disconnect from a server", 4, "s2c", b"\xe0\x00", ProtocolViolation),
    bad("disconnect flags", 5, "both", b"\xe1\x00", MalformedPacket, "[MQTT-3.14.1-1]"),
    bad("v5 disconnect session expiry from a server", 5, "s2c", b"\xe0\x07\x00\x05\x11\x00\x00\x00\x0a",
        ProtocolViolation, "[MQTT-3.14.2-2]"),
    bad("v5 disconnect server reference from a client", 5, "c2s", b"\xe0\x06\x80\x04\x1c\x00\x01h", ProtocolViolation),
    ok("v5 auth continue", 5, "both", b"\xf0\x0a\x18\x08\x15\x00\x01m\x16\x00\x01d",
       Auth(0x18, props(s={0x15: "m"}, b={0x16: b"d"})), "[MQTT-3.15.2-1]"),
    ok("v5 auth again", 5, "c2s", b"\xf0\x06\x19\x04\x15\x00\x01m", Auth(0x19, props(s={0x15: "m"}))),
    ok("v5 auth success", 5, "s2c", b"\xf0\x06\x00\x04\x15\x00\x01m", Auth(0, props(s={0x15: "m"}))),
    ok("v5 auth success, empty", 5, "s2c", b"\xf0\x00", Auth()),
    bad("v5 auth empty from a client", 5, "c2s", b"\xf0\x00", ProtocolViolation, "[MQTT-3.15.2-1]"),
    bad("v5 auth without method", 5, "both", b"\xf0\x02\x18\x00", ProtocolViolation),
    bad("v5 auth without properties", 5, "both", b"\xf0\x01\x18", MalformedPacket),
    bad("auth flags", 5, "both", b"\xf2\x00", MalformedPacket, "[MQTT-3.15.1-1]"),
    bad("v4 auth", 4, "both", b"\xf0\x00", MalformedPacket, "[MQTT-2.1.3-1]", "[MQTT3-2.2.2-2]"),
    bad("packet type 0", 5, "both", b"\x00\x00", MalformedPacket),
    bad("remaining length of five bytes", 4, "both", b"\x30\x80\x80\x80\x80\x01", MalformedPacket),
    bad("remaining length one byte too long", 4, "both", b"\xc0\x80\x00", MalformedPacket, "[MQTT-1.5.5-1]"),
    bad("remaining length three bytes too long", 4, "both", b"\xc0\x80\x80\x80\x00", MalformedPacket, "[MQTT-1.5.5-1]"),
    bad("too large by a byte", 4, "both", b"\x30\xfe\x1f", PacketTooLarge),
    bad("too large by far", 5, "both", b"\x30\xff\xff\xff\x7f", PacketTooLarge),
    bad("connect too large", 0, "c2s", b"\x10\xff\xff\x7f", PacketTooLarge),
)  # fmt: skip

CASES: Final[tuple[Case, ...]] = (*CONNECT, *CONNACK, *PUBLISH, *ACKS, *SUBSCRIPTIONS, *OTHERS)
"""Every case, valid and not."""

VALID: Final = tuple(case for case in CASES if case.packet is not None)


def senders(case: Case) -> tuple[bool, ...]:
    """For each side that may send the case: whether the receiver is the server."""
    return {"c2s": (True,), "s2c": (False,), "both": (True, False)}[case.direction]
