"""The tree of errors that peers can cause (`CanopyError`), each with the MQTT reason code to answer with.

Faults of the operator or of this program are not among them; settings and start-up have their own errors.
"""

from __future__ import annotations

from broker.core.codec import reasons


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

    def __init__(self, message: str, reason_code: int = reasons.PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.reason_code = reason_code


class MalformedPacket(ProtocolError):
    """Bytes that cannot be parsed as specified (section 1.2, "Malformed Packet")."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reasons.MALFORMED_PACKET)


class ProtocolViolation(ProtocolError):
    """A packet with content, or at a time, that the protocol does not allow (section 1.2, "Protocol Error")."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reasons.PROTOCOL_ERROR)


class PacketTooLarge(ProtocolError):
    """A packet whose declared size exceeds the maximum of this side."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reasons.PACKET_TOO_LARGE)


class ReceiveMaximumExceeded(ProtocolError):
    """More QoS 1 and 2 publishes in flight than the receiver's Receive Maximum (section 3.3.4)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reasons.RECEIVE_MAXIMUM_EXCEEDED)


class TopicAliasInvalid(ProtocolError):
    """A Topic Alias of 0 or above the announced maximum; one that was never set is a `ProtocolViolation`
    (section 3.3.2.3.4)."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reasons.TOPIC_ALIAS_INVALID)


class Refused(ProtocolError):
    """A valid packet that this server's settings do not accept, with the reason code.

    `detail`: what the log says instead of the message, which the client is told; empty: the same.
    """

    def __init__(self, message: str, reason_code: int, detail: str = "") -> None:
        super().__init__(message, reason_code)
        self.detail = detail
