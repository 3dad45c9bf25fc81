"""Guesses the worker of a client before its TLS handshake, so that mostly no other worker has to copy its bytes.

Owns the worker of the last client from each address whose handshake another worker had made. A guess is for clients
that have an address for themselves: connections that come soon after each other, as those of many clients behind one
address do, are for the workers in turn, and so are their handshakes. Bounded by `MOST`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MOST: Final = 65_536
"""Addresses. The one that was noted first goes first."""

APART: Final = 1.0
"""Seconds between two connections from one address that may be those of one client."""


class Homes:
    """Workers by the addresses of clients. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # With the time of the last connection from there.
        self._of: dict[str, tuple[int, float]] = {}

    def note(self, host: str, worker: int) -> None:
        """A client from this address is one of that worker."""
        self._of.pop(host, None)
        self._of[host] = worker, self._clock()
        if len(self._of) > MOST:
            del self._of[next(iter(self._of))]

    def guess(self, host: str) -> int | None:
        """Return the worker of a connection that comes now; None: it may be any's."""
        found = self._of.get(host)
        if found is None:
            return None
        worker, before = found
        now = self._clock()
        self._of[host] = worker, now
        return worker if now - before > APART else None
