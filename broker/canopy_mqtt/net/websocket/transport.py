"""A WebSocket between a socket's transport and a `Connection`: a protocol for the one, a transport for the other.

Owns the phases of one WebSocket: the upgrade, frames both ways, and the end with its close frames. A batch of the
connection's writer is one binary frame; a read's binary frames are one read of the connection. All time-outs, limits
and turns are those of the connection, which exists from the acceptance of the socket on: a slow upgrade is a slow
CONNECT.

Promises: beyond the cost of TCP, the broker keeps a client's request, counted with incomplete packets, and 139 bytes of
frames. Of many PINGs at once it answers the latest, and none while the client does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from mypy_extensions import i64

from canopy_mqtt.core import causes
from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.jobs import WEBSOCKET_SHIFT
from canopy_mqtt.core.protocol.phases import CONNECTED
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.ends import CLOSE, PEER_CLOSED
from canopy_mqtt.net.connections.ends import OPEN as OPENED
from canopy_mqtt.net.stream import FULL_READ, close_half
from canopy_mqtt.net.websocket import frames
from canopy_mqtt.net.websocket.frames import FrameReader
from canopy_mqtt.net.websocket.upgrade import Upgrade, UpgradeTerms, response

ROOM: Final = 65_536
"""Bytes that a client's first frame may have beyond its CONNECT: it may hold more packets than that one."""

FRAMES_A_TURN: Final = 2048
"""Frames of a client in one turn, about a millisecond: a read of 256 KiB may hold 43,690 empty ones."""

UPGRADING: Final = 0
OPEN: Final = 1
CLOSING: Final = 2
"""Our close frame was sent, and the peer's is awaited."""
OVER: Final = 3
"""Whatever comes is ignored."""

_CODES: Final = {
    causes.CLIENT_DISCONNECT: frames.NORMAL,
    causes.CLIENT_DISCONNECT_WITH_WILL: frames.NORMAL,
    causes.SHUTDOWN: frames.GOING_AWAY,
    causes.PROTOCOL_ERROR: frames.PROTOCOL_ERROR,
    causes.INTERNAL_ERROR: frames.INTERNAL_ERROR,
}
"""Cause of the end → the code of our close frame; all other causes are the broker's policy."""


