"""Subscribes one link upstream: soon after local filters change, many in one packet.

Owns the link's local filters, and the timer for later work: folds that are opened again, retained messages that lost
their source. An exception here is reported to `broke`, and the next turn continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.routing.nodes import NODES
from canopy_mqtt.links import parameters
from canopy_mqtt.links.filters.aggregated import AggregatedFilters
from canopy_mqtt.links.filters.budget import BudgetedFilters
from canopy_mqtt.links.filters.mapping import Mapping
from canopy_mqtt.links.protocol.link_state import LinkState
from canopy_mqtt.links.protocol.uplink import CONNECTED, Uplink
from canopy_mqtt.settings import Upstream

if TYPE_CHECKING:
    from canopy_mqtt.net.server import Server

TURN: Final = 0.05
"""Seconds between two turns over retained messages that lost their source."""

LOOK: Final = 1.0
"""Seconds between two looks at what may be over."""

REFUSALS: Final = 10
"""Refused filters that get a line of the log each; those beyond them share one."""


class UpstreamSubscriber:
    """Subscribes one link upstream. `uplink`: its present connection's, set by the link."""

    def __init__(self, server: Server, name: str, state: LinkState, mapping: Mapping) -> None:
        self.filters: AggregatedFilters | BudgetedFilters = AggregatedFilters(state.declarer)
        # Demanded filters of which nothing is asked for: they lie outside the prefix or the roots.
        self.outside = 0
        self.uplink: Uplink | None = None
        self.answered: Callable[[list[str]], None] | None = None
        """Called with filters for which nothing may be to be waited for any more, if the declarer notes them."""
        self._server = server
        self._name = name
        self._log: Any = server.log
        self._loop = server.loop
        self._state = state
        self._declarer = state.declarer
        self._mapping = mapping
        self._changed: asyncio.Handle | None = None
        # The timer of the next look, and its time.
        self._ticking: asyncio.TimerHandle | None = None
        self._tick_at = 0.0

    @property
    def connected(self) -> bool:
        return self.uplink is not None and self.uplink.state == CONNECTED

    def survey(self, settings: Upstream) -> None:
        """Subscribe upstream to what local clients subscribe to now, by the present settings."""
        self._mapping.roots = tuple(settings.roots)
        self.outside = 0
        self._declarer.gather()
        self.filters = parameters.local_filters(settings, self._mapping, self._declarer)
        if settings.subscribe == "demand":
            told: set[str] = set()
            for session in self._server.router.sessions.values():
                for name in self._server.router.table.asked_for(session, told, not self._state.session.node):
                    self.wanted(name)
        else:
            for name in parameters.names(settings.subscribe, self._mapping):
                self._declarer.declare(name)
        self._declarer.settle(settings.max_filters if settings.aggregate == "auto" else 0)

    def wanted(self, topic_filter: str) -> None:
        self._count(topic_filter, self.filters.add, 1)

    def unwanted(self, topic_filter: str) -> None:
        self._count(topic_filter, self.filters.remove, -1)

    def _count(self, topic_filter: str, change: Callable[[str, float], None], outside: int) -> None:
        if topic_filter.startswith(NODES) and not topic_filter.startswith(f"{self._name}/"):
            # It tells another node of the members of a share group.
            return
        names = self._mapping.asked(topic_filter)
        if not names:
            self.outside += outside
        now = self._loop.time()
        for name in names:
            change(name, now)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Tell the upstream, once for all that changes in this turn of the event loop."""
        if self._changed is None:
            self._changed = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._changed = None
        uplink = self.uplink
        try:
            if uplink is not None and self.connected:
                uplink.declare(self._loop.time())
                self._server.rounds.after_batch()
            due = self.filters.next_tick()
            if due > 0.0:
                self.tick_soon(max(0.0, due - self._loop.time()))
            # Some may have been refused without a word from upstream.
            self.moved()
        except Exception as error:
            self._broke(error)

    def moved(self) -> None:
        """Tell the log what the upstream has refused, or sent unasked, and see later to what it holds no more."""
        self._look_after_replays()
        answered = self._declarer.answered
        if answered and self.answered is not None:
            self._declarer.answered = []
            self.answered(answered)
        uplink = self.uplink
        if uplink is None:
            return
        if uplink.outside_topic and not uplink.outside_told:
            # Once a connection: the figure has the rest.
            uplink.outside_told = True
            self._log.warning(
                "upstream sent a message that no filter of the link matches",
                upstream=self._name,
                topic=uplink.outside_topic.decode()[:256],
                counted="messages/outside",
            )
        if not uplink.refused:
            return
        refused = uplink.refused
        uplink.refused = []
        for topic_filter, code in refused[:REFUSALS]:
            self._log.error(
                "upstream refused a topic filter",
                upstream=self._name,
                topic_filter=topic_filter[:256],
                reason=reason_codes.name(code),
            )
        if len(refused) > REFUSALS:
            self._log.error("upstream refused topic filters", upstream=self._name, more=len(refused) - REFUSALS)

    def tick_soon(self, delay: float) -> None:
        """Look at what is due by time in `delay` seconds at the latest."""
        when = self._loop.time() + delay
        if self._ticking is not None:
            # Not asked of the timer: what uvloop gives for less than half a millisecond does not know its time.
            if self._tick_at <= when:
                return
            self._ticking.cancel()
        self._tick_at = when
        self._ticking = self._loop.call_at(when, self._tick)

    def stop(self) -> None:
        for handle in (self._changed, self._ticking):
            if handle is not None:
                handle.cancel()
        self._changed = self._ticking = None

    def _look_after_replays(self) -> None:
        """Whatever was asked for or withdrawn has its consequences later."""
        replays = self._state.replays
        if self.connected and replays.waits:
            self.tick_soon(TURN if replays.busy else LOOK)

    def _tick(self) -> None:
        self._ticking = None
        now = self._loop.time()
        try:
            self.filters.tick(now)
            if self.connected:
                self._state.replays.turn(self._declarer.table, now)
                self._look_after_replays()
        except Exception as error:
            self._broke(error)
            # What is due by time is due still.
            self.tick_soon(LOOK)
        self.flush_soon()

    def _broke(self, error: Exception) -> None:
        self._server.faults.broke("upstream", error, upstream=self._name)
