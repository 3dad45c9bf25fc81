"""What the whole broker has to bear now: everything that waits in its queues, the time of the batch, the loop's lag.

Owns `Load`, one for each broker: the sums over all queues with their bounds, the list of ledgers that have a loss to
report, and the clock of a batch. Queues add to it and take from it themselves; the shell writes the time and the lag.

Promises: reading the time here costs nothing, so that a message's wait can be known without a clock for each message.
Refuses: to shed. Whoever finds the bound reached asks the router to (`shedding`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

    from broker.core.ledger import Ledger

UNLIMITED: Final = 1 << 60
"""What a bound of 0 stands for."""


class Load:
    """Sums over all queues, in messages and bytes; times in seconds of the caller's monotonic clock."""

    def __init__(self) -> None:
        # When the present batch began. Written by whoever calls the core with a `now`.
        self.now: float = 0.0
        # What waits in all queues: live ones, sessions', in flight and unsent.
        self.messages: i64 = 0
        self.bytes: i64 = 0
        self.max_messages: i64 = UNLIMITED
        self.max_bytes: i64 = UNLIMITED
        # Ledgers with losses that no log line has told of yet, each once.
        self.losers: list[Ledger] = []
        # The event loop: how late its last beat was, and when the next one is due (0.0: nobody measures).
        self.lag: float = 0.0
        self.beat_at: float = 0.0

    def lag_at(self, now: float) -> float:
        """How late the event loop is: its last beat, or the one that is overdue now, whichever is worse."""
        overdue = now - self.beat_at if self.beat_at > 0.0 else 0.0
        return overdue if overdue > self.lag else self.lag
