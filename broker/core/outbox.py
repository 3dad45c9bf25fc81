"""What waits to be written to one connected peer.

Owns the queue between the fanout and the peer's writer. The fanout offers, the writer alone takes.

Promises:
- Bounded: never more than `max_messages` messages and `max_bytes` bytes of messages, whatever arrives in one read.
  `offer` answers accepted, or the cause of the drop; nothing is dropped in silence.
- Control packets (acknowledgements, pings, CONNACK, DISCONNECT …) are never dropped and keep their place in the
  order. They are not counted against the limits; instead `congested` tells the connection to stop reading from a
  peer that sends but does not read.
- The ledger is exact: offered = taken + dropped (by cause) + waiting, at all times, for what was offered here.

Refuses: any knowledge of sockets, tasks or sessions. A frame made at the last moment (`Delivery` in the queue) is
for what depends on when it is written: a message expiry interval that counts down, and topic aliases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.counters import DISCONNECTED, DROP_CAUSES, EXPIRED, FULL_BYTES, FULL_MESSAGES, TOO_LARGE, Counters
from broker.core.frames import frame_count
from broker.core.message import NEAR_LONGEST, SENT, Delivery

if TYPE_CHECKING:
    from mypy_extensions import i64

ACCEPTED: Final = -1
"""Answer of `offer`; every other answer is a drop cause of `counters`."""

CONTROL_LIMIT: Final = 65_536
"""Bytes of unread acknowledgements at which reading from the peer stops; a peer that floods pings gets no further."""

LARGEST_PACKET: Final = 268_435_460
"""Fixed header and the largest remaining length, section 2.1.4."""

UNLIMITED: Final = 1 << 60


class Peer:
    """The connection behind an outbox, as far as the core needs to know it."""

    def take_over(self, now: float) -> None:
        """Another connection has come with the same client identifier: this one ends [MQTT-3.1.4-3]."""
        raise NotImplementedError


class Outbox:
    """The bounded queue of one peer. All sizes in bytes."""

    def __init__(self, wakeups: list[Outbox], counters: Counters, max_messages: int, max_bytes: int) -> None:
        """`wakeups`: where an outbox is listed when it has something to take. Limits of 0: unlimited."""
        # Set once, when the connection's version and limits are known.
        self.v5 = False
        self.max_packet: i64 = LARGEST_PACKET
        self.max_aliases: i64 = 0
        self.max_messages: i64 = max_messages if max_messages > 0 else UNLIMITED
        self.max_bytes: i64 = max_bytes if max_bytes > 0 else UNLIMITED
        # The channel that this queue is for, and whatever the shell wants to find from here (its connection).
        self.peer: Peer | None = None
        self.owner: object | None = None
        # Fill at which `counters.half_full` is told, once until the writer takes something.
        self._message_mark: i64 = self.max_messages // 2
        self._byte_mark: i64 = self.max_bytes // 2
        # The queue: whole frames, several QoS 0 ones in one piece, or deliveries whose frame is made when it is taken.
        self._queue: list[object] = []
        self._late: i64 = 0
        self._aliases: dict[bytes, int] | None = None
        self._expired: list[Delivery] = []
        self.messages: i64 = 0
        self.bytes: i64 = 0
        self.control_bytes: i64 = 0
        # Waiting messages of QoS 1 and 2: they are in flight in the session, and not lost with this queue.
        self.quality: i64 = 0
        # Waiting messages that were delivered before and are sent again: the ledger counted them then.
        self.again: i64 = 0
        # PUBACK and PUBCOMP not yet taken: what the peer cannot have seen still counts against its Receive Maximum.
        self.acks: i64 = 0
        self.closed = False
        # Whose turn it is: the list that the connection goes through after each read, and whether we are on it.
        self._wakeups = wakeups
        self._counters = counters
        self._listed = False
        # The ledger.
        self.offered: i64 = 0
        self.taken: i64 = 0
        self.high_water: i64 = 0
        self.dropped: list[int] | None = None

    # -- what the fanout does ------------------------------------------------------------------------------------------

    def offer(self, frame: bytes) -> int:
        """Offer a QoS 0 frame: ACCEPTED, or the cause of its drop."""
        self.offered += 1
        size: i64 = len(frame)
        if self.messages >= self.max_messages:
            return self._drop(FULL_MESSAGES)
        if self.bytes + size > self.max_bytes:
            return self._drop(FULL_BYTES)
        if size > self.max_packet:
            return self._drop(TOO_LARGE)
        if self.closed:
            return self._drop(DISCONNECTED)
        self._put(frame, 1, size)
        return ACCEPTED

    def offer_run(self, frames: bytes, count: int, largest: int) -> bool:
        """Offer several QoS 0 frames that stand side by side; `largest` is the size of the longest.

        False, and nothing has happened, when not all of them can be taken: they are to be offered one by one then.
        """
        size: i64 = len(frames)
        if (
            self.closed
            or self.messages + count > self.max_messages
            or self.bytes + size > self.max_bytes
            or largest > self.max_packet
        ):
            return False
        self.offered += count
        self._put(frames, count, size)
        return True

    def offer_late(self, delivery: Delivery) -> int:
        """Offer a QoS 0 delivery whose frame is made when it is taken: ACCEPTED, or the cause of its drop."""
        self.offered += 1
        if self.messages >= self.max_messages:
            return self._drop(FULL_MESSAGES)
        if self.bytes + delivery.message.size() > self.max_bytes:
            return self._drop(FULL_BYTES)
        if self.too_large(delivery):
            return self._drop(TOO_LARGE)
        if self.closed:
            return self._drop(DISCONNECTED)
        self._append_late(delivery)
        return ACCEPTED

    # -- what the session does -----------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """True when a message of `size` bytes fits now. The session asks before it sends with QoS 1 or 2."""
        return not self.closed and self.messages < self.max_messages and self.bytes + size <= self.max_bytes

    def half_full(self) -> bool:
        """True when retained messages should wait, so that live ones still find room."""
        return self.messages * 2 >= self.max_messages or self.bytes * 2 >= self.max_bytes

    def too_large(self, delivery: Delivery) -> bool:
        """True when the peer's Maximum Packet Size, or the protocol's, forbids this message [MQTT-3.1.2-24]."""
        message = delivery.message
        if self.max_packet >= LARGEST_PACKET and message.size() < NEAR_LONGEST:
            return False
        expires = message.expires_at != 0.0
        return (
            message.frame_size(self.v5, delivery.qos, delivery.identifiers, expires, self.max_aliases > 0)
            > self.max_packet
        )

    def push(self, delivery: Delivery) -> None:
        """Queue a delivery for which `has_room` was true. With QoS 1 and 2 it is in flight in its session."""
        if delivery.qos > 0:
            self.quality += 1
        if delivery.attempts > 0:
            self.again += 1
        else:
            self.offered += 1
        self._append_late(delivery)

    def _append_late(self, delivery: Delivery) -> None:
        self._late += 1
        self._put(delivery, 1, delivery.message.size())

    def _put(self, item: object, count: i64, size: i64) -> None:
        """Queue what was accepted: `count` messages of `size` bytes in all, in one piece."""
        self._queue.append(item)
        self.messages += count
        self.bytes += size
        if self.messages > self._message_mark or self.bytes > self._byte_mark:
            # Whoever routes is told that the writer should have a turn. Once: one who does not read slows nobody.
            self._counters.half_full += 1
            self._message_mark = UNLIMITED
            self._byte_mark = UNLIMITED
        self.nudge()

    # -- what the channel does -----------------------------------------------------------------------------------------

    def control(self, packet: bytes) -> None:
        """Queue a control packet, or several joined. Never dropped.

        And never held back by a used-up send quota: that is the session's, and for PUBLISH alone [MQTT-3.3.4-10]
        [MQTT-4.9.0-3].
        """
        if self.closed:
            return
        self._queue.append(packet)
        self.control_bytes += len(packet)
        self.nudge()

    def nudge(self) -> None:
        """Have the writer look at this outbox after the present batch."""
        if not self._listed:
            self._listed = True
            self._wakeups.append(self)

    def report_end(self) -> None:
        """Have the shell look at this outbox after the present batch, whatever its writer is doing: it is over."""
        self._listed = True
        self._wakeups.append(self)

    @property
    def congested(self) -> bool:
        """True when the peer should not be read from until it reads its acknowledgements."""
        return self.control_bytes > CONTROL_LIMIT

    # -- what the writer does ------------------------------------------------------------------------------------------

    def woken(self) -> None:
        """The writer was told; the next offer lists this outbox again."""
        self._listed = False

    @property
    def empty(self) -> bool:
        """Nothing to take."""
        return not self._queue

    @property
    def single(self) -> bool:
        """Exactly one thing to take: a frame, or several in one piece."""
        return len(self._queue) == 1

    def take(self, max_bytes: int, now: float) -> bytes:
        """What `take_batch` gives, in one piece; empty when nothing waits."""
        queue = self._queue
        if len(queue) == 1 and self._late == 0:
            # The commonest case where messages come one at a time: the list stays.
            self._taken_all()
            piece = queue.pop()
            assert isinstance(piece, bytes)
            return piece
        batch = self.take_batch(max_bytes, now)
        return batch[0] if len(batch) == 1 else b"".join(batch)

    def take_batch(self, max_bytes: int, now: float) -> list[bytes]:
        """Frames to write, in order: all that waits, or about `max_bytes` of it. Empty only when nothing waits."""
        queue = self._queue
        if self._late == 0 and self.bytes + self.control_bytes <= max_bytes:
            self._queue = []
            self._taken_all()
            return queue  # type: ignore[return-value]
        self._message_mark = self.max_messages // 2
        self._byte_mark = self.max_bytes // 2
        return self._take_some(max_bytes, now)

    def _taken_all(self) -> None:
        """All that waited has gone, and none of it was QoS 1 or 2."""
        self._message_mark = self.max_messages // 2
        self._byte_mark = self.max_bytes // 2
        if self.messages > self.high_water:
            self.high_water = self.messages
        self.taken += self.messages - self.again
        self._counters.messages_sent += self.messages
        self.messages = 0
        self.bytes = 0
        self.control_bytes = 0
        self.quality = 0
        self.again = 0
        self.acks = 0

    def _take_some(self, max_bytes: int, now: float) -> list[bytes]:
        """The slow way: part of the queue, or frames that are made now."""
        if self.messages > self.high_water:
            self.high_water = self.messages
        batch: list[bytes] = []
        total = 0
        used = 0
        sent = 0
        for item in self._queue:
            if total >= max_bytes:
                break
            used += 1
            if isinstance(item, Delivery):
                made = self._take(item, now)
                if made is None:
                    continue
                frame = made
                sent += 1
            else:
                assert isinstance(item, bytes)
                frame = item
                kind = frame[0] & 0xF0
                if kind == 0x30:
                    count = frame_count(frame)
                    self.messages -= count
                    self.bytes -= len(frame)
                    self.taken += count
                    sent += count
                else:
                    self.control_bytes -= len(frame)
                    if kind == 0x40 or kind == 0x70:
                        self.acks -= 1
            batch.append(frame)
            total += len(frame)
        self._queue = self._queue[used:]
        self._counters.messages_sent += sent
        return batch

    def _take(self, delivery: Delivery, now: float) -> bytes | None:
        """Take one delivery out of the accounts and make its frame; None when it is not to be sent any more."""
        message = delivery.message
        qos = delivery.qos
        first = delivery.attempts == 0
        self._late -= 1
        self.messages -= 1
        self.bytes -= message.size()
        if qos > 0:
            self.quality -= 1
        if not first:
            self.again -= 1
            if delivery.state != SENT:
                # Acknowledged on the strength of an earlier sending.
                return None
        # What is left of it after the wait in here goes out [MQTT-3.3.2-6]; once sent, it does not end [MQTT-4.3.3-7].
        expiry = message.remaining_expiry(now)
        if first:
            if expiry == 0:
                # Delivery had not begun: the copy is deleted [MQTT-3.3.2-5].
                self._drop(EXPIRED)
                if qos > 0:
                    self._expired.append(delivery)
                return None
            self.taken += 1
        if qos > 0:
            delivery.attempts += 1
            if first and expiry < 0 and not delivery.retain and not delivery.identifiers and self.max_aliases == 0:
                return message.quality_frame(self.v5, qos, delivery.packet_id)
        # DUP says that we send it again; what the publisher's DUP was is not even known here [MQTT-3.3.1-3].
        return self._make(delivery, expiry, not first)

    def _make(self, delivery: Delivery, expiry: int, dup: bool) -> bytes:
        message = delivery.message
        alias = 0
        with_topic = True
        if self.max_aliases > 0:
            aliases = self._aliases
            if aliases is None:
                aliases = {}
                self._aliases = aliases
            known = aliases.get(message.topic)
            if known is not None:
                alias = known
                with_topic = False
            elif len(aliases) < self.max_aliases:  # [MQTT-3.3.2-11]
                alias = len(aliases) + 1
                aliases[message.topic] = alias
        return message.frame(
            self.v5,
            delivery.qos,
            delivery.retain,
            dup,
            delivery.packet_id,
            delivery.identifiers,
            expiry,
            alias,
            with_topic,
        )

    @property
    def has_expired(self) -> bool:
        """True when `take_expired` has something."""
        return bool(self._expired)

    def take_expired(self) -> list[Delivery]:
        """QoS 1 and 2 deliveries that expired in the queue: the session frees their packet identifiers."""
        if not self._expired:
            return []
        expired = self._expired
        self._expired = []
        return expired

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more; what waits can still be taken."""
        self.closed = True

    def discard(self, cause: int) -> None:
        """Throw away the messages that wait and close; count those of QoS 0 as dropped by `cause`.

        Control packets stay for the writer to finish with; QoS 1 and 2 messages stay in flight in the session.
        """
        lost = self.messages - self.quality
        if lost > 0:
            self._count(cause, lost)
        # What goes back to the session was not offered to the peer after all.
        self.offered -= self.quality - self.again
        left: list[object] = []
        for item in self._queue:
            if isinstance(item, bytes) and item[0] & 0xF0 != 0x30:
                left.append(item)
        self._queue = left
        self._late = 0
        self.messages = 0
        self.bytes = 0
        self.quality = 0
        self.again = 0
        self.closed = True

    def dropped_in_all(self) -> int:
        """Messages dropped here, over all causes."""
        return 0 if self.dropped is None else sum(self.dropped)

    def _drop(self, cause: int) -> int:
        self._count(cause, 1)
        return cause

    def _count(self, cause: int, count: int) -> None:
        dropped = self.dropped
        if dropped is None:
            dropped = [0] * len(DROP_CAUSES)
            self.dropped = dropped
        dropped[cause] += count
        self._counters.dropped[cause] += count
