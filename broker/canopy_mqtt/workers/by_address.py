"""Things of many addresses, and which address has most.

Promises: whatever is done takes the same time, however many there are.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class ByAddress(Generic[T]):
    """Things, each with an address."""

    def __init__(self) -> None:
        # The oldest first. Addresses by how many things they have; none of these is empty.
        self._of: dict[Hashable, dict[T, None]] = {}
        self._with: dict[int, dict[Hashable, None]] = {}
        self._most = 0

    def add(self, thing: T, address: Hashable) -> None:
        own = self._of.setdefault(address, {})
        self._move(address, len(own), len(own) + 1)
        own[thing] = None

    def remove(self, thing: T, address: Hashable) -> None:
        own = self._of[address]
        del own[thing]
        self._move(address, len(own) + 1, len(own))
        if not own:
            del self._of[address]

    @property
    def most(self) -> int:
        """The number of things of the address that has most."""
        return self._most if self._with else 0

    def count(self, address: Hashable) -> int:
        """Return how many things an address has."""
        return len(self._of.get(address, ()))

    def oldest_of_fullest(self) -> T:
        """Return the oldest thing of an address that has most. Raises KeyError: there is none."""
        return next(iter(self._of[next(iter(self._with[self._most]))]))

    def _move(self, address: Hashable, before: int, after: int) -> None:
        if after:
            self._with.setdefault(after, {})[address] = None
        if before:
            del self._with[before][address]
            if not self._with[before]:
                del self._with[before]
        if after > self._most or self._most not in self._with:
            self._most = after
