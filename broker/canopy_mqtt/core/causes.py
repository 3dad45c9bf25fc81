"""The causes for which a connection ends, as logs and `$SYS` name them."""

from __future__ import annotations

from typing import Final

MAX_TEXT: Final = 256
"""Characters of a reason that are told and logged; it may quote what the other side sent."""

CLIENT_DISCONNECT: Final = "client-disconnect"
"""DISCONNECT with reason 0x00 (or any 3.1.1 DISCONNECT): the only end that discards the will."""
CLIENT_DISCONNECT_WITH_WILL: Final = "client-disconnect-with-will"
CONNECTION_LOST: Final = "connection-lost"
WRITE_FAILED: Final = "write-failed"
STALLED: Final = "stalled"
KEEP_ALIVE: Final = "keep-alive"
QUEUE_FULL: Final = "queue-full"
"""Its queue ran over, and its policy is `disconnect`."""
CONNECT_TIMEOUT: Final = "connect-timeout"
PARTIAL_PACKETS: Final = "partial-packets"
"""Clients held too many bytes of incomplete packets, most of them its account, where its own was the oldest."""
PACKET_TIMEOUT: Final = "packet-timeout"
"""It began a packet and did not go on with it."""
TAKEN_OVER: Final = "taken-over"
PROTOCOL_ERROR: Final = "protocol-error"
REFUSED: Final = "refused"
NOT_ALLOWED: Final = "not-allowed"
"""A 3.1 or 3.1.1 client sent what the settings do not allow, and its protocol has no way to tell it so beforehand."""
EXPIRED: Final = "credentials-expired"
"""The time has come at which what it logged in with, a token, say, ends."""
NOT_AUTHORIZED: Final = "not-authorized"
"""A reload has taken away what its client had been admitted by."""
ADMINISTRATIVE_ACTION: Final = "administrative-action"
"""An operator ended it."""
MOVED: Final = "moved"
"""The broker is being drained, and its client was told to use another one."""
SHUTDOWN: Final = "shutdown"
INTERNAL_ERROR: Final = "internal-error"
"""A fault of the broker while it served this connection; the log has more."""

ALL: Final = (
    CLIENT_DISCONNECT,
    CLIENT_DISCONNECT_WITH_WILL,
    CONNECTION_LOST,
    WRITE_FAILED,
    STALLED,
    KEEP_ALIVE,
    QUEUE_FULL,
    CONNECT_TIMEOUT,
    PARTIAL_PACKETS,
    PACKET_TIMEOUT,
    TAKEN_OVER,
    PROTOCOL_ERROR,
    REFUSED,
    NOT_ALLOWED,
    EXPIRED,
    NOT_AUTHORIZED,
    ADMINISTRATIVE_ACTION,
    MOVED,
    SHUTDOWN,
    INTERNAL_ERROR,
)

EVICTIONS: Final = frozenset(ALL).difference(
    (CLIENT_DISCONNECT, CLIENT_DISCONNECT_WITH_WILL, CONNECTION_LOST, WRITE_FAILED, CONNECT_TIMEOUT, REFUSED, SHUTDOWN)
)
"""The ends that the broker decided on, against the client's will."""


REFUSED_PACKETS: Final = (PROTOCOL_ERROR, NOT_ALLOWED)
"""Ends for a packet of the client, which may still be sending it: a large one ends its connection when it begins."""
