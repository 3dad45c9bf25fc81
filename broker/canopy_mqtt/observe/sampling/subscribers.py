"""Finds the subscribers with most traffic, losses and lag by a pass over all sessions at intervals.

It needs no sample and no counts of its own: queues and ledgers have exact totals, and keep those of the previous pass.
A pass is divided into pieces, so that no call takes long, and keeps a fixed number of entries in each list. It does not
include the traffic of a connection that ended between two passes.
"""

from __future__ import annotations

from heapq import heappush, heapreplace, nlargest
from typing import TYPE_CHECKING, Final

from canopy_mqtt.core.session.session import Session
from canopy_mqtt.observe.sampling.space_saving import shortened

if TYPE_CHECKING:
    from mypy_extensions import i64

BY_MESSAGES: Final = 0
BY_BYTES: Final = 1
BY_DROPS: Final = 2
BY_LAG: Final = 3


class SubscriberWalk:
    """One pass. Its lists: messages, bytes and drops a second since the previous pass; lag in seconds."""

    def __init__(self, sessions: list[Session], most: int, elapsed: float) -> None:
        """`most`: entries of each list; `elapsed`: seconds since the previous pass, above 0."""
        self._sessions = sessions
        self._most: i64 = most
        self.elapsed = elapsed
        self._at: i64 = 0
        # Heaps with the smallest value first.
        self._found: list[list[tuple[float, bytes]]] = [[], [], [], []]
        # The sums over all subscribers, and the longest lag.
        self.totals: list[float] = [0.0, 0.0, 0.0, 0.0]

    def step(self, count: int, now: float) -> bool:
        """Examine `count` more sessions. Return True if there are others."""
        sessions = self._sessions
        until: i64 = self._at + count
        if until > len(sessions):
            until = len(sessions)
        while self._at < until:
            self._examine(sessions[self._at], now)
            self._at += 1
        if self._at < len(sessions):
            return True
        # The lists stay; the sessions may be freed.
        self._sessions = []
        self._at = 0
        return False

    def heaviest(self, measure: int, most: int) -> list[tuple[bytes, float]]:
        """Return up to `most` clients, the largest value first."""
        return [(name, value) for value, name in nlargest(most, self._found[measure])]

    def floor(self, measure: int) -> float:
        """Return the highest possible value of a client that is not in the list."""
        found = self._found[measure]
        return found[0][0] if len(found) >= self._most else 0.0

    def _examine(self, session: Session, now: float) -> None:
        ledger = session.ledger
        if ledger.dropped is not None:
            dropped: i64 = ledger.in_all()
            self._count(BY_DROPS, float(dropped - ledger.compared) / self.elapsed, session)
            ledger.compared = dropped
        send_buffer = session.send_buffer
        if send_buffer is None:
            return
        if send_buffer.taken != send_buffer.compared:
            self._count(BY_MESSAGES, float(send_buffer.taken - send_buffer.compared) / self.elapsed, session)
            self._count(BY_BYTES, float(send_buffer.taken_bytes - send_buffer.compared_bytes) / self.elapsed, session)
            send_buffer.compared = send_buffer.taken
            send_buffer.compared_bytes = send_buffer.taken_bytes
        lag = session.waited(now)
        if lag > 0.0:
            self._count(BY_LAG, lag, session)

    def _count(self, measure: int, value: float, session: Session) -> None:
        if measure == BY_LAG:
            self.totals[measure] = max(self.totals[measure], value)
        else:
            self.totals[measure] += value
        found = self._found[measure]
        if value <= 0.0 or (len(found) >= self._most and value <= found[0][0]):
            return
        entry = (value, shortened(session.client_id.encode("utf-8", "surrogatepass")))
        if len(found) < self._most:
            heappush(found, entry)
        else:
            heapreplace(found, entry)
