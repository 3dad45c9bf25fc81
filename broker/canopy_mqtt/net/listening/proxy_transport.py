"""A connection from a proxy: first its header, which has the client's address, then everything else.

Owns `ProxyTransport`, the stage on the socket until the header of the PROXY protocol is complete. Then the stages above
(TLS, WebSocket, the connection) take its place; for all of them, and for every limit, rule and log line, the connection
comes from the client's address.

Promises: an address that may not send a header is closed before a byte of it is read. Until the header is complete, a
connection counts with the handshakes in progress (`limits.max_handshakes`) and has `limits.connect_timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.listening.handshakes import Handshake, Handshakes
from canopy_mqtt.net.listening.proxy_protocol import ProxyError, ProxyHeader, TrustedProxies
from canopy_mqtt.net.stream import peer_name
from canopy_mqtt.net.timers import TimerWheel


class ProxyTransport(Handshake):
    """An `asyncio.Protocol` by its methods. Times in seconds of the loop's clock."""

    def __init__(
        self,
        version: int,
        trusted: TrustedProxies,
        connection: Connection,
        upper: object,
        handshakes: Handshakes,
        wheel: TimerWheel,
        timeout: float,
        refused: Callable[[str, str, str], None],
    ) -> None:
        """`upper` is the protocol that follows the header, up to and with `connection`. `timeout` of 0.0: none.
        `refused` is called with the proxy's host, its address and the reason."""
        super().__init__()
        self._header = ProxyHeader(version)
        self._trusted = trusted
        self._connection = connection
        self._upper = cast(asyncio.Protocol, upper)
        self._handshakes = handshakes
        self._wheel = wheel
        self._loop = connection.loop
        self._timeout = timeout
        self._refused = refused
        # Of the proxy.
        self._host = self._address = ""
        # Set by connection_made.
        self._raw: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop has its own class
        self._host, self._address = peer_name(transport)
        if not self._trusted.trusts(self._host):
            self._refuse("not of the networks that may send a PROXY header (proxy_from)")
            return
        self._handshakes.begin(self)
        if self._timeout > 0.0:
            self._wheel.add(self, self._loop.time() + self._timeout)

    def data_received(self, data: bytes) -> None:
        if self._raw.is_closing():
            return
        header = self._header
        try:
            used = header.feed(data)
        except ProxyError as error:
            self._refuse(str(error))
            return
        if not header.done:
            return
        self._end()
        if header.address:
            origin = self._connection.origin
            origin.host, origin.text = header.host, header.address
        self._raw.set_protocol(self._upper)
        self._upper.connection_made(self._raw)
        if used < len(data) and not self._raw.is_closing():
            # A packet watch may have taken its place.
            cast(asyncio.Protocol, self._raw.get_protocol()).data_received(data[used:])

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's interface)
        self._end()

    def pause_writing(self) -> None:
        """Nothing is written."""

    def resume_writing(self) -> None:
        """Nothing is written."""

    def _end(self) -> None:
        self._handshakes.end(self)
        self._wheel.remove(self)

    def _refuse(self, reason: str) -> None:
        self._end()
        self._raw.abort()
        self._refused(self._host, self._address, reason)

    def check(self, now: float) -> float:  # noqa: ARG002 (the wheel's interface)
        self._refuse("no whole PROXY header in time")
        return 0.0

    def check_failed(self, error: Exception) -> None:  # noqa: ARG002 (the wheel's interface)
        self._raw.abort()

    def step(self) -> None:
        """A header is read as it comes, and has no steps that wait for a turn."""

    def evict(self) -> None:
        self._wheel.remove(self)
        self._raw.abort()
