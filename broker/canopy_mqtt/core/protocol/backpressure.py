"""Holds back a publisher: while a subscriber that reads has more than half of its queue waiting, or the recorder has;
or while it publishes faster than the settings allow.

Without the first, a subscriber that reads as fast as it can would lose what does not fit into its queue. The broker
stops reading from the publisher, and TCP slows it down. Bounded: a publisher may be held for `most` seconds, and gets
`RECOVERY` of the time back. Publishers are never held because of their own queue, nor while they have acknowledgements
to send for which others may wait. The rate limit is a token bucket (`PublishLimit`).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.codec import reason_codes
from canopy_mqtt.core.codec.reason_codes import ProtocolError
from canopy_mqtt.core.counters import PublisherHolder, QueueTotals
from canopy_mqtt.core.limits import Limits
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


BREAK: Final = 1.0
"""Seconds for which a client must not have been held back for its patience to begin anew."""

MIN_HOLD: Final = 0.005
"""Seconds for which a client is held back at least: a high rate is not kept by one timer for each packet."""


class TokenBucket:
    """Saves `rate` tokens a second (above 0), at most `burst` of them. It begins full."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at = 0.0

    def take(self, count: float, now: float) -> None:
        """Take `count` tokens, those that are not there on credit."""
        self._fill(now)
        self._level -= count

    def ready_in(self, now: float) -> float:
        """Return the seconds until the bucket is out of debt; 0.0 when it is not in debt."""
        self._fill(now)
        return -self._level / self.rate if self._level < 0.0 else 0.0

    def try_take(self, now: float, count: float = 1.0) -> bool:
        """Take tokens if all of them are there; False, and nothing was taken, if not."""
        self._fill(now)
        if self._level < count:
            return False
        self._level -= count
        return True

    def _fill(self, now: float) -> None:
        passed = now - self._at
        if passed > 0.0:
            self._at = now
            self._level += passed * self.rate
            if self._level > self.burst:
                self._level = self.burst


class PublishLimit:
    """Limits one client's publishes, in PUBLISH packets and in their bytes a second.

    The burst is what a second allows, and one packet at least. A limit of 0 is none. `patience`: seconds that the
    client may be held back without a break of `BREAK` seconds; 0: for ever.
    """

    def __init__(self, rate: float, size: int, patience: float) -> None:
        self._messages = TokenBucket(rate, max(rate, 1.0)) if rate > 0.0 else None
        self._bytes = TokenBucket(float(size), float(size)) if size > 0 else None
        self._rate = rate
        self._size = size
        self._patience = patience
        self._held_since = 0.0
        self._free_since = -BREAK
        # Which of the two is further in debt, as `_wait` found last.
        self._too_large = False

    def published(self, count: int, size: int, now: float) -> float:
        """Count `count` PUBLISH packets of `size` bytes in all. Return the time until which no more is taken, or 0.0.

        Raises ProtocolError with 0x96 (messages) or 0x97 (bytes) when the client has been held back for too long.
        """
        messages = self._messages
        if messages is not None:
            messages.take(float(count), now)
        octets = self._bytes
        if octets is not None:
            octets.take(float(size), now)
        wait = self._wait(now)
        if wait == 0.0:
            return 0.0
        if now - self._free_since >= BREAK:
            self._held_since = now
        self._check_patience(now)
        until = now + max(wait, MIN_HOLD)
        if self._patience > 0.0:
            until = min(until, self._held_since + self._patience)
        return until

    def released(self, now: float) -> None:
        """Go on at the time that `published` gave. Raises ProtocolError, like it, when patience came to its end."""
        self._free_since = now
        if self._wait(now) > 0.0:
            self._check_patience(now)

    def _wait(self, now: float) -> float:
        """Return the seconds until both buckets are out of debt."""
        messages = self._messages
        octets = self._bytes
        wait = messages.ready_in(now) if messages is not None else 0.0
        longer = octets.ready_in(now) if octets is not None else 0.0
        self._too_large = longer > wait
        return longer if self._too_large else wait

    def _check_patience(self, now: float) -> None:
        patience = self._patience
        if patience <= 0.0 or now < self._held_since + patience:
            return
        if self._too_large:
            raise ProtocolError(
                f"more than {self._size} bytes of PUBLISH packets a second for {patience:g} s",
                reason_codes.QUOTA_EXCEEDED,
            )
        raise ProtocolError(
            f"more than {self._rate:g} PUBLISH packets a second for {patience:g} s", reason_codes.MESSAGE_RATE_TOO_HIGH
        )


def publish_limit(limits: Limits) -> PublishLimit | None:
    """Return the limit to which the settings hold a client; None: there is none."""
    if limits.max_publish_rate <= 0.0 and limits.max_publish_bytes <= 0:
        return None
    return PublishLimit(limits.max_publish_rate, limits.max_publish_bytes, limits.publish_patience)
