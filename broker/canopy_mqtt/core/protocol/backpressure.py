"""Holds back a publisher while a subscriber that reads has more than half of its queue waiting, or the recorder has.

Without it, a subscriber that reads as fast as it can would lose what does not fit into its queue. The broker
stops reading from the publisher, and TCP slows it down. Bounded: a publisher may be held for `most` seconds, and gets
`RECOVERY` of the time back. Publishers are never held because of their own queue, nor while they have acknowledgements
to send for which others may wait.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.queue_totals import PublisherHolder, QueueTotals
from canopy_mqtt.core.queues.message_queue import MessageQueue
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.session.session import Session

STEP: Final = 0.002
"""Seconds between two looks at the queue. What the system has in its buffers for a client lasts longer."""

RECOVERY: Final = 0.1
"""Part of the time that a publisher gets back as time in which it may be held."""

FLIGHT: Final = 0.02
"""Seconds within which a publisher comes again that is in full flight."""

RATE: Final = 10.0
"""Times the bytes that a publisher may add to a queue at once (`PublisherHold._fills`) which it may add in a second."""

BEHIND: Final = 0.1
"""Seconds in which the broker was never through with what a publisher has sent, when it is in full flight."""


class PublisherHold:
    """Says whether one publisher is held for a subscriber. Times in seconds of the caller's monotonic clock.

    Only clients that have sent more than was processed, or send again at once, are held, and of these only the ones
    that fill the queue. So a subscriber that is always behind, or reads in bursts, delays no publisher of a few hundred
    messages a second, small or large. A publisher fills a queue that, since the queue was half full, has added a
    sixteenth of its messages within a second, or three eighths of its bytes within a tenth of one; or that for `BEHIND`
    seconds had begun the next message whenever one was processed. All three are measured over time: neither a pause of
    the broker nor having been held makes a steady publisher look like one in full flight. `RECOVERY` of the time comes
    back as time in which it may be held.

    For the recorder (`recorder.when_full = "hold"`) every publisher waits, as long as its queue becomes shorter
    (`record.tap.Backlog`): this takes nothing of a publisher's budget.
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
        # The queues that it waits for, if it does: of a connection, and of a session; and the recorder's.
        self._queues: list[SendBuffer | MessageQueue] = []
        self._record: PublisherHolder | None = None

    def should_wait(
        self, totals: QueueTotals, session: Session | None, size: i64, more: i64, sent: i64, now: float
    ) -> bool:
        """Return whether it is held: it has published to a queue that has become more than half full, or was.

        `session` is its own, None for the program itself, which is always in full flight; `size`: bytes of the message
        or the run of them; `more`: bytes that it has sent and that were not acted on; `sent`: its messages until now.
        """
        record = totals.over_half_recorder
        if record is not None:
            totals.over_half_recorder = None
            if record.holds_publishers(now):
                self._record = record
                totals.holds += 1
                return True
        passed = now - self._met_at
        self._met_at = now
        self._pass(now)
        queues: list[SendBuffer | MessageQueue] = []
        if totals.over_half_buffer is not None:
            queues.append(totals.over_half_buffer)
        if totals.over_half_queue is not None:
            queues.append(totals.over_half_queue)
        if more == 0 or passed >= FLIGHT:
            self._through_at = now
        fills = self._fills(queues, passed, size, sent)
        if session is not None and not fills and now - self._through_at < BEHIND:
            return False
        if (more == 0 and passed >= FLIGHT) or self._left <= 0.0:
            return False
        if session is not None:
            send_buffer = session.send_buffer
            if session.in_flight_messages() > 0 or send_buffer is None:
                return False
            queues = [each for each in queues if each is not send_buffer and each is not session.made_queue]
        self._queues = queues
        totals.over_half_buffer = None
        totals.over_half_queue = None
        if self.on:
            totals.holds += 1
        return self.on

    def until(self, now: float) -> float:
        """Return until when it is held, at least; 0.0: it may go on."""
        self._pass(now)
        record = self._record
        if record is not None and not record.holds_publishers(now):
            self._record = None
        self._queues = [each for each in self._queues if self._left > 0.0 and each.holds_publishers(now)]
        # What has gathered while it was held is no flight.
        self._through_at = now
        return now + STEP if self.on else 0.0

    @property
    def on(self) -> bool:
        """True while it is held."""
        return len(self._queues) > 0 or self._record is not None

    def _fills(self, queues: list[SendBuffer | MessageQueue], passed: float, size: i64, sent: i64) -> bool:
        """Return whether this publisher fills the queues, by its messages and their bytes since it last met one."""
        messages: i64 = 0
        room: i64 = 0
        for each in queues:
            bound = each.own_max_bytes if isinstance(each, MessageQueue) else each.max_bytes
            messages = each.max_messages if messages == 0 else min(messages, each.max_messages)
            room = bound if room == 0 else min(room, bound)
        # A sixteenth of the messages that may wait in a second, or at once; and three eighths of their bytes at once.
        most = float(messages >> 4)
        most_bytes = float((room >> 3) * 3)
        added = self._added + float(sent - self._sent) - passed * most
        self._added = min(max(0.0, added), 2.0 * most)
        self._sent = sent
        added = self._added_bytes + float(size) - passed * RATE * most_bytes
        self._added_bytes = min(max(0.0, added), 2.0 * most_bytes)
        return self._added > most or self._added_bytes > most_bytes

    def _pass(self, now: float) -> None:
        """Count the time that has passed, in which it was held or not."""
        passed = now - self._at
        self._at = now
        self._left += -passed if self._queues else passed * RECOVERY
        if self._left > self._most:
            self._left = self._most
