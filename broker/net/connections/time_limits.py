"""A client's time limits: CONNECT, keep alive, incomplete packets, reading.

Owns, for one connection, when it is to be checked next, and when an incomplete packet last made progress. It only
judges; its connection acts.
"""

from __future__ import annotations

import time
from typing import Final

from broker.core import causes
from broker.core.codec import reasons
from broker.core.connection.phases import CONNECTED, CONNECTING
from broker.core.connection.protocol import LARGE_READ, ServerProtocol
from broker.net.scheduling.hub import FlushScheduler
from broker.net.scheduling.timers import Checked
from broker.net.stream import STALL_LOOKS, Stream

GRACE: Final = 1.5
"""A client may be silent for this many keep alive times, section 3.1.2.10 [MQTT-3.1.2-22]."""

CLOCK_LOOKS: Final = 600.0
"""Seconds after which the time at which credentials expire is held against the system's clock again: it may be set."""


class TimeLimits:
    """The time limits of one client. Times in seconds of the loop's clock."""

    def __init__(self, hub: FlushScheduler, protocol: ServerProtocol, stream: Stream, opened_at: float) -> None:
        self._hub = hub
        self._protocol = protocol
        self._stream = stream
        self._opened_at = opened_at
        # Bytes that wait in the decoder; how many there were, and when, at the last sign that the packet is coming.
        self.held = 0
        self._held_from = 0
        self.sign_at = 0.0
        # What `look` found: why the connection is to end; with which reason code, 0: the client is told nothing.
        self.cause = ""
        self.code = 0
        self.text = ""

    def begin(self, connection: Checked) -> None:
        """The connection was made: its CONNECT is waited for."""
        if self._hub.connect_timeout > 0.0:
            self._hub.wheel.add(connection, self._opened_at + self._hub.connect_timeout)

    def opened(self, connection: Checked) -> None:
        self._watch_silence(connection)
        self.watch_expiry(connection)

    def reads_on(self, connection: Checked) -> None:
        """The connection is read from again: the time in which it was not is not the client's."""
        self.sign_at = self._protocol.last_received = self._hub.time()
        if self._stream.closing_at == 0.0:
            self._watch_silence(connection)

    def _watch_silence(self, connection: Checked) -> None:
        protocol = self._protocol
        if protocol.keep_alive > 0:
            self._hub.wheel.add(connection, protocol.last_received + GRACE * protocol.keep_alive)

    def writing_waits(self, connection: Checked) -> None:
        hub = self._hub
        if hub.stall_timeout > 0.0:
            hub.wheel.add(connection, hub.time() + hub.stall_timeout / STALL_LOOKS)

    def hold(self, connection: Checked, held: int, read: int) -> list[Checked]:
        """After `read` bytes `held` wait: count them, and see that the rest comes in time.

        The connections that have to end because all clients together hold too much.
        """
        before = self.held
        if held == 0 and before == 0:
            return []
        hub = self._hub
        completed = held < before + read
        hub.partial.update(connection, held, completed)
        self.held = held
        if held > 0 and (before == 0 or completed or held - self._held_from >= LARGE_READ):
            self._held_from = held
            self.sign_at = hub.loop.time()
            if hub.packet_timeout > 0.0 and self._protocol.state == CONNECTED:
                hub.wheel.add(connection, self.sign_at + hub.packet_timeout)
        return hub.partial.take_oldest()

    def watch_expiry(self, connection: Checked) -> None:
        """See that the connection is looked at when its credentials expire."""
        session = self._protocol.session
        if session is not None and session.principal.expires_at != 0.0:
            self._hub.wheel.add(connection, self.expires(self._hub.time()))

    def look(self, now: float) -> float:
        """When to look again; 0.0: never, or `cause` says why the connection is to end."""
        protocol = self._protocol
        stream = self._stream
        hub = self._hub
        again = 0.0
        if protocol.state != CONNECTED:
            if hub.connect_timeout > 0.0:
                again = self._opened_at + hub.connect_timeout
                if now >= again:
                    # What decides about it may be slow.
                    text = "no CONNECT in time" if protocol.state == CONNECTING else "no answer to its CONNECT in time"
                    return self._over(causes.CONNECT_TIMEOUT, reasons.MAXIMUM_CONNECT_TIME, text)
        elif protocol.keep_alive > 0 and protocol.held_until > 0.0:
            # It is not read from, and so cannot be silent; but it can be gone.
            if stream.peer_is_gone:
                return self._over(causes.CONNECTION_LOST, 0, "")
            again = now + GRACE * protocol.keep_alive
        elif protocol.keep_alive > 0 and stream.reading:
            again = protocol.last_received + GRACE * protocol.keep_alive
            if now >= again:
                text = f"nothing received for {GRACE} x {protocol.keep_alive} s"
                return self._over(causes.KEEP_ALIVE, reasons.KEEP_ALIVE_TIMEOUT, text)
        due = self.expires(now)
        if due > 0.0:
            if now >= due:
                return self._over(causes.EXPIRED, reasons.NOT_AUTHORIZED, "what the client logged in with has expired")
            if again == 0.0 or due < again:
                again = due
        if self.held > 0 and protocol.state == CONNECTED and hub.packet_timeout > 0.0:
            if not stream.reading:
                # It waits for us.
                self.sign_at = now
            due = self.sign_at + hub.packet_timeout
            if now >= due:
                text = f"less than {LARGE_READ} bytes of a packet in {hub.packet_timeout:g} s"
                return self._over(causes.PACKET_TIMEOUT, reasons.IMPLEMENTATION_SPECIFIC_ERROR, text)
            if again == 0.0 or due < again:
                again = due
        if stream.full and hub.stall_timeout > 0.0:
            due = stream.stall_due(now, hub.stall_timeout)
            if due == 0.0:
                return self._over(causes.STALLED, 0, stream.why_stalled(hub.stall_timeout))
            if again == 0.0 or due < again:
                again = due
        return again

    def expires(self, now: float) -> float:
        """When to see whether the client's credentials have expired (loop time); 0.0: they never do.

        The system's clock decides, which may be set meanwhile: so never much later than now.
        """
        session = self._protocol.session
        expires_at = 0.0 if session is None else session.principal.expires_at
        return 0.0 if expires_at == 0.0 else now + min(max(expires_at - time.time(), 0.0), CLOCK_LOOKS)

    def _over(self, cause: str, code: int, text: str) -> float:
        self.cause = cause
        self.code = code
        self.text = text
        return 0.0
