"""The messages and control packets that a connection still has to write: one bounded queue for each connected peer.

The fan-out and the session offer, only the connection's flush takes. Promises:
- offered = taken + dropped (by cause) + waiting, at all times, for what was offered here; `offer` returns the cause.
- Bounds in messages and bytes, and the sum over all queues, hold. Control packets are never dropped.
- Only QoS 0 is dropped; the rest is in flight in its session. A drop from the middle leaves a gap, and gaps never
  outnumber the entries (except for a few): dropping has amortised constant cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from canopy_mqtt.core.codec.framing import MAX_PACKET, frame_count, frame_end
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.ledger import (
    ACCEPTED,
    AGE,
    DISCONNECTED,
    EXPIRED,
    FULL_BYTES,
    FULL_MESSAGES,
    GLOBAL,
    NO_ROOM,
    NOT_AUTHORIZED,
    REPLACED,
    TOO_LARGE,
    Ledger,
    add_loss,
    tell,
)
from canopy_mqtt.core.queue_totals import UNLIMITED, bound
from canopy_mqtt.core.queues.delivery import DROPPED, SENT, Delivery, DeliveryRun
from canopy_mqtt.core.queues.message import NEAR_MAX_SIZE, OVERHEAD, Message
from canopy_mqtt.core.queues.outgoing_topics import OutgoingTopics
from canopy_mqtt.core.queues.queue_terms import DISCONNECT, DROP_NEWEST, DROP_OLDEST

if TYPE_CHECKING:
    from canopy_mqtt.core.queues.held import HeldAnswers
    from canopy_mqtt.core.queues.requests import Peer

MAX_CONTROL_BYTES: Final = 65_536
"""Bytes of unread acknowledgements at which reading from the peer stops: a peer that floods pings gets no further."""

MIN_GAPS: Final = 32
"""Gaps that are not worth closing."""

NEVER_TAKEN: Final = -1e9
"""The time at which something was taken from a queue that was never taken from: longer ago than any `standstill`."""

NOT_SENT: Final = -2
"""Answer of `take_delivery` for a delivery that is not to be sent any more."""


class SendBuffer:
    """One peer's queue. All sizes in bytes. It knows no socket and no task."""

    def __init__(self, touched: list[SendBuffer], counters: Counters, max_messages: int, max_bytes: int) -> None:
        """`touched`: where it is listed when it has something to take (`ConnectedPeers.touched`). Limits of 0:
        unlimited."""
        # Whole frames, several QoS 0 ones in one piece, or deliveries whose frame is made when it is taken; None is a
        # gap, and so is a delivery that was dropped.
        self.items: list[object] = []
        self.messages: i64 = 0
        self.bytes: i64 = 0
        self.max_messages: i64 = bound(max_messages)
        self.max_bytes: i64 = bound(max_bytes)
        self.max_packet: i64 = MAX_PACKET
        # The fill above which `counters.half_full` grows, once until something is taken.
        self._message_mark: i64 = self.max_messages >> 1
        self._byte_mark: i64 = self.max_bytes >> 1
        # True while it is in the list that the connection goes through after each read. The connection sets it back.
        self.listed = False
        self.closed = False
        self.v5 = False  # set once, when the connection's version and limits are known, as `max_packet` and `topics`
        self._over_half_reported = False
        self._lags = False  # something has waited ever since the last one was taken
        # Publishers wait for this client while it reads and has more than half of its queue before it.
        self.holds = True
        # Something here is worth less the longer it waits: small writes, and little in the system's hands.
        self.fresh = False
        self.tells_losses = False  # the peer is told what it lost (`canopy-lost`)
        self._totals = counters.totals
        self.offered: i64 = 0
        # Since when the message that is watched waits (0.0: none is watched), and how many items go before it has gone.
        self._since: float = 0.0
        self._ahead: i64 = 0
        self._touched = touched
        # Up to here each offer; what follows is for control packets, deliveries, and taking.
        self.control_bytes: i64 = 0
        # Deliveries and runs of them.
        self.deferred: i64 = 0
        self.gaps: i64 = 0
        # Nothing before this place can be shed.
        self._head: i64 = 0
        # Waiting messages of QoS 1 and 2: they are in flight in the session, and not lost with this queue.
        self.in_flight_messages: i64 = 0
        self.in_flight_bytes: i64 = 0
        # Last acknowledgements of the peer's publishes that are queued and not written. What the peer cannot have seen
        # still counts against its Receive Maximum.
        self.unwritten: i64 = 0
        # Those that are not even queued yet, since something has to happen first; bytes of what waits for a commit.
        self.unqueued: i64 = 0
        self.held_bytes: i64 = 0
        # With a store that commits later: the packets that may not be queued yet.
        self.held: HeldAnswers | None = None
        self.topics: OutgoingTopics | None = None
        # Of the client; set when a session gets this queue.
        self.ledger: Ledger | None = None
        # The protocol that this queue is for, and the shell's own object for it (its connection).
        self.peer: Peer | None = None
        self.owner: object | None = None
        self.policy: i64 = DROP_NEWEST
        self._counters = counters
        # QoS 1 and 2 deliveries that expired here; None: none. It is read after each write.
        self.expired: list[Delivery] | None = None
        self._taken_at: float = NEVER_TAKEN
        # Waiting messages that were delivered before and are sent again: the ledger counted them then.
        self.retransmissions: i64 = 0
        self.taken: i64 = 0
        # Of those, without the memory that a message takes besides.
        self.taken_bytes: i64 = 0
        self.high_water: i64 = 0
        self.dropped: list[int] | None = None
        # Time in the queue of the last message that was watched (s).
        self.delay: float = 0.0
        # What had been taken when subscribers were last compared (`observe.sampling.subscribers`).
        self.compared: i64 = 0
        self.compared_bytes: i64 = 0

    def limit(self, policy: int, max_messages: int, max_bytes: int) -> None:
        """Set the terms of its client, before anything is offered. Limits of 0: unlimited."""
        self.policy = policy
        self.max_messages = bound(max_messages)
        self.max_bytes = bound(max_bytes)
        self._mark()

    def low_latency(self, fresh: bool) -> None:
        """Set `fresh`: messages here lose value with time. Publishers do not wait for such subscribers."""
        self.fresh = fresh
        self.holds = not fresh and self.policy != DROP_OLDEST

    def name_topics(self, topics: OutgoingTopics) -> None:
        """Make frames for this peer only, with these topic names. Called once `max_packet` is known."""
        self.topics = topics
        if topics.mount and self.max_packet >= MAX_PACKET:
            self.max_packet = MAX_PACKET - 1  # so `refusal` looks at each message; no other peer pays for that

    # -- what the fan-out does -----------------------------------------------------------------------------------------

    def offer(self, frame: bytes) -> int:
        """Offer a QoS 0 frame: ACCEPTED, or the cause of its drop."""
        self.offered += 1
        size: i64 = len(frame)
        totals = self._totals
        # Asked here and not by `_make_room`: for every message and receiver.
        if (
            self.messages >= self.max_messages
            or self.bytes + size > self.max_bytes
            or size > self.max_packet
            or self.closed
            or totals.messages >= totals.max_messages
            or totals.bytes + size > totals.max_bytes
        ):
            cause = self._make_room(1, size, size)
            if cause != ACCEPTED:
                return self._count_dropped(cause, 1)
        totals.messages += 1
        totals.bytes += size
        self._append(frame, 1, size)
        return ACCEPTED

    def offer_run(self, frames: bytes, count: i64, largest: i64) -> None:
        """Offer `count` QoS 0 frames that stand side by side; `largest` is the size of the longest.

        The same happens as when they are offered one by one, only that those that fit stand in the queue as one piece.
        """
        size: i64 = len(frames)
        totals = self._totals
        if (
            self.messages + count <= self.max_messages
            and self.bytes + size <= self.max_bytes
            and largest <= self.max_packet
            and not self.closed
            and totals.messages + count <= totals.max_messages
            and totals.bytes + size <= totals.max_bytes
        ) or (self.policy == DROP_OLDEST and self._make_room(count, size, largest) == ACCEPTED):
            self.offered += count
            totals.messages += count
            totals.bytes += size
            self._append(frames, count, size)
        elif (
            self.deferred == 0
            and self.messages >= self.max_messages
            and self.policy == DROP_NEWEST
            and not self.closed
            and largest <= self.max_packet
        ):
            # A queue that is full of messages has no room for any of them.
            self.offered += count
            self._count_dropped(FULL_MESSAGES, count)
        else:
            start: i64 = 0
            while start < size:
                end: i64 = frame_end(frames, start, size)
                self.offer(frames[start:end])
                start = end

    def offer_late(self, delivery: Delivery) -> int:
        """Offer a QoS 0 delivery whose frame is made when it is taken: ACCEPTED, or the cause of its drop."""
        shared = None if self.topics is None else self.topics.shared_frame(delivery, self.v5)
        if shared is not None:
            return self.offer(shared)
        self.offered += 1
        size: i64 = delivery.message.size
        cause = self.refusal(delivery.message, 0, delivery.identifiers)
        if cause == ACCEPTED:
            cause = self._make_room(1, size, 0)
        if cause != ACCEPTED:
            return self._count_dropped(cause, 1)
        delivery.live = True
        self.deferred += 1
        totals = self._totals
        totals.messages += 1
        totals.bytes += size
        self._append(delivery, 1, size)
        return ACCEPTED

    def _make_room(self, count: i64, size: i64, largest: i64) -> int:
        """Do what the policy says for messages that do not fit: ACCEPTED when they fit now, else the cause of drop."""
        if largest > self.max_packet:
            return TOO_LARGE
        if self.closed:
            return DISCONNECTED
        if self.deferred > 0:
            self.shed_expired()
        messages: i64 = self.messages + count - self.max_messages
        beyond: i64 = self.bytes + size - self.max_bytes
        if count == 1 and size > self.max_bytes:
            # One that exceeds the limit alone is accepted into an empty queue only, and no other message goes for it.
            beyond = self.bytes
        if messages > 0 or beyond > 0:
            cause = FULL_MESSAGES if messages > 0 else FULL_BYTES
            if self.policy == DROP_OLDEST and size <= self.max_bytes and count <= self.max_messages:
                if messages > self.messages - self.in_flight_messages or beyond > self.bytes - self.in_flight_bytes:
                    # Too much of it is in flight.
                    return cause
                self.shed(messages, beyond, cause)
            else:
                if self.policy == DISCONNECT and size <= self.max_bytes:
                    self.overflow()
                return cause
        totals = self._totals
        # A client with nothing waiting does not pay for those that have: the next message, or burst, is let through.
        if (
            self.messages > 0
            and not totals.has_room(count, size)
            and not totals.admits(count, size, self.messages, self.bytes)
        ):
            return GLOBAL
        return ACCEPTED

    def overflow(self) -> None:
        """Close a full queue whose policy ends the connection, before the next batch."""
        if not self.closed:
            self.closed = True
            if self.peer is not None:
                self._totals.overflowed.append(self.peer)

    def _append(self, item: object, count: i64, size: i64) -> None:
        """Queue what was accepted: `count` messages of `size` bytes in all, which the sum over all queues has."""
        self.items.append(item)
        self.messages += count
        self.bytes += size
        if self._since == 0.0:
            self._since = self._totals.now
            self._ahead = len(self.items)
        if self.messages > self._message_mark or self.bytes > self._byte_mark:
            self._report_over_half()
        if not self.listed:
            self.listed = True
            self._touched.append(self)

    def _report_over_half(self) -> None:
        """Tell routing that more than half of the messages that may wait do."""
        totals = self._totals
        if not self._over_half_reported:
            # The connection should have a turn. Once: a client that does not read slows no publisher.
            self._over_half_reported = True
            self._counters.half_full += 1
        elif not self.holds_publishers(totals.now):
            self._message_mark = UNLIMITED
            self._byte_mark = UNLIMITED
            return
        totals.over_half += 1
        totals.over_half_buffer = self

    def holds_publishers(self, now: float) -> bool:
        """Return whether publishers should wait: more than half of what may wait does, and the client reads."""
        return (
            self.holds
            and (self.messages * 2 > self.max_messages or self.bytes * 2 > self.max_bytes)
            and now < self._taken_at + self._totals.standstill
        )

    def _mark(self) -> None:
        """Tell of a queue that is half full when it becomes so again."""
        self._over_half_reported = False
        self._message_mark = self.max_messages >> 1
        self._byte_mark = self.max_bytes >> 1

    # -- what the session does -----------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Return whether a message of `size` bytes fits now. The session asks before it sends with QoS 1 or 2.

        One always fits an empty queue, whatever its size: the limit in bytes is for those that wait beside it.
        """
        return (
            not self.closed
            and self.messages < self.max_messages
            and (self.bytes + size <= self.max_bytes or self.messages == 0)
        )

    def takes_unchanged(self, count: i64, size: i64) -> bool:
        """Return whether `count` more of `size` bytes fit and are sent unchanged: nothing depends on the peer."""
        return (
            self.messages + count <= self.max_messages
            and self.bytes + size <= self.max_bytes
            and not self.closed
            and self.topics is None
            and self.max_packet >= MAX_PACKET
            and size < NEAR_MAX_SIZE
        )

    def refusal(self, message: Message, qos: int, identifiers: tuple[int, ...]) -> int:
        """Return ACCEPTED, or why this peer can never be sent a message [MQTT-3.1.2-24].

        Its Maximum Packet Size, the protocol, or `topics` may forbid it.
        """
        if self.max_packet >= MAX_PACKET and message.size < NEAR_MAX_SIZE:
            return ACCEPTED
        known = message if self.topics is None else self.topics.unmounted(message)
        if known is None:
            return NOT_AUTHORIZED
        # A topic alias is our own choice: one that would make the frame too large is left out (`OutgoingTopics`).
        size = known.frame_size(self.v5, qos, identifiers, known.expires_at != 0.0)
        return TOO_LARGE if size > self.max_packet else ACCEPTED

    def push(self, delivery: Delivery) -> None:
        """Queue a delivery for which `has_room` was true. With QoS 1 and 2 it is in flight in its session."""
        if delivery.attempts > 0:
            self.retransmissions += 1
        else:
            self.offered += 1
        size: i64 = delivery.message.size
        self.deferred += 1
        if delivery.qos > 0:
            # The broker's sum has had it since it came to the session, until it is acknowledged.
            self.in_flight_messages += 1
            self.in_flight_bytes += size
        else:
            delivery.live = True
            totals = self._totals
            totals.messages += 1
            totals.bytes += size
        self._append(delivery, 1, size)

    def offer_retained(self, frame: bytes) -> int:
        """Offer a retained QoS 0 message for a new subscription: ACCEPTED, TOO_LARGE, or NO_ROOM.

        Without room it waits in the retained tree. The first one goes also where all queues together are full.
        """
        size: i64 = len(frame)
        totals = self._totals
        if size > self.max_packet:
            return TOO_LARGE
        # `has_room` here and of all queues, spelled out: this is asked for every retained message.
        if (
            self.closed
            or self.messages >= self.max_messages
            or (self.messages > 0 and (self.bytes + size > self.max_bytes or totals.bytes + size > totals.max_bytes))
            or (self.messages > 0 and totals.messages >= totals.max_messages)
        ):
            return NO_ROOM
        self.offered += 1
        totals.messages += 1
        totals.bytes += size
        self._append(frame, 1, size)
        return ACCEPTED

    def push_run(self, run: DeliveryRun, size: i64) -> None:
        """Queue a run, as `push` each of its deliveries; `size`: bytes of their messages together."""
        count: i64 = len(run.deliveries)
        self.offered += count
        self.deferred += 1
        self.in_flight_messages += count
        self.in_flight_bytes += size
        self._append(run, count, size)

    def replace(self, grown: i64) -> None:
        """Count a newer message that took the place of a waiting QoS 0 delivery's, larger by `grown` bytes."""
        self.offered += 1
        self.bytes += grown
        self._totals.bytes += grown
        self._count_dropped(REPLACED, 1)

    # -- what the protocol does ----------------------------------------------------------------------------------------

    def control(self, packet: bytes) -> None:
        """Queue a control packet, or several of four bytes each; none is longer and begins so. Never dropped.

        One that ends a publish of the peer counts until it is written (`ended_publishes`).
        And never held back by a used-up send quota: that is the session's, and for PUBLISH alone [MQTT-3.3.4-10]
        [MQTT-4.9.0-3].
        """
        if self.closed:
            return
        self.items.append(packet)
        size: i64 = len(packet)
        self.control_bytes += size
        if packet[0] < 0x80:
            self.unwritten += ended_publishes(packet)
        self._counters.control_sent += size >> 2 if size > 4 and packet[1] == 2 else 1
        if not self.listed:
            self.listed = True
            self._touched.append(self)

    def schedule_flush(self) -> None:
        """Let the connection handle this buffer after the present batch."""
        if not self.listed:
            self.listed = True
            self._touched.append(self)

    def report_end(self) -> None:
        """Let the shell handle this buffer after the present batch, even if it is listed already: it has ended."""
        self.listed = True
        self._touched.append(self)

    @property
    def congested(self) -> bool:
        """True when the peer should not be read from until it reads its acknowledgements."""
        return self.control_bytes + self.held_bytes > MAX_CONTROL_BYTES

    # -- what the connection's flush does ------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """True when there is nothing to take."""
        return not self.items

    def take(self, max_bytes: int, now: float) -> bytes:
        """Return what waits in one piece, in order: all of it, or about `max_bytes`. Empty only if nothing waits."""
        items = self.items
        ledger = self.ledger
        totals = self._totals
        telling = self.tells_losses and ledger is not None and ledger.untold is not None
        item = items[0] if len(items) == 1 and not telling else None
        if isinstance(item, bytes):
            # The commonest case where messages come one at a time: the list stays. `clear` gives its memory back to the
            # small-object allocator; `pop` would leave it with an empty block of `malloc`, which it grows each time.
            items.clear()
            data = item
        elif self.topics is None and isinstance(item, Delivery) and item.is_plain():
            items.clear()
            item.attempts = 1
            data = item.message.qos12_frame(self.v5, item.qos, item.packet_id)
            self._count_sent(item.qos, 1)
            self._counters.publish_bytes_sent += len(data) - self.bytes
            self.deferred = 0
            self.in_flight_messages = 0
            self.in_flight_bytes = 0
            # The broker's sum keeps it until it is acknowledged.
            totals.messages += 1
            totals.bytes += self.bytes
            self.taken_bytes -= OVERHEAD
        elif telling or self.deferred > 0 or self.gaps > 0 or self.bytes + self.control_bytes > max_bytes:
            return b"".join(self.take_batch(max_bytes, now))
        else:
            data = b"".join(items)  # type: ignore[arg-type]
            self.items = []
        # All that waited is taken.
        if self._over_half_reported:
            self._mark()
        self._taken_at = now
        messages: i64 = self.messages
        if messages > 0:
            if messages > self.high_water:
                self.high_water = messages
            size: i64 = self.bytes
            self.taken += messages
            self.taken_bytes += size
            self._counters.messages_sent += messages
            self._counters.publish_bytes_sent += size
            totals.messages -= messages
            totals.bytes -= size
            self.messages = 0
            self.bytes = 0
        self.control_bytes = 0
        self.unwritten = 0
        self._head = 0
        if self._since > 0.0:
            self.delay = now - self._since
            self._since = 0.0
        self._lags = False
        return data

    def take_batch(self, max_bytes: int, now: float) -> list[bytes]:
        """Return frames to write, as `take`: one by one, also part of the queue, and those that are made now."""
        self.begin_batch()
        batch: list[bytes] = []
        most: i64 = max_bytes
        total: i64 = 0
        used: i64 = 0
        gaps: i64 = 0
        sent: i64 = 0
        length: i64 = 0
        for item in self.items:
            if total >= most:
                break
            used += 1
            if isinstance(item, bytes):
                frame = item
                if frame[0] & 0xF0 == 0x30:
                    count: i64 = frame_count(frame)
                    self._uncount(count, len(frame))
                    self.taken += count
                    self.taken_bytes += len(frame)
                    sent += count
                    length += len(frame)
                else:
                    self.control_bytes -= len(frame)
                    self.unwritten -= ended_publishes(frame)
            elif isinstance(item, Delivery) and item.state != DROPPED:
                expiry = self.take_delivery(item, now)
                if expiry == NOT_SENT:
                    continue
                if (
                    item.qos > 0
                    and item.attempts == 0
                    and expiry < 0
                    and not item.retain
                    and not item.identifiers
                    and self.topics is None
                ):
                    item.attempts = 1
                    frame = item.message.qos12_frame(self.v5, item.qos, item.packet_id)
                else:
                    frame = self._frame(item, expiry)
                sent += 1
                length += len(frame)
                if item.qos > 0:
                    self._count_sent(item.qos, 1)
            elif isinstance(item, DeliveryRun):
                frame = item.frames
                sent += self._take_run(item)
                length += len(frame)
            else:
                gaps += 1
                continue
            batch.append(frame)
            total += len(frame)
        self.end_batch(used, gaps, sent, length, now)
        ledger = self.ledger
        if self.tells_losses and ledger is not None and ledger.untold is not None:
            # The next message says what was lost before it.
            tell(batch, ledger, self.max_packet)
        return batch

    def _frame(self, delivery: Delivery, expiry: int) -> bytes:
        """Return the frame of a delivery that is sent now."""
        # DUP says that we send it again; the publisher's own DUP is not even known here [MQTT-3.3.1-3].
        dup = delivery.attempts > 0
        if delivery.qos > 0:
            delivery.attempts += 1
        topics = self.topics
        if topics is None:
            return delivery.frame(delivery.message, self.v5, expiry, dup, 0, True)
        return topics.frame(delivery, self.v5, expiry, dup, self.max_packet)

    def begin_batch(self) -> None:
        """Begin to take items from the front one by one, and out of the accounts; `end_batch` follows."""
        self._mark()
        if self.messages > self.high_water:
            self.high_water = self.messages

    def take_delivery(self, delivery: Delivery, now: float) -> int:
        """Take a delivery out of the accounts: the rest of its message expiry interval, as `remaining_expiry`.

        NOT_SENT when it is not to be sent any more.
        """
        message = delivery.message
        qos = delivery.qos
        first = delivery.attempts == 0
        self.deferred -= 1
        size: i64 = message.size
        message_terms = delivery.message_terms
        if qos > 0:
            self.messages -= 1
            self.bytes -= size
            self.in_flight_messages -= 1
            self.in_flight_bytes -= size
        else:
            self._uncount(1, size)
            if message_terms is not None:
                message_terms.leave(delivery)
        if not first:
            self.retransmissions -= 1
            if delivery.state != SENT:
                # Acknowledged on the strength of an earlier sending.
                return NOT_SENT
        # The rest of its interval after the wait in here goes out [MQTT-3.3.2-6]; once sent, it does not end
        # [MQTT-4.3.3-7].
        expiry = -1 if message.expires_at == 0.0 else message.remaining_expiry(now)
        if first:
            if expiry == 0 or (message_terms is not None and message_terms.too_old(delivery, now)):
                # Delivery had not begun: the copy is deleted [MQTT-3.3.2-5].
                self._count_dropped(EXPIRED if expiry == 0 else AGE, 1)
                if qos > 0:
                    if self.expired is None:
                        self.expired = []
                    self.expired.append(delivery)
                return NOT_SENT
            self.taken += 1
            self.taken_bytes += size - OVERHEAD
        return expiry

    def _take_run(self, run: DeliveryRun) -> i64:
        """Take a run out of the accounts, and return how many deliveries it has."""
        count: i64 = 0
        size: i64 = 0
        for delivery in run.deliveries:
            delivery.attempts = 1
            count += 1
            size += delivery.message.size
        self.deferred -= 1
        self.messages -= count
        self.bytes -= size
        self.in_flight_messages -= count
        self.in_flight_bytes -= size
        self.taken += count
        self._count_sent(run.deliveries[0].qos, count)
        self.taken_bytes += size - count * OVERHEAD
        return count

    def _count_sent(self, qos: int, count: i64) -> None:
        """Count messages of QoS 1 or 2 that are sent, or sent again."""
        if qos == 1:
            self._counters.sent_qos1 += count
        else:
            self._counters.sent_qos2 += count

    def end_batch(self, used: i64, gaps: i64, sent: i64, length: i64, now: float) -> None:
        """Remove `used` items from the front: `gaps` of them gaps; with them went `sent` messages, `length` bytes."""
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
                # The last of the rest is watched next; how long it has waited before is not known any more.
                self._lags = bool(self.items)
                self._since = now if self._lags else 0.0
                self._ahead = len(self.items)

    def waited(self, now: float) -> float:
        """Return seconds in the queue, of the message that is watched or was last; 0.0 when none waits.

        One message is watched until it leaves, then the next, so no clock is read for each.
        """
        if self.messages == 0:
            return 0.0
        present = now - self._since if self._since > 0.0 else 0.0
        return self.delay if self._lags and self.delay > present else present

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Accept no more; messages that wait can still be taken."""
        self.closed = True

    def discard(self, cause: int) -> None:
        """Throw away the messages that wait and close; count those of QoS 0 as dropped by `cause`.

        Control packets stay for the flush to finish with; QoS 1 and 2 messages stay in flight in the session.
        """
        lost: i64 = self.messages - self.in_flight_messages
        if lost > 0:
            self._count_dropped(cause, lost)
            self._uncount(lost, self.bytes - self.in_flight_bytes)
        # What goes back to the session was not offered to the peer after all.
        self.offered -= self.in_flight_messages - self.retransmissions
        if self.items:
            kept: list[object] = []
            for item in self.items:
                if isinstance(item, bytes):
                    if item[0] & 0xF0 != 0x30:
                        kept.append(item)
                elif isinstance(item, Delivery) and item.message_terms is not None and item.qos == 0:
                    item.message_terms.leave(item)
            self.items = kept
        self.gaps = 0
        self._head = 0
        self.deferred = 0
        self.messages = 0
        self.bytes = 0
        self.in_flight_messages = 0
        self.in_flight_bytes = 0
        self.retransmissions = 0
        self._since = 0.0
        self.closed = True

    # -- shedding ------------------------------------------------------------------------------------------------------

    def shed(self, messages: i64, size: i64, cause: int) -> None:
        """Drop the oldest QoS 0 messages until that many messages and bytes have gone, or there are no more."""
        items = self.items
        at: i64 = self._head
        while at < len(items) and (messages > 0 or size > 0):
            item = items[at]
            if isinstance(item, bytes) and item[0] & 0xF0 == 0x30:
                count: i64 = 0
                gone: i64 = 0
                whole: i64 = len(item)
                while gone < whole and (messages > count or size > gone):
                    gone = frame_end(item, gone, whole)
                    count += 1
                self._uncount(count, gone)
                self._count_dropped(cause, count)
                messages -= count
                size -= gone
                if gone < whole:
                    items[at] = item[gone:]
                    break
                items[at] = None
                self.gaps += 1
            elif isinstance(item, Delivery) and item.qos == 0 and item.state != DROPPED:
                messages -= 1
                size -= item.message.size
                self._take_down(item, cause)
            at += 1
        self._head = at
        self._close_gaps()

    def shed_expired(self) -> None:
        """Drop what has expired, from the front on: a queue that is full of it is not full [MQTT-3.3.2-5]."""
        now = self._totals.now
        items = self.items
        at: i64 = self._head
        while at < len(items):
            item = items[at]
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
        self._uncount(1, delivery.message.size)
        self._count_dropped(cause, 1)
        self.deferred -= 1
        message_terms = delivery.message_terms
        if message_terms is not None:
            message_terms.leave(delivery)
        delivery.drop()
        self.gaps += 1

    def _uncount(self, count: i64, size: i64) -> None:
        """Take QoS 0 messages that wait no more out of the sums."""
        self.messages -= count
        self.bytes -= size
        totals = self._totals
        totals.messages -= count
        totals.bytes -= size

    def _close_gaps(self) -> None:
        """Make the list anew when most of it is gaps."""
        if self.gaps <= MIN_GAPS or self.gaps * 2 < len(self.items):
            return
        kept: list[object] = []
        head: i64 = 0
        for at, item in enumerate(self.items):
            if item is not None and not (isinstance(item, Delivery) and item.state == DROPPED):
                kept.append(item)
                if at < self._head:
                    head += 1
        self.items = kept
        self.gaps = 0
        self._head = head
        if self._ahead > len(kept):
            self._ahead = len(kept)

    # -- the ledger ----------------------------------------------------------------------------------------------------

    def _count_dropped(self, cause: int, count: i64) -> int:
        """Count messages that were offered here as dropped, for `cause`; return the cause."""
        self.dropped = add_loss(self.dropped, cause, count)
        ledger = self.ledger
        if ledger is not None:
            return ledger.lost(cause, count)
        self._counters.dropped[cause] += count
        return cause


def ended_publishes(packet: bytes) -> i64:
    """Return of how many publishes the acknowledgements in a piece are the last; any control packet may be asked about.

    A publish of the peer ends with our PUBACK, our PUBCOMP, or a PUBREC that refuses it (section 3.3.4). A piece is one
    acknowledgement, or several of four bytes of one kind. 3.1.1 has no reason codes: there every PUBCOMP counts, as one
    packet more that the peer has to read.
    """
    kind: i64 = packet[0]
    size: i64 = len(packet)
    whole = size & 3 == 0
    if kind == 0x40:
        if whole:
            return size >> 2
        return 1
    if kind == 0x70:
        # With a reason code it is "Packet Identifier not found", or success of an earlier connection's publish.
        if whole:
            return size >> 2
        return 0
    if kind == 0x50 and not whole and packet[4] >= 0x80:
        return 1
    return 0


def uncounted_pubcomp(packet_id: int) -> bytes:
    """Return a PUBCOMP of 5.0 with success that ends no publish of its connection: its reason code is written out."""
    return bytes((0x70, 3, packet_id >> 8, packet_id & 0xFF, 0))