class WebSocketTransport:
    """One WebSocket: an `asyncio.Protocol` and an `asyncio.Transport` by its methods, not by inheritance."""

    def __init__(self, connection: Connection, terms: UpgradeTerms) -> None:
        self._connection: Connection | None = connection
        self._loop: asyncio.AbstractEventLoop = connection.loop
        self._upgrade: Upgrade | None = Upgrade(terms)
        most: int = connection.rounds.router.limits.max_connect_size
        self._reader = FrameReader(most + ROOM if most > 0 else 0)
        self._phase: i64 = UPGRADING
        # Set by connection_made.
        self._socket: asyncio.Transport
        self._send: Callable[[bytes], None]
        # The rest of a read that waits for a turn, and where it begins.
        self._rest = b""
        self._at: i64 = 0
        # True while the connection reads; while the socket is read; while a call of `_go_on` is scheduled.
        self._wanted = True
        self._reading = True
        self._going_on = False
        self._full = False
        self._closing = False
        # A packet watch, which gets the data and passes it on; None: there is none.
        self._through: Any = None
        # The code of our close frame after a fault in the client's frames.
        self._code = 0

    # -- the socket's protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)  # uvloop has its own class
        self._send = self._socket.write
        connection = self._connection
        if connection is not None:
            connection.connection_made(cast(asyncio.Transport, self))

    def data_received(self, data: bytes) -> None:
        connection = self._connection
        if connection is None or self._phase == OVER:
            return
        try:
            if self._phase == UPGRADING:
                data = self._request(connection, data)
            if data:
                self._rest = self._rest + data if self._rest else data
                if not self._going_on:
                    self._take(connection)
                if len(data) >= FULL_READ and self._reading and self._phase == OPEN:
                    # There is more: uvloop would read on, up to 32 times, before it looks at any other connection.
                    self._pause()
                    self._go_on_soon()
        except Exception as error:
            connection.failed(error)

    def eof_received(self) -> bool:
        return self._connection is not None and self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        connection = self._connection
        # No cycle may keep both.
        self._connection = None
        self._through = None
        self._phase = OVER
        self._rest = b""
        self._upgrade = None
        if connection is not None:
            connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._full = True
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._full = False
        connection = self._connection
        if connection is not None:
            self._pong()
            connection.resume_writing()

    def opened(self) -> None:
        """Begin with the frames: the upgrade was answered elsewhere. Called before anything is read."""
        self._upgrade = None
        self._phase = OPEN

    # -- the upgrade ---------------------------------------------------------------------------------------------------

    def _request(self, connection: Connection, data: bytes) -> bytes:
        """Take more of the HTTP request. Returns the bytes that came after it."""
        upgrade = self._upgrade
        if upgrade is None or connection.state != OPENED:
            return b""
        answered = upgrade.feed(data)
        connection.hold(upgrade.held_size, len(data))
        if not answered or self._phase != UPGRADING:
            return b""
        self._upgrade = None
        self._send(upgrade.response)
        if upgrade.status == 101:
            self._phase = OPEN
            return upgrade.rest
        self._phase = OVER
        reason = f"{upgrade.reason} (HTTP {upgrade.status})"
        connection.end(CLOSE, causes.PROTOCOL_ERROR, reason_codes.PROTOCOL_ERROR, reason)
        return b""

    # -- reading -------------------------------------------------------------------------------------------------------

    def _take(self, connection: Connection) -> None:
        """Process as much of a read as one turn allows and the connection wants."""
        reader = self._reader
        if not reader.over:
            if reader.limit > 0 and connection.protocol.state == CONNECTED:
                # The decoder bounds packets, and a frame keeps nothing: it may have any size.
                reader.limit = 0
            parts: list[bytes] = []
            rounds = connection.rounds
            most: i64 = rounds.work >> WEBSOCKET_SHIFT
            if most > FRAMES_A_TURN:
                most = FRAMES_A_TURN
            if reader.limit > 0 and most > 1:
                # This one may bring the CONNECT, after which the next one may have any size.
                most = 1
            self._at = reader.read(self._rest, self._at, most, parts)
            rounds.budget.used += reader.frames << WEBSOCKET_SHIFT
            rounds.charge()
            left = len(self._rest) - self._at
            if left == 0:
                self._rest = b""
                self._at = 0
            connection.in_transport = left
            if parts and self._phase == OPEN:
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                if self._through is None:
                    connection.data_received(data)
                else:
                    self._through.data_received(data)
        self._act(connection)

    def _act(self, connection: Connection) -> None:
        """Act on the control frames of a read, after its data."""
        reader = self._reader
        if self._phase == OVER or not self._wanted:
            # The connection is busy with its data: what came after it waits.
            return
        if reader.over:
            self._rest = b""
            self._at = 0
            if self._phase == CLOSING:
                # The peer's close frame came, or can come no more.
                self._phase = OVER
                self._socket.close()
            elif reader.error != 0:
                self._failed(connection)
            else:
                self._closed_by_peer(connection)
            return
        if reader.ping is not None:
            self._pong()
        if self._rest:
            self._pause()
            self._go_on_soon()

    def _failed(self, connection: Connection) -> None:
        """End the connection of a client that broke the rules of WebSocket; `close` says why."""
        if self._code == 0:
            self._code = self._reader.error
            too_large = self._code == frames.TOO_LARGE
            reason_code = reason_codes.PACKET_TOO_LARGE if too_large else reason_codes.PROTOCOL_ERROR
            connection.end(CLOSE, causes.PROTOCOL_ERROR, reason_code, f"WebSocket: {self._reader.error_text}")

    def _closed_by_peer(self, connection: Connection) -> None:
        """Answer the client's close frame, and close first (section 7.1.1). For MQTT, the connection is lost."""
        code = self._reader.close_code
        self._phase = OVER
        self._closing = True
        self._send(frames.close_frame(frames.NORMAL if code == frames.NO_STATUS else code))
        self._socket.close()
        connection.end(PEER_CLOSED, causes.CONNECTION_LOST)

    def _pong(self) -> None:
        reader = self._reader
        ping = reader.ping
        if ping is not None and self._phase == OPEN and not self._full:
            reader.ping = None
            self._send(frames.header(frames.PONG, len(ping)) + ping)

    def _go_on_soon(self) -> None:
        if not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Continue a read in its next turn, after the writers and the other connections."""
        self._going_on = False
        connection = self._connection
        if connection is None or self._phase == OVER or not self._wanted:
            return
        try:
            if self._rest:
                self._take(connection)
            else:
                self._act(connection)
            if not self._rest:
                self._resume()
        except Exception as error:
            connection.failed(error)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._socket.pause_reading()

    def _resume(self) -> None:
        if self._wanted and not self._reading and self._phase != OVER and not self._socket.is_closing():
            self._reading = True
            self._socket.resume_reading()

    # -- the connection's transport ------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send a batch as one binary frame [MQTT-6.0.0-1]."""
        if self._phase == OPEN:
            self._send(frames.header(frames.BINARY, len(data)) + data)

    def set_protocol(self, protocol: Any) -> None:
        """Pass the data from now on to this protocol: the connection, or a watch that passes it on."""
        self._through = None if protocol is self._connection else protocol

    def pause_reading(self) -> None:
        self._wanted = False
        self._pause()

    def resume_reading(self) -> None:
        """Continue with the bytes that were read, and then read on."""
        self._wanted = True
        if self._rest or self._reader.over or self._reader.ping is not None:
            self._go_on_soon()
        elif not self._going_on:
            self._resume()

    def can_write_eof(self) -> bool:
        """Return True: a WebSocket can send its close frame and wait for the peer's."""
        return True

    def write_eof(self) -> None:
        """As `close`."""
        self.close()

    def close(self) -> None:
        """Send a close frame, or refuse an upgrade that did not come, and wait for the peer's answer.

        The caller limits that wait (`stream.LINGER`).
        """
        connection = self._connection
        if self._closing or connection is None:
            return
        self._closing = True
        if self._phase == UPGRADING:
            if connection.protocol.close_cause == causes.CONNECT_TIMEOUT:
                self._send(response(408, "No WebSocket upgrade came in time."))
            self._end()
        elif self._phase == OPEN:
            code = self._code
            if code == 0:
                code = _CODES.get(connection.protocol.close_cause, frames.POLICY_VIOLATION)
            self._send(frames.close_frame(code, connection.protocol.close_text))
            self._phase = CLOSING
            self._wanted = True
            if self._code != 0:
                self._end()
            else:
                self._go_on_soon()
        else:
            self._end()

    def _end(self) -> None:
        """Close our half, or the whole where there is no half (TLS): no further frame can be understood."""
        self._phase = OVER
        self._rest = b""
        self._reading = True
        close_half(self._socket)

    def abort(self) -> None:
        self._closing = True
        self._phase = OVER
        self._socket.abort()

    def is_closing(self) -> bool:
        return self._closing or self._socket.is_closing()

    def get_extra_info(self, name: str) -> Any:
        return self._socket.get_extra_info(name)

    def get_write_buffer_size(self) -> int:
        return self._socket.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int) -> None:
        self._socket.set_write_buffer_limits(high=high)
