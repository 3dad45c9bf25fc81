"""The numbered events for the recorder, on their way to its thread.

Owns the numbers, the bounded queue between the event loop and the recorder's thread, and the account of what did not
fit into it. The core reports events to a `Tap` in their order; the shell gives it a clock and a `Sink`, and takes
batches. `broker.record` has the files, threads and the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import mypyc_attr

from broker.core.causes import EVICTIONS
from broker.core.counters import DROP_CAUSES
from broker.core.queues.message import Message
from broker.core.queues.queue_totals import UNLIMITED, Crowded, LossRecorder, QueueTotals

if TYPE_CHECKING:
    from mypy_extensions import i64

HAND_OVER: Final = 2_048
"""Entries that are handed over without waiting for the time to do so."""

STATE_PART: Final = 8
"""The room that publishes and deliveries leave to the other events: one part in so many."""

AGAIN: Final = 4
"""Once full, the queue takes publishes again when one part in so many is free: one gap, and not thousands."""

RUN_OVERHEAD: Final = 96
ROW_OVERHEAD: Final = 160
"""Bytes that an entry is counted with beside what it holds."""

# What an entry is; its first element. Each has its number and its time (ns, monotonic) next.
RUN: Final = 0
"""(RUN, number of the first, time, frames, count, whether they are 5.0's, publisher): QoS 0, nothing in the header."""
PUBLISH: Final = 1
"""(PUBLISH, number, time, topic, payload, qos, retain, properties, expiry in seconds or -1, publisher)."""
DELIVER: Final = 2
"""(DELIVER, number, time, client, number of the publish, qos, retain, shared filter or None)."""
NOTE: Final = 3
"""(NOTE, number, time, kind, columns): anything else; a dict of what its row has."""

_NUMBER: Final = Struct("<q")


@mypyc_attr(allow_interpreted_subclasses=True)
class Sink:
    """Takes what a tap has collected."""

    def hand_over(self) -> None:
        """Enough has come together: take it (`Tap.take`). Called in the event loop; must not block."""
        raise NotImplementedError


class Backlog(Crowded):
    """What waits to be written, for which publishers wait: while it is more than half of what may wait, and becomes
    less. Where nothing was written for `most` seconds, nobody waits any more until something is."""

    def __init__(self, tap: Tap, load: QueueTotals, most: float) -> None:
        self.load = load
        self._tap = tap
        self._most = most
        self._done: i64 = -1
        self._moved_at = 0.0

    def crowded(self, now: float) -> bool:
        """See `Crowded`. `now`: seconds, monotonic."""
        tap = self._tap
        if not tap.half_full or tap.done_events != self._done:
            self._done = tap.done_events
            self._moved_at = now
        return tap.half_full and now < self._moved_at + self._most

    def part(self) -> i64:
        """See `Crowded`: whoever publishes fills it."""
        return 0

    def part_bytes(self) -> i64:
        """See `Crowded`."""
        return 0


class Tap(LossRecorder):
    """The numbered events of one run of a broker, until they are taken.

    Promises:
    - Every event takes the next number, also one that is lost: a `gap` event names the numbers that are missing, as
      soon as there is room again. Nothing else is ever missing.
    - Bounded in events and bytes. Publishes and deliveries leave a part of the room to the others (who came, who
      subscribed to what): without those, what the others mean could not be known.
    - A burst of QoS 0 messages is one entry here, as it is in a subscriber's queue: nothing is copied or taken apart in
      the event loop.
    - Losses are told once for each client and cause between two hand-overs, however many messages they were; a message
      that was refused at a queue is told by itself where deliveries are recorded.
    """

    def __init__(
        self, clock: Callable[[], int], sink: Sink, memo: Any, max_events: int, max_bytes: int, deliveries: bool
    ) -> None:
        """`clock`: ns, monotonic. `memo`: eight writable bytes or more in which the last number stands after each
        batch. `max_events`, `max_bytes`: bounds of what waits here and with the sink, 0: none. `deliveries`: whether
        it is told for each message to whom it went."""
        self.clock = clock
        self.sink = sink
        self.deliveries = deliveries
        self._memo = memo
        self._max_events: i64 = max_events if max_events > 0 else 1 << 60
        self._max_bytes: i64 = max_bytes if max_bytes > 0 else 1 << 60
        # From where on publishers wait, if they do.
        self.backlog: Backlog | None = None
        self._half_events: i64 = UNLIMITED
        self._half_bytes: i64 = UNLIMITED
        # The last number that was given, and the number of the publish that is being routed.
        self.seq: i64 = 0
        self.ref: i64 = 0
        # The account: what came in here, and, written by the sink's thread alone, what it is done with.
        self.put_events: i64 = 0
        self.put_bytes: i64 = 0
        self.done_events: i64 = 0
        self.done_bytes: i64 = 0
        # Events that were lost, and the gap that is open: its numbers, how many, and whether others than publishes and
        # deliveries are among them.
        self.lost: i64 = 0
        self._full = False
        self._gap_from: i64 = 0
        self._gap_to: i64 = 0
        self._gap_state = False
        self._noted: i64 = 0
        self._events: list[tuple[Any, ...]] = []
        self._losses: dict[tuple[str, int], int] = {}

    # -- what the router tells -----------------------------------------------------------------------------------------

    def frames(self, data: bytes, count: i64, v5: bool, publisher: str) -> None:
        """`count` QoS 0 PUBLISH frames side by side, without retain flag and properties."""
        size: i64 = len(data) + RUN_OVERHEAD
        first = self._number(count, size, False)
        self.ref = self.seq - count + 1
        if first > 0:
            self._put((RUN, first, self.clock(), data, count, v5, publisher), count, size)

    def message(self, message: Message, now: float) -> None:
        """Any message that is being routed."""
        frame = message.plain_frame()
        if frame is not None:
            self.frames(frame, 1, message.frame_v5 is not None, message.publisher)
            return
        payload = message.payload()
        size: i64 = message.size() + ROW_OVERHEAD
        first = self._number(1, size, False)
        self.ref = self.seq
        if first > 0:
            entry = (
                PUBLISH,
                first,
                self.clock(),
                message.topic,
                payload,
                message.qos,
                message.retain,
                message.properties,
                message.remaining_expiry(now),
                message.publisher,
            )
            self._put(entry, 1, size)

    def delivered(self, client_id: str, qos: int, retain: bool, shared: str | None) -> None:
        """The message that is being routed was put in a client's queue."""
        first = self._number(1, ROW_OVERHEAD, False)
        if first > 0:
            self._put((DELIVER, first, self.clock(), client_id, self.ref, qos, retain, shared), 1, ROW_OVERHEAD)

    def refused(self, client_id: str, cause: int, shared: str | None) -> None:
        """The message that is being routed was refused at a client's queue, which has counted it as lost already."""
        key = (client_id, cause)
        count = self._losses.get(key, 0)
        if count > 1:
            self._losses[key] = count - 1
        elif count == 1:
            del self._losses[key]
        row: dict[str, Any] = {"client_id": client_id, "reason": DROP_CAUSES[cause], "n": 1, "ref_seq": self.ref}
        if shared is not None:
            row["topic_filter"] = shared
        self._note("drop", row, len(client_id), False)

    def lost_messages(self, client_id: str, cause: int, count: int) -> None:
        """`count` messages for a client were lost; told with the next hand-over."""
        key = (client_id, cause)
        self._losses[key] = self._losses.get(key, 0) + count

    def subscribed(
        self,
        client_id: str,
        topic_filter: str,
        qos: int,
        no_local: bool,
        retain_as_published: bool,
        identifier: int,
        snapshot: bool,
    ) -> None:
        """A subscription was made or replaced, or (`snapshot`) was there before."""
        row: dict[str, Any] = {
            "client_id": client_id,
            "topic_filter": topic_filter,
            "qos": qos,
            "no_local": no_local,
            "retain_as_published": retain_as_published,
        }
        if identifier > 0:
            row["subscription_id"] = identifier
        if snapshot:
            row["reason"] = "snapshot"
        self._note("subscribe", row, len(client_id) + len(topic_filter), True)

    def unsubscribed(self, client_id: str, topic_filter: str, ended: bool) -> None:
        """A subscription was taken back, or ended with its session."""
        row: dict[str, Any] = {"client_id": client_id, "topic_filter": topic_filter}
        if ended:
            row["reason"] = "session-ended"
        self._note("unsubscribe", row, len(client_id) + len(topic_filter), True)

    def connected(
        self, client_id: str, address: str, user_name: str | None, version: int, clean_start: bool, present: bool
    ) -> None:
        """A client was accepted."""
        row = {
            "client_id": client_id,
            "address": address,
            "user_name": user_name,
            "protocol": version,
            "clean_start": clean_start,
            "session_present": present,
        }
        self._note("connect", row, len(client_id) + (0 if user_name is None else len(user_name)), True)

    def disconnected(self, client_id: str, address: str, cause: str) -> None:
        """A connection is over, for one of `causes`."""
        kind = "evict" if cause in EVICTIONS else "disconnect"
        self._note(kind, {"client_id": client_id, "address": address, "reason": cause}, len(client_id), True)

    def snapshot(self, first: int, count: int) -> None:
        """All subscriptions were told again, `count` of them, from the number `first` on."""
        self._note("snapshot", {"ref_seq": first, "n": count}, 0, True)

    # -- what the shell calls ------------------------------------------------------------------------------------------

    def note_number(self) -> None:
        """After each batch: write down the last number, so that it outlives the process."""
        if self.seq != self._noted:
            self._noted = self.seq
            _NUMBER.pack_into(self._memo, 0, self.seq)

    def gap(self, first: int, last: int, reason: str) -> None:
        """Numbers that are missing for another reason than a full queue; told whatever room there is."""
        self._put_gap(first, last, reason)

    def hold_publishers(self, load: QueueTotals, most: float) -> None:
        """Have publishers wait from now on while more than half of what may wait does.

        They wait no longer than `most` seconds in which nothing is written.
        """
        self.backlog = Backlog(self, load, most)
        self._half_events = self._max_events // 2
        self._half_bytes = self._max_bytes // 2

    @property
    def half_full(self) -> bool:
        """Whether more than half of what may wait does, where publishers wait for that."""
        events: i64 = self.put_events - self.done_events
        held: i64 = self.put_bytes - self.done_bytes
        return events > self._half_events or held > self._half_bytes

    def shut(self) -> None:
        """Nothing can be written for now: what waits is dropped, and what happens from now on has its numbers alone."""
        self._events = []
        self._losses = {}
        self._gap_from = 0
        self._max_events = self._max_bytes = -1
        # Nobody waits for what cannot be written.
        self.backlog = None
        self._half_events = self._half_bytes = UNLIMITED

    def keep_number(self, memo: Any) -> None:
        """From now on the last number stands elsewhere."""
        self._memo = memo
        self._noted = 0

    def take(self, last: bool) -> list[tuple[Any, ...]]:
        """Everything that has come together, in order. `last`: nothing more will come, an open gap is told now."""
        losses = self._losses
        if losses:
            self._losses = {}
            for (client_id, cause), count in losses.items():
                row = {"client_id": client_id, "reason": DROP_CAUSES[cause], "n": count}
                self._note("drop", row, len(client_id), False)
        if last and self._gap_from > 0:
            self._tell_gap()
        taken = self._events
        self._events = []
        return taken

    @property
    def waiting(self) -> int:
        """Events that are on their way, here and with the sink."""
        return self.put_events - self.done_events

    @property
    def empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self._events and not self._losses

    # -- inside --------------------------------------------------------------------------------------------------------

    def _note(self, kind: str, row: dict[str, Any], length: i64, state: bool) -> None:
        """An event with the columns `row`; `length`: of the texts in it that a client chose."""
        size: i64 = ROW_OVERHEAD * 2 + length
        first = self._number(1, size, state)
        if first > 0:
            self._put((NOTE, first, self.clock(), kind, row), 1, size)

    def _number(self, count: i64, size: i64, state: bool) -> i64:
        """Give so many events their numbers: the first of them, or 0 where there is no room and they are lost."""
        events: i64 = self.put_events - self.done_events + count
        held: i64 = self.put_bytes - self.done_bytes + size
        if state:
            fits = events <= self._max_events and held <= self._max_bytes
        else:
            most: i64 = self._max_events - self._max_events // STATE_PART
            most_bytes: i64 = self._max_bytes - self._max_bytes // STATE_PART
            if self._full:
                most -= most // AGAIN
                most_bytes -= most_bytes // AGAIN
            fits = events <= most and held <= most_bytes
            self._full = not fits
            if events > self._half_events or held > self._half_bytes:
                backlog = self.backlog
                if backlog is not None:
                    backlog.load.crowds += 1
                    backlog.load.crowded_record = backlog
        if not fits:
            self.seq += count
            if self._gap_from == 0:
                self._gap_from = self.seq - count + 1
            self._gap_to = self.seq
            self.lost += count
            if state:
                self._gap_state = True
            return 0
        if self._gap_from > 0:
            self._tell_gap()
        self.seq += count
        return self.seq - count + 1

    def _tell_gap(self) -> None:
        """What was lost until now, as an event of its own; it always has room."""
        first: i64 = self._gap_from
        last: i64 = self._gap_to
        reason = "queue-full+state" if self._gap_state else "queue-full"
        self._gap_from = 0
        self._gap_state = False
        self._put_gap(first, last, reason)

    def _put_gap(self, first: i64, last: i64, reason: str) -> None:
        self.seq += 1
        row: dict[str, Any] = {"from_seq": first, "to_seq": last, "n": last - first + 1, "reason": reason}
        self._put((NOTE, self.seq, self.clock(), "gap", row), 1, ROW_OVERHEAD * 2)

    def _put(self, entry: tuple[Any, ...], count: i64, size: i64) -> None:
        self.put_events += count
        self.put_bytes += size
        self._events.append(entry)
        if len(self._events) >= HAND_OVER:
            self.sink.hand_over()
