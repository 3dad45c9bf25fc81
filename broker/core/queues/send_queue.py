"""The line in which what is for one peer waits, and the accounts of it: the base of `Outbox`.

Owns the queue itself: pieces of whole QoS 0 frames, deliveries whose frame is made when they are written, control
packets; the counts of what stands in it, the ledger of what was offered, taken and dropped, and how long things wait.

Promises:
- The ledger is exact: offered = taken + dropped (by cause) + waiting, at all times, for what was offered here.
- What is shed from the middle leaves a gap, and gaps never outnumber what is there (but for a few): shedding costs the
  same whatever waits, amortised. QoS 0 alone is shed; the rest is in flight in its session, or is no message.
- Time in the queue is known without a clock for each message: one that came is watched until it goes, then the next.

Refuses: to decide what is shed, and when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.codec.framing import frame_end
from broker.core.counters import EXPIRED, Counters, add_loss
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.message import DROPPED, Delivery, DeliveryRun
from broker.core.queues.queue_policy import DROP_NEWEST
from broker.core.queues.queue_totals import UNLIMITED, bound

if TYPE_CHECKING:
    from mypy_extensions import i64

GAPS: Final = 32
"""Gaps that are not worth closing."""


class SendQueue:
    """One peer's queue. Limits in messages and bytes, 0: unlimited. All sizes in bytes."""

    def __init__(self, counters: Counters, max_messages: int, max_bytes: int) -> None:
        self.max_messages: i64 = bound(max_messages)
        self.max_bytes: i64 = bound(max_bytes)
        self.policy: i64 = DROP_NEWEST
        self._counters = counters
        self._load = counters.load
        # Of the client; set when a session gets this queue.
        self.ledger: Ledger | None = None
        # Fill at which `counters.half_full` is told, once until the writer takes something.
        # Not by `_mark`: a method that is called here would have every attribute checked wherever it is read, compiled.
        self._message_mark: i64 = self.max_messages // 2
        self._byte_mark: i64 = self.max_bytes // 2
        # Whole frames, several QoS 0 ones in one piece, or deliveries whose frame is made when it is taken; None is a
        # gap, and so is a delivery that was dropped.
        self._queue: list[object] = []
        self._gaps: i64 = 0
        # Nothing before this place can be shed.
        self._head: i64 = 0
        self._deferred: i64 = 0
        self.messages: i64 = 0
        self.bytes: i64 = 0
        self.control_bytes: i64 = 0
        # Waiting messages of QoS 1 and 2: they are in flight in the session, and not lost with this queue.
        self.qos12_messages: i64 = 0
        self.qos12_bytes: i64 = 0
        # Waiting messages that were delivered before and are sent again: the ledger counted them then.
        self.again: i64 = 0
        # The ledger.
        self.offered: i64 = 0
        self.taken: i64 = 0
        self.high_water: i64 = 0
        self.dropped: list[int] | None = None
        # Time in the queue: of the last message that was watched (s); since when the present one waits, 0.0: none is
        # watched; and how many things go before it has gone.
        self.delay: float = 0.0
        self._since: float = 0.0
        self._ahead: i64 = 0
        # Whether something has waited ever since the last one went.
        self._lags = False

    # -- in ------------------------------------------------------------------------------------------------------------

    def _put(self, item: object, count: i64, size: i64) -> None:
        """Queue what was accepted: `count` messages of `size` bytes in all, in one piece."""
        load = self._load
        load.messages += count
        load.bytes += size
        self._line_up(item, count, size)

    def _line_up(self, item: object, count: i64, size: i64) -> None:
        """The same for what the sum over all queues has already."""
        self._queue.append(item)
        self.messages += count
        self.bytes += size
        if self._since == 0.0:
            self._since = self._load.now
            self._ahead = len(self._queue)
        if self.messages > self._message_mark or self.bytes > self._byte_mark:
            # Whoever routes is told that the writer should have a turn. Once: one who does not read slows nobody.
            self._counters.half_full += 1
            self._message_mark = UNLIMITED
            self._byte_mark = UNLIMITED

    def _mark(self) -> None:
        """Tell of a queue that is half full when it becomes so again."""
        self._message_mark = self.max_messages // 2
        self._byte_mark = self.max_bytes // 2

    # -- out -----------------------------------------------------------------------------------------------------------

    def _taken_all(self, now: float) -> None:
        """All that waited has gone, and none of it was QoS 1 or 2, or a gap."""
        self._mark()
        if self.messages > self.high_water:
            self.high_water = self.messages
        self.taken += self.messages
        self._counters.messages_sent += self.messages
        load = self._load
        load.messages -= self.messages
        load.bytes -= self.bytes
        self.messages = 0
        self.bytes = 0
        self.control_bytes = 0
        self._head = 0
        if self._since > 0.0:
            self.delay = now - self._since
            self._since = 0.0
        self._lags = False

    def _went(self, used: i64, gaps: i64, now: float) -> None:
        """`used` things from the front of the line have gone, `gaps` of them gaps."""
        self._queue = self._queue[used:]
        self._gaps -= gaps
        self._head = self._head - used if self._head > used else 0
        if self._since > 0.0:
            self._ahead -= used
            if self._ahead <= 0 or not self._queue:
                self.delay = now - self._since
                # The last of what is left is watched next; how long it has waited before is not known any more.
                self._lags = bool(self._queue)
                self._since = now if self._lags else 0.0
                self._ahead = len(self._queue)

    def waited(self, now: float) -> float:
        """Seconds in the queue, of the message that is watched or of the last one that was; 0.0 when none waits."""
        if self.messages == 0:
            return 0.0
        present = now - self._since if self._since > 0.0 else 0.0
        return self.delay if self._lags and self.delay > present else present

    # -- shedding ------------------------------------------------------------------------------------------------------

    def shed(self, messages: i64, size: i64, cause: int) -> None:
        """Drop the oldest QoS 0 messages until at least so many have gone, and so many bytes; or none is left."""
        queue = self._queue
        at: i64 = self._head
        while at < len(queue) and (messages > 0 or size > 0):
            item = queue[at]
            if isinstance(item, bytes) and item[0] & 0xF0 == 0x30:
                count: i64 = 0
                gone: i64 = 0
                whole: i64 = len(item)
                while gone < whole and (messages > count or size > gone):
                    gone = frame_end(item, gone, whole)
                    count += 1
                self._uncount(count, gone)
                self._count(cause, count)
                messages -= count
                size -= gone
                if gone < whole:
                    queue[at] = item[gone:]
                    break
                queue[at] = None
                self._gaps += 1
            elif isinstance(item, Delivery) and item.qos == 0 and item.state != DROPPED:
                messages -= 1
                size -= item.message.size()
                self._take_down(item, cause)
            at += 1
        self._head = at
        self._close_gaps()

    def shed_expired(self) -> None:
        """Drop what has expired, from the front on: a queue that is full of it is not full [MQTT-3.3.2-5]."""
        now = self._load.now
        queue = self._queue
        at: i64 = self._head
        while at < len(queue):
            item = queue[at]
            if isinstance(item, Delivery):
                if item.qos == 0 and item.state != DROPPED:
                    if not item.message.expired(now):
                        break
                    self._take_down(item, EXPIRED)
            elif item is not None and not isinstance(item, DeliveryRun):
                break
            at += 1
        self._head = at
        self._close_gaps()

    def shed_one(self, delivery: Delivery, cause: int) -> None:
        """Drop a QoS 0 delivery that waits here, wherever it stands."""
        self._take_down(delivery, cause)
        self._close_gaps()

    def _take_down(self, delivery: Delivery, cause: int) -> None:
        """Drop a delivery, which leaves a gap."""
        self._uncount(1, delivery.message.size())
        self._count(cause, 1)
        self._deferred -= 1
        sub_queue = delivery.sub_queue
        if sub_queue is not None:
            sub_queue.leave(delivery)
        delivery.drop()
        self._gaps += 1

    def _uncount(self, count: i64, size: i64) -> None:
        """So many QoS 0 messages of so many bytes wait no more."""
        self.messages -= count
        self.bytes -= size
        load = self._load
        load.messages -= count
        load.bytes -= size

    def _close_gaps(self) -> None:
        """Make the line anew when most of it is gaps."""
        if self._gaps <= GAPS or self._gaps * 2 < len(self._queue):
            return
        left: list[object] = []
        head: i64 = 0
        for at, item in enumerate(self._queue):
            if item is not None and not (isinstance(item, Delivery) and item.state == DROPPED):
                left.append(item)
                if at < self._head:
                    head += 1
        self._queue = left
        self._gaps = 0
        self._head = head
        if self._ahead > len(left):
            self._ahead = len(left)

    # -- the ledger ----------------------------------------------------------------------------------------------------

    def dropped_in_all(self) -> int:
        """Messages dropped here, over all causes."""
        return 0 if self.dropped is None else sum(self.dropped)

    def _drop(self, cause: int) -> int:
        self._count(cause, 1)
        return cause

    def _count(self, cause: int, count: i64) -> None:
        self.dropped = add_loss(self.dropped, cause, count)
        ledger = self.ledger
        if ledger is not None:
            ledger.lost(cause, count)
        else:
            self._counters.dropped[cause] += count
