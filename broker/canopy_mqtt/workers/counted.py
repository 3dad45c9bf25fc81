"""The connections of a worker that the supervisor counts (`gate`): it is told what becomes of them.

Owns the places of this worker. Promises: it has accepted no more clients than it has places; each connection that was
passed on is reported as ended once, also one that never began; places that no connection can need are given back, with
the end of the connection that had needed them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from canopy_mqtt.core.codec.reason_codes import SERVER_BUSY
from canopy_mqtt.net.connections.connection_table import ConnectionCounter, ConnectionTable
from canopy_mqtt.net.connections.ends import OPEN
from canopy_mqtt.workers.wire import Arrival

if TYPE_CHECKING:
    from canopy_mqtt.core.limits import Limits
    from canopy_mqtt.net.connections.connection import Connection


class Counted(ConnectionCounter):
    """The counted connections of one worker. `report` takes what is to be said to the supervisor."""

    def __init__(
        self, table: ConnectionTable, limits: Limits, report: Callable[[list[int], list[int], int], None]
    ) -> None:
        self._table = table
        self._limits = limits
        self._report = report
        self.places = 0
        # Those that are not to be refused, accepted or not.
        self._open = 0
        # Those that were passed on, and whose first bytes are being read.
        self._beginning: dict[int, Connection | None] = {}
        self._ended: list[int] = []
        self._readmitted: list[int] = []
        self._counts = self._flushing = False
        table.counter = self

    def arrive(self, found: Arrival) -> None:
        """Take the place that comes with a connection."""
        if found.number:
            self._counts = True
            self.places += found.placed
            self._open += not found.code
            self._beginning[found.number] = None
            self.limit()

    def begin(self, found: Arrival, connection: Connection) -> None:
        """Give a connection its number, and the code with which it is to be refused."""
        if found.number:
            # Without a place it may have that of another one, which is not accepted yet.
            connection.answered = found.code or (0 if self.places else SERVER_BUSY)
            connection.number = found.number
            self._open -= connection.answered != found.code
            self._beginning[found.number] = connection

    def begun(self, found: Arrival) -> None:
        """Report a connection that was closed before anything of it was read."""
        if found.number:
            connection = self._beginning.pop(found.number)
            if connection is None:
                self._open -= not found.code
                self._end(found.number)
            elif connection.state != OPEN and connection.ended_at == 0.0:
                self.ended(connection)

    def ended(self, connection: Connection) -> None:
        self._open -= not connection.answered
        self._end(connection.number)
        connection.number = 0

    def readmitted(self, connection: Connection) -> None:
        connection.answered = 0
        self._open += 1
        self._readmitted.append(connection.number)
        self._flush_later()

    def limit(self) -> None:
        """Have the core accept as many clients as there are places, and file descriptors."""
        if self._counts:
            # Where there is no place at all, none comes so far.
            places, most = max(1, self.places), self._table.most
            self._limits.max_connections = min(places, most) if most else places

    def flush(self) -> None:
        """Tell the supervisor now."""
        self._flushing = False
        places = max(0, self.places - self._open)
        if places or self._ended or self._readmitted:
            self.places -= places
            self.limit()
            self._report(self._ended, self._readmitted, places)
            self._ended, self._readmitted = [], []

    def _end(self, number: int) -> None:
        self._ended.append(number)
        self._flush_later()

    def _flush_later(self) -> None:
        """Tell of all that a turn of the event loop ends at once: one that was replaced, and the one that replaces it,
        have one place."""
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)
