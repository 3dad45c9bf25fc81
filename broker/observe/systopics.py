"""The broker's own state as retained messages under `$SYS/broker/`, in the form that mosquitto's users know.

Owns the list of topics and the timer that publishes them. Promises:
- A value is published when it has changed, and everything once at the start; an interval of 0 publishes nothing. The
  states of the store and of links to upstream brokers do not wait for the interval.
- A client has topics of its own (`clients/<id>/dropped` and below) from the first message that it lost until its
  session ends; then they are cleared. What is remembered here is bounded by the number of such clients.
- Each interval costs one pass over a few dozen numbers and, in turns, what they are for their subscribers, and the
  clients that have lost something.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from broker.core.counters import DROP_CAUSES
from broker.core.guards import HOOKS
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.message import Message
from broker.upstream.links.status import state, status
from broker.version import __version__

if TYPE_CHECKING:
    from broker.net.monitor import SlowClient
    from broker.net.server import Server
    from broker.record.recorder import Recorder
    from broker.storing import StoreWatch
    from broker.upstream.links.link import UpstreamLink
    from broker.upstream.links.links import Links

PREFIX: Final = "$SYS/broker/"

LONGEST_TOPIC: Final = 65_535
"""Bytes of a topic name, section 1.5.4."""

CLIENTS: Final = 200
"""Clients whose losses are published in one turn: some milliseconds."""

LOOKED_AT: Final = 5_000
"""Clients with topics of which one turn sees whether they are still there: a millisecond or two."""

TURN: Final = 8_192
"""Work (`Router.work`) after which the other values wait for the next turn: half a millisecond, however many clients
have subscribed to them."""

PAUSE: Final = 0.05
"""Seconds between two such turns."""

ESCAPES: Final = str.maketrans({"%": "%25", "/": "%2F", "+": "%2B", "#": "%23"})
"""What makes a client identifier one level of a topic."""


class SysTopics:
    """Publishes `$SYS/broker/…` of one server every `interval` seconds."""

    def __init__(
        self,
        server: Server,
        interval: float,
        recorder: Recorder | None = None,
        links: Links | None = None,
        security_counts: Callable[[], Iterator[tuple[str, int]]] | None = None,
        store: StoreWatch | None = None,
    ) -> None:
        self._server = server
        self._store = store
        self._telling_store: asyncio.Handle | None = None
        self._links = links
        self._recorder = recorder
        self._security_counts = security_counts
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        # The last payload of each topic that has one.
        self._last: dict[str, bytes] = {}
        # What is still to be published of the last interval, the first value last, and the call that does.
        self._values: list[tuple[str, bytes]] = []
        self._publishing: asyncio.Handle | None = None
        # The clients that have topics, and the ledger that these show.
        self._clients: dict[str, Ledger] = {}
        # Ledgers with something to tell, in order, and the timer for those that had to wait.
        self._changed: dict[Ledger, None] = {}
        self._more: asyncio.TimerHandle | None = None
        # Ledgers of clients with topics that are still to be looked at since the last interval: is the client there?
        self._unseen: list[Ledger] = []
        # How many of the places under `slow/` were taken.
        self._places = 0
        # What was told of links.
        self._told_upstream: dict[str, None] = {}
        # Links whose state has changed since the last turn of the event loop, and the call that tells of them.
        self._moved: dict[UpstreamLink, None] = {}
        self._telling: asyncio.Handle | None = None
        self._started = 0.0

    def start(self) -> None:
        """Publish everything, and again at each interval."""
        self._started = self._server.loop.time()
        if self._interval > 0:
            self._server.monitor.changed = set()
            if self._links is not None:
                self._links.state_changed = self._link_moved
                for link in self._links.links.values():
                    link.state_changed = self._link_moved
            if self._store is not None:
                self._store.changed = self._store_changed
            self._turn()

    def stop(self) -> None:
        """Publish no more."""
        self._server.monitor.changed = None
        if self._links is not None:
            self._links.state_changed = None
            for link in self._links.links.values():
                link.state_changed = None
        if self._store is not None:
            self._store.changed = None
        for timer in (self._timer, self._more, self._telling, self._publishing, self._telling_store):
            if timer is not None:
                timer.cancel()
        self._timer = self._more = self._telling = self._publishing = self._telling_store = None
        self._values.clear()
        self._moved.clear()
        self._changed.clear()
        self._unseen.clear()

    def _turn(self) -> None:
        # First: whatever happens, there is another turn.
        self._timer = self._server.loop.call_later(self._interval, self._turn)
        try:
            self.update()
        except Exception as error:
            self._server.faults.broke("sys-topics", error)
            self._server.after_batch()

    def update(self) -> None:
        """Publish what has changed: some of it now, the rest in turns."""
        server = self._server
        now = server.loop.time()
        server.router.counters.load.now = now
        # What the last interval has not told yet comes first, as it is now.
        values = {topic: b"" for topic, _ in reversed(self._values)}
        values.update({topic: str(value).encode() for topic, value in self.values(now)})
        self._values = list(reversed(values.items()))
        self._publish_some()
        self._changed.update(dict.fromkeys(server.monitor.take_changed()))
        if not self._unseen:
            self._unseen = list(self._clients.values())
        self._tell_clients()
        server.after_batch()

    def _publish_some(self) -> None:
        """Publish as many values as one turn has room for."""
        values = self._values
        router = self._server.router
        until = router.work + TURN
        while values and router.work < until and not router.delivery.broadcasting:
            self._tell(*values.pop())
        if values and self._publishing is None and self._interval > 0:
            self._publishing = self._server.loop.call_soon(self._publish_on)

    def _publish_on(self) -> None:
        self._publishing = None
        try:
            if self._server.hub.behind or self._server.hub.turns.writing or self._server.router.delivery.broadcasting:
                # Those whom the last values went to come first.
                self._publishing = self._server.loop.call_soon(self._publish_on)
                return
            self._publish_some()
        except Exception as error:
            self._server.faults.broke("sys-topics", error)
        self._server.after_batch()

    def _tell(self, topic: str, payload: bytes) -> None:
        """Publish a value that has changed. An empty one clears the topic."""
        name = (PREFIX + topic).encode()
        if self._last.get(topic, b"") == payload or len(name) > LONGEST_TOPIC:
            return
        if payload:
            self._last[topic] = payload
        else:
            del self._last[topic]
        self._server.router.publish(Message(name, payload, 0, True, b"", 0.0, ""), None)

    # -- links to upstream brokers -------------------------------------------------------------------------------------

    def _link_moved(self, link: UpstreamLink) -> None:
        """Tell of it when whoever changed it is through."""
        self._moved[link] = None
        if self._telling is None:
            self._telling = self._server.loop.call_soon(self._tell_moved)

    def _tell_moved(self) -> None:
        self._telling = None
        moved = list(self._moved)
        self._moved.clear()
        try:
            for link in moved:
                if self._links is not None and self._links.links.get(link.name) is link:
                    for topic, value in state(link):
                        name = f"upstream/{link.name}/{topic}"
                        self._told_upstream[name] = None
                        self._tell(name, str(value).encode())
        except Exception as error:
            self._server.faults.broke("sys-topics", error)
        self._server.after_batch()

    # -- the store -----------------------------------------------------------------------------------------------------

    def _store_changed(self) -> None:
        """Tell of its state when whoever found it out is through."""
        if self._telling_store is None:
            self._telling_store = self._server.loop.call_soon(self._tell_store)

    def _tell_store(self) -> None:
        self._telling_store = None
        try:
            if self._store is not None:
                self._tell("store/state", self._store.state.encode())
        except Exception as error:
            self._server.faults.broke("sys-topics", error)
        self._server.after_batch()

    # -- clients that have lost something ------------------------------------------------------------------------------

    def _tell_clients(self) -> None:
        """Some of them now; the others in turns of their own, since there may be very many."""
        lives = self._server.monitor.lives
        for ledger in self._unseen[-LOOKED_AT:]:
            if not lives(ledger):
                self._changed[ledger] = None
        del self._unseen[-LOOKED_AT:]
        router = self._server.router
        until = router.work + TURN
        for ledger in list(islice(self._changed, CLIENTS)):
            if router.work >= until:
                break
            del self._changed[ledger]
            client_id = ledger.client_id
            if not lives(ledger):
                if self._clients.get(client_id) is ledger:
                    del self._clients[client_id]
                    for topic in _topics(client_id):
                        self._tell(topic, b"")
                continue
            self._clients[client_id] = ledger
            dropped = ledger.dropped
            if dropped is not None:
                for topic, count in zip(_topics(client_id), (sum(dropped), *dropped), strict=True):
                    self._tell(topic, b"%d" % count if count else b"")
        if (self._changed or self._unseen) and self._more is None and self._interval > 0:
            self._more = self._server.loop.call_later(PAUSE, self._go_on)

    def _go_on(self) -> None:
        self._more = None
        try:
            self._tell_clients()
        except Exception as error:
            self._server.faults.broke("sys-topics", error)
        self._server.after_batch()

    # -- everything else -----------------------------------------------------------------------------------------------

    def values(self, now: float) -> Iterator[tuple[str, object]]:
        """Topic (below `$SYS/broker/`) and value of everything that is published, but for single clients' losses."""
        router = self._server.router
        counters = router.counters
        # Links are no clients.
        links = [] if self._links is None else list(self._links.links.values())
        connected = len(router.fanout.peers) - sum(1 for link in links if link.connected)
        sessions = len(router.sessions) - (0 if self._links is None else self._links.session_count)
        yield "version", f"canopy {__version__}"
        yield "uptime", f"{int(now - self._started)} seconds"
        yield "load/lag", f"{self._server.lag_monitor.take_worst(now):.3f}"
        yield "clients/connected", connected
        yield "clients/disconnected", sessions - connected
        yield "clients/total", sessions
        yield "connections/total", counters.connections
        yield "connections/open", len(self._server.connections)
        yield "bytes/received", counters.bytes_received
        yield "bytes/sent", counters.bytes_sent
        yield "bytes/queued", counters.load.bytes
        yield "packets/received", counters.packets_received
        yield "messages/received", counters.messages_received
        yield "messages/sent", counters.messages_sent
        yield "messages/queued", counters.load.messages
        yield "messages/dropped", counters.dropped_in_all()
        for cause, name in enumerate(DROP_CAUSES):
            yield f"messages/dropped/{name}", counters.dropped[cause]
        yield "messages/looped", counters.looped
        yield "messages/oversized", counters.oversized
        yield "messages/not authorized", counters.denied_publishes
        yield "subscriptions/not authorized", counters.denied_subscriptions
        yield "packets/protocol errors", counters.protocol_errors
        yield "retained messages/count", len(router.retained)
        yield "retained messages/bytes", router.retained_bytes
        yield "retained messages/refused", counters.retained_refused
        yield "subscriptions/count", router.subscription_count
        yield "subscriptions/filters", len(router.trie)
        yield "routing/cached topics", len(router.cache)
        yield "process/python", sys.version.split()[0]
        monitor = self._server.monitor
        yield "slow/count", monitor.slow_count
        for place, client in enumerate(monitor.slowest, 1):
            yield f"slow/{place}", _slow(client)
        taken = len(monitor.slowest)
        for place in range(taken, self._places):
            yield f"slow/{place + 1}", ""
        self._places = taken
        yield from self._faults()
        yield from self._security()
        yield from self._recording()
        if self._store is not None:
            for topic, value in self._store.figures():
                yield f"store/{topic}", value
        yield from self._upstream()

    def _faults(self) -> Iterator[tuple[str, object]]:
        """What was caught so that nobody else would notice it: for each hook that is set, and for all else together."""
        internal = 0
        for place, count in self._server.faults.counts.items():
            if place in HOOKS:
                yield f"hooks/{place}/errors", count
            else:
                internal += count
        yield "hooks/slow calls", self._server.faults.slow_calls
        yield "errors/internal", internal

    def _security(self) -> Iterator[tuple[str, object]]:
        """Who came in and who did not; nothing where nothing is asked of clients."""
        for topic, count in () if self._security_counts is None else self._security_counts():
            yield f"security/{topic}", count

    def _recording(self) -> Iterator[tuple[str, object]]:
        """What is told of the recorder; nothing where none is asked for."""
        recorder = self._recorder
        if recorder is None:
            return
        yield "recorder/state", recorder.failure or "recording"
        yield "recorder/segments", recorder.segments
        yield "recorder/events", recorder.events
        yield "recorder/bytes", recorder.bytes
        yield "recorder/queued", 0 if recorder.tap is None else recorder.tap.waiting
        yield "recorder/lost", recorder.lost

    def _upstream(self) -> Iterator[tuple[str, object]]:
        """What is told of each link to an upstream broker; of one that is gone, nothing any more."""
        now: dict[str, None] = {}
        for name, link in () if self._links is None else self._links.links.items():
            for topic, value in status(link):
                now[f"upstream/{name}/{topic}"] = None
                yield f"upstream/{name}/{topic}", value
        for topic in self._told_upstream:
            if topic not in now:
                yield topic, ""
        self._told_upstream = now


def _slow(client: SlowClient) -> str:
    """A slow subscriber as JSON; `delay` in seconds."""
    return json.dumps(
        {
            "client_id": client.client_id,
            "delay": round(client.delay, 3),
            "waiting": client.waiting,
            "bytes": client.bytes,
            "high_water": client.high_water,
            "dropped": client.dropped(),
        }
    )


def _topics(client_id: str) -> tuple[str, ...]:
    """The topics of one client: its total, and one for each cause. What is special in a topic filter is encoded."""
    total = f"clients/{client_id.translate(ESCAPES)}/dropped"
    return (total, *(f"{total}/{cause}" for cause in DROP_CAUSES))
