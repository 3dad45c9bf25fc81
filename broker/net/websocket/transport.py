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

from broker.core import causes
from broker.core.codec import reasons
from broker.core.connection.phases import CONNECTED
from broker.net.connections.connection import Connection
from broker.net.stream import FULL_READ
from broker.net.websocket import frames
from broker.net.websocket.frames import FrameReader
from broker.net.websocket.upgrade import Terms, Upgrade, response

ROOM: Final = 65_536
"""Bytes that a client's first frame may have beyond its CONNECT: it may hold more packets than that one."""

FRAMES_A_TURN: Final = 2048
"""Frames that a client has acted on in one turn, about a millisecond: a read of 256 KiB may hold 43,690 empty ones."""

FRAME_WORK: Final = 3
"""What a frame counts for in the work of a round of the event loop (`turns`), in bits: 8 units. Where a round has
room for little only, that is 64 frames for each client."""

UPGRADING: Final = 0
OPEN: Final = 1
CLOSING: Final = 2
"""Our close frame was sent; the peer's is waited for."""
OVER: Final = 3
"""Nothing that comes is looked at."""

_CODES: Final = {
    causes.CLIENT_DISCONNECT: frames.NORMAL,
    causes.CLIENT_DISCONNECT_WITH_WILL: frames.NORMAL,
    causes.SHUTDOWN: frames.GOING_AWAY,
    causes.PROTOCOL_ERROR: frames.PROTOCOL_ERROR,
    causes.INTERNAL_ERROR: frames.INTERNAL_ERROR,
}
"""Why the connection ended → the code of our close frame; whatever else is the broker's policy."""


class WebSocketTransport:
    """One WebSocket: an `asyncio.Protocol` and an `asyncio.Transport` by its methods, not by inheritance."""

    def __init__(self, connection: Connection, terms: Terms) -> None:
        self._connection: Connection | None = connection
        self._loop: asyncio.AbstractEventLoop = connection.loop
        self._upgrade: Upgrade | None = Upgrade(terms)
        most: int = connection.hub.router.limits.max_connect_size
        self._reader = FrameReader(most + ROOM if most > 0 else 0)
        self._phase: i64 = UPGRADING
        # Set by connection_made.
        self._socket: asyncio.Transport
        self._send: Callable[[bytes], None]
        # A read that was not worked off, and up to where it was.
        self._rest = b""
        self._at: i64 = 0
        # Whether the connection reads; whether the socket is read from; whether the rest of a read has its turn soon.
        self._wanted = True
        self._reading = True
        self._going_on = False
        self._full = False
        self._closing = False
        # Who looks on, and has what comes pass through it.
        self._through: Any = None
        # The code of our close frame when the frames were to blame.
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
            connection.broke(error)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        connection = self._connection
        # Nothing is left that would keep both.
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

    # -- the upgrade ---------------------------------------------------------------------------------------------------

    def _request(self, connection: Connection, data: bytes) -> bytes:
        """Take more of the HTTP request. Answers what has come behind it."""
        upgrade = self._upgrade
        if upgrade is None or connection.stream.closing_at > 0.0:
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
        connection.close(causes.PROTOCOL_ERROR, reasons.PROTOCOL_ERROR, reason)
        return b""

    # -- reading -------------------------------------------------------------------------------------------------------

    def _take(self, connection: Connection) -> None:
        """Work off what was read, as far as one turn goes and the connection wants it."""
        reader = self._reader
        if not reader.over:
            if reader.limit > 0 and connection.protocol.state == CONNECTED:
                # The decoder bounds packets, and nothing of a frame is kept: it may be as large as it likes.
                reader.limit = 0
            parts: list[bytes] = []
            turns = connection.hub.turns
            most: i64 = turns.work >> FRAME_WORK
            if most > FRAMES_A_TURN:
                most = FRAMES_A_TURN
            if reader.limit > 0 and most > 1:
                # It may bring the CONNECT, after which the next one may be as large as it likes.
                most = 1
            self._at = reader.read(self._rest, self._at, most, parts)
            turns.did(reader.frames << FRAME_WORK)
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
        """After the data of a read, which come first: what the frames say of the WebSocket itself."""
        reader = self._reader
        if self._phase == OVER or not self._wanted:
            # The connection goes on with what it has got: what came behind it waits.
            return
        if reader.over:
            self._rest = b""
            self._at = 0
            if self._phase == CLOSING:
                # The peer's close frame, or none will come any more.
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
        """The client broke the rules of WebSocket: the connection ends, and then `close` says why."""
        if self._code == 0:
            self._code = self._reader.error
            too_large = self._code == frames.TOO_LARGE
            reason_code = reasons.PACKET_TOO_LARGE if too_large else reasons.PROTOCOL_ERROR
            connection.close(causes.PROTOCOL_ERROR, reason_code, f"WebSocket: {self._reader.error_text}")

    def _closed_by_peer(self, connection: Connection) -> None:
        """Answer the client's close frame, and close first (section 7.1.1). In MQTT, its connection is lost."""
        code = self._reader.close_code
        self._phase = OVER
        self._closing = True
        self._send(frames.close_frame(frames.NORMAL if code == frames.NO_STATUS else code))
        self._socket.close()
        connection.gone(causes.CONNECTION_LOST)

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
        """The rest of a read has its turn, after the writers and the other connections."""
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
            connection.broke(error)

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
        """Hand what comes to this protocol from now on: the connection, or somebody who hands it on to that."""
        self._through = None if protocol is self._connection else protocol

    def pause_reading(self) -> None:
        self._wanted = False
        self._pause()

    def resume_reading(self) -> None:
        """Go on with what was read, and then read on."""
        self._wanted = True
        if self._rest or self._reader.over or self._reader.ping is not None:
            self._go_on_soon()
        elif not self._going_on:
            self._resume()

    def can_write_eof(self) -> bool:
        """A WebSocket says that it is over and waits for the peer to say so too."""
        return True

    def write_eof(self) -> None:
        """As `close`."""
        self.close()

    def close(self) -> None:
        """Send a close frame, or refuse an upgrade that did not come; the peer's answer is waited for.

        Whoever calls this sees that the wait ends (`Stream.linger_due`).
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
        """No frame that comes can be understood: close our half, or all of it where that cannot be done (TLS)."""
        self._phase = OVER
        self._rest = b""
        socket = self._socket
        if not socket.is_closing() and socket.can_write_eof():
            if not self._reading:
                self._reading = True
                socket.resume_reading()
            try:
                socket.write_eof()
                return
            except OSError:
                pass
        socket.close()

    def abort(self) -> None:
        self._closing = True
        self._phase = OVER
        self._socket.abort()

    def is_closing(self) -> bool:
        return self._closing or self._socket.is_closing()

    def get_extra_info(self, name: str) -> Any:
        return self._socket.get_extra_info(name)

    def get_write_buffer_size(self) -> int:
        """Bytes that wait to be sent, headers of frames among them."""
        return self._socket.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int) -> None:
        """From how many bytes on the transport says that it is full."""
        self._socket.set_write_buffer_limits(high=high)
