"""Finds the subscribers with most traffic, losses and lag by a pass over all sessions at intervals.

Nothing is sampled and nothing is counted for it: queues and ledgers have exact totals, and remember those of the
previous pass. A pass is divided into pieces, so that no call is long, and keeps a fixed number of each list. Traffic of
a connection that ended between two passes is not included.
"""

from __future__ import annotations

from heapq import heappush, heapreplace, nlargest
from typing import TYPE_CHECKING, Final

from broker.core.sampling.space_saving import shortened
from broker.core.session.session import Session

if TYPE_CHECKING:
    from mypy_extensions import i64

BY_MESSAGES: Final = 0
BY_BYTES: Final = 1
BY_DROPS: Final = 2
BY_LAG: Final = 3


class SubscriberWalk:
    """One pass. The lists: messages, bytes and drops a second since the previous pass; and lag in seconds."""

    def __init__(self, sessions: list[Session], most: int, elapsed: float) -> None:
        """`most`: entries of each list; `elapsed`: seconds since the last walk, above 0."""
        self._sessions = sessions
        self._most: i64 = most
        self.elapsed = elapsed
        self._at: i64 = 0
        # Heaps with the least first.
        self._found: list[list[tuple[float, bytes]]] = [[], [], [], []]
        # What all subscribers took and lost together, and the longest lag.
        self.totals: list[float] = [0.0, 0.0, 0.0, 0.0]

    def go_on(self, count: int, now: float) -> bool:
        """Look at so many sessions more. True when there are others left."""
        sessions = self._sessions
        until: i64 = self._at + count
        if until > len(sessions):
            until = len(sessions)
        while self._at < until:
            self._look(sessions[self._at], now)
            self._at += 1
        if self._at < len(sessions):
            return True
        # What it found stays; whom it looked at may go.
        self._sessions = []
        self._at = 0
        return False

    def heaviest(self, measure: int, most: int) -> list[tuple[bytes, float]]:
        """The clients that have most, the first first; at most so many."""
        return [(name, value) for value, name in nlargest(most, self._found[measure])]

    def floor(self, measure: int) -> float:
        """What a client that is in no list has at most."""
        found = self._found[measure]
        return found[0][0] if len(found) >= self._most else 0.0

    def _look(self, session: Session, now: float) -> None:
        ledger = session.ledger
        if ledger.dropped is not None:
            dropped: i64 = ledger.in_all()
            self._count(BY_DROPS, float(dropped - ledger.compared) / self.elapsed, session)
            ledger.compared = dropped
        outbox = session.outbox
        if outbox is None:
            return
        queue = outbox.queue
        if queue.taken != queue.compared:
            self._count(BY_MESSAGES, float(queue.taken - queue.compared) / self.elapsed, session)
            self._count(BY_BYTES, float(queue.taken_bytes - queue.compared_bytes) / self.elapsed, session)
            queue.compared = queue.taken
            queue.compared_bytes = queue.taken_bytes
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
