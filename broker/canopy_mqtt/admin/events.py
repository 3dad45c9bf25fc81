"""`/events`: the broker's state once a second, as server-sent events for each open page.

Owns the streams and the samples of the last ten minutes, which are taken even without an open page: `KEPT` rows of
eleven numbers, 300 kB. Promises: each second makes one sample and, if there are streams, one snapshot for all of them;
a slow stream keeps only the newest snapshot, and `http_connections` closes its connection when the client reads nothing
for `http.timeout`; an eighth of `http.max_connections` may be streams.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from typing import Any, Final

from aiohttp import hdrs, web

from canopy_mqtt.admin.api.clients import recent, refusal
from canopy_mqtt.admin.errors import ApiError
from canopy_mqtt.admin.host import Host, node_of, shared_reports
from canopy_mqtt.admin.routing import Call, Routes, with_security_headers
from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.links.status import status
from canopy_mqtt.version import __version__

ROUTES: Final = Routes("")

EVERY: Final = 1.0
"""Seconds between two samples, and two snapshots."""

KEPT: Final = 600
"""Samples that a new stream gets at once: ten minutes."""

MAX_ALARMS: Final = 20
"""Alarms in a snapshot; it also has the number of all."""

MAX_RECENT: Final = 10
"""Clients in a snapshot that lost messages or were refused; `/losers` and `/refused` have more."""

MAX_LINKS: Final = 100
"""Links to upstream brokers in a snapshot; those that are down come first."""

MAX_NAME_LENGTH: Final = 512
"""Characters of a client identifier or a state in a snapshot; longer ones are cut."""

SAMPLE: Final = (
    "at", "received", "sent", "bytes_in", "bytes_out", "dropped", "queued", "queued_bytes", "lag", "connected",
    "connections",
)  # fmt: skip
"""The columns of a sample: time (ms since 1970), totals, queued messages and bytes, the worst lag since the last sample
(s), connected clients, accepted connections."""


class EventStream:
    """The queue of one open page. Called in the event loop."""

    def __init__(self) -> None:
        self._next = b""
        self._there = asyncio.Event()
        self.ended = False
        self.skipped = 0
        """Snapshots that a newer one replaced before they were sent."""

    def put(self, event: bytes) -> None:
        """Queue a snapshot, in place of an unsent one."""
        self.skipped += bool(self._next)
        self._next = event
        self._there.set()

    def end(self) -> None:
        self.ended = True
        self._there.set()

    async def take(self) -> bytes:
        """Wait for a new snapshot; b"": there will be none."""
        await self._there.wait()
        self._there.clear()
        event, self._next = self._next, b""
        return b"" if self.ended else event


class EventFeed:
    """Makes the snapshots of one broker. It can be made without a running loop."""

    def __init__(self, broker: Host, max_streams: int) -> None:
        """`max_streams`: the largest number of streams."""
        self._broker = broker
        self._max_streams = max_streams
        self._streams: set[EventStream] = set()
        self._timer: asyncio.TimerHandle | None = None
        # The last snapshot, and whether it is of the last sample: a client that reconnects all the time causes none.
        self._last = b""
        self._current = False
        self.samples: deque[list[float]] = deque(maxlen=KEPT)
        """One a second, the newest last. There are gaps where the broker stood still."""
        self.made = 0
        """Snapshots since the start."""
        self.refused = 0
        """Refused streams."""

    @property
    def name(self) -> str:
        """The name of the broker in the settings."""
        return self._broker.settings.federation.broker_id

    @property
    def listening(self) -> int:
        return len(self._streams)

    def start(self) -> None:
        self._tick()

    def close(self) -> None:
        """Stop sampling; all streams end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.end()

    def open_stream(self) -> EventStream:
        """Add a stream: its first snapshot is there at once. Raises ApiError if there are too many."""
        if len(self._streams) >= self._max_streams:
            self.refused += 1
            raise ApiError(503, "SERVICE_UNAVAILABLE", f"{self._max_streams} pages are open: http.max_connections")
        stream = EventStream()
        self.greet(stream)
        self._streams.add(stream)
        return stream

    def greet(self, stream: EventStream) -> None:
        """Queue the first snapshot of a new stream."""
        if not self._current:
            self._snapshot()
        stream.put(self._last)

    async def history(self) -> list[list[float]]:
        """Return the kept samples, the newest last."""
        return list(self.samples)

    def close_stream(self, stream: EventStream) -> None:
        self._streams.discard(stream)

    def end(self) -> None:
        """End all streams: the broker stops, or the roles have changed."""
        for stream in list(self._streams):
            stream.end()

    def _tick(self) -> None:
        self._timer = self._broker.loop.call_later(EVERY, self._tick)
        try:
            self.samples.append(self._sample())
            self._current = False
            if self._streams:
                self.tell()
        except Exception as error:
            self._broker.faults.broke("http", error)

    def tell(self) -> None:
        """Queue a new snapshot for all streams."""
        self._snapshot()
        self.put(self._last)

    def put(self, made: bytes) -> None:
        """Queue a snapshot for all streams."""
        for stream in self._streams:
            stream.put(made)

    def _sample(self) -> list[float]:
        router = self._broker.router
        counters = router.counters
        totals = (
            counters.messages_received,
            counters.messages_sent,
            counters.bytes_received,
            counters.bytes_sent,
            counters.dropped_in_all(),
            counters.totals.messages,
            counters.totals.bytes,
        )
        connected = self._broker.figures.read().connected
        # As `SAMPLE` has it.
        worst = self._broker.lag_monitor.take_peak(self._broker.loop.time())
        return [int(time.time() * 1_000), *map(int, totals), round(worst, 4), connected, int(counters.connections)]

    def _snapshot(self) -> None:
        self._last = event("snapshot", snapshot(self._broker, self.samples[-1]))
        self._current = True
        self.made += 1


