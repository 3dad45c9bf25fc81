"""The broker's listeners: opening, their limits, and the stages of their connections.

Owns `Listener`, one listener of the settings with its sockets and its limits, and `Listeners`, all of one broker.

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
from typing import Any, Final, NamedTuple, Protocol, cast

from canopy_mqtt import certificates, sockets
from canopy_mqtt.net.connections.admission import ListenerTerms, of_listener
from canopy_mqtt.net.connections.connection import Connection
from canopy_mqtt.net.connections.connection_log import HANDSHAKE, PROXY, ConnectionLog
from canopy_mqtt.net.connections.connection_table import ConnectionTable
from canopy_mqtt.net.listening.handshakes import Handshakes
from canopy_mqtt.net.listening.proxy_protocol import V1, V2, TrustedProxies
from canopy_mqtt.net.listening.proxy_transport import ProxyTransport
from canopy_mqtt.net.listening.tls_transport import TlsTransport
from canopy_mqtt.net.rounds import Rounds
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


class Renewal(NamedTuple):
    """Certificates that were read, listeners that are bound, and the settings once both are put in force."""

    ready: list[tuple[Listener, ListenerSettings, certificates.Loaded]]
    added: list[Listener]
    removed: list[Listener]
    listen: tuple[str, ...]
    tables: tuple[ListenerSettings, ...]
    """`listen` and the `listener` tables of these settings."""


class Listeners:
    """All places where one broker listens."""

    def __init__(
        self, server: ListenerHost, make: Callable[[ListenerHost, ListenerSettings], Listener] = Listener
    ) -> None:
        self._server = server
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

    async def prepare(self, new: Settings, counted: bool = True) -> Renewal:
        """Read all certificates of other settings again, and bind new listeners, which accept no client yet.

        Names identify listeners; of those that stay, only `[listener.tls]` counts. One that would take
        the address of another that goes, and one with limits where connections are not `counted`, take a restart.

        Raises:
            certificates.TlsError, StartupError: why one of them cannot be used, in one line that names it.
        """
        wanted = {each.label for each in new.listeners}
        has = {listener.name for listener in self.open}
        removed = [listener for listener in self.open if listener.name not in wanted]
        # With their real ports.
        left = {listener.endpoint._replace(scheme="") for listener in removed}
        added: list[Listener] = []
        for settings in new.listeners:
            listener = Listener(self._server, settings)
            place = settings.endpoint._replace(scheme="")
            if listener.name in has:
                continue
            if place in left:
                removed = [each for each in removed if each.endpoint._replace(scheme="") != place]
            elif counted or listener.admission is None:
                added.append(listener)
        kept = [listener for listener in self.open if listener not in removed]
        tables = {each.label: each for each in new.listener}
        in_force: list[ListenerSettings] = []
        ready: list[tuple[Listener, ListenerSettings, certificates.Loaded]] = []
        for listener in kept:
            settings, other = listener.settings, tables.get(listener.name)
            if settings.tls is not None:
                # A listener without a table keeps its certificates.
                keys = settings.tls if other is None or other.tls is None or other.url != settings.url else other.tls
                try:
                    loaded = await asyncio.to_thread(certificates.load, keys, listener.scheme)
                except certificates.TlsError as error:
                    raise certificates.TlsError(f'listener "{listener.name}": {error}') from None
                settings = settings.model_copy(update={"tls": keys})
                ready.append((listener, settings, loaded))
            in_force.append(settings)
        bound: list[Listener] = []
        try:
            for listener in added:
                await listener.bind()
                bound.append(listener)
        except BaseException:
            await _close(bound)
            raise
        in_force += [listener.settings for listener in added]
        # A table that is only a URL has the same name as its address in `listen`.
        short = [each for each in in_force if self._is_short(each, new)]
        listed = tuple(each for each in in_force if each not in short)
        return Renewal(ready, added, removed, tuple(each.url for each in short), listed)

    def _is_short(self, settings: ListenerSettings, new: Settings) -> bool:
        """Return whether a listener comes from `listen`, in the present or in the new settings."""
        tables = (*self._server.settings.listener, *new.listener)
        return all(settings.label != each.label for each in tables)

    async def apply(self, renewal: Renewal) -> None:
        """Show the certificates that were prepared, and close the listeners that go; connections stay."""
        for listener, settings, loaded in renewal.ready:
            listener.show(loaded, settings)
        self.open = [each for each in self.open if each not in renewal.removed] + renewal.added
        self.all = list(self.open)
        await _close(renewal.removed)

    async def serve(self, renewal: Renewal) -> list[str]:
        """Let clients in at the new listeners. Returns a line for each listener where this fails."""
        failed: list[str] = []
        # If the broker has stopped meanwhile, none is open.
        for listener in [each for each in renewal.added if each in self.open]:
            try:
                await listener.serve()
            except StartupError as error:
                self.open.remove(listener)
                failed.append(str(error))
        return failed

    async def discard(self, renewal: Renewal) -> None:
        await _close(renewal.added)

    async def close(self) -> None:
        listeners, self.open = self.open, []
        await _close(listeners)


async def _close(listeners: list[Listener]) -> None:
    for listener in listeners:
        await listener.close()
