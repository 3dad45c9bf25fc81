"""The errors of a client, and when it makes sense to try again.

Owns the errors of `canopy_mqtt.client`. Each message is one line for people; `reason_code` is one of MQTT 5.0 (section
2.4) also where the broker answered in 3.1.1, and 0 where the broker gave none.
"""

from __future__ import annotations

import os
import random
import ssl
from typing import Final, Self

from canopy_mqtt.core.codec import reason_codes

FAILURE: Final = 0x80
"""The first reason code of a failure."""

FIRST_DELAY: Final = 0.1
MAX_DELAY: Final = 10.0
"""Seconds between two attempts to connect."""

HUNG_UP: Final = "the broker closed the connection"

V3_REASONS: Final = (
    reason_codes.SUCCESS,
    reason_codes.UNSUPPORTED_PROTOCOL_VERSION,
    reason_codes.CLIENT_IDENTIFIER_NOT_VALID,
    reason_codes.SERVER_UNAVAILABLE,
    reason_codes.BAD_USER_NAME_OR_PASSWORD,
    reason_codes.NOT_AUTHORIZED,
)
"""The return codes of a CONNACK of 3.1.1 (section 3.2.2.3) as reason codes."""

_PASSING: Final = frozenset(
    {
        reason_codes.UNSPECIFIED_ERROR,
        reason_codes.IMPLEMENTATION_SPECIFIC_ERROR,
        reason_codes.SERVER_UNAVAILABLE,
        reason_codes.SERVER_BUSY,
        reason_codes.QUOTA_EXCEEDED,
        reason_codes.CONNECTION_RATE_EXCEEDED,
    }
)
"""Reason codes of a CONNACK that the next attempt may not get."""

_LASTING: Final = frozenset(
    {
        reason_codes.MALFORMED_PACKET,
        reason_codes.PROTOCOL_ERROR,
        reason_codes.NOT_AUTHORIZED,
        reason_codes.SESSION_TAKEN_OVER,
        reason_codes.TOPIC_NAME_INVALID,
        reason_codes.TOPIC_ALIAS_INVALID,
        reason_codes.PACKET_TOO_LARGE,
        reason_codes.ADMINISTRATIVE_ACTION,
        reason_codes.RETAIN_NOT_SUPPORTED,
        reason_codes.QOS_NOT_SUPPORTED,
    }
)
"""Reason codes of a DISCONNECT that would come again: the client's own mistakes, and administration."""


class ClientError(Exception):
    """Root of what this client raises.

    `why`: the message without the address of the broker; `lasting`: the next attempt will most likely end so, too.
    """

    def __init__(self, message: str, reason_code: int = 0, lasting: bool = False) -> None:
        super().__init__(message)
        self.why = message
        self.reason_code = reason_code
        self.lasting = lasting

    def at(self, where: object) -> Self:
        """Put the address of the broker before the message, and return the error."""
        self.args = (f"{where}: {self.why}",)
        return self


class RefusedError(ClientError):
    """The broker answered the CONNECT with a refusal."""

    def __init__(self, message: str, reason_code: int) -> None:
        super().__init__(message, reason_code, reason_code not in _PASSING)


class LostError(ClientError):
    """There is no connection, or none any more: the network failed, the broker sent DISCONNECT, broke the protocol or
    was silent. Where the system reported an error, that is the `__cause__`."""

    def __init__(self, message: str, reason_code: int = 0, lasting: bool = False) -> None:
        super().__init__(message, reason_code, lasting or reason_code in _LASTING)


class NotSupportedError(ClientError):
    """The broker's CONNACK excludes this message: its QoS, its RETAIN flag or its size."""

    def __init__(self, message: str, reason_code: int) -> None:
        super().__init__(message, reason_code, True)


def told(reason_code: int) -> str:
    """Return a reason code for people, as in `Not authorized (0x87)`."""
    return f"{reason_codes.name(reason_code)} (0x{reason_code:02X})"


def describe(error: Exception) -> str:
    """Describe an error in the system's or in OpenSSL's words; event loops have words of their own."""
    if isinstance(error, UnicodeError):
        return "the host is no name that can be looked up"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.errno:
        # The codes of name look-ups are negative, and bring their own text.
        return (os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)).lower()
    return str(error) or type(error).__name__


def backoff(attempt: int) -> float:
    """Return the seconds to wait before an attempt, counted from 0; random, so that not all clients come back at
    once."""
    longest: float = min(FIRST_DELAY * 2 ** min(attempt, 16), MAX_DELAY)
    return random.uniform(longest / 2, longest)
