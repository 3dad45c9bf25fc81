"""Publishes the broker's state as retained messages under `$SYS/broker/`, with mosquitto's names.

Owns the timer that publishes the catalogue (`canopy_mqtt.observe.figures`). Promises:
- All values are published at the start, and later each one that has changed; an interval of 0 publishes none. The
  states of the store, of links and of alarms are published without waiting for the interval.
- A client has its own topics (`clients/<id>/dropped` and below) from the first message that it lost until its session
  ends, which clears them. Their number bounds the memory here.
- Each interval costs one pass over a few dozen numbers and, in turns, the delivery to their subscribers and a pass over
  the clients that have lost messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.core.jobs import STEP_WORK
from canopy_mqtt.core.ledger import DROP_CAUSES, Ledger
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.links.status import state
from canopy_mqtt.observe.figures import catalogue
from canopy_mqtt.observe.figures.sources import Reading, Sources
from canopy_mqtt.observe.figures.traffic import totals

if TYPE_CHECKING:
    from canopy_mqtt.links.link import UpstreamLink

PREFIX: Final = "$SYS/broker/"

MAX_TOPIC_BYTES: Final = 65_535
"""Bytes of a topic name, section 1.5.4."""

CLIENTS: Final = 200
"""Clients whose losses are published in one turn: some milliseconds."""

LOOKED_AT: Final = 5_000
"""Clients with topics that one turn checks for an ended session: a millisecond or two."""

PAUSE: Final = 0.05
"""Seconds between two such turns."""

ESCAPES: Final = str.maketrans({"%": "%25", "/": "%2F", "+": "%2B", "#": "%23"})
"""The escapes that make a client identifier one level of a topic."""


class SysTopics:
    """Publishes `$SYS/broker/…` of one server every `interval` seconds."""

    def __init__(self, sources: Sources, interval: float) -> None:
        self._sources = sources
        self._server = sources.server
        self._store = sources.store
        self._links = sources.links
        self._store_handle: asyncio.Handle | None = None
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        # The last payload of each topic that has one.
        self._last: dict[str, bytes] = {}
        # What is still to be published of the last interval, the first value last, and the call that does.
        self._values: list[tuple[str, bytes]] = []
        self._publishing: asyncio.Handle | None = None
        # The clients that have topics, and the ledger that these show.
        self._clients: dict[str, Ledger] = {}
        # Ledgers with unpublished changes, in order, and the timer for those that had to wait.
        self._changed: dict[Ledger, None] = {}
        self._more: asyncio.TimerHandle | None = None
        # Ledgers of clients with topics that are still to be looked at since the last interval: is the client there?
        self._unseen: list[Ledger] = []
        # The topics of the last interval: those that there are no more are cleared.
        self._listed: dict[str, None] = {}
        # Links whose state has changed since the last turn of the event loop, and the call that publishes them.
        self._changed_links: dict[UpstreamLink, None] = {}
        self._links_handle: asyncio.Handle | None = None

    def start(self) -> None:
        """Publish all values, now and at each interval."""
        if self._interval > 0:
            self._sources.monitor.changed = set()
            if self._links is not None:
                self._links.state_changed = self._link_changed
                for link in self._links.links.values():
                    link.state_changed = self._link_changed
            if self._store is not None:
                self._store.changed = self._store_changed
            self._turn()

    def change(self, interval: float) -> None:
        """Use another interval from now on; this cannot switch publishing on or off."""
        if interval != self._interval and self._timer is not None:
            self._interval = interval
            self._timer.cancel()
            self._timer = self._server.loop.call_later(interval, self._turn)

    def stop(self) -> None:
        self._sources.monitor.changed = None
        if self._links is not None:
            self._links.state_changed = None
            for link in self._links.links.values():
                link.state_changed = None
        if self._store is not None:
            self._store.changed = None
        for timer in (self._timer, self._more, self._links_handle, self._publishing, self._store_handle):
            if timer is not None:
                timer.cancel()
        self._timer = self._more = self._links_handle = self._publishing = self._store_handle = None
        self._values.clear()
        self._changed_links.clear()
        self._changed.clear()
        self._unseen.clear()

    def _turn(self) -> None:
        # First: whatever happens, there is another turn.
        self._timer = self._server.loop.call_later(self._interval, self._turn)
        self._guarded(self.begin_turn)

    def _guarded(self, publish: Callable[..., None], *arguments: Any) -> None:
        """Publish, and wake the writers; a fault is logged and ends nothing else."""
        try:
            publish(*arguments)
        except Exception as error:
            self._server.faults.broke("sys-topics", error)
        self._server.after_batch()

    def begin_turn(self) -> None:
        self.update()

    def update(self, found: dict[str, str] | None = None) -> None:
        """Publish what has changed of all values: some now, the rest in turns. None: those of this broker, now."""
        server = self._server
        now = server.loop.time()
        server.router.counters.totals.now = now
        if found is None:
            found = self.values(now)
        # What the last interval has not told yet comes first, as it is now.
        values = {topic: b"" for topic, _ in reversed(self._values)}
        values.update({topic: text.encode() for topic, text in found.items()})
        self._values = list(reversed(values.items()))
        self._publish_some()
        self._changed.update(dict.fromkeys(self._sources.monitor.take_changed()))
        if not self._unseen:
            self._unseen = list(self._clients.values())
        self._publish_clients()
        server.after_batch()

    def _publish_some(self) -> None:
        """Publish as many values as one turn allows."""
        values = self._values
        router = self._server.router
        until = router.budget.used + STEP_WORK
        while values and router.budget.used < until and not router.fanout.broadcasting:
            self._publish(*values.pop())
        if values and self._publishing is None and self._interval > 0:
            self._publishing = self._server.loop.call_soon(self._publish_on)

    def _publish_on(self) -> None:
        self._publishing = None
        if self._server.rounds.writing or self._server.router.fanout.broadcasting:
            # Those whom the last values went to come first.
            self._publishing = self._server.loop.call_soon(self._publish_on)
        else:
            self._guarded(self._publish_some)

    def _publish(self, topic: str, payload: bytes) -> None:
        """Publish a changed value. An empty one clears the topic."""
        name = (PREFIX + topic).encode()
        if self._last.get(topic, b"") == payload or len(name) > MAX_TOPIC_BYTES:
            return
        if payload:
            self._last[topic] = payload
        else:
            del self._last[topic]
        self._server.router.publish(Message(name, payload, 0, True, b"", 0.0, ""), None)

    def publish_now(self, topic: str, payload: bytes) -> None:
        """Publish a value at once, if there is `$SYS`. Never raises."""
        if self._interval > 0:
            self._guarded(self._publish, topic, payload)

    # -- links to upstream brokers -------------------------------------------------------------------------------------

    def _link_changed(self, link: UpstreamLink) -> None:
        """Publish a link's state after the caller that changed it has finished."""
        self._changed_links[link] = None
        if self._links_handle is None:
            self._links_handle = self._server.loop.call_soon(self._publish_links)

    def _publish_links(self) -> None:
        self._links_handle = None
        changed = list(self._changed_links)
        self._changed_links.clear()
        self._guarded(self._publish_states, changed)

    def _publish_states(self, links: list[UpstreamLink]) -> None:
        for link in links:
            if self._sources.upstreams.get(link.name) is link:
                for topic, value in state(link):
                    name = f"upstream/{link.name}/{topic}"
                    self._listed[name] = None
                    self._publish(name, str(value).encode())

    # -- the store -----------------------------------------------------------------------------------------------------

    def _store_changed(self) -> None:
        """Publish the store's state after the caller that found it has finished."""
        if self._store_handle is None:
            self._store_handle = self._server.loop.call_soon(self._publish_store)

    def _publish_store(self) -> None:
        self._store_handle = None
        if self._store is not None:
            self.publish_now("store/state", self._store.state.encode())

    # -- clients that have lost something ------------------------------------------------------------------------------

    def _publish_clients(self) -> None:
        """Publish some clients now and the others in turns, since there may be very many."""
        lives = self._sources.monitor.lives
        for ledger in self._unseen[-LOOKED_AT:]:
            if not lives(ledger):
                self._changed[ledger] = None
        del self._unseen[-LOOKED_AT:]
        router = self._server.router
        until = router.budget.used + STEP_WORK
        for ledger in list(islice(self._changed, CLIENTS)):
            if router.budget.used >= until:
                break
            del self._changed[ledger]
            client_id = ledger.client_id
            if not lives(ledger):
                if self._clients.get(client_id) is ledger:
                    del self._clients[client_id]
                    for topic in _topics(client_id):
                        self._publish(topic, b"")
                continue
            self._clients[client_id] = ledger
            dropped = ledger.dropped
            if dropped is not None:
                for topic, count in zip(_topics(client_id), (sum(dropped), *dropped), strict=True):
                    self._publish(topic, b"%d" % count if count else b"")
        if (self._changed or self._unseen) and self._more is None and self._interval > 0:
            self._more = self._server.loop.call_later(PAUSE, self._publish_more_clients)

    def _publish_more_clients(self) -> None:
        self._more = None
        self._guarded(self._publish_clients)

    # -- everything else -----------------------------------------------------------------------------------------------

    def values(self, now: float) -> dict[str, str]:
        """Return the topic (below `$SYS/broker/`) and the payload of each value; "" for values that are gone.

        This ends an interval: load averages advance, and the worst values are reset.
        """
        return self.listed(dict(catalogue.topics(self.end_interval(now))))

    def end_interval(self, now: float) -> Reading:
        """Return the state with which an interval ends."""
        reading = Reading(self._sources, now)
        self._sources.loads.note(totals(reading), now)
        return reading

    def listed(self, found: dict[str, str]) -> dict[str, str]:
        """Return these values, and "" for those that were there at the last interval, and are gone."""
        gone = {topic: "" for topic in self._listed if topic not in found}
        self._listed = dict.fromkeys(found)
        return found | gone


def _topics(client_id: str) -> tuple[str, ...]:
    """Return the topics of one client: its total, and one for each cause. Special characters of topic filters are
    encoded.
    """
    total = f"clients/{client_id.translate(ESCAPES)}/dropped"
    return (total, *(f"{total}/{cause}" for cause in DROP_CAUSES))
