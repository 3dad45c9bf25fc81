"""What may go wrong for a client, and whether and when it makes sense to try again.

Owns the errors of `broker.client`. Each message is one line for people; `reason_code` is one of MQTT 5.0 (section 2.4)
also where the broker answered in 3.1.1, and 0 where the broker gave none.
"""

from __future__ import annotations

import os
import random
import ssl
from typing import Final, Self

from broker.core.codec import reasons

FAILURE: Final = 0x80
"""From this reason code on it is one."""

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 10.0
"""Seconds between two attempts to connect."""

HUNG_UP: Final = "the broker closed the connection"

V3_REASONS: Final = (
    reasons.SUCCESS,
    reasons.UNSUPPORTED_PROTOCOL_VERSION,
    reasons.CLIENT_IDENTIFIER_NOT_VALID,
    reasons.SERVER_UNAVAILABLE,
    reasons.BAD_USER_NAME_OR_PASSWORD,
    reasons.NOT_AUTHORIZED,
)
"""The return codes of a CONNACK of 3.1.1 (section 3.2.2.3) as reason codes."""

_PASSING: Final = frozenset(
    {
        reasons.UNSPECIFIED_ERROR,
        reasons.IMPLEMENTATION_SPECIFIC_ERROR,
        reasons.SERVER_UNAVAILABLE,
        reasons.SERVER_BUSY,
        reasons.QUOTA_EXCEEDED,
        reasons.CONNECTION_RATE_EXCEEDED,
    }
)
"""Reason codes of a CONNACK that the next attempt may not get."""

_LASTING: Final = frozenset(
    {
        reasons.MALFORMED_PACKET,
        reasons.PROTOCOL_ERROR,
        reasons.NOT_AUTHORIZED,
        reasons.SESSION_TAKEN_OVER,
        reasons.TOPIC_NAME_INVALID,
        reasons.TOPIC_ALIAS_INVALID,
        reasons.PACKET_TOO_LARGE,
        reasons.ADMINISTRATIVE_ACTION,
        reasons.RETAIN_NOT_SUPPORTED,
        reasons.QOS_NOT_SUPPORTED,
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
        """The same, with the address of the broker before the message."""
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
    """A reason code for people, as in `Not authorized (0x87)`."""
    return f"{reasons.name(reason_code)} (0x{reason_code:02X})"


def describe(error: Exception) -> str:
    """What is wrong, in the system's or in OpenSSL's words; event loops have words of their own."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error)


def backoff(attempt: int) -> float:
    """Seconds to wait before an attempt, counted from 0; random, so that many clients do not come back at once."""
    longest: float = min(FIRST_DELAY * 2 ** min(attempt, 16), LONGEST_DELAY)
    return random.uniform(longest / 2, longest)
