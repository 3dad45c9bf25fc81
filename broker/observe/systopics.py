"""The broker's own state as retained messages under `$SYS/broker/`, in the form that mosquitto's users know.

Owns the timer that publishes them; what there is to publish is the catalogue's (`broker.observe.figures`). Promises:
- A value is published when it has changed, and everything once at the start; an interval of 0 publishes nothing. The
  states of the store, of links to upstream brokers and of alarms do not wait for the interval.
- A client has topics of its own (`clients/<id>/dropped` and below) from the first message that it lost until its
  session ends; then they are cleared. What is remembered here is bounded by the number of such clients.
- Each interval costs one pass over a few dozen numbers and, in turns, what they are for their subscribers, and the
  clients that have lost something.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from broker.core.counters import DROP_CAUSES
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.message import Message
from broker.observe.figures import catalogue
from broker.observe.figures.sources import Reading, Sources
from broker.observe.figures.traffic import totals
from broker.upstream.links.status import state

if TYPE_CHECKING:
    from broker.upstream.links.link import UpstreamLink

PREFIX: Final = "$SYS/broker/"

LONGEST_TOPIC: Final = 65_535
"""Bytes of a topic name, section 1.5.4."""

CLIENTS: Final = 200
"""Clients whose losses are published in one turn: some milliseconds."""

LOOKED_AT: Final = 5_000
"""Clients with topics of which one turn sees whether they are still there: a millisecond or two."""

TURN: Final = 16_384
"""Work (`Router.work`) after which the other values wait for the next turn: a millisecond, however many clients have
subscribed to them."""

PAUSE: Final = 0.05
"""Seconds between two such turns."""

ESCAPES: Final = str.maketrans({"%": "%25", "/": "%2F", "+": "%2B", "#": "%23"})
"""What makes a client identifier one level of a topic."""


class SysTopics:
    """Publishes `$SYS/broker/…` of one server every `interval` seconds."""

    def __init__(self, sources: Sources, interval: float) -> None:
        self._sources = sources
        self._server = sources.server
        self._store = sources.store
        self._links = sources.links
        self._telling_store: asyncio.Handle | None = None
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
        # The topics of the last interval: those that there are no more are cleared.
        self._listed: dict[str, None] = {}
        # Links whose state has changed since the last turn of the event loop, and the call that tells of them.
        self._moved: dict[UpstreamLink, None] = {}
        self._telling: asyncio.Handle | None = None

    def start(self) -> None:
        """Publish everything, and again at each interval."""
        if self._interval > 0:
            self._server.monitor.changed = set()
            if self._links is not None:
                self._links.state_changed = self._link_moved
                for link in self._links.links.values():
                    link.state_changed = self._link_moved
            if self._store is not None:
                self._store.changed = self._store_changed
            self._turn()

    def change(self, interval: float) -> None:
        """Another interval, from now on; it is not switched on or off by that."""
        if interval != self._interval and self._timer is not None:
            self._interval = interval
            self._timer.cancel()
            self._timer = self._server.loop.call_later(interval, self._turn)

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
        values.update({topic: text.encode() for topic, text in self.values(now).items()})
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
        while values and router.work < until and not router.fanout.broadcasting:
            self._tell(*values.pop())
        if values and self._publishing is None and self._interval > 0:
            self._publishing = self._server.loop.call_soon(self._publish_on)

    def _publish_on(self) -> None:
        self._publishing = None
        try:
            if self._server.hub.behind or self._server.hub.turns.writing or self._server.router.fanout.broadcasting:
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

    def tell(self, topic: str, payload: bytes) -> None:
        """Publish at once what somebody else found out; where there is no `$SYS`, nothing. It does not raise."""
        if self._interval <= 0:
            return
        try:
            self._tell(topic, payload)
        except Exception as error:
            self._server.faults.broke("sys-topics", error)
        self._server.after_batch()

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
                        self._listed[name] = None
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

    def values(self, now: float) -> dict[str, str]:
        """Topic (below `$SYS/broker/`) and payload of everything that the catalogue has; "" for what is gone.

        It ends an interval: load averages go on, and what was worst is forgotten.
        """
        reading = Reading(self._sources, now)
        self._sources.loads.note(totals(reading), now)
        found = dict(catalogue.topics(reading))
        gone = {topic: "" for topic in self._listed if topic not in found}
        self._listed = dict.fromkeys(found)
        return found | gone


def _topics(client_id: str) -> tuple[str, ...]:
    """The topics of one client: its total, and one for each cause. What is special in a topic filter is encoded."""
    total = f"clients/{client_id.translate(ESCAPES)}/dropped"
    return (total, *(f"{total}/{cause}" for cause in DROP_CAUSES))
