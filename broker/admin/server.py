"""Where the broker speaks HTTP: opening the addresses of `[http]`, and closing them.

Owns the sockets, the certificates and the files of users and tokens as they were last read. Promises: either every
address is open or none, and one line says why; `reload` changes credentials and certificates or nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from broker.admin.access import Access, Credentials, read_credentials
from broker.admin.errors import ApiError
from broker.admin.events import FEED, Feed
from broker.admin.gate import Doors, Gate
from broker.admin.host import Host
from broker.admin.routes import all_routes
from broker.admin.routing import Desk, Route, failure
from broker.net import sockets
from broker.net.listening import unix_sockets
from broker.net.listening.handshakes import Handshakes
from broker.net.listening.listeners import StartupError
from broker.net.listening.tls import Certificates, Loaded, TlsError, reason_of
from broker.net.listening.tls import load as load_certificates
from broker.net.listening.tls_transport import TlsTransport
from broker.net.log import Faults
from broker.net.scheduling.timers import Wheel
from broker.net.stream import peer_name
from broker.observe.figures.sources import Sources
from broker.security.errors import SecurityError
from broker.settings import Endpoint, Http, Tls

GRACE: Final = 2.0
"""Seconds that answers under way have when the broker stops."""

STREAM_PART: Final = 8
"""That part of `http.max_connections` may be pages that are open, each of which keeps its connection."""

IDLE_TIMES: Final = 2.0
"""A connection without a request stays open for as many times `http.timeout`: longer than a scrape interval of 30 s."""

LONGEST_LINE: Final = 262_144
"""Bytes of a request's first line: a topic name of 65,535 bytes, each of them escaped, and room. With less than a name
or a cursor takes, a client's long topic would end every list at itself."""

FIXED: Final = (
    "listen", "certificate", "key", "socket_mode", "max_connections", "max_request_bytes", "timeout", "public_metrics",
)  # fmt: skip
"""Settings that take a restart."""


class Prepared(NamedTuple):
    """What is read and not in force yet."""

    settings: Http
    credentials: Credentials
    loaded: Loaded | None
    """Certificates; None: it listens nowhere with https."""


