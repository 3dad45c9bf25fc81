"""Reason codes of MQTT 5.0 (section 2.4) and return codes of MQTT 3.1.1 (section 3.2.2.3).

Owns the numbers, their names, and the tree of errors that peers can cause (`CanopyError`), each with the code to answer
with. Codes below 0x80 are success, 0x80 and above are failure. Faults of the operator or of this program are not among
the errors; settings and start-up have their own.
"""

from __future__ import annotations

from typing import Final

SUCCESS: Final = 0x00
GRANTED_QOS_0: Final = 0x00
GRANTED_QOS_1: Final = 0x01
GRANTED_QOS_2: Final = 0x02
DISCONNECT_WITH_WILL: Final = 0x04
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NO_SUBSCRIPTION_EXISTED: Final = 0x11
CONTINUE_AUTHENTICATION: Final = 0x18
REAUTHENTICATE: Final = 0x19
UNSPECIFIED_ERROR: Final = 0x80
MALFORMED_PACKET: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
IMPLEMENTATION_SPECIFIC_ERROR: Final = 0x83
UNSUPPORTED_PROTOCOL_VERSION: Final = 0x84
CLIENT_IDENTIFIER_NOT_VALID: Final = 0x85
BAD_USER_NAME_OR_PASSWORD: Final = 0x86
NOT_AUTHORIZED: Final = 0x87
SERVER_UNAVAILABLE: Final = 0x88
SERVER_BUSY: Final = 0x89
BANNED: Final = 0x8A
SERVER_SHUTTING_DOWN: Final = 0x8B
BAD_AUTHENTICATION_METHOD: Final = 0x8C
KEEP_ALIVE_TIMEOUT: Final = 0x8D
SESSION_TAKEN_OVER: Final = 0x8E
TOPIC_FILTER_INVALID: Final = 0x8F
TOPIC_NAME_INVALID: Final = 0x90
PACKET_IDENTIFIER_IN_USE: Final = 0x91
PACKET_IDENTIFIER_NOT_FOUND: Final = 0x92
RECEIVE_MAXIMUM_EXCEEDED: Final = 0x93
TOPIC_ALIAS_INVALID: Final = 0x94
PACKET_TOO_LARGE: Final = 0x95
MESSAGE_RATE_TOO_HIGH: Final = 0x96
QUOTA_EXCEEDED: Final = 0x97
ADMINISTRATIVE_ACTION: Final = 0x98
PAYLOAD_FORMAT_INVALID: Final = 0x99
RETAIN_NOT_SUPPORTED: Final = 0x9A
QOS_NOT_SUPPORTED: Final = 0x9B
USE_ANOTHER_SERVER: Final = 0x9C
SERVER_MOVED: Final = 0x9D
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0x9E
CONNECTION_RATE_EXCEEDED: Final = 0x9F
MAXIMUM_CONNECT_TIME: Final = 0xA0
SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: Final = 0xA1
WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0xA2

# MQTT 3.1.1 CONNACK return codes, section 3.2.2.3.
V3_ACCEPTED: Final = 0
V3_UNACCEPTABLE_PROTOCOL_VERSION: Final = 1
V3_IDENTIFIER_REJECTED: Final = 2
V3_SERVER_UNAVAILABLE: Final = 3
V3_BAD_USER_NAME_OR_PASSWORD: Final = 4
V3_NOT_AUTHORIZED: Final = 5

# MQTT 3.1.1 SUBACK failure, section 3.9.3.
V3_SUBACK_FAILURE: Final = 0x80

_NAMES: Final[dict[int, str]] = {
    0x00: "Success",
    0x01: "Granted QoS 1",
    0x02: "Granted QoS 2",
    0x04: "Disconnect with Will Message",
    0x10: "No matching subscribers",
    0x11: "No subscription existed",
    0x18: "Continue authentication",
    0x19: "Re-authenticate",
    0x80: "Unspecified error",
    0x81: "Malformed Packet",
    0x82: "Protocol Error",
    0x83: "Implementation specific error",
    0x84: "Unsupported Protocol Version",
    0x85: "Client Identifier not valid",
    0x86: "Bad User Name or Password",
    0x87: "Not authorized",
    0x88: "Server unavailable",
    0x89: "Server busy",
    0x8A: "Banned",
    0x8B: "Server shutting down",
    0x8C: "Bad authentication method",
    0x8D: "Keep Alive timeout",
    0x8E: "Session taken over",
    0x8F: "Topic Filter invalid",
    0x90: "Topic Name invalid",
    0x91: "Packet Identifier in use",
    0x92: "Packet Identifier not found",
    0x93: "Receive Maximum exceeded",
    0x94: "Topic Alias invalid",
    0x95: "Packet too large",
    0x96: "Message rate too high",
    0x97: "Quota exceeded",
    0x98: "Administrative action",
    0x99: "Payload format invalid",
    0x9A: "Retain not supported",
    0x9B: "QoS not supported",
    0x9C: "Use another server",
    0x9D: "Server moved",
    0x9E: "Shared Subscriptions not supported",
    0x9F: "Connection rate exceeded",
    0xA0: "Maximum connect time",
    0xA1: "Subscription Identifiers not supported",
    0xA2: "Wildcard Subscriptions not supported",
}

