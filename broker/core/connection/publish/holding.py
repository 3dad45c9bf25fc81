"""Holds back a publisher while a subscriber that reads has more than half of its queue waiting, or the recorder has.

Without this, a subscriber that reads as fast as it can would lose what does not fit into its queue. The broker stops
reading from the publisher, and TCP slows it down. Bounded: a publisher may be held for `most` seconds, and gets
`RECOVERY` of the time back. Only clients that have sent more than was processed, or send again at once, are held, and
of these only the ones that fill the queue (`Hold`). So a subscriber that is always behind, or reads in bursts, delays
no publisher of a few hundred messages a second, small or large. Publishers are never held because of their own queue,
nor while they have acknowledgements to send for which others may wait.
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

RATE: Final = 10.0
"""Times the bytes that a publisher may add to a queue at once (`Crowded.part_bytes`) which it may add in a second."""

BEHIND: Final = 0.1
"""Seconds in which the broker was never through with what a publisher has sent, when it is in full flight."""


class Hold:
    """The state of one publisher. Times in seconds of the caller's monotonic clock.

    One fills a queue that, since the queue was half full, has added a sixteenth of its messages within a second, or
    three eighths of its bytes within a tenth of one; or that for `BEHIND` seconds had begun the next message whenever
    one was processed. All three are measured over time: neither a pause of the broker nor having been held makes a
    steady publisher look like one in full flight. `RECOVERY` of the time comes back as time in which it may be held.

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
        self._added_bytes = 0.0
        self._sent: i64 = sent
        # When the broker was last through with what it had sent, or began to read from it again.
        self._through_at = now
        # The queue that it waits for, if it does: of a connection, or of a session.
        self._live: Crowded | None = None
        self._kept: Crowded | None = None
        self._record: Crowded | None = None

    def meet(self, totals: QueueTotals, session: Session | None, size: i64, more: i64, sent: i64, now: float) -> bool:
        """It has published to a queue that has become more than half full, or was: whether it is held for that.

        `session` is its own, None for the program itself, which is always in full flight; `size`: bytes of the message
        or the run of them; `more`: bytes that it has sent and that were not acted on; `sent`: its messages until now.
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
        if more == 0 or passed >= FLIGHT:
            self._through_at = now
        fills = self._fills(live, kept, passed, size, sent)
        if session is not None and not fills and now - self._through_at < BEHIND:
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
        # What has gathered while it was held is no flight.
        self._through_at = now
        return now + STEP if self.on else 0.0

    @property
    def on(self) -> bool:
        """Whether it is held."""
        return self._live is not None or self._kept is not None or self._record is not None

    def _fills(self, live: Crowded | None, kept: Crowded | None, passed: float, size: i64, sent: i64) -> bool:
        """Whether it is this publisher that fills the queues, by the number of its messages and their bytes since it
        last met one."""
        part: i64 = 0
        room: i64 = 0
        if live is not None:
            part = live.part()
            room = live.part_bytes()
        if kept is not None:
            part = kept.part() if live is None or kept.part() < part else part
            room = kept.part_bytes() if live is None or kept.part_bytes() < room else room
        most = float(part)
        most_bytes = float(room)
        added = self._added + float(sent - self._sent) - passed * most
        self._added = min(max(0.0, added), 2.0 * most)
        self._sent = sent
        added = self._added_bytes + float(size) - passed * RATE * most_bytes
        self._added_bytes = min(max(0.0, added), 2.0 * most_bytes)
        return self._added > most or self._added_bytes > most_bytes

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
