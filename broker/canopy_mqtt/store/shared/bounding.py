"""Bounds what waits in a shared store for each session, by the terms of its client: the oldest messages go.

Owns how much sessions have got from this node since it looked at their queues. Every node looks at the queues that it
writes to, so what a check costs is in proportion to what is written. Promises: a queue exceeds its terms by what comes
in some seconds and, for each node, by `MESSAGES` messages or `BYTES` bytes, whichever comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol

from canopy_mqtt.store.shared.calls import Noted, Publish, Written
from canopy_mqtt.store.shared.database import SharedDatabase
from canopy_mqtt.store.shared.sweeping import BUDGET, DELIVERIES

MESSAGES: Final = 1_000
"""Messages that a session gets from this node before its queue is looked at."""
BYTES: Final = 4 * 1024 * 1024
"""Bytes of the same."""
SECONDS: Final = 5.0
"""Seconds between two checks."""
SOME: Final = 100
"""Sessions whose clients are asked for at once."""
MANY: Final = 100_000
"""Sessions whose growth is counted: some 20 MB. Beyond that, the queues of all of them are looked at."""
CLIENTS: Final = "SELECT id, client_id, principal FROM session WHERE id = ANY ($1)"
BOUND: Final = "SELECT * FROM bound_1($1, $2, $3, $4)"


class Clients(Protocol):
    """The clients of these sessions, as the settings and the log see them. `principal`: JSON."""

    def terms(self, client_id: str, principal: str) -> tuple[int, int]:
        """Return the messages and the bytes that may wait for a client; 0: no limit."""

    def dropped(self, client_id: str, principal: str, count: int, *, messages: bool) -> None:
        """Messages were dropped, because there were too many (`messages`), or too many bytes."""


class QueueBounds:
    """Bounds the queues that a node writes to."""

    def __init__(self, database: SharedDatabase, clients: Clients) -> None:
        self._database, self._clients = database, clients
        self._grown: dict[int, tuple[int, int]] = {}
        """By session, messages and bytes since its queue was looked at."""
        self._due: set[int] = set()
        self._at = 0.0

    def wrote(self, noted: Sequence[Noted], written: Written) -> None:
        """Count what a group has brought to sessions. Each of its messages counts as the largest one."""
        if not written.hints:
            return
        size = max((each.size for each in noted if isinstance(each, Publish)), default=0)
        for session, count, _ in written.hints:
            messages, total = self._grown.get(session, (0, 0))
            messages, total = messages + count, total + count * size
            self._grown[session] = messages, total
            if messages >= MESSAGES or total >= BYTES:
                del self._grown[session]
                self._due.add(session)
        if len(self._grown) > MANY:
            self._due.update(self._grown)
            self._grown.clear()

    async def turn(self, now: Callable[[], float]) -> None:
        """Look at the queues that have grown, for `BUDGET` seconds at most and a transaction, if it is time. `now`: a
        clock in seconds that only goes forward. Call it each second. Raises FAILURES."""
        began = now()
        if began < self._at:
            return
        while self._due:
            some = set(islice(self._due, SOME))
            clients = await self._database.sweep(CLIENTS, list(some))
            self._due -= some.difference(session for session, _, _ in clients)  # they have ended
            for session, client_id, principal in clients:
                while await self._bound(session, client_id, principal):
                    if now() >= began + BUDGET:
                        return
                self._due.discard(session)
                if now() >= began + BUDGET:
                    return
        self._at = began + SECONDS

    async def _bound(self, session: int, client_id: str, principal: str) -> bool:
        """Drop the oldest messages beyond the terms. True: there may be more of them."""
        messages, size = self._clients.terms(client_id, principal)
        if not messages and not size:
            return False
        [[count, by_messages]] = await self._database.sweep(BOUND, session, messages, size, DELIVERIES)
        if count:
            self._clients.dropped(client_id, principal, count, messages=by_messages)
        return bool(count == DELIVERIES)
