"""`/events`: the broker's state once a second, as server-sent events, for whoever has the page open.

Owns the listeners and the samples of the last ten minutes, which are taken whether a page is open or not: `KEPT` rows
of eleven numbers, 300 kB. Promises: one sample and, while somebody listens, one snapshot are made a second, for all
listeners together; a listener that does not take them has one snapshot waiting, the newest, and is cut off by `gate`
when it takes nothing for `http.timeout`; an eighth of `http.max_connections` may be listeners.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from typing import Any, Final

from aiohttp import hdrs, web

from broker.admin.api.clients import recent, refusal
from broker.admin.errors import ApiError
from broker.admin.host import Host
from broker.admin.routing import Call, Routes, secured
from broker.core.counters import DROP_CAUSES
from broker.upstream.links.status import status
from broker.version import __version__

ROUTES: Final = Routes("")

EVERY: Final = 1.0
"""Seconds between two samples, and two snapshots."""

KEPT: Final = 600
"""Samples that a new listener gets at once: ten minutes."""

MOST_ALARMS: Final = 20
"""Alarms in a snapshot, and how many there are besides."""

MOST_RECENT: Final = 10
"""Clients in a snapshot that lost messages, or were refused something; `/losers` and `/refused` have more."""

MOST_LINKS: Final = 100
"""Links to upstream brokers in a snapshot; those that are down come first."""

LONGEST_NAME: Final = 512
"""Characters of a client identifier or a state in a snapshot; what is longer is cut."""

SAMPLE: Final = (
    "at", "received", "sent", "bytes_in", "bytes_out", "dropped", "queued", "queued_bytes", "lag", "connected",
    "connections",
)  # fmt: skip
"""What a sample is, in this order: time (ms since 1970), totals, what waits (messages, bytes), the worst lag since the
sample before (s), clients that are connected, connections that were accepted in all."""


class Listener:
    """One open page. Called in the event loop."""

    def __init__(self) -> None:
        self._next = b""
        self._there = asyncio.Event()
        self.ended = False
        self.skipped = 0
        """Snapshots that it did not take before the next one was there."""

    def put(self, event: bytes) -> None:
        """Give it a snapshot in place of the one that it has not taken."""
        self.skipped += bool(self._next)
        self._next = event
        self._there.set()

    def end(self) -> None:
        self.ended = True
        self._there.set()

    async def take(self) -> bytes:
        """The newest snapshot that it has not had; b"": there will be none."""
        await self._there.wait()
        self._there.clear()
        event, self._next = self._next, b""
        return b"" if self.ended else event


class Feed:
    """The snapshots of one broker. Constructible without a running loop."""

    def __init__(self, broker: Host, most: int) -> None:
        """At most `most` listeners."""
        self._broker = broker
        self._most = most
        self._listeners: set[Listener] = set()
        self._timer: asyncio.TimerHandle | None = None
        # The last snapshot, and whether it is of the last sample: whoever comes and goes all the time has none made.
        self._last = b""
        self._current = False
        self.samples: deque[list[float]] = deque(maxlen=KEPT)
        """One a second, the newest last. Where the broker stood still there are none."""
        self.made = 0
        """Snapshots since the start."""
        self.refused = 0
        """Listeners that found no place."""

    @property
    def listening(self) -> int:
        return len(self._listeners)

    def start(self) -> None:
        self._tick()

    def close(self) -> None:
        """Take none any more; all streams end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.end()

    def enter(self) -> Listener:
        """Begin to listen: the first snapshot is there at once. Raises ApiError where there is no room."""
        if len(self._listeners) >= self._most:
            self.refused += 1
            raise ApiError(503, "SERVICE_UNAVAILABLE", f"{self._most} pages are open: http.max_connections")
        if not self._current:
            self._snapshot()
        listener = Listener()
        listener.put(self._last)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def end(self) -> None:
        """End all streams: the broker stops, or who may look has to be asked again."""
        for listener in list(self._listeners):
            listener.end()

    def _tick(self) -> None:
        self._timer = self._broker.loop.call_later(EVERY, self._tick)
        try:
            self.samples.append(self._sample())
            self._current = False
            if not self._listeners:
                return
            self._snapshot()
        except Exception as error:
            self._broker.faults.broke("http", error)
            return
        for listener in self._listeners:
            listener.put(self._last)

    def _sample(self) -> list[float]:
        router = self._broker.router
        counters = router.counters
        totals = (
            counters.messages_received,
            counters.messages_sent,
            counters.bytes_received,
            counters.bytes_sent,
            counters.dropped_in_all(),
            counters.load.messages,
            counters.load.bytes,
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
    """A server-sent event. JSON has no line ends of its own."""
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


def snapshot(broker: Host, sample: list[float]) -> dict[str, Any]:
    """What the page shows at a glance. It costs the same however many clients there are."""
    router = broker.router
    counters = router.counters
    slow = [
        {
            "clientid": client.client_id[:LONGEST_NAME],
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
        {"name": alarm.name[:LONGEST_NAME], "message": alarm.message[:LONGEST_NAME], "since": int(alarm.since * 1_000)}
        for alarm in raised[:MOST_ALARMS]
    ]
    store = {} if watch is None else {name: _plain(value) for name, value in watch.figures()}
    return {
        "sample": sample,
        "uptime": int(broker.uptime),
        "not_ready": [line[:LONGEST_NAME] for line in broker.not_ready()],
        "totals": {
            "sessions": len(router.sessions),
            "subscriptions": router.subscription_count,
            "filters": len(router.trie),
            "retained": len(router.retained),
            "retained_bytes": router.retained_bytes,
            "retained_refused": counters.retained_refused,
            "looped": counters.looped,
            "oversized": counters.oversized,
            "denied_publishes": counters.denied_publishes,
            "denied_subscriptions": counters.denied_subscriptions,
            "denied_deliveries": counters.denied_deliveries,
            "protocol_errors": counters.protocol_errors,
        },
        "dropped": dict(zip(DROP_CAUSES, counters.dropped, strict=True)),
        "losers": [recent(broker, each).model_dump() for each in broker.monitor.losers.newest()[:MOST_RECENT]],
        "refused": [refusal(broker, each).model_dump() for each in broker.refusal_log.recent.newest()[:MOST_RECENT]],
        "slow": {"count": broker.monitor.slow_count, "clients": slow},
        "alarms": {"count": len(raised), "active": alarms},
        "upstream": _links(broker),
        "store": {"kept": broker.store is not None, "failing": watch is not None and watch.failing, "figures": store},
    }


def _links(broker: Host) -> list[dict[str, Any]]:
    links = [] if broker.links is None else list(broker.links.links.values())
    links.sort(key=lambda link: link.connected)
    ago = time.time() - broker.loop.time()
    return [
        {"name": link.name, "up": link.connected, "down_since": int((ago + link.down_since) * 1_000)}
        | {topic: _plain(value) for topic, value in status(link) if topic not in ("name", "up")}
        for link in links[:MOST_LINKS]
    ]


def _plain(value: object) -> str | int | float:
    return value if isinstance(value, int | float) else str(value)[:LONGEST_NAME]


FEED: Final = web.AppKey("feed", Feed)
"""Where a server's application has its feed."""


@ROUTES.add("GET", "/events", streams=True)
async def events(call: Call) -> web.StreamResponse:
    """Who asks (`hello`), the samples that there are (`history`), and then a `snapshot` a second."""
    feed = call.request.app[FEED]
    listener = feed.enter()
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream", hdrs.CACHE_CONTROL: "no-store"})
    secured(response)
    broker = call.broker
    hello = {
        "role": call.role,
        "who": call.who.name,
        "name": broker.settings.federation.broker_id,
        "version": __version__,
    }
    try:
        await response.prepare(call.request)
        if call.request.method == hdrs.METH_HEAD:
            return response
        await response.write(event("hello", hello) + event("history", list(feed.samples)))
        while made := await listener.take():
            await response.write(made)
    except ConnectionError:
        # The page was closed.
        pass
    finally:
        feed.leave(listener)
    return response
