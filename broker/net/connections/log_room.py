"""How much the log may grow by lines about clients: in all, and for one address.

Owns `LogRoom`. An address, and all of them together, may write so much at once, in lines or in bytes, and that much
again in `refill` seconds: so a site whose devices all come back at once is logged as a whole, and a client that
connects again and again cannot fill the disk. What is left out is counted. At most `MOST_ADDRESSES` addresses are
remembered.
"""

from __future__ import annotations

from typing import Final

MOST_ADDRESSES: Final = 10_000
"""Addresses that are remembered at a time, about 2 MB: an attacker may own a whole IPv6 network."""


class Room:
    """What may still be written. Times in seconds."""

    def __init__(self, most: int, refill: float, now: float) -> None:
        self._left = float(most)
        self._refill = refill
        self._at = now

    def take(self, size: int, most: int, now: float) -> bool:
        """Whether a line of this size may be written; then it is counted. `most`: 0 is no limit."""
        if most == 0:
            return True
        self._left = min(float(most), self._left + (now - self._at) * most / self._refill)
        self._at = now
        if self._left < size:
            return False
        self._left -= size
        return True

    def begin(self, now: float) -> None:
        self._at = now

    def full(self, now: float) -> bool:
        """Whether nothing has been written for so long that it is as if there had been nothing at all."""
        return now - self._at >= self._refill


class LogRoom:
    """The room of all addresses together and of each. Times are those of the last `look`."""

    def __init__(self, refill: float) -> None:
        """`refill`: seconds after which all of the room is there again."""
        self._refill = refill
        self._most = self._most_of_address = 0
        self._now = 0.0
        self._begun = False
        self._all = Room(0, refill, 0.0)
        self._by_address: dict[str, Room] = {}
        # Lines that were not written, by event and by address.
        self.left_out: dict[str, int] = {}
        self._by_whom: dict[str, int] = {}

    def bound(self, most: int, of_address: int) -> None:
        """Keep to these limits. 0: no limit."""
        self._most, self._most_of_address = most, of_address
        self._all = Room(most, self._refill, self._now)
        self._by_address.clear()

    def take(self, address: str, event: str, size: int) -> bool:
        """Whether a line may be written. If not, it is counted as left out."""
        if self._has(address, size):
            return True
        self.leave_out(event, 1)
        if address in self._by_whom or len(self._by_whom) < MOST_ADDRESSES:
            self._by_whom[address] = self._by_whom.get(address, 0) + 1
        return False

    def leave_out(self, event: str, count: int) -> None:
        """So many lines were not written, of nobody knows whom."""
        self.left_out[event] = self.left_out.get(event, 0) + count

    def look(self, now: float) -> None:
        if not self._begun:
            # The time before the first look, since the clock's beginning, has made no room.
            self._begun = True
            for room in (self._all, *self._by_address.values()):
                room.begin(now)
        self._now = now

    def summed_up(self) -> tuple[str, int]:
        """The address of which most was left out since the last call, and how many lines. Begins to count anew."""
        address = max(self._by_whom, key=self._by_whom.__getitem__, default="")
        count = self._by_whom.get(address, 0)
        self.left_out = {}
        self._by_whom.clear()
        now = self._now
        self._by_address = {name: room for name, room in self._by_address.items() if not room.full(now)}
        return address, count

    def _has(self, address: str, size: int) -> bool:
        most = self._most_of_address
        if most > 0:
            room = self._by_address.get(address)
            if room is None:
                if len(self._by_address) >= MOST_ADDRESSES:
                    return False
                room = self._by_address[address] = Room(most, self._refill, self._now)
            if not room.take(size, most, self._now):
                return False
        return self._all.take(size, self._most, self._now)
