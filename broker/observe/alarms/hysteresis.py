"""One value against two bounds and two times, so that an alarm about it does not flutter.

It is raised when the value has been at `raise_at` or above for `raise_after` seconds, and cleared when it has been
below `clear_below` for `clear_after` seconds; what it is in between changes nothing. Pure: callers pass `now`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Bounds:
    """When it is raised, and when cleared. `clear_below` is not above `raise_at`; times in seconds."""

    raise_at: float
    clear_below: float
    raise_after: float
    clear_after: float


class Hysteresis:
    """The state of one alarm."""

    def __init__(self) -> None:
        self.raised = False
        # Since when it has looked as if it should change; None: it does not.
        self._since: float | None = None

    def look(self, value: float, bounds: Bounds, now: float) -> bool:
        """The value is so. True when the alarm is raised or cleared by that."""
        turns = value < bounds.clear_below if self.raised else value >= bounds.raise_at
        if not turns:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        if now - self._since < (bounds.clear_after if self.raised else bounds.raise_after):
            return False
        self.raised = not self.raised
        self._since = None
        return True
