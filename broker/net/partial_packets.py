"""The bytes of incomplete packets in all decoders.

A single connection holds at most one packet and one read, but there are many connections. If all together exceed the
limit, the broker closes the connection whose packet has been incomplete for longest: a client at an ordinary pace
completes its packet within moments and is never the oldest, one that sends slowly on purpose is. Clients with very few
bytes are skipped: they may be waiting for the broker, such as a CONNECT that is being decided on.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.net.scheduling.timers import Checked

EVICTIONS: Final = 16
"""Connections that are ended for one read, at most, when all clients together hold too much of incomplete packets."""


LITTLE: Final = 4
"""Who holds less than the average by so many powers of two is passed over."""

PASSED_OVER: Final = 1_024
"""Connections that are passed over for one read, at most: 0.2 milliseconds. Then it is whoever is the oldest."""


class PartialPackets:
    """The connections with bytes that could not be acted on yet, the oldest first. `limit` in bytes; 0: none."""

    def __init__(self, limit: int) -> None:
        self.limit: i64 = limit
        # Over all connections.
        self.bytes: i64 = 0
        # Connections that were ended because of the bound.
        self.evicted: i64 = 0
        self._held: dict[Checked, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def update(self, connection: Checked, held: int, completed: bool) -> None:
        """A connection holds `held` bytes after a read. `completed`: they begin with another packet than before."""
        before = self._held.get(connection, 0)
        if before > 0 and (completed or held == 0):
            del self._held[connection]
        if held > 0:
            self._held[connection] = held
        self.bytes += held - before

    def remove(self, connection: Checked) -> None:
        self.bytes -= self._held.pop(connection, 0)

    def take_oldest(self) -> list[Checked]:
        """The connections to end because all together hold too much, at most `EVICTIONS`. They count no more."""
        oldest: list[Checked] = []
        left = PASSED_OVER
        while 0 < self.limit < self.bytes and len(oldest) < EVICTIONS:
            connection = next(iter(self._held))
            held = self._held[connection]
            if left > 0 and held < self.bytes // len(self._held) >> LITTLE:
                left -= 1
                # To the end of the line: it is not looked at again before the others.
                del self._held[connection]
                self._held[connection] = held
                continue
            oldest.append(connection)
            self.evicted += 1
            self.remove(connection)
        return oldest