def event(name: str, data: object) -> bytes:
    """Format a server-sent event. JSON contains no line ends."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def snapshot(broker: Host, sample: list[float]) -> dict[str, Any]:
    """Make a snapshot for the page. Its cost does not depend on the number of clients."""
    router = broker.router
    counters = router.counters
    reading = broker.figures.read()
    slow = [
        {
            "clientid": client.client_id[:MAX_NAME_LENGTH],
            "delay": round(client.delay, 3),
            "waiting": client.waiting,
            "bytes": client.bytes,
            "dropped": client.dropped(),
        }
        for client in broker.monitor.slowest
    ]
    watch = broker.store_watch
    raised = [] if broker.alarms is None else list(broker.alarms.active.values())
    alarms = [
        {
            "name": alarm.name[:MAX_NAME_LENGTH],
            "message": alarm.message[:MAX_NAME_LENGTH],
            "since": int(alarm.since * 1_000),
        }
        for alarm in raised[:MAX_ALARMS]
    ]
    store = {} if watch is None else {name: _plain(value) for name, value in watch.figures()}
    return {
        "sample": sample,
        "uptime": int(broker.uptime),
        "not_ready": [line[:MAX_NAME_LENGTH] for line in broker.not_ready()],
        "totals": {
            "sessions": reading.sessions,
            "subscriptions": reading.subscriptions,
            "filters": len(router.trie),
            "retained": len(router.retained),
            "retained_bytes": router.retained_store.bytes,
            "retained_refused": counters.retained_refused,
            "looped": counters.looped,
            "oversized": counters.oversized,
            "denied_publishes": counters.denied_publishes,
            "denied_subscriptions": counters.denied_subscriptions,
            "denied_deliveries": counters.denied_deliveries,
            "protocol_errors": counters.protocol_errors,
        },
        "dropped": dict(zip(DROP_CAUSES, counters.dropped, strict=True)),
        "losers": [recent(broker, each).model_dump() for each in broker.monitor.losers.newest()[:MAX_RECENT]],
        "refused": [refusal(broker, each).model_dump() for each in broker.refusal_log.recent.newest()[:MAX_RECENT]],
        "slow": {"count": broker.monitor.slow_count, "clients": slow},
        "alarms": {"count": len(raised), "active": alarms},
        "upstream": _links(broker),
        "store": {"kept": broker.store is not None, "failing": watch is not None and watch.failing, "figures": store},
    }


def _links(broker: Host) -> list[dict[str, Any]]:
    links = sorted(broker.figures.upstreams.values(), key=lambda link: link.connected)
    ago = time.time() - broker.loop.time()
    return [
        {"name": link.name, "up": link.connected, "down_since": int((ago + link.down_since) * 1_000)}
        | {topic: _plain(value) for topic, value in status(link) if topic not in ("name", "up")}
        for link in links[:MAX_LINKS]
    ]


def _plain(value: object) -> str | int | float:
    return value if isinstance(value, int | float) else str(value)[:MAX_NAME_LENGTH]


FEED: Final = web.AppKey("feed", EventFeed)
"""Where a server's application has its feed."""


@ROUTES.add("GET", "/events", streams=True)
async def events(call: Call) -> web.StreamResponse:
    """The caller (`hello`), the kept samples (`history`), and then a `snapshot` each second."""
    feed = call.request.app[FEED]
    stream = feed.open_stream()
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream", hdrs.CACHE_CONTROL: "no-store"})
    with_security_headers(response)
    hello = {
        "role": call.role,
        "who": call.caller.name,
        "name": feed.name,
        "node": node_of(call.broker),
        "shares_sessions": shared_reports(call.broker) is not None,
        "version": __version__,
    }
    try:
        await response.prepare(call.request)
        if call.request.method == hdrs.METH_HEAD:
            return response
        await response.write(event("hello", hello) + event("history", await feed.history()))
        while made := await stream.take():
            await response.write(made)
    except ConnectionError:
        # The page was closed.
        pass
    finally:
        feed.close_stream(stream)
    return response
