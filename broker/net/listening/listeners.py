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

from broker.net import sockets
from broker.net.connections.admission import ListenerAdmission
from broker.net.connections.connection import Connection
from broker.net.connections.connection_log import ConnectionLog
from broker.net.connections.connection_table import ConnectionTable
from broker.net.listening import tls, unix_sockets
from broker.net.listening.handshakes import Handshakes
from broker.net.listening.proxied import Proxied
from broker.net.listening.proxy_protocol import V1, V2, TrustedProxies
from broker.net.listening.terms import ListenerTerms
from broker.net.listening.tls_transport import TlsTransport
from broker.net.scheduling.hub import FlushScheduler
from broker.net.websocket.transport import WebSocketTransport
from broker.net.websocket.upgrade import Terms
from broker.settings import Endpoint, Limits, Settings
from broker.settings import Listener as ListenerSettings
from broker.settings import Tls as TlsSettings

SERVED: Final = frozenset({"mqtt", "mqtts", "mqtt+unix", "ws", "wss"})
"""The schemes that there is something for."""

PROXY_VERSIONS: Final = {"v1": V1, "v2": V2}

BACKLOG: Final = 1024
"""Connections that the system holds ready for acceptance, on each listener: more than a broker accepts in the time that
one round of the event loop may take. The system allows no more than its own net.core.somaxconn."""

LONGEST_REQUEST: Final = 65_536
SHORTEST_REQUEST: Final = 512
"""Bytes within which the bound on a request for a WebSocket lies, whatever the bound on what comes before a client is
accepted: browsers send their cookies with it, and no request fits into less."""