_V3_CONNACK: Final[dict[int, int]] = {
    SUCCESS: V3_ACCEPTED,
    UNSUPPORTED_PROTOCOL_VERSION: V3_UNACCEPTABLE_PROTOCOL_VERSION,
    CLIENT_IDENTIFIER_NOT_VALID: V3_IDENTIFIER_REJECTED,
    SERVER_UNAVAILABLE: V3_SERVER_UNAVAILABLE,
    SERVER_BUSY: V3_SERVER_UNAVAILABLE,
    QUOTA_EXCEEDED: V3_SERVER_UNAVAILABLE,
    CONNECTION_RATE_EXCEEDED: V3_SERVER_UNAVAILABLE,
    BAD_USER_NAME_OR_PASSWORD: V3_BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED: V3_NOT_AUTHORIZED,
    BANNED: V3_NOT_AUTHORIZED,
}


def name(code: int) -> str:
    """The specification's name of a reason code; "0xNN" for a number that has none."""
    return _NAMES.get(code, f"0x{code:02X}")


def v3_connack(code: int) -> int:
    """The 3.1.1 CONNACK return code nearest to a 5.0 reason code, or -1 where 3.1.1 has none.

    -1 means: close the connection without a CONNACK (3.1.1 section 3.2.2.3).
    """
    return _V3_CONNACK.get(code, -1)


class CanopyError(Exception):
    """Root of every error that Canopy raises on purpose.

    CanopyError
    └── ProtocolError (reason_code)         the peer broke the protocol: answer with the code, close the connection
        ├── MalformedPacket       0x81      the bytes are not a packet, or hold an ill-formed topic name or filter
        ├── ProtocolViolation     0x82      a packet that may not come now, or may not say this
        ├── PacketTooLarge        0x95      longer than the Maximum Packet Size that was announced
        ├── ReceiveMaximumExceeded 0x93     more unacknowledged QoS 1/2 publishes than announced
        ├── TopicAliasInvalid     0x94
        └── Refused               any       a well-formed packet that this server's settings do not accept
    """


class ProtocolError(CanopyError):
    """A peer violated the protocol. `reason_code` is the MQTT 5.0 reason code to answer with (section 4.13)."""

    def __init__(self, message: str, reason_code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.reason_code = reason_code


class MalformedPacket(ProtocolError):
    """Bytes that cannot be parsed as specified (section 1.2, "Malformed Packet")."""

    def __init__(self, message: str) -> None:
        super().__init__(message, MALFORMED_PACKET)


class ProtocolViolation(ProtocolError):
    """A packet with content, or at a time, that the protocol does not allow (section 1.2, "Protocol Error")."""

    def __init__(self, message: str) -> None:
        super().__init__(message, PROTOCOL_ERROR)


class PacketTooLarge(ProtocolError):
    """A packet whose declared size exceeds the maximum of this side."""

    def __init__(self, message: str) -> None:
        super().__init__(message, PACKET_TOO_LARGE)


class ReceiveMaximumExceeded(ProtocolError):
    """More QoS 1 and 2 publishes in flight than the receiver's Receive Maximum (section 3.3.4)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, RECEIVE_MAXIMUM_EXCEEDED)


class TopicAliasInvalid(ProtocolError):
    """A Topic Alias of 0 or above the announced maximum; one that was never set is a `ProtocolViolation`
    (section 3.3.2.3.4)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, TOPIC_ALIAS_INVALID)


class Refused(ProtocolError):
    """A valid packet that this server's settings do not accept, with the reason code.

    `detail`: what the log says instead of the message, which the client is told; empty: the same.
    """

    def __init__(self, message: str, reason_code: int, detail: str = "") -> None:
        super().__init__(message, reason_code)
        self.detail = detail
