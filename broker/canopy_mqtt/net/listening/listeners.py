"""The broker's listeners: opening, their limits, and the stages of their connections.

Owns `Listener`, one listener of the settings with its sockets and its limits, `Listeners`, all of one broker, and the
stage for connections from a proxy.

Promises: either all listeners are open or none, and one line says which could not be opened and why; `close` leaves no
socket and no file behind. `Listener.protocol` makes the protocol of a connection: the stages between the socket and the
client (TLS, WebSocket, the PROXY header) are put together only there.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, cast

from canopy_mqtt import certificates, sockets
from canopy_mqtt.net.connections.admission import ListenerTerms, of_listener
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.connection_log import HANDSHAKE, PROXY, ConnectionLog
from canopy_mqtt.net.connections.connection_table import ConnectionTable
from canopy_mqtt.net.listening.handshakes import Handshake, Handshakes
from canopy_mqtt.net.listening.proxy_protocol import V1, V2, ProxyError, ProxyHeader, TrustedProxies
from canopy_mqtt.net.listening.tls_transport import TlsTransport
from canopy_mqtt.net.rounds import Rounds
from canopy_mqtt.net.stream import peer_name
from canopy_mqtt.net.timers import TimerWheel
from canopy_mqtt.net.websocket.transport import WebSocketTransport
from canopy_mqtt.net.websocket.upgrade import UpgradeTerms
from canopy_mqtt.settings import Endpoint, Limits, Settings
from canopy_mqtt.settings import Listener as ListenerSettings

SERVED: Final = frozenset({"mqtt", "mqtts", "mqtt+unix", "ws", "wss"})
"""The schemes of the URLs that can be served."""

PROXY_VERSIONS: Final = {"v1": V1, "v2": V2}

BACKLOG: Final = 1024
"""Connections that the system holds ready for acceptance, on each listener: more than a broker accepts in the time that
one round of the event loop may take. The system allows no more than its own net.core.somaxconn."""

MAX_REQUEST_BYTES: Final = 65_536
MIN_REQUEST_BYTES: Final = 512
"""The bounds of the limit on a request for a WebSocket, whatever the limit on what comes before a client is accepted:
browsers send their cookies with it, and no request fits into less."""

KEEP_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""Makes the event loop leave the file of a Unix socket to us: newer ones remove it."""


# A connection has the methods of a protocol, as the stages have, and is none by inheritance: they are compiled.
_connection: Final = cast("Callable[[ConnectionTable, ListenerTerms], asyncio.Protocol]", Connection)


def request_bytes(limits: Limits) -> int:
    """Return the bytes of the HTTP request for a WebSocket, with all headers: like a CONNECT, it comes from clients
    that are not authenticated yet."""
    most = limits.max_connect_size or limits.max_packet_size or MAX_REQUEST_BYTES
    return min(max(most, MIN_REQUEST_BYTES), MAX_REQUEST_BYTES)


class ProxyTransport(Handshake):
    """The stage on the socket until the header of the PROXY protocol, which has the client's address, is complete.

    Then the stages above (TLS, WebSocket, the connection) take its place; for all of them, and for every limit, rule
    and log line, the connection comes from the client's address. An address that may not send a header is closed before
    a byte of it is read. Until the header is complete, a connection counts with the handshakes in progress
    (`limits.max_handshakes`) and has `limits.connect_timeout`. Times in seconds of the loop's clock.
    """

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
        # Of the proxy, as its IP address, `host`.
        self._address = ""
        # Set by connection_made.
        self._raw: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop has its own class
        self.host, self._address = peer_name(transport)
        if not self._trusted.trusts(self.host):
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
        self._refused(self.host, self._address, reason)

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


class StartupError(Exception):
    """The broker cannot listen; the message says why in one line."""


class ListenerHost(Protocol):
    """The server, as far as its listeners need it."""

    settings: Settings
    log: Any
    connection_log: ConnectionLog
    connection_table: ConnectionTable
    # From the server's start on.
    rounds: Rounds
    handshakes: Handshakes


