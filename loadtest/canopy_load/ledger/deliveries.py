"""The deliveries to one subscriber, stream by stream: received once, missing, doubled, out of order, altered.

Owns: ``Receipt`` (one subscriber's account of one stream) and ``Judge`` (one subscriber: a client, or all members of a
shared subscription together). Compiled.

Promises:
- Exact for each continuous subscription. What was sent while the subscriber was coming or going is `unjudged`. A
  session that the broker kept stays continuous for QoS 1 and 2; messages of QoS 0 are not due to one who is away.
- Memory is bounded by streams and by `MAX_GAPS`: gaps are kept as intervals, and beyond `MAX_GAPS` of one stream the
  oldest are settled: a message that comes later still counts as a duplicate, though it may be a late one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from canopy_load.ledger.counters import Tally
from canopy_load.ledger.mark import TEXT_SIZE, Mark, filler

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_GAPS: Final = 10_000


class Source:
    """A publisher of this process that waits for deliveries (closed loop, QoS 0); its judges report to it."""

    def __init__(self) -> None:
        self.returned: i64 = 0
        """Deliveries of its messages that came or are known to be lost."""
        self.waiting: bool = False
        """True while it is in the list of sources to be looked at."""


class Gaps:
    """Sequence numbers that did not come, as intervals."""

    def __init__(self) -> None:
        # Oldest first: the first number, and one above the last.
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, start: i64, end: i64) -> None:
        """Note that numbers from `start` to below `end` did not come."""
        if len(self.starts) >= MAX_GAPS:
            del self.starts[: MAX_GAPS // 2]
            del self.ends[: MAX_GAPS // 2]
        self.starts.append(start)
        self.ends.append(end)

    def fill(self, sequence: i64) -> bool:
        """Take out a number that came late; return True if it was one of these."""
        low: i64 = 0
        high: i64 = len(self.starts)
        while low < high:
            middle: i64 = (low + high) // 2
            if self.ends[middle] <= sequence:
                low = middle + 1
            else:
                high = middle
        if low == len(self.starts) or self.starts[low] > sequence:
            return False
        start: i64 = self.starts[low]
        end: i64 = self.ends[low]
        if start == sequence and end == sequence + 1:
            del self.starts[low]
            del self.ends[low]
        elif start == sequence:
            self.starts[low] = sequence + 1
        elif end == sequence + 1:
            self.ends[low] = sequence
        else:
            self.ends[low] = sequence
            self.starts.insert(low + 1, sequence + 1)
            self.ends.insert(low + 1, end)
        return True


class Receipt:
    """The count of one stream's deliveries."""

    def __init__(
        self,
        stream: int,
        topic: bytes,
        source: Source | None,
        around: tuple[bytes, bytes] | None = None,
        varied: Callable[[int, int], tuple[bytes, bytes]] | None = None,
    ) -> None:
        self.stream = stream
        self.topic = topic
        self.source = source
        self.around = around
        """The payload before and behind the mark, if it comes from a template."""
        self.varied = varied
        """Returns the same by sequence number and time, if each message has its own."""
        self.next: i64 = 0
        """One above the highest sequence number that came."""
        self.received: i64 = 0
        self.missing: i64 = 0
        self.duplicates: i64 = 0
        self.redelivered: i64 = 0
        self.reordered: i64 = 0
        self.altered: i64 = 0
        self.retained: i64 = 0
        self.unjudged: i64 = 0
        self.epoch: i64 = -1
        """The judge's epoch in which the last message came; -1: none came yet."""
        self.absence: i64 = -1
        """The judge's absence before which the last message came."""
        self.before: i64 = 0
        """Numbers below this came, or were due, before the last absence."""
        self.gaps: Gaps | None = None
        """The missing messages; None: there have been none."""
        self.doubts: Gaps | None = None
        """The messages that cannot be judged; None: there have been none."""

    def changed(self, payload: bytes, mark: Mark) -> bool:
        """Return True if a payload is not the one that was sent; `mark` has been read from it."""
        text = mark.end == 0
        around = self.around
        if self.varied is not None:
            around = self.varied(mark.sequence, mark.time)
        if around is None:
            return text or not payload.endswith(filler(len(payload)))
        before, after = around
        size: i64 = len(before) + TEXT_SIZE + len(after)
        return not text or len(payload) != size or not payload.startswith(before) or not payload.endswith(after)


class Streams:
    """A process's knowledge of all streams of the run.

    `topic` returns a stream's topic; empty: there is no such stream. `around` returns the payload before and behind the
    mark; None: it is no template. `varied` returns a function that gives the same for each message by sequence number
    and time; None: all messages are alike.
    """

    def __init__(
        self,
        run: int,
        topic: Callable[[int], bytes],
        around: Callable[[int], tuple[bytes, bytes] | None] = lambda _: None,
        varied: Callable[[int], Callable[[int, int], tuple[bytes, bytes]] | None] = lambda _: None,
    ) -> None:
        self.topic = topic
        self.around = around
        self.varied = varied
        self.sources: dict[int, Source] = {}
        """By stream, the publishers of this process that wait for deliveries."""
        self.woken: list[Source] = []
        """The sources to which something came since the list was last emptied."""
        self.foreign: i64 = 0
        """Messages without a mark of this run."""
        self.mark = Mark(run)