class AdminServer:
    """HTTP of one broker. Constructible without a running loop."""

    def __init__(self, broker: Host, settings: Http, routes: Sequence[Route] | None = None) -> None:
        """`routes`: in place of a broker's."""
        self._broker = broker
        self._routes = routes
        self._settings = settings
        self.doors = Doors(settings.max_connections, settings.timeout)
        self.feed = Feed(broker, max(1, settings.max_connections // STREAM_PART))
        self.open: list[Endpoint] = []
        """Where it listens, with the real ports."""
        self.access: Access | None = None
        self._servers: list[asyncio.Server] = []
        self._files: list[unix_sockets.SocketFile] = []
        self._runners: list[web.AppRunner] = []
        # With https, from `start` on.
        self._certificates: Certificates | None = None
        self._handshakes: Handshakes
        self._wheel: Wheel

    @property
    def urls(self) -> list[str]:
        return [endpoint.url() for endpoint in self.open]

    async def start(self) -> None:
        """Listen. Raises StartupError."""
        settings = self._settings
        try:
            credentials, loaded = await asyncio.to_thread(_read, settings)
            if loaded is not None:
                self._certificates = Certificates(loaded)
        except (SecurityError, TlsError) as error:
            raise StartupError(f"http: {error}") from error
        loop = asyncio.get_running_loop()
        # Each of them has a place among the connections, so they need no other limit.
        self._handshakes, self._wheel = Handshakes(0, loop), Wheel(loop)
        securing = self._broker.securing
        chain = None if securing is None else securing.access.chain
        self.access = Access(credentials, chain, self._broker.connection_log)
        desk = Desk(
            self._broker, self.access, self.doors, settings.timeout, ("/metrics",) if settings.public_metrics else ()
        )
        try:
            for endpoint in settings.endpoints:
                await self._open(endpoint, await self._runner(desk, bool(endpoint.path)))
        except BaseException:
            await self.stop()
            raise
        self.feed.start()
        self._broker.log.info("http listens", urls=self.urls, guarded=settings.guarded)

    def tell(self, figures: Sources) -> None:
        """Have the figures of a broker contain those of its HTTP."""
        figures.certificates = self.certificates
        figures.http = self.counts

    async def _runner(self, desk: Desk, local: bool) -> web.AppRunner:
        app = web.Application(client_max_size=self._settings.max_request_bytes, middlewares=[_unknown])
        app[FEED] = self.feed
        for route in all_routes() if self._routes is None else self._routes:
            desk.add(app, route, local)
        runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=IDLE_TIMES * self._settings.timeout,
            shutdown_timeout=GRACE,
            max_line_size=LONGEST_LINE,
            logger=_log(self._broker.faults),
        )
        await runner.setup()
        self._runners.append(runner)
        return runner

    async def _open(self, endpoint: Endpoint, runner: web.AppRunner) -> None:
        loop = asyncio.get_running_loop()
        assert runner.server is not None
        make: Callable[[], asyncio.BaseProtocol] = runner.server
        factory = partial(self._under_tls if endpoint.scheme == "https" else self.doors.gate, make)
        if endpoint.path:
            try:
                sock, file = await asyncio.to_thread(
                    unix_sockets.bind, endpoint.path, int(self._settings.socket_mode, 8), ""
                )
            except unix_sockets.SocketFileError as error:
                raise StartupError(f"cannot listen on {endpoint.url()}: {error}") from error
            self._files.append(file)
            server = await loop.create_unix_server(factory, sock=sock)
        else:
            try:
                server = await loop.create_server(factory, endpoint.bound, endpoint.port, reuse_address=True)
            except OSError as error:
                raise StartupError(sockets.why_not_listening(endpoint.url(), endpoint.host, error)) from error
            endpoint = endpoint._replace(port=server.sockets[0].getsockname()[1])
        self._servers.append(server)
        self.open.append(endpoint)

    def _under_tls(self, make: Callable[[], asyncio.BaseProtocol]) -> asyncio.Protocol:
        assert self._certificates is not None
        gate = self.doors.gate(make, tls=True)
        below = TlsTransport(
            gate,
            lambda _: gate.begin(),
            partial(self._handshake_failed, gate),
            self._certificates.context,
            self._handshakes,
            self._wheel,
            asyncio.get_running_loop(),
            self.doors.timeout,
        )
        return cast(asyncio.Protocol, below)

    def _handshake_failed(self, gate: Gate, _: TlsTransport, error: Exception | None) -> None:
        if gate.transport is not None:
            host, address = peer_name(gate.transport)
            reason = "it took too long" if error is None else reason_of(error)
            self._broker.connection_log.handshake_failed("http", host, address, reason)

    async def prepare(self, settings: Http) -> Prepared:
        """Read credentials and certificates again, as other settings name them, and change nothing.

        Where it listens, and its bounds, stay: the settings that are returned are those that will be in force.

        Raises:
            SecurityError, TlsError: a file cannot be used, or nobody would have to say who they are any more.
        """
        wanted = settings.model_copy(update={name: getattr(self._settings, name) for name in FIXED})
        if self._settings.guarded and not wanted.guarded:
            raise SecurityError("nobody would have to say who they are any more: that takes a restart")
        credentials, loaded = await asyncio.to_thread(_read, wanted)
        return Prepared(wanted, credentials, loaded)

    def apply(self, prepared: Prepared) -> None:
        """Go by these from now on. Connections that there are keep their certificate."""
        self._settings, credentials, loaded = prepared
        assert self.access is not None
        self.access.credentials = credentials
        # Whoever listens says anew who they are.
        self.feed.end()
        if self._certificates is not None and loaded is not None:
            self._certificates.apply(loaded)

    def certificates(self) -> dict[str, float]:
        """When the certificates of https:// end, by file, in seconds since 1970."""
        return {} if self._certificates is None else self._certificates.loaded.expires

    def counts(self) -> dict[str, int]:
        doors, feed = self.doors, self.feed
        return {
            "connections": len(doors.open),
            "connections_refused": doors.refused,
            "connections_evicted": doors.evicted,
            "connections_cut": doors.cut,
            "event_streams": feed.listening,
            "event_streams_refused": feed.refused,
        }

    def files(self) -> list[str]:
        settings = self._settings
        named = (settings.password_file, settings.viewer_token_file, settings.operator_token_file)
        return [name for name in (*named, settings.certificate, settings.key) if name]

    async def stop(self) -> None:
        """Close everything. Answers under way have two seconds."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        self.feed.close()
        runners, self._runners = self._runners, []
        for runner in runners:
            await runner.cleanup()
        await self.doors.close()
        if hasattr(self, "_wheel"):
            self._wheel.close()
        files, self._files = self._files, []
        for file in files:
            await asyncio.to_thread(file.remove)
        if self.access is not None:
            await self.access.close()
        self.open.clear()


OF_OTHERS: Final = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
"""Exceptions that come of what a client sends, or of its going."""


class _Faults(logging.Handler):
    """Takes what aiohttp would log: requests that are no HTTP are nobody's fault, all else is ours."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Exception) and not isinstance(error, OF_OTHERS):
            self._faults.broke("http", error)


def _log(faults: Faults) -> logging.Logger:
    """A log of its own for aiohttp, which writes nothing: anybody can send what is no HTTP, and a password in it."""
    made = logging.Logger("canopy.http")
    made.addHandler(_Faults(faults))
    return made


@web.middleware
async def _unknown(request: web.Request, handler: Any) -> web.StreamResponse:
    """Paths and methods that there are not are answered as all else is."""
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed = {"Allow": ", ".join(sorted(error.allowed_methods))}
        return failure(ApiError(405, "METHOD_NOT_ALLOWED", f"{request.method} is not for this path", allowed))
    except web.HTTPNotFound:
        return failure(ApiError(404, "NOT_FOUND", "there is no such path"))
    return response


def check(settings: Http) -> list[str]:
    """Why a broker with these settings could not listen for HTTP, a line each: what the files say. Changes nothing."""
    if not settings.listen:
        return []
    try:
        _read(settings)
    except (SecurityError, TlsError) as error:
        return [f"http: {error}"]
    return []


def _read(settings: Http) -> tuple[Credentials, Loaded | None]:
    """What the files of the settings hold. It blocks."""
    credentials = read_credentials(settings)
    if not any(endpoint.scheme == "https" for endpoint in settings.endpoints):
        return credentials, None
    return credentials, load_certificates(Tls(certificate=settings.certificate, key=settings.key), "wss")
