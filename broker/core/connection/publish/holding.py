"""Holds back a publisher while a subscriber that reads has more than half of its queue waiting, or the recorder has.

Without this, a subscriber that reads as fast as it can would lose what does not fit into its queue. The broker stops
reading from the publisher, and TCP slows it down. Bounded: a publisher may be held for `most` seconds, and gets
`RECOVERY` of the time back. Only clients that have sent more than was processed, or send again at once, are held, and
of these only the ones that fill the queue: that have added a sixteenth of it within a second since it was half full, or
have more than `MUCH` waiting. So a subscriber that is always behind delays no publisher of a few hundred messages a
second. They are never held because of their own queue, nor while they have acknowledgements to send for which others
may wait.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.core.connection.publish.rate_limit import PublishLimit
from broker.core.queues.queue_totals import Crowded, QueueTotals
from broker.core.session.session import Session

STEP: Final = 0.002
"""Seconds between two looks at the queue. What the system has in its buffers for a client lasts longer."""

RECOVERY: Final = 0.1
"""Part of the time that a publisher gets back as time in which it may be held."""

FLIGHT: Final = 0.02
"""Seconds within which a publisher comes again that is in full flight."""

MUCH: Final = 65_536
"""Bytes of a publisher that wait to be processed when it is in full flight, however few messages they are."""


class Hold:
    """The state of one publisher. Times in seconds of the caller's monotonic clock.

    For the recorder (`recorder.when_full = "hold"`) every publisher waits, as long as its queue becomes shorter
    (`tap.Backlog`): this takes nothing of a publisher's budget.
    """

    def __init__(self, most: float, sent: i64, now: float) -> None:
        """`sent`: the messages of the publisher until now."""
        self._most = most
        self._left = most
        self._at = now
        # When it last published to a queue that is more than half full.
        self._met_at = now - FLIGHT
        # How much it has added to such queues, less what it may add each second; and what it had sent until then.
        self._added = 0.0
        self._sent: i64 = sent
        # The queue that it waits for, if it does: of a connection, or of a session.
        self._live: Crowded | None = None
        self._kept: Crowded | None = None
        self._record: Crowded | None = None

    def meet(self, totals: QueueTotals, session: Session | None, more: i64, sent: i64, now: float) -> bool:
        """It has published to a queue that has become more than half full, or was: whether it is held for that.

        `session` is its own, None for the program itself, which is always in full flight; `more`: bytes that it has
        sent and that were not acted on; `sent`: its messages until now.
        """
        record = totals.crowded_record
        if record is not None:
            totals.crowded_record = None
            if record.crowded(now):
                self._record = record
                totals.holds += 1
                return True
        passed = now - self._met_at
        self._met_at = now
        self._pass(now)
        live = totals.crowded_live
        kept = totals.crowded_session
        if session is not None and not self._fills(live, kept, passed, sent) and more <= MUCH:
            return False
        if (more == 0 and passed >= FLIGHT) or self._left <= 0.0:
            return False
        if session is not None:
            outbox = session.outbox
            if session.window.inflight.count > 0 or outbox is None:
                return False
            if live is outbox.queue:
                live = None
            if kept is session.queue:
                kept = None
        self._live = live
        self._kept = kept
        totals.crowded_live = None
        totals.crowded_session = None
        if self.on:
            totals.holds += 1
        return self.on

    def until(self, now: float) -> float:
        """Until when it is held, at least; 0.0: it may go on."""
        self._pass(now)
        record = self._record
        if record is not None and not record.crowded(now):
            self._record = None
        live = self._live
        if live is not None and (self._left <= 0.0 or not live.crowded(now)):
            self._live = None
        kept = self._kept
        if kept is not None and (self._left <= 0.0 or not kept.crowded(now)):
            self._kept = None
        return now + STEP if self.on else 0.0

    @property
    def on(self) -> bool:
        """Whether it is held."""
        return self._live is not None or self._kept is not None or self._record is not None

    def _fills(self, live: Crowded | None, kept: Crowded | None, passed: float, sent: i64) -> bool:
        """Whether it is this publisher that fills the queues, by the number of its messages since it last met one."""
        part: i64 = 0
        if live is not None:
            part = live.part()
        if kept is not None and (live is None or kept.part() < part):
            part = kept.part()
        added = self._added + float(sent - self._sent) - passed * float(part)
        self._added = min(max(0.0, added), 2.0 * float(part))
        self._sent = sent
        return self._added > float(part)

    def _pass(self, now: float) -> None:
        """Time has passed, in which it was held or not."""
        passed = now - self._at
        self._at = now
        self._left += -passed if self._live is not None or self._kept is not None else passed * RECOVERY
        if self._left > self._most:
            self._left = self._most


def released(hold: Hold | None, limit: PublishLimit | None, until: float, now: float) -> float:
    """The time until which a publisher was held, by its rate or for a subscriber, has come: a later one; 0.0: none.

    `until`: the time, 0.0 where it was not held. Raises ProtocolError: see `PublishLimit.released`.
    """
    if hold is not None and hold.on:
        return hold.until(now)
    if until > 0.0 and limit is not None:
        limit.released(now)
    return 0.0