KEEP_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""Has the event loop leave the file of a Unix socket to us: newer ones remove it."""


# It has the methods of a protocol, as the stages have, and is none by inheritance: they are compiled.
_connection: Final = cast("Callable[[ConnectionTable, ListenerTerms], asyncio.Protocol]", Connection)


def request_bytes(limits: Limits) -> int:
    """Bytes of the HTTP request for a WebSocket, with all headers: like a CONNECT, it comes from anybody."""
    most = limits.max_connect_size or limits.max_packet_size or LONGEST_REQUEST
    return min(max(most, SHORTEST_REQUEST), LONGEST_REQUEST)


class StartupError(Exception):
    """Why the broker cannot listen, in one line."""


class Host(Protocol):
    """What a listener needs of the server that it listens for."""

    settings: Settings
    log: Any
    connection_log: ConnectionLog
    connection_table: ConnectionTable
    # From the server's start on.
    hub: FlushScheduler
    handshakes: Handshakes


class Listener:
    """One place where the broker listens. Constructible without a running loop."""

    def __init__(self, server: Host, settings: ListenerSettings) -> None:
        self.server = server
        self.settings = settings
        self.name = settings.called
        # With the real port, once it is open.
        self.endpoint: Endpoint = settings.endpoint
        # None: no limit asks for it.
        self.admission: ListenerAdmission | None = None
        if settings.max_connections or settings.max_connections_per_address or settings.max_connect_rate:
            self.admission = ListenerAdmission(
                settings.max_connections, settings.max_connections_per_address, settings.max_connect_rate
            )
        self.terms = ListenerTerms(
            self.name, self.endpoint.tls, settings.max_packet_size, settings.mount, self.admission
        )
        # What a request for a WebSocket has to be like; None: the listener is for none.
        self._upgrades: Terms | None = None
        if self.scheme in ("ws", "wss"):
            self._upgrades = Terms(settings.path, tuple(settings.origins), request_bytes(server.settings.limits))
        # With PROXY headers: whose; None: from nobody.
        self._trusted: TrustedProxies | None = None
        if settings.proxy_protocol != "none":
            self._trusted = TrustedProxies(settings.proxy_from)
        # With TLS, from `open` on.
        self.certificates: tls.Certificates | None = None
        self._server: asyncio.Server | None = None
        self._file: unix_sockets.SocketFile | None = None

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
        """The URL that it listens on, with its real port."""
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
        """Read its certificates and take its address; nobody can connect yet.

        Raises:
            StartupError: why not, in one line that names the listener.
        """
        if self.scheme not in SERVED:
            raise StartupError(f"{self._told()}: {self.scheme}:// is not supported by this version")
        if self.settings.tls is not None:
            try:
                loaded = await asyncio.to_thread(tls.load, self.settings.tls, self.scheme)
            except tls.TlsError as error:
                raise StartupError(f"cannot listen on {self._told()}: {error}") from error
            self.certificates = tls.Certificates(loaded)
            self.warn(loaded)
        if self.endpoint.path:
            await self._open_unix()
        else:
            await self._open_tcp()

    async def _open_tcp(self) -> None:
        # What comes over TCP comes whole and in order, both ways [MQTT-4.2.0-1].
        host, port = self.endpoint.host, self.endpoint.port
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._factory,
                self.endpoint.bound,
                port,
                backlog=BACKLOG,
                reuse_address=True,
                start_serving=False,
            )
        except OSError as error:
            raise StartupError(sockets.why_not_listening(self._told(), host, error)) from error
        for sock in self.sockets:
            sockets.tune(sock, self.server.settings)
        if self.sockets:
            self.endpoint = self.endpoint._replace(port=self.sockets[0].getsockname()[1])

    async def _open_unix(self) -> None:
        settings = self.settings
        try:
            sock, self._file = await asyncio.to_thread(
                unix_sockets.bind, self.endpoint.path, int(settings.mode, 8), settings.group
            )
        except unix_sockets.SocketFileError as error:
            raise StartupError(f"cannot listen on {self._told()}: {error}") from error
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_unix_server(
                self._factory,
                sock=sock,
                backlog=BACKLOG,
                start_serving=False,
                **KEEP_FILE,
            )
        except BaseException:
            sock.close()
            raise

    def load(self, settings: TlsSettings) -> tls.Loaded:
        """Read certificates for it, and change nothing. It blocks: it is for a thread.

        Raises:
            tls.TlsError: they cannot be used, in one line that names the listener.
        """
        try:
            return tls.load(settings, self.scheme)
        except tls.TlsError as error:
            raise tls.TlsError(f'listener "{self.name}": {error}') from None

    def renew(self, settings: ListenerSettings, loaded: tls.Loaded) -> None:
        """Show these certificates from now on. Connections that there are keep theirs."""
        assert self.certificates is not None
        self.certificates.apply(loaded)
        self.settings = settings
        self.warn(loaded)

    def limit(self, settings: Settings) -> None:
        """Keep to these limits from now on, for connections to come."""
        if self._upgrades is not None:
            self._upgrades.most_bytes = request_bytes(settings.limits)
        for sock in self.sockets:
            sockets.tune(sock, settings)

    def warn(self, loaded: tls.Loaded) -> None:
        """Say which certificates are not, or not for long, good."""
        for line in loaded.warnings:
            self.server.log.warning("certificate", listener=self.name, detail=line)

    @property
    def _factory(self) -> Callable[[], asyncio.Protocol]:
        """What calls `protocol`; or makes its connection at once, where no stage is to stand between."""
        if self._upgrades is None and self.certificates is None and self._trusted is None:
            return partial(_connection, self.server.connection_table, self.terms)
        return self.protocol

    def protocol(self) -> asyncio.Protocol:
        """What serves a connection that has come in.

        From the socket up, each stage is a protocol to the one below it and a transport to the one above. All are made
        at once: a connection counts from its arrival, or from the end of its PROXY header.
        """
        connection = Connection(self.server.connection_table, self.terms)
        lowest: object = connection
        if self._upgrades is not None:
            lowest = WebSocketTransport(connection, self._upgrades)
        if self.certificates is not None:
            lowest = self._under_tls(lowest, connection)
        if self._trusted is not None:
            lowest = self._behind_proxy(self._trusted, lowest, connection)
        return cast(asyncio.Protocol, lowest)

    def _under_tls(self, upper: object, connection: Connection) -> TlsTransport:
        """TLS below a protocol. The connection is told of the client's certificate when the handshake is through."""
        certificates, settings = self.certificates, self.settings.tls
        assert certificates is not None
        assert settings is not None
        hub = self.server.hub
        return TlsTransport(
            upper,
            partial(_secured, connection, certificates.asks_clients),
            lambda _, error: self._handshake_failed(connection, error),
            certificates.context,
            self.server.handshakes,
            hub.wheel,
            hub.loop,
            settings.handshake_timeout,
        )

    def _handshake_failed(self, connection: Connection, error: Exception | None) -> None:
        reason = "it took too long" if error is None else tls.reason_of(error)
        self.server.connection_log.handshake_failed(self.name, connection.host, connection.address, reason)

    def _behind_proxy(self, trusted: TrustedProxies, upper: object, connection: Connection) -> Proxied:
        server = self.server
        return Proxied(
            PROXY_VERSIONS[self.settings.proxy_protocol],
            trusted,
            connection,
            upper,
            server.handshakes,
            server.hub.wheel,
            server.settings.limits.connect_timeout,
            self._proxy_refused,
        )

    def _proxy_refused(self, host: str, address: str, reason: str) -> None:
        self.server.connection_log.proxy_refused(self.name, host, address, reason)

    async def close(self) -> None:
        """Listen no more. The connections stay."""
        # wait_closed also waits for the connections in newer Pythons; those end later.
        server, self._server = self._server, None
        if server is not None:
            server.close()
        if self._file is not None:
            file, self._file = self._file, None
            await asyncio.to_thread(file.remove)

    def _told(self) -> str:
        """How a message about it calls it."""
        url = self.settings.endpoint.url()
        return f'{url} (listener "{self.name}")' if self.settings.name else url


