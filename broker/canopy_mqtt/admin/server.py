"""The HTTP server of the broker: opens and closes the addresses of `[http]`.

Owns the sockets, the certificates, and the users and tokens as they were last read. Promises: it opens all addresses or
none, and then gives the reason in one line; a reload of credentials and certificates changes all of them or none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from canopy_mqtt import sockets
from canopy_mqtt.admin.authentication import Authentication, Credentials, read_credentials
from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.events import FEED, EventFeed
from canopy_mqtt.admin.host import Host
from canopy_mqtt.admin.http_connections import HttpConnection, HttpConnections
from canopy_mqtt.admin.routes import all_routes
from canopy_mqtt.admin.routing import (
    SECURE,
    Call,
    Handled,
    RequestHandler,
    Route,
    error_response,
    error_text,
)
from canopy_mqtt.certificates import Loaded, TlsError, reason_of
from canopy_mqtt.certificates import load as load_certificates
from canopy_mqtt.guards.log import Faults
from canopy_mqtt.net.connections.connection_log import HANDSHAKE
from canopy_mqtt.net.listening.handshakes import Handshakes
from canopy_mqtt.net.listening.listeners import StartupError
from canopy_mqtt.net.listening.tls_transport import TlsTransport
from canopy_mqtt.net.stream import peer_name
from canopy_mqtt.net.timers import TimerWheel
from canopy_mqtt.observe.figures.sources import Sources
from canopy_mqtt.security.errors import SecurityError
from canopy_mqtt.settings import Endpoint, Http, Tls

GRACE: Final = 2.0
"""Seconds for unfinished answers when the broker stops."""

STREAM_PART: Final = 8
"""Open pages may take 1 / STREAM_PART of `http.max_connections`: each keeps its connection."""

IDLE_TIMES: Final = 2.0
"""Times `http.timeout` for which an idle connection stays open: longer than a scrape interval of 30 s."""

MAX_LINE_BYTES: Final = 262_144
"""Bytes of a request's first line: a topic name of 65,535 bytes, each of them escaped, and some more. With a shorter
line, a client with a long topic would end every list at itself."""


class Prepared(NamedTuple):
    """Credentials and certificates that are read, and not in force yet."""

    settings: Http
    credentials: Credentials
    loaded: Loaded | None
    """The certificates; None: no address uses https."""


class AdminServer:
    """The HTTP server of one broker. It can be made without a running loop."""

    def __init__(self, broker: Host, settings: Http, routes: Sequence[Route] | None = None) -> None:
        """`routes` replaces a broker's routes."""
        self._broker = broker
        self._routes = routes
        self._settings = settings
        self.connections = HttpConnections(settings.max_connections, settings.timeout)
        self.feed = self.make_feed(broker, max(1, settings.max_connections // STREAM_PART))
        self.open: list[Endpoint] = []
        """The open addresses, with their real ports."""
        self.authentication: Authentication | None = None
        self._servers: list[asyncio.Server] = []
        self._files: list[sockets.SocketFile] = []
        self._runners: list[web.AppRunner] = []
        # With https, from `start` on.
        self._certificates: Loaded | None = None
        self._handshakes: Handshakes
        self._wheel: TimerWheel

    def make_feed(self, broker: Host, max_streams: int) -> EventFeed:
        return EventFeed(broker, max_streams)

    @property
    def urls(self) -> list[str]:
        return [endpoint.url() for endpoint in self.open]

    async def start(self) -> None:
        """Open the addresses. Raises StartupError."""
        settings = self._settings
        try:
            credentials, loaded = await asyncio.to_thread(_read, settings)
            if loaded is not None:
                self._certificates = loaded
        except (SecurityError, TlsError) as error:
            raise StartupError(f"http: {error}") from error
        loop = asyncio.get_running_loop()
        # Each of them has a place among the connections, so they need no other limit.
        self._handshakes, self._wheel = Handshakes(0, loop), TimerWheel(loop)
        securing = self._broker.securing
        chain = None if securing is None else securing.access.chain
        self.authentication = Authentication(credentials, chain, self._broker.connection_log)
        requests = RequestHandler(
            self._broker,
            self.authentication,
            self.connections,
            settings.timeout,
            ("/metrics",) if settings.public_metrics else (),
            self.handle,
        )
        try:
            for endpoint in settings.endpoints:
                await self._open(endpoint, await self._runner(requests, bool(endpoint.path)))
        except BaseException:
            await self.stop()
            raise
        self.feed.start()
        if self.open:
            self._broker.log.info("http listens", urls=self.urls, guarded=settings.guarded)

    async def handle(self, route: Route, call: Call) -> Handled:
        """Answer a permitted request."""
        return await route.handler(call)

    def add_figures_to(self, figures: Sources) -> None:
        """Add the figures of HTTP to those of a broker."""
        figures.certificates = self.certificates
        figures.http = self.counts

    async def _runner(self, requests: RequestHandler, local: bool) -> web.AppRunner:
        app = web.Application(client_max_size=self._settings.max_request_bytes, middlewares=[self._in_turn])
        app[FEED] = self.feed
        app.on_response_prepare.append(_in_words_of_the_api)
        for route in all_routes() if self._routes is None else self._routes:
            requests.add(app, route, local)
        runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=GRACE)
        await runner.setup()
        self._runners.append(runner)
        return runner

    @web.middleware
    async def _in_turn(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Answer a request in its turn."""
        await self.connections.answering.wait()
        response: web.StreamResponse = await handler(request)
        return response

    async def _open(self, endpoint: Endpoint, runner: web.AppRunner) -> None:
        assert runner.server is not None
        options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": IDLE_TIMES * self._settings.timeout,
            "max_line_size": MAX_LINE_BYTES,
            "logger": _log(self._broker.faults),
        }
        make = partial(_HttpProtocol, runner.server, loop=asyncio.get_running_loop(), **options)
        await self.listen(
            endpoint, partial(self._under_tls if endpoint.scheme == "https" else self.connections.protocol, make)
        )

    async def listen(self, endpoint: Endpoint, factory: Callable[[], asyncio.Protocol]) -> None:
        """Take connections at an address, with protocols that `factory` makes. Raises StartupError."""
        loop = asyncio.get_running_loop()
        if endpoint.path:
            try:
                sock, file = await asyncio.to_thread(
                    sockets.bind_unix, endpoint.path, int(self._settings.socket_mode, 8), ""
                )
            except sockets.SocketFileError as error:
                raise StartupError(f"cannot listen on {endpoint.url()}: {error}") from error
            self._files.append(file)
            server = await loop.create_unix_server(factory, sock=sock)
        else:
            try:
                server = await loop.create_server(factory, endpoint.bind_host, endpoint.port, reuse_address=True)
            except OSError as error:
                why = sockets.why_not_listening(endpoint.url(), endpoint.host, error, "(http.listen)")
                raise StartupError(why) from error
            endpoint = endpoint._replace(port=server.sockets[0].getsockname()[1])
        self._servers.append(server)
        self.open.append(endpoint)

    def _under_tls(self, make: Callable[[], asyncio.BaseProtocol]) -> asyncio.Protocol:
        assert self._certificates is not None
        connection = self.connections.protocol(make, tls=True)
        below = TlsTransport(
            connection,
            lambda _: connection.begin(),
            partial(self._handshake_failed, connection),
            self._certificates.first,
            self._handshakes,
            self._wheel,
            asyncio.get_running_loop(),
            self.connections.timeout,
        )
        return cast(asyncio.Protocol, below)

    def _handshake_failed(self, connection: HttpConnection, _: TlsTransport, error: Exception | None) -> None:
        if connection.transport is not None:
            host, address = peer_name(connection.transport)
            self._broker.connection_log.not_begun(HANDSHAKE, "http", host, address, reason_of(error))

    async def prepare(self, settings: Http) -> Prepared:
        """Read the credentials and certificates of other settings, and change nothing.

        Addresses and bounds stay: the returned settings are those that will be in force.

        Raises:
            SecurityError, TlsError: a file cannot be used, or credentials would not be needed any more.
        """
        wanted = self._settings.changed_by(settings)
        if self._settings.guarded and not wanted.guarded:
            raise SecurityError("nobody would have to say who they are any more: that takes a restart")
        credentials, loaded = await asyncio.to_thread(_read, wanted)
        return Prepared(wanted, credentials, loaded)

    def apply(self, prepared: Prepared) -> None:
        """Put them in force. Existing connections keep their certificate."""
        self._settings, credentials, loaded = prepared
        assert self.authentication is not None
        self.authentication.credentials = credentials
        # Open streams have to authenticate again.
        self.feed.end()
        if self._certificates is not None and loaded is not None:
            self._certificates = loaded

    def certificates(self) -> dict[str, float]:
        """Return the end of each https certificate by file, in seconds since 1970."""
        return {} if self._certificates is None else self._certificates.expires

    def counts(self) -> dict[str, int]:
        connections, feed = self.connections, self.feed
        return {
            "connections": len(connections.open),
            "connections_refused": connections.refused,
            "connections_evicted": connections.evicted,
            "connections_cut": connections.cut,
            "event_streams": feed.listening,
            "event_streams_refused": feed.refused,
        }

    def files(self) -> list[str]:
        settings = self._settings
        named = (settings.password_file, settings.viewer_token_file, settings.operator_token_file)
        return [name for name in (*named, settings.certificate, settings.key) if name]

    async def stop(self) -> None:
        """Close everything. Unfinished answers have two seconds."""
        servers, self._servers = self._servers, []
        for server in servers:
            await sockets.stop_listening(server)
        self.feed.close()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()
        await self.connections.close()
        if hasattr(self, "_wheel"):
            self._wheel.close()
        files, self._files = self._files, []
        for file in files:
            await asyncio.to_thread(file.remove)
        if self.authentication is not None:
            await self.authentication.close()
        self.open.clear()


async def _in_words_of_the_api(request: web.Request, response: web.StreamResponse) -> None:
    """Make an error of the API of what aiohttp answers where there is no route, or an expectation it does not know."""
    if isinstance(response, web.HTTPException):
        code, why = {
            404: ("NOT_FOUND", "there is no such path"),
            405: ("METHOD_NOT_ALLOWED", f"{request.method} is not for this path"),
        }.get(response.status, ("BAD_REQUEST", response.reason))
        response.body = error_text(code, why).encode()
        response.headers[hdrs.CONTENT_LENGTH] = str(len(response.body))
        response.content_type = "application/json"
        response.headers.update(SECURE)


class _HttpProtocol(web.RequestHandler):
    """aiohttp's side of a connection, which answers also what is no HTTP request with an error of the API."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        # Which tells the log, and raises where a part of an answer has left.
        super().handle_error(request, status, exc, message)
        why = (message or "").partition("\n")[0].rstrip(":")
        made = error_response(
            ApiError(status, "BAD_REQUEST", why) if status < 500 else ApiError(status, "INTERNAL_ERROR", "see the log")
        )
        made.force_close()
        return made


OF_OTHERS: Final = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""Exceptions caused by a client's data, or by its leaving."""


class _Faults(logging.Handler):
    """Filters aiohttp's log: malformed requests are ignored, all other errors are faults of the broker."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Exception) and not isinstance(error, OF_OTHERS):
            self._faults.broke("http", error)


def _log(faults: Faults) -> logging.Logger:
    """Make a logger for aiohttp that writes nothing: a malformed request may contain a password."""
    made = logging.Logger("canopy.http")
    made.addHandler(_Faults(faults))
    return made


def check(settings: Http) -> list[str]:
    """Return the reasons why a broker could not serve HTTP, a line each. Reads the files, and changes nothing."""
    if not settings.listen:
        return []
    try:
        _read(settings)
    except (SecurityError, TlsError) as error:
        return [f"http: {error}"]
    return []


def _read(settings: Http) -> tuple[Credentials, Loaded | None]:
    credentials = read_credentials(settings)
    if not any(endpoint.scheme == "https" for endpoint in settings.endpoints):
        return credentials, None
    return credentials, load_certificates(Tls(certificate=settings.certificate, key=settings.key), "wss")
