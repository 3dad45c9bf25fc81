"""TLS connections of clients that belong to another worker.

The keys of a TLS connection are in the process that made its handshake, which cannot know the client before. `Chooser`
reads the first packet there. If the client belongs to another worker, that one gets one end of a pair of sockets in
place of the connection, and `relay` copies bytes both ways, as fast as both sides take them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from canopy_mqtt.net.connections import time_limits
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.ends import OPEN
from canopy_mqtt.net.stream import LINGER
from canopy_mqtt.net.websocket.transport import WebSocketTransport
from canopy_mqtt.sockets import connections_that_fit
from canopy_mqtt.workers.first_packet import First, Opening
from canopy_mqtt.workers.lines import unavailable
from canopy_mqtt.workers.placing import worker_of
from canopy_mqtt.workers.wire import Arrival, Source

RELAY: Final = 2
"""File descriptors of a relay: the client's connection, and one end of a pair."""

HIGH: Final = 65_536
"""Bytes in a transport's own buffer at which the other side is not read any more."""


class Place:
    """A worker among the others. `passes` takes a connection for another one."""

    def __init__(
        self,
        worker: int,
        workers: int,
        passes: Callable[[Arrival, socket.socket], None],
        served: Callable[[], int],
        beside: int = 0,
    ) -> None:
        """`served` returns how many connections this worker has of its own; `beside`: file descriptors for others."""
        self._served = served
        self._beside = beside
        self.worker = worker
        self.workers = workers
        self.passes = passes
        self.relays: set[Side] = set()
        """The connections of this process that are another worker's."""

    def other(self, client_id: bytes) -> int | None:
        """Return the worker of a client; None: it is this one's, or may be any's."""
        found = worker_of(client_id, self.workers) if client_id else self.worker
        return None if found == self.worker else found

    def fits(self) -> bool:
        """Return whether the process may have the file descriptors of one more relay, which takes two."""
        most = connections_that_fit(self._beside)
        return not most or self._served() + RELAY * (len(self.relays) + 1) <= most


class Chooser:
    """Between TLS and the connection above it, until the client is known. A protocol by its methods."""

    def __init__(
        self, found: Arrival, place: Place, connection: Connection, upper: asyncio.Protocol, opening: Opening
    ) -> None:
        """`found`: the connection as it came; `upper`: the connection here, or its WebSocket."""
        self._found = found
        self._place = place
        self._connection = connection
        self._upper = upper
        self._opening = opening
        # Set by connection_made.
        self._tls: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tls = cast(asyncio.Transport, transport)
        # Its limits count from here on, and its time for a CONNECT since it was accepted.
        self._upper.connection_made(transport)
        time_limits.end_by(self._connection, self._found.until)

    def data_received(self, data: bytes) -> None:
        connection, opening = self._connection, self._opening
        if connection.state != OPEN:
            return
        try:
            first = opening.feed(data)
            if opening.answer:
                self._tls.write(opening.answer)
                opening.answer = b""
            if first is None:
                connection.hold(len(opening.data), len(data))
            else:
                connection.hold(0, 0)
                self._choose(first)
        except Exception as error:
            connection.failed(error)

    def eof_received(self) -> bool | None:
        return self._upper.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._upper.connection_lost(exc)

    def pause_writing(self) -> None:
        self._upper.pause_writing()

    def resume_writing(self) -> None:
        self._upper.resume_writing()

    def _choose(self, first: First) -> None:
        opening = self._opening
        other = self._place.other(first.client_id)
        if other is None:
            self._tls.set_protocol(self._upper)
            if opening.upgraded:
                cast(WebSocketTransport, self._upper).opened()
            self._upper.data_received(bytes(opening.data))
            return
        if not self._place.fits():
            # The connection goes on until it is closed, or has had its time.
            self._tls.write(unavailable(first.version, opening.upgraded))
            self._tls.close()
            return
        source = Source.of(self._connection.protocol.origin)
        arrival = self._found._replace(
            worker=other, version=first.version, upgraded=opening.upgraded, source=source, data=bytes(opening.data)
        )
        mine, its = socket.socketpair()
        mine.setblocking(False)
        its.setblocking(False)
        # Here the connection is over, and its socket is not.
        self._upper.connection_lost(None)
        self._place.passes(arrival, its)
        relay(self._tls, mine, self._place.relays)


class Side(asyncio.Protocol):
    """One side of a relay: what comes here goes to the other one, as fast as that takes it."""

    other: Side

    def __init__(self, relays: set[Side], transport: asyncio.Transport | None = None) -> None:
        """It is among the `relays` no more once its connection is closed. `transport`: None, it is not there yet."""
        self.transport = transport
        self._relays = relays
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH)
        if self.other.transport is None:
            self.end()
        else:
            self.other.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.transport = None
        self._relays.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self.other.end()

    def end(self) -> None:
        """Close the connection once all is written, a last packet perhaps, for which it has as long as anywhere."""
        if self.transport is not None and self._timer is None:
            self.transport.close()
            self._timer = asyncio.get_running_loop().call_later(LINGER, self.transport.abort)


def relay(tls: asyncio.Transport, sock: socket.socket, relays: set[Side]) -> None:
    """Copy between a client's connection and the socket of its worker. It is among the `relays` while that is open."""
    client, worker = Side(relays, tls), Side(relays)
    client.other, worker.other = worker, client
    relays.add(client)
    tls.pause_reading()
    tls.set_write_buffer_limits(high=HIGH)
    tls.set_protocol(client)
    loop = asyncio.get_running_loop()

    def begun(done: asyncio.Task[Any]) -> None:
        if done.cancelled() or done.exception():
            sock.close()
            client.end()

    # The task refers to itself until it is done; its failure is that of the socket.
    loop.create_task(loop.connect_accepted_socket(lambda: worker, sock)).add_done_callback(begun)
