"""The limits on connections of all workers together, counted where connections are passed on to them.

Owns the count of the connections that workers have, and the places: as many as `limits.max_connections`. A place goes
with a connection to its worker, which accepts as many clients as it has places, and gives back those that it does not
need. So it is the worker that decides who gets in, and connections that are never accepted keep no client out; once no
place is left, workers close the oldest of those (`short`). Promises: workers have no more places than there are; what a
worker had is free once it has ended; a connection that waits for a worker counts for nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.reason_codes import CONNECTION_RATE_EXCEEDED, SUCCESS
from canopy_mqtt.net.connections.admission import TURNED_AWAY, Admission, of_listener
from canopy_mqtt.settings import Settings
from canopy_mqtt.workers.lines import Newcomer

SHORT_PAUSE: Final = 0.1
"""Seconds between two times that workers are told that no place is left."""

SHORT_PART: Final = 100
"""Then connections that are not accepted may keep this part of all places."""

TELL: Final = 10.0
"""Seconds between two log lines about connections that were closed at once."""


class Gate:
    """The connections of all workers. Made on the event loop."""

    def __init__(self, settings: Settings, log: Any, short: Callable[[int], None]) -> None:
        """`short` is called when no place is left, with how many connections that are not accepted a worker may keep
        then."""
        limits = settings.limits
        self.counts = bool(limits.max_connections or limits.max_connections_per_address or limits.max_connect_rate)
        """Connections are counted: a limit asks for it. A reload cannot change that."""
        self._log = log
        self._short = short
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        # Of each worker: its connections by number, with the listener, the address, and the code of the refusal; and
        # how many places it has.
        count = settings.workers.count
        self._of: list[dict[int, tuple[int, str, int]]] = [{} for _ in range(count)]
        self._places = [0] * count
        self._most = limits.max_connections
        self._all = Admission(most_of_one=limits.max_connections_per_address, rate=limits.max_connect_rate)
        self._tls = [each.tls is not None for each in settings.listeners]
        self._listeners = [
            of_listener(each.max_connections, each.max_connections_per_address, each.max_connect_rate)
            for each in settings.listeners
        ]
        self.counts = self.counts or any(self._listeners)
        self._short_at = self._told_at = -SHORT_PAUSE - TELL

    def change(self, settings: Settings) -> None:
        """Apply the limits of these settings to new connections. Those over a limit stay."""
        limits = settings.limits
        self._most = limits.max_connections
        hosts = [host for held in self._of for _, host, code in held.values() if code == SUCCESS]
        self._all.change(0, limits.max_connections_per_address, limits.max_connect_rate, hosts)

    def pass_on(self, worker: int, newcomer: Newcomer) -> Newcomer | None:
        """Count a connection that goes to a worker now, and return it with its number and its place, or with the code
        with which the worker refuses it. None: it is to be closed."""
        host, arrival = newcomer.host, newcomer.arrival
        if not self.counts or host is None:
            return newcomer
        # One that comes from another worker, which has made its TLS handshake, was counted against the rates before.
        first = not arrival.origin
        all_of_them, now = self._all, self._loop.time()
        code = all_of_them.arrive(host, now, self._listeners[arrival.listener], rated=first)
        if code == CONNECTION_RATE_EXCEEDED and self._tls[arrival.listener]:
            # A handshake costs more than all else: closing is cheaper than a reason code.
            all_of_them.leave_refused()
            all_of_them.refused_gone()
            all_of_them.turned_away += 1
            code = TURNED_AWAY
        if code == TURNED_AWAY:
            if now - self._told_at > TELL:
                self._told_at = now
                self._log.warning("connections turned away", total=all_of_them.turned_away, interval=TELL)
                all_of_them.turned_away = 0
            return None
        placed = False
        if code == SUCCESS:
            placed = not self._most or sum(self._places) < self._most
            self._places[worker] += placed
            if not placed and now - self._short_at > SHORT_PAUSE:
                self._short_at = now
                self._short(max(1, self._most // SHORT_PART // len(self._of)))
        number = next(self._numbers)
        self._of[worker][number] = (arrival.listener, host, code)
        return newcomer._replace(arrival=arrival._replace(number=number, code=code, placed=placed))

    def report(self, worker: int, ended: Sequence[int], readmitted: Sequence[int], places: int) -> None:
        """Hear what a worker says: which connections have ended, which it was to refuse and has accepted in place of
        others, and how many places it gives back."""
        held = self._of[worker]
        # First, since one that was accepted in place of another one may have ended already.
        for number in readmitted:
            listener, host, code = held[number]
            if code != SUCCESS:
                self._leave(listener, host, code)
                self._all.count(host, self._listeners[listener])
                held[number] = (listener, host, SUCCESS)
        for number in ended:
            self._leave(*held.pop(number))
        self._places[worker] -= places

    def gone(self, worker: int) -> None:
        """A worker has ended, and all its connections with it."""
        held, self._of[worker], self._places[worker] = self._of[worker], {}, 0
        for each in held.values():
            self._leave(*each)

    def _leave(self, listener: int, host: str, code: int) -> None:
        if code == reason_codes.SUCCESS:
            self._all.leave(host, self._listeners[listener])
        else:
            self._all.leave_refused()
            self._all.refused_gone()