def _secured(connection: Connection, asked: bool, transport: TlsTransport) -> None:
    """The handshake is through. `asked`: for a certificate, which the client may have shown."""
    origin = connection.protocol.origin
    origin.secure = True
    if asked and transport.tls is not None:
        origin.certificate = tls.peer_certificate(transport.tls)


class Renewal(NamedTuple):
    """Certificates that have been read, listeners that are bound, and how it will be once they are put in force."""

    ready: list[tuple[Listener, ListenerSettings, tls.Loaded]]
    added: list[Listener]
    removed: list[Listener]
    listen: tuple[str, ...]
    """`listen` and the `listener` tables as they are in force then."""
    tables: tuple[ListenerSettings, ...]


class Listeners:
    """Everywhere that one broker listens."""

    def __init__(self, server: Host) -> None:
        self._server = server
        self.all: list[Listener] = [Listener(server, each) for each in server.settings.listeners]
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
        """Read all certificates again, as other settings name them, bind new listeners, and let nobody in there yet.

        Listeners are told apart by their names; of those that stay, `[listener.tls]` counts alone. One that would take
        the address of another that goes, and one with limits where connections are not `counted`, take a restart.

        Raises:
            tls.TlsError, StartupError: why one cannot be as it is to be, in one line that names it.
        """
        there = {each.called: each for each in new.listeners}
        has = {listener.name for listener in self.open}
        removed = [listener for listener in self.open if listener.name not in there]
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
        tables = {each.called: each for each in new.listener}
        in_force: list[ListenerSettings] = []
        ready: list[tuple[Listener, ListenerSettings, tls.Loaded]] = []
        for listener in kept:
            settings, other = listener.settings, tables.get(listener.name)
            if settings.tls is not None:
                # Without a table for it any more it goes on with what it has.
                keys = settings.tls if other is None or other.tls is None or other.url != settings.url else other.tls
                loaded = await asyncio.to_thread(listener.load, keys)
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
        """Whether a listener is one of `listen`, as it was there or as it is wanted."""
        tables = (*self._server.settings.listener, *new.listener)
        return all(settings.called != each.called for each in tables)

    async def apply(self, renewal: Renewal) -> None:
        """Show the certificates that were prepared, and listen no more where that is over; connections stay."""
        for listener, settings, loaded in renewal.ready:
            listener.renew(settings, loaded)
        self.open = [each for each in self.open if each not in renewal.removed] + renewal.added
        self.all = list(self.open)
        await _close(renewal.removed)

    async def serve(self, renewal: Renewal) -> list[str]:
        """Let clients in where it was prepared; a line for each listener where that cannot be."""
        failed: list[str] = []
        # Where the broker stops meanwhile, none is open any more.
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
