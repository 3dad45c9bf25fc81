"""The ordered queue behind one peer's `Outbox`, and its accounts. The outbox decides what is accepted.

Promises:
- The ledger is exact: offered = taken + dropped (by cause) + waiting, at all times, for what was offered here.
- Dropping from the middle leaves a gap, and gaps never outnumber the entries (except for a few): dropping has amortised
  constant cost. Only QoS 0 is dropped; the rest is in flight in its session, or is not a message.
- The waiting time is known without reading a clock for each message: one message is watched until it leaves, then the
  next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.codec.framing import frame_end
from broker.core.counters import AGE, EXPIRED, REPLACED, Counters, add_loss
from broker.core.queues.delivery import DROPPED, SENT, Delivery, DeliveryRun
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.message import OVERHEAD
from broker.core.queues.queue_totals import UNLIMITED, Crowded

if TYPE_CHECKING:
    from mypy_extensions import i64

GAPS: Final = 32
"""Gaps that are not worth closing."""

NEVER_TAKEN: Final = -1e9
"""When something was taken of a queue from which nothing ever was: longer ago than any `standstill`."""

NOT_SENT: Final = -2
"""Answer of `take_delivery` for what is not to be sent any more."""


class SendQueue(Crowded):
    """One peer's queue. All sizes in bytes."""

    def __init__(self, counters: Counters, max_messages: i64, max_bytes: i64) -> None:
        """Limits as `bound` gives them: half of them is the fill that whoever routes is told of."""
        self._counters = counters
        self._load = counters.load
        # Of the client; set when a session gets this queue.
        self.ledger: Ledger | None = None
        # Whether publishers wait for this client while it reads and has more than half of its queue before it.
        self.holds = True
        # When the writer last took something.
        self._taken_at: float = NEVER_TAKEN
        # Fill at which `counters.half_full` is told, once until the writer takes something.
        self._told = False
        # Not by `limit`: a method that is called here would have every attribute checked wherever it is read, compiled.
        self._half_messages: i64 = max_messages // 2
        self._half_bytes: i64 = max_bytes // 2
        self._message_mark: i64 = max_messages // 2
        self._byte_mark: i64 = max_bytes // 2
        # Whole frames, several QoS 0 ones in one piece, or deliveries whose frame is made when it is taken; None is a
        # gap, and so is a delivery that was dropped.
        self.items: list[object] = []
        self.gaps: i64 = 0
        # Nothing before this place can be shed.
        self._head: i64 = 0
        # Deliveries and runs of them.
        self.deferred: i64 = 0
        self.messages: i64 = 0
        self.bytes: i64 = 0
        self.control_bytes: i64 = 0
        # Waiting messages of QoS 1 and 2: they are in flight in the session, and not lost with this queue.
        self.qos12_messages: i64 = 0
        self.qos12_bytes: i64 = 0
        # QoS 1 and 2 deliveries that expired here; None: none. It is asked for after each write.
        self.expired: list[Delivery] | None = None
        # Waiting messages that were delivered before and are sent again: the ledger counted them then.
        self.again: i64 = 0
        # The ledger.
        self.offered: i64 = 0
        self.taken: i64 = 0
        # Of those, without what a message takes in memory.
        self.taken_bytes: i64 = 0
        self.high_water: i64 = 0
        # What had been taken when somebody last compared subscribers (`sampling.subscribers`).
        self.compared: i64 = 0
        self.compared_bytes: i64 = 0
        self.dropped: list[int] | None = None
        # Time in the queue: of the last message that was watched (s); since when the present one waits, 0.0: none is
        # watched; and how many things go before it has gone.
        self.delay: float = 0.0
        self._since: float = 0.0
        self._ahead: i64 = 0
        # Whether something has waited ever since the last one went.
        self._lags = False

    def limit(self, max_messages: i64, max_bytes: i64) -> None:
        """Other limits hold from now on; see `__init__`."""
        self._half_messages = max_messages // 2
        self._half_bytes = max_bytes // 2
        self._mark()

    # -- in ------------------------------------------------------------------------------------------------------------

    def put(self, item: object, count: i64, size: i64) -> None:
        """Queue what was accepted: `count` messages of `size` bytes in all, in one piece."""
        load = self._load
        load.messages += count
        load.bytes += size
        self.line_up(item, count, size)

    def line_up(self, item: object, count: i64, size: i64) -> None:
        """The same for what the sum over all queues has already."""
        self.items.append(item)
        self.messages += count
        self.bytes += size
        if self._since == 0.0:
            self._since = self._load.now
            self._ahead = len(self.items)
        if self.messages > self._message_mark or self.bytes > self._byte_mark:
            self._tell()

    def line_up_control(self, packet: bytes) -> None:
        """Queue a control packet, or several of four bytes each; none is longer and begins so."""
        self.items.append(packet)
        size: i64 = len(packet)
        self.control_bytes += size
        self._counters.control_sent += size >> 2 if size > 4 and packet[1] == 2 else 1

    def replace(self, grown: i64) -> None:
        """A QoS 0 delivery that waits here got a newer message in place of its own, larger by `grown` bytes."""
        self.offered += 1
        self.bytes += grown
        self._load.bytes += grown
        self.count_dropped(REPLACED, 1)

    def _tell(self) -> None:
        """Tell whoever routes that half of what may wait does."""
        load = self._load
        if not self._told:
            # The writer should have a turn. Once: one who does not read slows nobody.
            self._told = True
            self._counters.half_full += 1
            load.crowds += 1
            load.crowded_live = self
        elif self.crowded(load.now):
            load.crowds += 1
            load.crowded_live = self
        else:
            self._message_mark = UNLIMITED
            self._byte_mark = UNLIMITED

    def crowded(self, now: float) -> bool:
        """See `Crowded`: the client reads, if not for long."""
        return (
            self.holds
            and (self.messages > self._half_messages or self.bytes > self._half_bytes)
            and now < self._taken_at + self._load.standstill
        )

    def part(self) -> i64:
        """See `Crowded`: a sixteenth of what may wait."""
        return self._half_messages >> 3

    def part_bytes(self) -> i64:
        """See `Crowded`: three eighths of what may wait."""
        return (self._half_bytes >> 2) * 3

    def _mark(self) -> None:
        """Tell of a queue that is half full when it becomes so again."""
        self._told = False
        self._message_mark = self._half_messages
        self._byte_mark = self._half_bytes

    # -- out -----------------------------------------------------------------------------------------------------------

    def took_all(self, now: float) -> None:
        """All that waited has gone, and none of it was QoS 1 or 2, or a gap."""
        self._mark()
        self._taken_at = now
        if self.messages > self.high_water:
            self.high_water = self.messages
        self.taken += self.messages
        self.taken_bytes += self.bytes
        self._counters.messages_sent += self.messages
        self._counters.publish_bytes_sent += self.bytes
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

    def take_expired(self) -> list[Delivery]:
        """QoS 1 and 2 deliveries that expired here (`expired`): the session frees their packet identifiers."""
        expired, self.expired = self.expired, None
        return expired or []

    def took_one_in_flight(self, qos: int, length: i64, now: float) -> None:
        """All that waited was one message of QoS 1 or 2, and it has gone for the first time, as `length` bytes."""
        self.count_sent(qos, 1)
        self._counters.publish_bytes_sent += length - self.bytes
        self.deferred = 0
        self.qos12_messages = 0
        self.qos12_bytes = 0
        # The broker's sum keeps it until it is acknowledged.
        load = self._load
        load.messages += 1
        load.bytes += self.bytes
        self.taken_bytes -= OVERHEAD
        self.took_all(now)

    def begin_batch(self) -> None:
        """Things are taken from the front one by one now, and out of the accounts; `end_batch` follows."""
        self._mark()
        if self.messages > self.high_water:
            self.high_water = self.messages

    def take_delivery(self, delivery: Delivery, now: float) -> int:
        """Take a delivery out of the accounts: what is left of its message expiry interval, as `remaining_expiry`.

        NOT_SENT when it is not to be sent any more.
        """
        message = delivery.message
        qos = delivery.qos
        first = delivery.attempts == 0
        self.deferred -= 1
        size: i64 = message.size()
        sub_queue = delivery.sub_queue
        if qos > 0:
            self.messages -= 1
            self.bytes -= size
            self.qos12_messages -= 1
            self.qos12_bytes -= size
        else:
            self.uncount(1, size)
            if sub_queue is not None:
                sub_queue.leave(delivery)
        if not first:
            self.again -= 1
            if delivery.state != SENT:
                # Acknowledged on the strength of an earlier sending.
                return NOT_SENT
        # What is left of it after the wait in here goes out [MQTT-3.3.2-6]; once sent, it does not end [MQTT-4.3.3-7].
        expiry = message.remaining_expiry(now)
        if first:
            if expiry == 0 or (sub_queue is not None and sub_queue.too_old(delivery, now)):
                # Delivery had not begun: the copy is deleted [MQTT-3.3.2-5].
                self.count_dropped(EXPIRED if expiry == 0 else AGE, 1)
                if qos > 0:
                    if self.expired is None:
                        self.expired = []
                    self.expired.append(delivery)
                return NOT_SENT
            self.taken += 1
            self.taken_bytes += size - OVERHEAD
        return expiry

    def count_sent(self, qos: int, count: i64) -> None:
        """So many messages of QoS 1 or 2 are sent, or sent again."""
        if qos == 1:
            self._counters.sent_qos1 += count
        else:
            self._counters.sent_qos2 += count

    def take_run(self, run: DeliveryRun) -> i64:
        """Take a run out of the accounts; how many deliveries it has."""
        count: i64 = 0
        size: i64 = 0
        for delivery in run.deliveries:
            delivery.attempts = 1
            count += 1
            size += delivery.message.size()
        self.deferred -= 1
        self.messages -= count
        self.bytes -= size
        self.qos12_messages -= count
        self.qos12_bytes -= size
        self.taken += count
        self.count_sent(run.deliveries[0].qos, count)
        self.taken_bytes += size - count * OVERHEAD
        return count

    def end_batch(self, used: i64, gaps: i64, sent: i64, length: i64, now: float) -> None:
        """`used` things from the front of the line have gone, `gaps` of them gaps; with them `sent` messages, `length`
        bytes."""
        self._taken_at = now
        self._counters.messages_sent += sent
        self._counters.publish_bytes_sent += length
        self.items = self.items[used:]
        self.gaps -= gaps
        if self._head > used:
            self._head -= used
        else:
            self._head = 0
        if self._since > 0.0:
            self._ahead -= used
            if self._ahead <= 0 or not self.items:
                self.delay = now - self._since
                # The last of what is left is watched next; how long it has waited before is not known any more.
                self._lags = bool(self.items)
                self._since = now if self._lags else 0.0
                self._ahead = len(self.items)

    def waited(self, now: float) -> float:
        """Seconds in the queue, of the message that is watched or of the last one that was; 0.0 when none waits."""
        if self.messages == 0:
            return 0.0
        present = now - self._since if self._since > 0.0 else 0.0
        return self.delay if self._lags and self.delay > present else present

    def discard(self, cause: int) -> None:
        """Throw away the messages that wait; count those of QoS 0 as dropped by `cause`. Control packets stay."""
        lost: i64 = self.messages - self.qos12_messages
        if lost > 0:
            self.count_dropped(cause, lost)
            self.uncount(lost, self.bytes - self.qos12_bytes)
        # What goes back to the session was not offered to the peer after all.
        self.offered -= self.qos12_messages - self.again
        left: list[object] = []
        for item in self.items:
            if isinstance(item, bytes):
                if item[0] & 0xF0 != 0x30:
                    left.append(item)
            elif isinstance(item, Delivery) and item.sub_queue is not None and item.qos == 0:
                item.sub_queue.leave(item)
        self.items = left
        self.gaps = 0
        self._head = 0
        self.deferred = 0
        self.messages = 0
        self.bytes = 0
        self.qos12_messages = 0
        self.qos12_bytes = 0
        self.again = 0
        self._since = 0.0

    # -- shedding ------------------------------------------------------------------------------------------------------

    def shed(self, messages: i64, size: i64, cause: int) -> None:
        """Drop the oldest QoS 0 messages until at least so many have gone, and so many bytes; or none is left."""
        queue = self.items
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
                self.uncount(count, gone)
                self.count_dropped(cause, count)
                messages -= count
                size -= gone
                if gone < whole:
                    queue[at] = item[gone:]
                    break
                queue[at] = None
                self.gaps += 1
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
        queue = self.items
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
        self.uncount(1, delivery.message.size())
        self.count_dropped(cause, 1)
        self.deferred -= 1
        sub_queue = delivery.sub_queue
        if sub_queue is not None:
            sub_queue.leave(delivery)
        delivery.drop()
        self.gaps += 1

    def uncount(self, count: i64, size: i64) -> None:
        """So many QoS 0 messages of so many bytes wait no more."""
        self.messages -= count
        self.bytes -= size
        load = self._load
        load.messages -= count
        load.bytes -= size

    def _close_gaps(self) -> None:
        """Make the line anew when most of it is gaps."""
        if self.gaps <= GAPS or self.gaps * 2 < len(self.items):
            return
        left: list[object] = []
        head: i64 = 0
        for at, item in enumerate(self.items):
            if item is not None and not (isinstance(item, Delivery) and item.state == DROPPED):
                left.append(item)
                if at < self._head:
                    head += 1
        self.items = left
        self.gaps = 0
        self._head = head
        if self._ahead > len(left):
            self._ahead = len(left)

    # -- the ledger ----------------------------------------------------------------------------------------------------

    def dropped_in_all(self) -> int:
        """Messages dropped here, over all causes."""
        return 0 if self.dropped is None else sum(self.dropped)

    def count_dropped(self, cause: int, count: i64) -> None:
        """`count` messages that were offered here are dropped, for `cause`."""
        self.dropped = add_loss(self.dropped, cause, count)
        ledger = self.ledger
        if ledger is not None:
            ledger.lost(cause, count)
        else:
            self._counters.dropped[cause] += count
