"""Who waits until the other nodes have what was declared.

Owns the line of those who wait. Promises: each is called once, from within `release`, in the order in which they came:
as soon as all nodes that are there have the version that he waits for, or when his time is over. Nobody waits longer
than his time, and no more wait than the bound: beyond it the first in the line goes, as if his time were over.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import mypyc_attr

MOST_WAITING: Final = 65_536
"""Who wait at most: each is a SUBSCRIBE of a client that does not get its SUBACK yet."""

RELEASED: Final = 1_024
"""So many are released in one turn at most."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter:
    """Somebody who waits until the other nodes have what is wanted here."""

    def confirmed(self, everywhere: bool) -> None:
        """They have it (`everywhere`), or time is over. Called once."""


class _Place:
    def __init__(self, waiter: Waiter, version: int, deadline: float) -> None:
        self.waiter = waiter
        self.version = version
        self.deadline = deadline


class Confirmations:
    """The line. `late`: how many went because their time was over, or the line too long."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self.late = 0
        self._most = most
        self._line: deque[_Place] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._line)

    @property
    def due(self) -> float:
        """When the first one's time is over; 0.0: nobody waits."""
        return self._line[0].deadline if self._line else 0.0

    def wait(self, waiter: Waiter, version: int, deadline: float) -> None:
        """Wait for a version, which is none before that of the last one who came, until then at most."""
        self._line.append(_Place(waiter, version, deadline))

    def release(self, confirmed: int, now: float) -> bool:
        """All nodes have everything up to a version. Whether there are more to be released at once."""
        line = self._line
        for _ in range(RELEASED):
            if not line:
                return False
            first = line[0]
            everywhere = first.version <= confirmed
            if not everywhere and first.deadline > now and len(line) <= self._most:
                return False
            line.popleft()
            if not everywhere:
                self.late += 1
            first.waiter.confirmed(everywhere)
        return bool(line)
