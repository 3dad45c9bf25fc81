"""The broker's own state as retained messages under `$SYS/broker/`, in the form that mosquitto's users know.

Owns the list of topics and the timer that publishes them. Promises: a value is published when it has changed, and
everything once at the start; an interval of 0 publishes nothing. Costs one pass over a few dozen numbers each
interval.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker import __version__
from broker.core.counters import DROP_CAUSES
from broker.core.message import Message

if TYPE_CHECKING:
    from broker.net.server import Server

PREFIX = "$SYS/broker/"


class SysTopics:
    """Publishes `$SYS/broker/…` of one server every `interval` seconds."""

    def __init__(self, server: Server, interval: float) -> None:
        self._server = server
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._last: dict[str, bytes] = {}
        self._started = 0.0

    def start(self) -> None:
        """Publish everything, and again at each interval."""
        self._started = self._server.loop.time()
        if self._interval > 0:
            self._publish()

    def stop(self) -> None:
        """Publish no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _publish(self) -> None:
        server = self._server
        now = server.loop.time()
        for topic, value in self.values(now):
            payload = str(value).encode()
            if self._last.get(topic) != payload:
                self._last[topic] = payload
                message = Message((PREFIX + topic).encode(), payload, 0, True, b"", 0.0, "")
                server.router.publish(message, None)
        server.after_batch()
        self._timer = server.loop.call_later(self._interval, self._publish)

    def values(self, now: float) -> Iterator[tuple[str, object]]:
        """Topic (below `$SYS/broker/`) and value of everything that is published."""
        router = self._server.router
        counters = router.counters
        connected = len(router.fanout.peers)
        sessions = len(router.sessions)
        yield "version", f"canopy {__version__}"
        yield "uptime", f"{int(now - self._started)} seconds"
        yield "clients/connected", connected
        yield "clients/disconnected", sessions - connected
        yield "clients/total", sessions
        yield "connections/total", counters.connections
        yield "connections/open", len(self._server.connections)
        yield "bytes/received", counters.bytes_received
        yield "bytes/sent", counters.bytes_sent
        yield "packets/received", counters.packets_received
        yield "messages/received", counters.messages_received
        yield "messages/sent", counters.messages_sent
        yield "messages/dropped", counters.dropped_in_all()
        for cause, name in enumerate(DROP_CAUSES):
            yield f"messages/dropped/{name}", counters.dropped[cause]
        yield "packets/protocol errors", counters.protocol_errors
        yield "retained messages/count", len(router.retained)
        yield "retained messages/bytes", router.retained_bytes
        yield "retained messages/refused", counters.retained_refused
        yield "subscriptions/count", router.subscription_count
        yield "subscriptions/filters", len(router.trie)
        yield "routing/cached topics", len(router.cache)
        yield "process/python", sys.version.split()[0]