class Listener:
    """One place where the broker listens. Constructible without a running loop."""

    def __init__(self, server: ListenerHost, settings: ListenerSettings) -> None:
        self.server = server
        self.settings = settings
        self.name = settings.label
        # With the real port, once it is open.
        self.endpoint: Endpoint = settings.endpoint
        # None: no limit asks for it.
        self.admission = of_listener(
            settings.max_connections, settings.max_connections_per_address, settings.max_connect_rate
        )
        self.terms = ListenerTerms(
            self.name,
            self.endpoint.tls,
            settings.max_packet_size,
            settings.mount,
            self.admission,
            -1.0 if settings.max_delay is None else settings.max_delay,
        )
        # The requirements on a request for a WebSocket; None: the listener accepts none.
        self.upgrades: UpgradeTerms | None = None
        if self.scheme in ("ws", "wss"):
            self.upgrades = UpgradeTerms(settings.path, tuple(settings.origins), request_bytes(server.settings.limits))
        # The networks that send PROXY headers; None: no peer does.
        self._trusted: TrustedProxies | None = None
        if settings.proxy_protocol != "none":
            self._trusted = TrustedProxies(settings.proxy_from)
        # The handshakes in progress; None: they are among those of all listeners.
        self.handshakes: Handshakes | None = None
        # With TLS, from `open` on: those for new connections.
        self.certificates: certificates.Loaded | None = None
        self._server: asyncio.Server | None = None
        self._file: sockets.SocketFile | None = None

    @property
    def scheme(self) -> str:
        return self.endpoint.scheme

    @property
    def port(self) -> int:
        """The port that it listens on; 0: it has none, as a Unix socket."""
        return self.endpoint.port

    @property
    def sockets(self) -> list[socket.socket]:
        """The listening sockets: those of a host may be several."""
        return [] if self._server is None else list(self._server.sockets)

    def url(self) -> str:
        """Return the URL that it listens on, with its real port."""
        return self.endpoint.url()

    async def open(self) -> None:
        """Listen.

        Raises:
            StartupError: why not, in one line that names the listener.
        """
        await self.bind()
        await self.serve()

    async def serve(self) -> None:
        """Let clients in where it is bound. Raises StartupError."""
        try:
            if self._server is not None:
                await self._server.start_serving()
        except OSError as error:
            await self.close()
            raise StartupError(sockets.why_not_listening(self._told(), self.endpoint.host, error)) from error

    async def bind(self) -> None:
        """Read its certificates and take its address; no client can connect yet.

        Raises:
            StartupError: why not, in one line that names the listener.
        """
        if self.scheme not in SERVED:
            raise StartupError(f"{self._told()}: {self.scheme}:// is not supported by this version")
        try:
            if self.settings.tls is not None:
                self.show(await asyncio.to_thread(certificates.load, self.settings.tls, self.scheme), self.settings)
            if self.endpoint.path:
                await self._open_unix()
            else:
                await self._open_tcp()
        except (certificates.TlsError, sockets.SocketFileError) as error:
            raise StartupError(f"cannot listen on {self._told()}: {error}") from error

    async def _open_tcp(self) -> None:
        # TCP delivers everything and in order, both ways [MQTT-4.2.0-1].
        host, port = self.endpoint.bind_host, self.endpoint.port
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._factory, host, port, backlog=BACKLOG, reuse_address=True, start_serving=False
            )
        except OSError as error:
            raise StartupError(sockets.why_not_listening(self._told(), self.endpoint.host, error)) from error
        for sock in self.sockets:
            sockets.tune(sock, self.server.settings)
        if self.sockets:
            self.endpoint = self.endpoint._replace(port=self.sockets[0].getsockname()[1])

    async def _open_unix(self) -> None:
        mode, group = int(self.settings.mode, 8), self.settings.group
        sock, self._file = await asyncio.to_thread(sockets.bind_unix, self.endpoint.path, mode, group)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_unix_server(
                self._factory, sock=sock, backlog=BACKLOG, start_serving=False, **KEEP_FILE
            )
        except BaseException:
            sock.close()
            raise

    def show(self, loaded: certificates.Loaded, settings: ListenerSettings) -> None:
        """Show these certificates to new connections; existing ones keep theirs. Log which are not, or not for long,
        good."""
        self.certificates = loaded
        self.settings = settings
        for line in loaded.warnings:
            self.server.log.warning("certificate", listener=self.name, detail=line)

    def limit(self, settings: Settings) -> None:
        """Apply these limits to new connections."""
        if self.upgrades is not None:
            self.upgrades.most_bytes = request_bytes(settings.limits)
        for sock in self.sockets:
            sockets.tune(sock, settings)

    @property
    def _factory(self) -> Callable[[], asyncio.Protocol]:
        """The factory of protocols: `protocol`, or one that makes the connection at once if no stage stands between."""
        if self.upgrades is None and self.certificates is None and self._trusted is None:
            return partial(_connection, self.server.connection_table, self.terms)
        return self.protocol

    def protocol(self) -> asyncio.Protocol:
        """Make the protocol that serves a new connection.

        From the socket up, each stage is a protocol to the one below it and a transport to the one above. All are made
        at once: a connection counts from its arrival, or from the end of its PROXY header.
        """
        connection = Connection(self.server.connection_table, self.terms)
        return self.below(connection, self.above(connection))

    def above(self, connection: Connection) -> object:
        """Make the stage that gets bytes as the client means them: the connection, or its WebSocket."""
        return connection if self.upgrades is None else WebSocketTransport(connection, self.upgrades)

    def below(self, connection: Connection, lowest: object) -> asyncio.Protocol:
        """Make the stages below another one, `lowest`: TLS, and the header of a proxy."""
        server = self.server
        wheel = server.rounds.wheel
        handshakes = server.handshakes if self.handshakes is None else self.handshakes
        if self.certificates is not None:
            assert self.settings.tls is not None
            lowest = TlsTransport(
                lowest,
                partial(_secured, connection, self.certificates.asks_clients),
                lambda _, error: self._not_begun(
                    HANDSHAKE, connection.host, connection.address, certificates.reason_of(error)
                ),
                self.certificates.first,
                handshakes,
                wheel,
                server.rounds.loop,
                self.settings.tls.handshake_timeout,
                connection.origin,
            )
        if self._trusted is not None:
            version, timeout = PROXY_VERSIONS[self.settings.proxy_protocol], server.settings.limits.connect_timeout
            lowest = ProxyTransport(
                version, self._trusted, connection, lowest, handshakes, wheel, timeout, partial(self._not_begun, PROXY)
            )
        return cast(asyncio.Protocol, lowest)

    def _not_begun(self, event: str, host: str, address: str, reason: str) -> None:
        self.server.connection_log.not_begun(event, self.name, host, address, reason)

    async def close(self) -> None:
        """Stop listening. The connections stay."""
        # wait_closed also waits for the connections in newer Pythons; those end later.
        server, self._server = self._server, None
        if server is not None:
            await sockets.stop_listening(server)
        if self._file is not None:
            file, self._file = self._file, None
            await asyncio.to_thread(file.remove)

    def _told(self) -> str:
        """Return the name of the listener for messages."""
        url = self.settings.endpoint.url()
        return f'{url} (listener "{self.name}")' if self.settings.name else url


def _secured(connection: Connection, asked: bool, transport: TlsTransport) -> None:
    """Update the connection after its handshake. `asked`: for a certificate, which the client may have shown."""
    origin = connection.protocol.origin
    origin.secure = True
    if asked and transport.tls is not None:
        origin.certificate = certificates.peer_certificate(transport.tls)


class Listeners:
    """All places where one broker listens."""

    def __init__(
        self, server: ListenerHost, make: Callable[[ListenerHost, ListenerSettings], Listener] = Listener
    ) -> None:
        self.all: list[Listener] = [make(server, each) for each in server.settings.listeners]
        # Those that are open, in the order of the settings.
        self.open: list[Listener] = []

    @property
    def limited(self) -> bool:
        return any(each.admission is not None for each in self.all)

    async def start(self) -> None:
        """Open all of them.

        Raises:
            StartupError: one of them cannot be opened; then none is open.
        """
        try:
            for listener in self.all:
                await listener.open()
                self.open.append(listener)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        listeners, self.open = self.open, []
        await close_all(listeners)


async def close_all(listeners: list[Listener]) -> None:
    for listener in listeners:
        await listener.close()
