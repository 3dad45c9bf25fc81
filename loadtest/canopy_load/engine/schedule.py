"""The times of one sender's messages: rates that change, arrivals, bursts, recorded times.

Owns: ``Schedule``, the base of ``sending.Sender``. Compiled; knows no clock.

Promises: a message's intended time does not depend on when it is sent. What is overdue when the rate changes stays due
at its times; what is given up is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from canopy_load.ledger.deliveries import Source

if TYPE_CHECKING:
    from mypy_extensions import i64

CONSTANT: Final = 0
POISSON: Final = 1
BURSTS: Final = 2

NEVER: Final = float("inf")

MAX_CHANGES: Final = 1000
"""Changes of the rate that are kept for a sender that is held up; of more, every other one."""


class Schedule(Source):
    """Times in microseconds of the monotonic clock; `next_at` is the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        """True for a closed loop: it has no times, and sends when a delivery or an acknowledgement has come back."""
        self.active = False
        self.away = False
        """True while the scenario has disconnected the client: messages that become due meanwhile are not meant to be
        sent."""
        self.arrival: i64 = CONSTANT
        self.burst: i64 = 1
        self.interval = NEVER
        """Microseconds between two messages; infinite: none are sent."""
        self._changes: list[tuple[float, float]] = []
        """Times and intervals of changes that the schedule has not reached, since messages from before are overdue."""
        self.gap: Callable[[], float] | None = None
        """Draws from the exponential distribution with a mean of 1."""
        self.following: Callable[[], float] | None = None
        """Of recorded messages, which have times and no rate: when the next one is due, in microseconds since `origin`;
        infinite: there is none."""
        self.behind: Callable[[float], int] | None = None
        """Returns the number of recorded messages that are due so many microseconds after `origin`."""
        self.origin = NEVER
        self.hurry = False
        """Recorded messages go as fast as the socket takes them, each meant for the moment at which it goes."""
        self.next_at = NEVER
        self.phase = 0.0
        """Share of its first interval after which it begins, so that clients do not all send at the same moment."""
        self.scheduled = NEVER
        """The time at which ``send_scheduler`` has it in its heap."""
        self.remaining: i64 = -1
        self._in_burst: i64 = 0

    def set_rate(self, rate: float, now: float) -> None:
        """Set the messages a second from `now` (microseconds) on; the passed part of the current interval counts."""
        interval = 1e6 / rate if rate > 0 else NEVER
        if interval == (self._changes[-1][1] if self._changes else self.interval):
            return
        if self.following is not None:
            self._follow(interval, now)
            return
        if self.next_at > now:
            self._turn_to(interval, now)
            return
        # What is overdue stays so, at the times for which it was meant: the change waits for the schedule to get there.
        if len(self._changes) >= MAX_CHANGES:
            del self._changes[1::2]
        self._changes.append((now, interval))

    def _turn_to(self, interval: float, at: float) -> None:
        share = self.phase
        if self.next_at != NEVER:
            share = (self.next_at - at) / (self.interval * self._together())
        self.interval = interval
        self.next_at = NEVER if interval == NEVER else at + share * interval * self._together()

    def _follow(self, interval: float, now: float) -> None:
        """Begin or continue the recorded messages; at rate 0, pause."""
        assert self.following is not None
        if self.origin == NEVER:
            self.origin = now
        self.interval = interval
        self.next_at = NEVER if interval == NEVER else self.origin + self.following()

    def give_up(self, now: float) -> int:
        """Forget messages that are due and were not sent; return their number."""
        count = self.overdue(now)
        self._changes = []
        self._in_burst = 0
        self.next_at = NEVER
        self.interval = NEVER
        return count

    def _together(self) -> float:
        return float(self.burst) if self.arrival == BURSTS else 1.0

    def skip(self, now: float, share: float) -> None:
        """Leave out the messages that became due while the client was meant to be away, and go on after `share` of an
        interval."""
        self.away = False
        if self.next_at >= now:
            return
        if self._changes:
            self.interval = self._changes[-1][1]
            self._changes = []
        self._in_burst = 0
        self.next_at = NEVER if self.interval == NEVER else now + share * self.interval * self._together()

    def overdue(self, now: float) -> int:
        """Return the number of messages that are due and not sent."""
        if self.closed or self.hurry:
            return 0
        if self.behind is not None:
            return self.behind(now - self.origin) if self.interval != NEVER else 0
        count = 0
        following, interval, begun = self.next_at, self.interval, int(self._in_burst)
        together = self._together()
        for at, after in [*self._changes, (now, NEVER)]:
            if following <= at:
                bursts = int((at - following) / (interval * together)) + 1
                count += bursts * int(together) - begun
                begun = 0
                following += bursts * interval * together
            share = self.phase if following == NEVER else (following - at) / (interval * together)
            interval = after
            following = NEVER if after == NEVER else at + share * after * together
        return min(count, int(self.remaining)) if self.remaining >= 0 else count

    def _advance(self) -> None:
        if self.following is not None:
            after = self.following()
            if after == NEVER or not self.hurry:
                self.next_at = self.origin + after
        elif self.arrival == CONSTANT:
            self.next_at += self.interval
        elif self.arrival == POISSON:
            assert self.gap is not None
            self.next_at += self.interval * self.gap()
        else:
            self._in_burst += 1
            if self._in_burst >= self.burst:
                self._in_burst = 0
                self.next_at += self.interval * float(self.burst)
        while self._changes and self._changes[0][0] < self.next_at:
            at, interval = self._changes.pop(0)
            self._turn_to(interval, at)
