"""Where the supervisor lets clients in: it accepts connections, and finds the worker that each is for.

Owns the connections of which it has not read enough. Promises: it reads of a connection only what its client identifier
needs, and waits for that no longer than `limits.connect_timeout`; where too many send nothing, the oldest is closed, of
the address that has most.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Hashable
from typing import Any, Final

from canopy_mqtt import sockets
from canopy_mqtt.core.codec.framing import MAX_PACKET
from canopy_mqtt.core.principal import network
from canopy_mqtt.net.listening.listeners import PROXY_VERSIONS, request_bytes
from canopy_mqtt.net.listening.proxy_protocol import TrustedProxies
from canopy_mqtt.net.websocket.upgrade import UpgradeTerms
from canopy_mqtt.settings import Limits, Listener, Settings
from canopy_mqtt.workers.acceptor import Acceptor, Address
from canopy_mqtt.workers.by_address import ByAddress
from canopy_mqtt.workers.first_packet import NOTHING, First, Opening
from canopy_mqtt.workers.lines import MAX_WAIT, Newcomer
from canopy_mqtt.workers.placing import worker_of
from canopy_mqtt.workers.wire import ANY, Arrival

MAX_PARTIAL: Final = 268_435_456
"""Bytes of all incomplete CONNECTs together where no limit is set."""

FIRST_READ: Final = 4_096
READ: Final = 65_536
"""Bytes of the first read of a connection, and of each further one."""


class Place(Address):
    """One listener of the settings."""

    def __init__(self, number: int, listener: Listener, limits: Limits) -> None:
        super().__init__(listener.endpoint, listener.mode, listener.group, listener.name)
        self.number = number
        self.proxy = PROXY_VERSIONS.get(listener.proxy_protocol, 0)
        self.trusted = TrustedProxies(listener.proxy_from)
        self.upgrade: UpgradeTerms | None = None
        """The requirements on a request for a WebSocket; None: there is none that can be read here."""
        if self.endpoint.scheme == "ws":
            self.upgrade = UpgradeTerms(listener.path, tuple(listener.origins), request_bytes(limits))


class _Unread:
    """A connection of which not enough is read."""

    def __init__(self, place: Place, sock: socket.socket, host: str, until: float, most: int) -> None:
        """`host`: its IP address, or empty."""
        self.place = place
        self.sock = sock
        self.host = host
        self.until = until
        self.opening = Opening(place.proxy, place.upgrade, most)
        self.address: Hashable = None
        """The address under which it is counted, while it is."""
        # Bytes that count among those of all.
        self.held = 0

    def whose(self) -> Hashable:
        """Return the address under which it is counted: the client's, as its proxy says. Through a Unix socket each is
        counted by itself: a program there may serve many clients, and does not say so."""
        host = self.opening.host or self.host
        return network(host) if host else self


class Entrance(Acceptor):
    """All places where clients come in. `arrived` is called with each connection, and the worker that it is for."""

    def __init__(self, settings: Settings, log: Any, most: int, arrived: Callable[[Newcomer], None]) -> None:
        """`most`: connections of which not enough is read, at a time."""
        self.places = [Place(number, each, settings.limits) for number, each in enumerate(settings.listeners)]
        super().__init__(self.places, log, self._enter)
        self._most = most
        self._arrived = arrived
        self._bytes = 0
        self.limit(settings)
        # The oldest first: all, those of each address, and those that hold more than a small CONNECT.
        self._unread: dict[_Unread, None] = {}
        self._by_address = ByAddress[_Unread]()
        self._large: dict[_Unread, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, settings: Settings) -> None:
        """Apply the limits of these settings to new connections."""
        limits = settings.limits
        self._settings = settings
        self._largest = limits.max_connect_size or limits.max_packet_size or MAX_PACKET
        self._patience = limits.connect_timeout or MAX_WAIT
        self._most_bytes = limits.max_partial_bytes or MAX_PARTIAL
        for place in self.places:
            if place.upgrade is not None:
                place.upgrade.most_bytes = request_bytes(limits)
            for sock in place.sockets:
                sockets.tune(sock, settings)

    async def bind(self) -> None:
        await super().bind()
        self.limit(self._settings)

    async def close(self) -> None:
        """Stop accepting connections, and close those of which not enough is read."""
        await super().close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for unread in list(self._unread):
            self._drop(unread)

    def _enter(self, number: int, sock: socket.socket, host: str) -> None:
        place = self.places[number]
        if not sockets.INHERITED:
            sockets.tune(sock, self._settings)
        unread = _Unread(place, sock, host, self._loop.time() + self._patience, self._largest)
        trusted = not place.proxy or place.trusted.trusts(host)
        if not trusted or (place.endpoint.tls and not place.proxy):
            # Its worker refuses it, or has to make the handshake before the client is known.
            self._arrive(unread, NOTHING)
        else:
            self._read_first(unread)

    def _read_first(self, unread: _Unread) -> None:
        """Read the bytes that have come already, which are mostly enough; else wait for more."""
        if self._feed(unread, FIRST_READ):
            return
        if len(self._unread) >= self._most:
            self._drop(self._by_address.oldest_of_fullest())
        self._unread[unread] = None
        unread.address = unread.whose()
        self._by_address.add(unread, unread.address)
        self._loop.add_reader(unread.sock.fileno(), self._more, unread)
        self._count(unread)
        if self._timer is None:
            self._timer = self._loop.call_at(unread.until, self._look)

    def _more(self, unread: _Unread) -> None:
        named = unread.opening.host
        if not self._feed(unread, READ):
            if unread.opening.host != named:
                # The header of its proxy is there.
                self._by_address.remove(unread, unread.address)
                unread.address = unread.whose()
                self._by_address.add(unread, unread.address)
            self._count(unread)

    def _count(self, unread: _Unread) -> None:
        """Count what was read of a connection; where all hold too much, the oldest of the large ones is closed."""
        held = len(unread.opening.data)
        self._bytes += held - unread.held
        unread.held = held
        if held > FIRST_READ:
            self._large[unread] = None
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._large or self._unread)))

    def _feed(self, unread: _Unread, size: int) -> bool:
        """Read a piece. Returns True once nothing more is to be read here: it has arrived, or is over."""
        opening = unread.opening
        try:
            data = unread.sock.recv(size)
            first = opening.feed(data) if data else None
            if opening.answer:
                unread.sock.send(opening.answer)
                opening.answer = b""
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._drop(unread)
            return True
        if first is None:
            return False
        self._forget(unread)
        self._arrive(unread, first)
        return True

    def _arrive(self, unread: _Unread, first: First) -> None:
        opening = unread.opening
        worker = worker_of(first.client_id, self._settings.workers.count) if first.client_id else ANY
        data = bytes(opening.data)
        found = Arrival(unread.place.number, worker, first.version, opening.upgraded, None, data, until=unread.until)
        host = None if unread.place.proxy and not opening.proxied else opening.host or unread.host
        self._arrived(Newcomer(found, unread.sock, host))

    def _forget(self, unread: _Unread) -> None:
        if unread in self._unread:
            self._loop.remove_reader(unread.sock.fileno())
            self._bytes -= unread.held
            del self._unread[unread]
            self._large.pop(unread, None)
            self._by_address.remove(unread, unread.address)

    def _drop(self, unread: _Unread) -> None:
        self._forget(unread)
        unread.sock.close()

    def _look(self) -> None:
        """Close those that have had their time."""
        self._timer = None
        now = self._loop.time()
        while self._unread:
            oldest = next(iter(self._unread))
            if oldest.until > now:
                self._timer = self._loop.call_at(oldest.until, self._look)
                return
            self._drop(oldest)