class Judge:
    """One subscriber, `number` in the plan; a shared subscription's members have one together."""

    def __init__(self, number: int, streams: Streams, tally: Tally) -> None:
        self.number = number
        self.streams = streams
        self.tally = tally
        self.receipts: dict[int, Receipt] = {}
        self.whole = False
        """True if it was subscribed before anything was sent, and has not been away since."""
        self.open = False
        """True while it is subscribed."""
        self.epoch: i64 = 0
        """The number of times that its session was lost."""
        self.absence: i64 = 0
        """The number of times that its connection was lost."""
        self.told_lost = 0
        self.shared = False
        self._members = 0
        self.refused: set[str] = set()
        """Filters for which the broker answered a SUBSCRIBE with a failure, to no member of a share without."""
        self._granted: set[str] = set()

    def answered(self, topic_filter: str, granted: bool) -> None:
        if granted:
            self.refused.discard(topic_filter)
            if self.shared:
                self._granted.add(topic_filter)
        elif topic_filter not in self._granted:
            self.refused.add(topic_filter)

    def joined(self) -> None:
        self._members += 1
        self.open = True

    def parted(self) -> None:
        """Note that a subscribed member of the shared subscription is gone; with the last one, the subscription
        ends."""
        self._members -= 1
        if self._members == 0:
            self.open = False
            self.left(session_kept=False)

    def left(self, session_kept: bool) -> None:
        self.absence += 1
        if not session_kept:
            self.forgotten()

    def forgotten(self) -> None:
        self.epoch += 1
        self.whole = False

    def receive(self, topic: bytes, payload: bytes, qos: i64, retain: bool, dup: bool, now: i64) -> None:
        """Judge a PUBLISH; `now` in microseconds of the monotonic clock."""
        streams = self.streams
        mark = streams.mark
        if not mark.read(payload):
            streams.foreign += 1
            self.tally.foreign += 1
            return
        number: int = mark.stream
        receipt = self.receipts.get(number)
        if receipt is None:
            receipt = self._begin(number)
            if receipt is None:
                streams.foreign += 1
                self.tally.foreign += 1
                return
        if retain:
            receipt.retained += 1
            return
        if topic != receipt.topic or receipt.changed(payload, mark):
            receipt.altered += 1
        sequence = mark.sequence
        tally = self.tally
        if sequence == receipt.next:
            receipt.next = sequence + 1
            receipt.epoch = self.epoch
            if receipt.absence != self.absence:
                receipt.absence = self.absence
                receipt.before = sequence
        elif not self._out_of_line(receipt, sequence, qos, dup):
            return
        receipt.received += 1
        tally.received += 1
        source = receipt.source
        if source is not None:
            source.returned += 1
            if not source.waiting:
                source.waiting = True
                streams.woken.append(source)
        time = mark.time
        if time > 0:
            tally.latency(now - time)
            if time < tally.since:
                tally.carry(now - time, time)

    def _begin(self, stream: int) -> Receipt | None:
        streams = self.streams
        topic = streams.topic(stream)
        if not topic:
            return None
        receipt = Receipt(stream, topic, streams.sources.get(stream), streams.around(stream), streams.varied(stream))
        if self.whole:
            # Nothing was sent before its first absence, if it had one.
            receipt.epoch = self.epoch
            receipt.absence = 0
        self.receipts[stream] = receipt
        return receipt

    def _out_of_line(self, receipt: Receipt, sequence: i64, qos: i64, dup: bool) -> bool:
        """Count a message whose number is not the next one; return True if it had not come yet."""
        tally = self.tally
        expected = receipt.next
        source = receipt.source
        if sequence > expected:
            away = receipt.epoch != self.epoch or (qos == 0 and receipt.absence != self.absence)
            receipt.epoch = self.epoch
            if receipt.absence != self.absence:
                receipt.absence = self.absence
                receipt.before = expected
            receipt.next = sequence + 1
            count: i64 = sequence - expected
            if away:
                receipt.unjudged += count
                if receipt.doubts is None:
                    receipt.doubts = Gaps()
                receipt.doubts.add(expected, sequence)
            else:
                receipt.missing += count
                if receipt.gaps is None:
                    receipt.gaps = Gaps()
                receipt.gaps.add(expected, sequence)
                tally.gaps += count
            if source is not None:
                source.returned += count
            return True
        if receipt.gaps is not None and receipt.gaps.fill(sequence):
            receipt.missing -= 1
            tally.gaps -= 1
        elif receipt.doubts is not None and receipt.doubts.fill(sequence):
            receipt.unjudged -= 1
        else:
            if qos == 1 and (dup or receipt.absence != self.absence or sequence < receipt.before):
                receipt.redelivered += 1
            else:
                receipt.duplicates += 1
            tally.copies += 1
            return False
        if not self.shared:
            receipt.reordered += 1
        if source is not None:
            source.returned -= 1
        return True
