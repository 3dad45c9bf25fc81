"""How far the tables are behind the recorder, in time.

Promises: it goes by the numbers that the recorder has given, so that a quiet broker is no lag, and a segment that is
still open is one.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from canopy_mqtt.record.files.folder import at_work, noted
from canopy_pipeline.runtime.storage import Storage

KEPT: Final = 10_000
"""Looks that are remembered, while the tables stand still; later ones count from the next one that is."""


class Lag:
    def __init__(self) -> None:
        self._given: deque[tuple[int, float]] = deque()
        """Numbers that are not in the tables yet, and since when each of them may have been given."""
        self._looked: float | None = None

    def look(self, given: int, through: int, now: float) -> float:
        """Return the seconds that the oldest event which is not in the tables has waited, at most. `given`: the last
        number of the recorder, 0 if none is at work; `through`: that of the tables; `now`: seconds, of any clock."""
        while self._given and (self._given[0][0] <= through or not given):
            self._given.popleft()
        if given > (self._given[-1][0] if self._given else through) and len(self._given) < KEPT:
            # Given between the look before and this one.
            self._given.append((given, now if self._looked is None else self._looked))
        self._looked = now
        return now - self._given[0][1] if self._given else 0.0


def recorder_number(recorded: Storage) -> int:
    """Return the last number that the recorder of a folder of this machine has given; 0 if none is at work there."""
    found = noted(recorded.local) if recorded.local is not None and at_work(recorded.local) else None
    return 0 if found is None else found[0]
