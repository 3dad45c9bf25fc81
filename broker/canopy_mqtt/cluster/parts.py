"""How much of a bound each client and each account has, so that nobody uses it up for the others."""

from __future__ import annotations

from collections import Counter

from canopy_mqtt.core.accounts import MAX_TIMES_FREE, Account


class Parts:
    """What is counted of one bound. A client and its account may together have `MAX_TIMES_FREE` times what is left."""

    def __init__(self, bound: int) -> None:
        self._left = bound
        self._had: Counter[str | Account] = Counter()

    def has_room(self, client_id: str, account: Account, size: int) -> bool:
        """Return whether a client may have so much more."""
        had = self._had[client_id] + self._had[account]
        return size <= self._left and had + size <= MAX_TIMES_FREE * (self._left - size + 1)

    def change(self, client_id: str, account: Account, change: int) -> None:
        """Count what a client gets, or gives back (below 0)."""
        self._left -= change
        for who in (client_id, account):
            self._had[who] += change
            if self._had[who] == 0:
                del self._had[who]
