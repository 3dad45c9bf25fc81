"""The time limits of a client's connection: CONNECT, keep alive, incomplete packets, reading, its credentials.

The times themselves are fields of the connection: `sign_at`, when an incomplete packet last made progress, and those of
its protocol and its stream. Times in seconds of the loop's clock.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core import causes
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.protocol.phases import CONNECTED, CONNECTING
from canopy_mqtt.core.protocol.server_protocol import LARGE_READ
from canopy_mqtt.net.connections.ends import ABORT, CLOSE
from canopy_mqtt.net.stream import STALL_LOOKS

if TYPE_CHECKING:
    from canopy_mqtt.net.connections.connection import Connection

GRACE: Final = 1.5
"""A client may be silent for this many keep alive times, section 3.1.2.10 [MQTT-3.1.2-22]."""

CLOCK_LOOKS: Final = 600.0
"""Seconds after which the end of credentials is compared with the system's clock again: the clock may be set."""


def begin(connection: Connection) -> None:
    """Start the time-out of the CONNECT."""
    rounds = connection.rounds
    if rounds.connect_timeout > 0.0:
        rounds.wheel.add(connection, connection.opened_at + rounds.connect_timeout)


def end_by(connection: Connection, until: float) -> None:
    """Let the time for a CONNECT end by then (s, loop time): the connection has waited elsewhere before. 0.0: it has
    not."""
    timeout = connection.rounds.connect_timeout
    if timeout > 0.0 and 0.0 < until < connection.opened_at + timeout:
        connection.opened_at = until - timeout
        begin(connection)


def accepted(connection: Connection) -> None:
    """Start the time limits of a client that was accepted."""
    _watch_silence(connection)
    watch_expiry(connection)


def reads_on(connection: Connection) -> None:
    """Restart the time limits after a pause in reading, which the broker has made."""
    connection.sign_at = connection.protocol.last_received = connection.rounds.time()
    if not connection.protocol.close_cause:
        _watch_silence(connection)


def _watch_silence(connection: Connection) -> None:
    protocol = connection.protocol
    if protocol.keep_alive > 0:
        connection.rounds.wheel.add(connection, protocol.last_received + GRACE * protocol.keep_alive)


def writing_waits(connection: Connection) -> None:
    """Start the stall time-out of a connection whose transport is full."""
    rounds = connection.rounds
    if rounds.stall_timeout > 0.0:
        rounds.wheel.add(connection, rounds.time() + rounds.stall_timeout / STALL_LOOKS)


def progressed(connection: Connection) -> None:
    """Restart the time-out of an incomplete packet, of which enough has come, or another one has begun."""
    rounds = connection.rounds
    connection.sign_at = rounds.loop.time()
    if rounds.packet_timeout > 0.0 and connection.protocol.state == CONNECTED:
        rounds.wheel.add(connection, connection.sign_at + rounds.packet_timeout)


def watch_expiry(connection: Connection) -> None:
    """Schedule the check of the credentials' expiry."""
    if _expires_at(connection) > 0.0:
        connection.rounds.wheel.add(connection, _expiry_check(connection, connection.rounds.time()))


def check(connection: Connection, now: float) -> float:
    """End a connection whose time is over. Returns the time of the next check, 0.0 for none."""
    protocol = connection.protocol
    stream = connection.stream
    rounds = connection.rounds
    again = math.inf
    if protocol.state != CONNECTED:
        if rounds.connect_timeout > 0.0:
            again = connection.opened_at + rounds.connect_timeout
            if now >= again:
                # Access control may be slow.
                text = "no CONNECT in time" if protocol.state == CONNECTING else "no answer to its CONNECT in time"
                return _close(connection, causes.CONNECT_TIMEOUT, reason_codes.MAXIMUM_CONNECT_TIME, text)
    elif protocol.keep_alive > 0 and protocol.held_until > 0.0:
        # The broker does not read from it, so it cannot be silent; but it can be gone.
        if stream.peer_is_gone:
            connection.end_later(ABORT, causes.CONNECTION_LOST)
            return 0.0
        again = now + GRACE * protocol.keep_alive
    elif protocol.keep_alive > 0 and stream.reading:
        again = protocol.last_received + GRACE * protocol.keep_alive
        if now >= again:
            text = f"nothing received for {GRACE} x {protocol.keep_alive} s"
            return _close(connection, causes.KEEP_ALIVE, reason_codes.KEEP_ALIVE_TIMEOUT, text)
    due = _expiry_check(connection, now)
    if now >= due:
        return _close(connection, causes.EXPIRED, reason_codes.NOT_AUTHORIZED, "credentials expired")
    again = min(again, due)
    if connection.held > 0 and protocol.state == CONNECTED and rounds.packet_timeout > 0.0:
        if not stream.reading:
            # The packet waits for the broker.
            connection.sign_at = now
        due = connection.sign_at + rounds.packet_timeout
        if now >= due:
            text = f"less than {LARGE_READ} bytes of a packet in {rounds.packet_timeout:g} s"
            return _close(connection, causes.PACKET_TIMEOUT, reason_codes.IMPLEMENTATION_SPECIFIC_ERROR, text)
        again = min(again, due)
    if stream.full and rounds.stall_timeout > 0.0:
        due = stream.stall_due(now, rounds.stall_timeout)
        if due == 0.0:
            connection.end_later(ABORT, causes.STALLED, 0, stream.why_stalled(rounds.stall_timeout))
            return 0.0
        again = min(again, due)
    return again if again < math.inf else 0.0


def _expiry_check(connection: Connection, now: float) -> float:
    """Return when to check whether the client's credentials have expired (loop time); infinite: they never do.

    The system's clock decides, which may be set meanwhile: so never much later than now.
    """
    expires_at = _expires_at(connection)
    if expires_at == 0.0:
        return math.inf
    return now + min(max(expires_at - time.time(), 0.0), CLOCK_LOOKS)


def _expires_at(connection: Connection) -> float:
    """Return when the client's credentials expire (s since 1970); 0.0: never."""
    session = connection.protocol.session
    return 0.0 if session is None else session.principal.expires_at


def _close(connection: Connection, cause: str, code: int, text: str) -> float:
    connection.end_later(CLOSE, cause, code, text)
    return 0.0
