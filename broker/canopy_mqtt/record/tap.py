"""Numbers the events that the core reports, and queues them for the recorder's thread.

Owns the numbers, the bounded queue between the event loop and the thread, and the account of the events that did not
fit into it. The core reports events to a `Tap` in their order; its user gives it a clock and a `Sink`, and takes
batches. `recorder` has the thread and the wall clock, `files` the files.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import mypyc_attr

from canopy_mqtt.core.causes import EVICTIONS
from canopy_mqtt.core.hooks import Recorder
from canopy_mqtt.core.ledger import DROP_CAUSES
from canopy_mqtt.core.queue_totals import UNLIMITED, PublisherHolder, QueueTotals
from canopy_mqtt.core.queues.message import Message
from canopy_mqtt.core.routing.node_messages import GroupMessage

if TYPE_CHECKING:
    from mypy_extensions import i64

    from canopy_mqtt.core.topics.subscription import Subscription

HAND_OVER: Final = 2_048
"""Entries from which on the sink takes them at once."""

STATE_PART: Final = 8
"""Publishes and deliveries leave 1 / STATE_PART of the room to the other events."""

REOPEN_PART: Final = 4
"""A full queue takes publishes again when 1 / REOPEN_PART of it is free: so there is one gap, and not thousands."""

RUN_OVERHEAD: Final = 96
ROW_OVERHEAD: Final = 160
"""Bytes that an entry counts besides its texts, payloads and frames."""

# The first element of an entry is its kind. Its number and its time (ns, monotonic) are next.
RUN: Final = 0
"""(RUN, number of the first, time, frames, count, True for 5.0, publisher): QoS 0 without flags and properties."""
PUBLISH: Final = 1
"""(PUBLISH, number, time, topic, payload, qos, retain, properties, expiry in seconds or -1, publisher, the share group
for which alone another worker has sent it or "")."""
DELIVER: Final = 2
"""(DELIVER, number, time, client, number of the publish, qos, retain, shared filter or None)."""
NOTE: Final = 3
"""(NOTE, number, time, kind, columns): all other events; `columns` is a dict."""

_NUMBER: Final = Struct("<q")


@mypyc_attr(allow_interpreted_subclasses=True)
class Sink:
    """Takes the entries that a tap has collected."""

    def hand_over(self) -> None:
        """Take the entries (`Tap.take`). Called in the event loop; must not block."""
        raise NotImplementedError


class Backlog(PublisherHolder):
    """Holds publishers while the queue is more than half full and becomes shorter. If nothing is written for `most`
    seconds, it holds them no longer until something is."""

    def __init__(self, tap: Tap, totals: QueueTotals, most: float) -> None:
        self.totals = totals
        self._tap = tap
        self._most = most
        self._done: i64 = -1
        self._moved_at = 0.0

    def holds_publishers(self, now: float) -> bool:
        """See `PublisherHolder`. `now`: seconds, monotonic."""
        tap = self._tap
        if not tap.half_full or tap.done_events != self._done:
            self._done = tap.done_events
            self._moved_at = now
        return tap.half_full and now < self._moved_at + self._most


class Tap(Recorder):
    """Keeps the numbered events of one run of a broker until its user takes them.

    Promises:
    - Every event takes the next number, also an event that is lost: a `gap` event names the missing numbers as soon as
      there is room again. No other number is ever missing.
    - The queue is bounded in events and bytes. Publishes and deliveries leave a part of the room to the other events
      (connections, subscriptions), without which a reader could not interpret them.
    - A burst of QoS 0 messages is one entry, as in a subscriber's queue: the event loop neither copies nor splits it.
    - Between two hand-overs there is one event for all losses of a client with the same cause. If deliveries are
      recorded, each message that a queue refused has an event of its own.
    """

    def __init__(
        self, clock: Callable[[], int], sink: Sink, memo: Any, max_events: int, max_bytes: int, deliveries: bool
    ) -> None:
        """`clock`: ns, monotonic. `memo`: eight writable bytes or more, which hold the last number after each batch.
        `max_events`, `max_bytes`: bounds of the entries here and at the sink; 0: none. `deliveries`: True to record the
        receivers of each message."""
        self.clock = clock
        self.sink = sink
        self.deliveries = deliveries
        self._memo = memo
        self._max_events: i64 = max_events if max_events > 0 else 1 << 60
        self._max_bytes: i64 = max_bytes if max_bytes > 0 else 1 << 60
        # Holds publishers from the two halves on; None: they do not wait.
        self.backlog: Backlog | None = None
        self._half_events: i64 = UNLIMITED
        self._half_bytes: i64 = UNLIMITED
        # The last number, and the number of the message that is being routed.
        self.seq: i64 = 0
        self.ref: i64 = 0
        # The events and bytes that came in, and those that the sink's thread has written; only the thread counts these.
        self.put_events: i64 = 0
        self.put_bytes: i64 = 0
        self.done_events: i64 = 0
        self.done_bytes: i64 = 0
        # The lost events; and the open gap: its numbers, and True if it contains more than publishes and deliveries.
        self.lost: i64 = 0
        self._full = False
        self._gap_from: i64 = 0
        self._gap_to: i64 = 0
        self._gap_state = False
        self._noted: i64 = 0
        self._events: list[tuple[Any, ...]] = []
        self._losses: dict[tuple[str, int], int] = {}

    # -- called by the core --------------------------------------------------------------------------------------------

    def frames(self, data: bytes, count: i64, v5: bool, publisher: str) -> None:
        size: i64 = len(data) + RUN_OVERHEAD
        first = self._number(count, size, False)
        self.ref = self.seq - count + 1
        if first > 0:
            self._put((RUN, first, self.clock(), data, count, v5, publisher), count, size)

    def message(self, message: Message, now: float) -> None:
        frame = message.plain_frame()
        if frame is not None and not isinstance(message, GroupMessage):
            self.frames(frame, 1, message.frame_v5 is not None, message.publisher)
            return
        payload = message.payload()
        size: i64 = message.size + ROW_OVERHEAD
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
                message.share if isinstance(message, GroupMessage) else "",
            )
            self._put(entry, 1, size)

    def delivered(self, client_id: str, qos: int, retain: bool, shared: str | None) -> None:
        first = self._number(1, ROW_OVERHEAD, False)
        if first > 0:
            self._put((DELIVER, first, self.clock(), client_id, self.ref, qos, retain, shared), 1, ROW_OVERHEAD)

    def refused(self, client_id: str, cause: int, shared: str | None) -> None:
        # The queue has counted it as lost already.
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
        key = (client_id, cause)
        self._losses[key] = self._losses.get(key, 0) + count

    def subscribed(self, subscription: Subscription, snapshot: bool) -> None:
        client_id, topic_filter = subscription.session.client_id, subscription.topic_filter
        row: dict[str, Any] = {
            "client_id": client_id,
            "topic_filter": topic_filter,
            "qos": int(subscription.qos),
            "no_local": subscription.no_local,
            "retain_as_published": subscription.retain_as_published,
        }
        if subscription.identifier > 0:
            row["subscription_id"] = int(subscription.identifier)
        if snapshot:
            row["reason"] = "snapshot"
        self._note("subscribe", row, len(client_id) + len(topic_filter), True)

    def unsubscribed(self, client_id: str, topic_filter: str, ended: bool) -> None:
        row: dict[str, Any] = {"client_id": client_id, "topic_filter": topic_filter}
        if ended:
            row["reason"] = "session-ended"
        self._note("unsubscribe", row, len(client_id) + len(topic_filter), True)

    def connected(
        self, client_id: str, address: str, user_name: str | None, version: int, clean_start: bool, present: bool
    ) -> None:
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
        kind = "evict" if cause in EVICTIONS else "disconnect"
        self._note(kind, {"client_id": client_id, "address": address, "reason": cause}, len(client_id), True)

    def note_number(self) -> None:
        # The memo outlives the process.
        if self.seq != self._noted:
            self._noted = self.seq
            _NUMBER.pack_into(self._memo, 0, self.seq)

    # -- called by the recorder ----------------------------------------------------------------------------------------

    def snapshot(self, first: int, count: int) -> None:
        """Record that all `count` subscriptions were recorded again, from the number `first` on."""
        self._note("snapshot", {"ref_seq": first, "n": count}, 0, True)

    def gap(self, first: int, last: int, reason: str) -> None:
        """Record that numbers are missing for another reason than a full queue, also if the queue is full."""
        self._put_gap(first, last, reason)

    def hold_publishers(self, totals: QueueTotals, most: float) -> None:
        """Make publishers wait from now on while the queue is more than half full.

        They wait no longer than `most` seconds in which nothing is written.
        """
        self.backlog = Backlog(self, totals, most)
        self._half_events = self._max_events // 2
        self._half_bytes = self._max_bytes // 2

    @property
    def half_full(self) -> bool:
        """Return True if publishers are to wait and the queue is more than half full."""
        events: i64 = self.put_events - self.done_events
        held: i64 = self.put_bytes - self.done_bytes
        return events > self._half_events or held > self._half_bytes

    def shut(self) -> None:
        """Discard the entries, and only number all later events: nothing can be written."""
        self._events = []
        self._losses = {}
        self._gap_from = 0
        self._max_events = self._max_bytes = -1
        # Publishers do not wait for a disk that cannot be written.
        self.backlog = None
        self._half_events = self._half_bytes = UNLIMITED

    def keep_number(self, memo: Any) -> None:
        """Keep the last number in another memo from now on."""
        self._memo = memo
        self._noted = 0

    def take(self, last: bool) -> list[tuple[Any, ...]]:
        """Return and forget all entries, in their order. `last`: it is the last call, so record an open gap now."""
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
        """The number of events that are not written, here and at the sink."""
        return self.put_events - self.done_events

    @property
    def empty(self) -> bool:
        """True if there is nothing to take."""
        return not self._events and not self._losses

    # -- inside --------------------------------------------------------------------------------------------------------

    def _note(self, kind: str, row: dict[str, Any], length: i64, state: bool) -> None:
        """Queue an event with the columns `row`. `length`: characters in it that a client chose."""
        size: i64 = ROW_OVERHEAD * 2 + length
        first = self._number(1, size, state)
        if first > 0:
            self._put((NOTE, first, self.clock(), kind, row), 1, size)

    def _number(self, count: i64, size: i64, state: bool) -> i64:
        """Number `count` events. Return the first number, or 0 if there is no room for them and they are lost."""
        events: i64 = self.put_events - self.done_events + count
        held: i64 = self.put_bytes - self.done_bytes + size
        if state:
            fits = events <= self._max_events and held <= self._max_bytes
        else:
            most: i64 = self._max_events - self._max_events // STATE_PART
            most_bytes: i64 = self._max_bytes - self._max_bytes // STATE_PART
            if self._full:
                most -= most // REOPEN_PART
                most_bytes -= most_bytes // REOPEN_PART
            fits = events <= most and held <= most_bytes
            self._full = not fits
            if events > self._half_events or held > self._half_bytes:
                backlog = self.backlog
                if backlog is not None:
                    backlog.totals.over_half += 1
                    backlog.totals.over_half_recorder = backlog
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
        """Queue an event for the open gap, also if the queue is full."""
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
