"""What happened to the last messages of one client: those that were written to it, what it answered, and what it lost.

A watch is a trace of the client's packets (`observe.trace`), read as deliveries, and beside it the losses that its
ledger counts, each with its time. Nobody keeps either while no watch runs: the ledgers then find nobody to tell.
Promises: `MOST_KEPT` deliveries and as many losses are known of a watch, the last ones; it ends by its time, by the
size of its trace, or when that is removed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from broker.core.codec.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC
from broker.core.codec.topic_names import matches
from broker.core.counters import DROP_CAUSES
from broker.core.queues.queue_totals import LossRecorder
from broker.core.routing.router import Router
from broker.observe.trace.fields import fields
from broker.observe.trace.kept import PACKET, Entry, Trace
from broker.observe.trace.traces import Traces

MOST_KEPT: Final = 1_000
"""Deliveries of a watch, and losses: the last ones."""

TURN: Final = 100
"""Packets that are read in one turn of the event loop: one or two milliseconds."""

KINDS: Final = (PUBACK, PUBREC, PUBCOMP)


@dataclass(slots=True, eq=False)
class Delivered:
    """A PUBLISH that was written to the client, at `at` (s, Unix). `packet_id` 0: QoS 0, which nobody acknowledges."""

    number: int
    at: float
    topic: str
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    size: int
    answered_at: float = 0.0
    """0.0: not yet."""
    reason_code: int = -1
    """Of its PUBACK or PUBREC; -1: none has come."""
    complete: bool = False
    """Whether nothing more is expected for it."""


@dataclass(slots=True, eq=False)
class Lost:
    """So many messages for the client were dropped for `cause`, at `at` (s, Unix)."""

    number: int
    at: float
    cause: str
    count: int


@dataclass(slots=True, eq=False)
class Watch:
    """One watch. `topic_filter`: of the deliveries that are told, as the client names topics."""

    client_id: str
    topic_filter: str
    trace: Trace
    deliveries: deque[Delivered] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    losses: deque[Lost] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    number: int = 0
    """Of the last delivery or loss: they are numbered as they were found."""
    _read: int = 0
    _open: dict[tuple[int, int], Delivered] = field(default_factory=dict)
    _aliases: dict[tuple[int, int], str] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def catch_up(self) -> None:
        """Read what the trace has got since the last time, in turns."""
        async with self._turn:
            entries = self.trace.entries
            while self._read < len(entries):
                self._take(entries[self._read])
                self._read += 1
                if self._read % TURN == 0:
                    await asyncio.sleep(0)

    def _take(self, entry: Entry) -> None:
        if entry.what != PACKET or not entry.data:
            return
        kind = entry.data[0] >> 4
        if kind == PUBLISH and not entry.inward:
            self._written(entry)
        elif kind in KINDS and entry.inward:
            self._answered(entry, kind)

    def _written(self, entry: Entry) -> None:
        known = fields(entry)
        party = entry.party.number
        alias = known.get("properties", {}).get("topic_alias", 0)
        topic = str(known.get("topic", ""))
        if alias and topic:
            self._aliases[party, alias] = topic
        topic = topic or self._aliases.get((party, alias), "")
        if self.topic_filter and not (topic and matches(self.topic_filter, topic)):
            return
        self.number += 1
        made = Delivered(
            self.number,
            entry.time / 1e9,
            topic,
            known.get("qos", 0),
            known.get("retain", False),
            known.get("dup", False),
            known.get("packet_id", 0),
            entry.size,
        )
        made.complete = made.qos == 0
        self.deliveries.append(made)
        if made.packet_id:
            self._open[party, made.packet_id] = made

    def _answered(self, entry: Entry, kind: int) -> None:
        known = fields(entry)
        found = self._open.get((entry.party.number, known.get("packet_id", 0)))
        if found is None or found.complete:
            return
        if kind != PUBCOMP:
            found.reason_code = known.get("reason_code", 0)
        found.answered_at = entry.time / 1e9
        if kind != PUBREC or found.reason_code >= 0x80:
            found.complete = True
            del self._open[entry.party.number, found.packet_id]

    def lost(self, cause: int, count: int) -> None:
        """Its ledger has counted a loss."""
        self.number += 1
        self.losses.append(Lost(self.number, time.time(), DROP_CAUSES[cause], count))


class _Losses(LossRecorder):
    """Stands before whoever is told of losses already, while a watch runs."""

    def __init__(self, router: Router, watched: dict[str, list[Watch]]) -> None:
        super().__init__()
        self._router = router
        self._watched = watched
        tap = router.tap
        self.deliveries = tap is not None and tap.deliveries

    def lost_messages(self, client_id: str, cause: int, count: int) -> None:
        """A ledger has counted a loss."""
        for watch in self._watched.get(client_id, ()):
            watch.lost(cause, count)
        tap = self._router.tap
        if tap is not None:
            tap.lost_messages(client_id, cause, count)


class Watches:
    """The watches of one broker, by the names of their traces."""

    def __init__(self, router: Router, traces: Traces, loop: asyncio.AbstractEventLoop) -> None:
        self._router = router
        self._traces = traces
        self._loop = loop
        self._all: dict[str, Watch] = {}
        self._watched: dict[str, list[Watch]] = {}
        self._losses: _Losses | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        # Whoever explains, or reads what was watched, does so alone: many at once would have many turns in each round.
        self.one_by_one = asyncio.Lock()

    def start(self, client_id: str, topic_filter: str, seconds: float | None) -> Watch:
        """Begin to watch a client. Raises TraceError: no trace of it can be begun."""
        self._tidy()
        trace = self._traces.start("clientid", client_id, "", seconds)
        watch = Watch(client_id, topic_filter, trace)
        self._all[trace.name] = watch
        self._watched.setdefault(client_id, []).append(watch)
        load = self._router.counters.load
        if self._losses is None:
            self._losses = load.tap = _Losses(self._router, self._watched)
        timer = self._loop.call_later(trace.seconds + 0.01, self._tidy)
        self._timers = {each for each in self._timers if not each.cancelled() and each.when() > self._loop.time()}
        self._timers.add(timer)
        return watch

    def get(self, name: str) -> Watch | None:
        """The watch of that name; None: there is none (any more)."""
        self._tidy()
        return self._all.get(name)

    def remove(self, name: str) -> None:
        """End a watch, and its trace. Raises KeyError: there is none."""
        del self._all[name]
        if name in self._traces.all:
            self._traces.remove(name)
        self._tidy()

    def close(self) -> None:
        """The broker stops: nobody is told of losses any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._all.clear()
        self._tidy()

    def _tidy(self) -> None:
        """Forget watches whose traces are forgotten, and stop listening for those that have ended."""
        for name, watch in list(self._all.items()):
            if self._traces.all.get(name) is not watch.trace:
                del self._all[name]
        self._watched.clear()
        for watch in self._all.values():
            if watch.trace.running:
                self._watched.setdefault(watch.client_id, []).append(watch)
        load = self._router.counters.load
        if not self._watched and self._losses is not None:
            if load.tap is self._losses:
                load.tap = self._router.tap
            self._losses = None
