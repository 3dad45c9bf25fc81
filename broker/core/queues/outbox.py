"""What waits to be written to one connected peer.

Owns the queue between the fanout and the peer's writer, on the ground of `SendQueue`. The fanout offers, the writer
alone takes.

Promises:
- Bounded: never more than `max_messages` messages and `max_bytes` bytes of messages, whatever arrives in one read; nor
  more than the broker allows in all its queues. `offer` answers accepted, or the cause of the drop; nothing is dropped
  in silence. What makes room, if anything, is the policy's choice (`policy`).
- Control packets (acknowledgements, pings, CONNACK, DISCONNECT …) are never dropped and keep their place in the
  order. They are not counted against the limits; instead `congested` tells the connection to stop reading from a
  peer that sends but does not read.
- A 5.0 client that lost something is told in the next message that it is sent (`lossnote`).

Refuses: any knowledge of sockets, tasks or sessions. A frame made at the last moment (`Delivery` in the queue) is
for what depends on when it is written: a message expiry interval that counts down, and topic aliases.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.core.codec.framing import frame_count, frame_end
from broker.core.counters import (
    AGE,
    DISCONNECTED,
    EXPIRED,
    FULL_BYTES,
    FULL_MESSAGES,
    GLOBAL,
    REPLACED,
    TOO_LARGE,
    Counters,
)
from broker.core.queues.drop_notice import tell
from broker.core.queues.message import DROPPED, NEAR_LONGEST, SENT, Delivery, DeliveryRun, Message
from broker.core.queues.queue_policy import DISCONNECT, DROP_NEWEST, DROP_OLDEST
from broker.core.queues.queue_totals import bound
from broker.core.queues.receive_window import ReceiveWindow
from broker.core.queues.send_queue import SendQueue

ACCEPTED: Final = -1
"""Answer of `offer`; every other answer is a drop cause of `counters`."""

KEPT_BACK: Final = -3
"""Answer of a session that is a link, for a message that does not go there: it was for somebody else."""

CONTROL_LIMIT: Final = 65_536
"""Bytes of unread acknowledgements at which reading from the peer stops; a peer that floods pings gets no further."""

LARGEST_PACKET: Final = 268_435_460
"""Fixed header and the largest remaining length, section 2.1.4."""


class Peer:
    """The connection behind an outbox, as far as the core needs to know it."""

    def take_over(self, now: float) -> None:
        """Another connection has come with the same client identifier: this one ends [MQTT-3.1.4-3]."""
        raise NotImplementedError

    def overflow(self, now: float) -> None:
        """Its queue ran over, and the policy is to end it then."""
        raise NotImplementedError

    def answer(self, packet_id: int, qos: int, reached: bool) -> None:
        """It is known whether its request reached anybody: acknowledge it (`requests`)."""
        raise NotImplementedError

    def comes_from(self, host: str) -> bool:
        """Whether it is a client's connection from that IP address."""
        del host
        return False


class Outbox(SendQueue):
    """The bounded queue of one peer. All sizes in bytes."""

    def __init__(self, wakeups: list[Outbox], counters: Counters, max_messages: int, max_bytes: int) -> None:
        """`wakeups`: where an outbox is listed when it has something to take. Limits of 0: unlimited."""
        super().__init__(counters, max_messages, max_bytes)
        # Set once, when the connection's version and limits are known.
        self.v5 = False
        self.max_packet: i64 = LARGEST_PACKET
        self.max_aliases: i64 = 0
        # Whether the peer is told of what it lost.
        self.tells = False
        # Whether something here is worth less the longer it waits: small writes then, and little in the system's hands.
        self.fresh = False
        # The channel that this queue is for, and whatever the shell wants to find from here (its connection).
        self.peer: Peer | None = None
        self.owner: object | None = None
        self._aliases: dict[bytes, int] | None = None
        self._expired: list[Delivery] = []
        # What the peer cannot have seen still counts against its Receive Maximum.
        self.receive_window = ReceiveWindow()
        self.closed = False
        # Whose turn it is: the list that the connection goes through after each read, and whether we are on it.
        self._wakeups = wakeups
        self._listed = False

    def limit(self, policy: int, max_messages: int, max_bytes: int) -> None:
        """Give the queue the terms of its client, before anything is offered. Limits of 0: unlimited."""
        self.policy = policy
        self.max_messages = bound(max_messages)
        self.max_bytes = bound(max_bytes)
        self._mark()

    # -- what the fanout does ------------------------------------------------------------------------------------------

    def offer(self, frame: bytes) -> int:
        """Offer a QoS 0 frame: ACCEPTED, or the cause of its drop."""
        self.offered += 1
        size: i64 = len(frame)
        load = self._load
        # `_fits`, spelled out: this is asked for every message and receiver.
        if (
            self.messages >= self.max_messages
            or self.bytes + size > self.max_bytes
            or size > self.max_packet
            or self.closed
            or load.messages >= load.max_messages
            or load.bytes + size > load.max_bytes
        ):
            cause = self._make_room(1, size, size)
            if cause != ACCEPTED:
                return self._drop(cause)
        self._put(frame, 1, size)
        if not self._listed:
            self.schedule_flush()
        return ACCEPTED

    def offer_run(self, frames: bytes, count: i64, largest: i64) -> None:
        """Offer `count` QoS 0 frames that stand side by side; `largest` is the size of the longest.

        The same happens as when they are offered one by one, only that those that fit stand in the queue as one piece.
        """
        size: i64 = len(frames)
        if self._fits(count, size, largest) or (
            self.policy == DROP_OLDEST and self._make_room(count, size, largest) == ACCEPTED
        ):
            self.offered += count
            self._put(frames, count, size)
            self.schedule_flush()
        elif (
            self._deferred == 0
            and self.messages >= self.max_messages
            and self.policy == DROP_NEWEST
            and not self.closed
            and (largest <= self.max_packet)
        ):
            # A queue that is full of messages has no room for any of them.
            self.offered += count
            self._count(FULL_MESSAGES, count)
        else:
            start: i64 = 0
            while start < size:
                end: i64 = frame_end(frames, start, size)
                self.offer(frames[start:end])
                start = end

    def offer_late(self, delivery: Delivery) -> int:
        """Offer a QoS 0 delivery whose frame is made when it is taken: ACCEPTED, or the cause of its drop."""
        self.offered += 1
        if self.too_large(delivery):
            return self._drop(TOO_LARGE)
        size: i64 = delivery.message.size()
        if not self._fits(1, size, 0):
            cause = self._make_room(1, size, 0)
            if cause != ACCEPTED:
                return self._drop(cause)
        delivery.live = True
        self._deferred += 1
        self._put(delivery, 1, size)
        self.schedule_flush()
        return ACCEPTED

    def _fits(self, count: i64, size: i64, largest: i64) -> bool:
        """Whether so many messages of so many bytes can be taken as things stand."""
        load = self._load
        return (
            self.messages + count <= self.max_messages
            and self.bytes + size <= self.max_bytes
            and largest <= self.max_packet
            and not self.closed
            and load.messages + count <= load.max_messages
            and load.bytes + size <= load.max_bytes
        )

    def _make_room(self, count: i64, size: i64, largest: i64) -> int:
        """What does not fit comes: do what the policy says. ACCEPTED when it fits now, else the cause of its drop."""
        if largest > self.max_packet:
            return TOO_LARGE
        if self.closed:
            return DISCONNECTED
        if self._deferred > 0:
            self.shed_expired()
        messages: i64 = self.messages + count - self.max_messages
        beyond: i64 = self.bytes + size - self.max_bytes
        if messages > 0 or beyond > 0:
            cause = FULL_MESSAGES if messages > 0 else FULL_BYTES
            if self.policy == DROP_OLDEST and size <= self.max_bytes and count <= self.max_messages:
                if messages > self.messages - self.qos12_messages or beyond > self.bytes - self.qos12_bytes:
                    # Too much of it is in flight.
                    return cause
                self.shed(messages, beyond, cause)
            else:
                if self.policy == DISCONNECT and size <= self.max_bytes:
                    self.overflow()
                return cause
        load = self._load
        # Who has nothing waiting is not the one to pay for those who have: the next message, or burst, is let through.
        if self.messages > 0 and not load.has_room(count, size) and not load.relieve(count, size):
            return GLOBAL
        return ACCEPTED

    def overflow(self) -> None:
        """The queue is full and the policy says that its peer has to go: it does, before the next batch."""
        if not self.closed:
            self.closed = True
            self._load.overflowed.append(self)

    # -- what the session does -----------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """True when a message of `size` bytes fits now. The session asks before it sends with QoS 1 or 2."""
        return not self.closed and self.messages < self.max_messages and self.bytes + size <= self.max_bytes

    def takes(self, count: i64, size: i64) -> bool:
        """Whether so many more of so many bytes in all fit, and go out as they are: nothing depends on the peer."""
        return (
            self.messages + count <= self.max_messages
            and self.bytes + size <= self.max_bytes
            and not self.closed
            and self.max_aliases == 0
            and self.max_packet >= LARGEST_PACKET
            and size < NEAR_LONGEST
        )

    def half_full(self) -> bool:
        """True when retained messages should wait, so that live ones still find room."""
        return self.messages * 2 >= self.max_messages or self.bytes * 2 >= self.max_bytes

    def too_large(self, delivery: Delivery) -> bool:
        """True when the peer's Maximum Packet Size, or the protocol's, forbids this message [MQTT-3.1.2-24]."""
        return self.too_long(delivery.message, delivery.qos, delivery.identifiers)

    def too_long(self, message: Message, qos: int, identifiers: tuple[int, ...]) -> bool:
        """The same for a message of which no delivery was made."""
        if self.max_packet >= LARGEST_PACKET and message.size() < NEAR_LONGEST:
            return False
        expires = message.expires_at != 0.0
        # A topic alias is our own choice: one that would make the frame too large is left out (`_make`).
        return message.frame_size(self.v5, qos, identifiers, expires) > self.max_packet

    def push(self, delivery: Delivery) -> None:
        """Queue a delivery for which `has_room` was true. With QoS 1 and 2 it is in flight in its session."""
        if delivery.attempts > 0:
            self.again += 1
        else:
            self.offered += 1
        size: i64 = delivery.message.size()
        self._deferred += 1
        if delivery.qos > 0:
            self.qos12_messages += 1
            self.qos12_bytes += size
            # The broker's sum has had it since it came to the session, until it is acknowledged.
            self._line_up(delivery, 1, size)
        else:
            delivery.live = True
            self._put(delivery, 1, size)
        if not self._listed:
            self.schedule_flush()

    def push_run(self, run: DeliveryRun, size: i64) -> None:
        """Queue a run, as `push` each of its deliveries; `size`: bytes of their messages together."""
        count: i64 = len(run.deliveries)
        self.offered += count
        self._deferred += 1
        self.qos12_messages += count
        self.qos12_bytes += size
        self._line_up(run, count, size)
        if not self._listed:
            self.schedule_flush()

    def renewed(self, grown: i64) -> None:
        """A QoS 0 delivery that waits here got a newer message in place of its own, larger by `grown` bytes."""
        self.offered += 1
        self.bytes += grown
        self._load.bytes += grown
        self._drop(REPLACED)

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
        if not self._listed:
            self.schedule_flush()

    def acknowledge(self, packet: bytes) -> None:
        """Queue one PUBACK, PUBREC or PUBCOMP, like any control packet; until it is written it counts."""
        if not self.closed:
            self.receive_window.queued(packet)
            self.control(packet)

    def schedule_flush(self) -> None:
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
        if len(queue) == 1 and self._gaps == 0 and not self._to_tell():
            # The commonest case where messages come one at a time: the list stays.
            item = queue[0]
            if isinstance(item, bytes):
                queue.pop()
                self.receive_window.all_written()
                self._taken_all(now)
                return item
            if isinstance(item, Delivery) and self._is_plain(item):
                queue.pop()
                return self._take_plain(item, now)
        batch = self.take_batch(max_bytes, now)
        return batch[0] if len(batch) == 1 else b"".join(batch)

    def _is_plain(self, delivery: Delivery) -> bool:
        """Whether it is sent for the first time with QoS 1 or 2, and has nothing that is decided when it is written."""
        return (
            delivery.attempts == 0
            and delivery.qos > 0
            and delivery.state == SENT
            and delivery.sub_queue is None
            and delivery.message.expires_at == 0.0
            and not delivery.retain
            and len(delivery.identifiers) == 0
            and self.max_aliases == 0
        )

    def _take_plain(self, delivery: Delivery, now: float) -> bytes:
        """Take the only thing that waits, a plain delivery."""
        message = delivery.message
        self._deferred = 0
        self.qos12_messages = 0
        self.qos12_bytes = 0
        delivery.attempts = 1
        # The broker's sum keeps it until it is acknowledged.
        load = self._load
        load.messages += 1
        load.bytes += self.bytes
        self._taken_all(now)
        return message.qos12_frame(self.v5, delivery.qos, delivery.packet_id)

    def take_batch(self, max_bytes: int, now: float) -> list[bytes]:
        """Frames to write, in order: all that waits, or about `max_bytes` of it. Empty only when nothing waits."""
        queue = self._queue
        if self._deferred == 0 and self._gaps == 0 and self.bytes + self.control_bytes <= max_bytes:
            self._queue = []
            self.receive_window.all_written()
            self._taken_all(now)
            batch: list[bytes] = queue  # type: ignore[assignment]
        else:
            self._mark()
            batch = self._take_some(max_bytes, now)
        if self._to_tell():
            ledger = self.ledger
            assert ledger is not None
            tell(batch, ledger, self.max_packet)
        return batch

    def _to_tell(self) -> bool:
        """Whether the next message is to say what was lost before it."""
        if not self.tells:
            return False
        ledger = self.ledger
        return ledger is not None and ledger.untold is not None

    def _take_some(self, max_bytes: i64, now: float) -> list[bytes]:
        """The slow way: part of the queue, or frames that are made now."""
        if self.messages > self.high_water:
            self.high_water = self.messages
        batch: list[bytes] = []
        total: i64 = 0
        used: i64 = 0
        gaps: i64 = 0
        sent: i64 = 0
        for item in self._queue:
            if total >= max_bytes:
                break
            used += 1
            if isinstance(item, bytes):
                frame = item
                if frame[0] & 0xF0 == 0x30:
                    count: i64 = frame_count(frame)
                    self._uncount(count, len(frame))
                    self.taken += count
                    sent += count
                else:
                    self.control_bytes -= len(frame)
                    self.receive_window.written(frame)
            elif isinstance(item, Delivery) and item.state != DROPPED:
                made = self._take(item, now)
                if made is None:
                    continue
                frame = made
                sent += 1
            elif isinstance(item, DeliveryRun):
                frame = item.frames
                sent += self._take_run(item)
            else:
                gaps += 1
                continue
            batch.append(frame)
            total += len(frame)
        self._went(used, gaps, now)
        self._counters.messages_sent += sent
        return batch

    def _take_run(self, run: DeliveryRun) -> i64:
        """Take a run out of the accounts; how many deliveries it has."""
        count: i64 = 0
        size: i64 = 0
        for delivery in run.deliveries:
            delivery.attempts = 1
            count += 1
            size += delivery.message.size()
        self._deferred -= 1
        self.messages -= count
        self.bytes -= size
        self.qos12_messages -= count
        self.qos12_bytes -= size
        self.taken += count
        return count

    def _take(self, delivery: Delivery, now: float) -> bytes | None:
        """Take one delivery out of the accounts and make its frame; None when it is not to be sent any more."""
        message = delivery.message
        qos = delivery.qos
        first = delivery.attempts == 0
        self._deferred -= 1
        size: i64 = message.size()
        sub_queue = delivery.sub_queue
        if qos > 0:
            self.messages -= 1
            self.bytes -= size
            self.qos12_messages -= 1
            self.qos12_bytes -= size
        else:
            self._uncount(1, size)
            if sub_queue is not None:
                sub_queue.leave(delivery)
        if not first:
            self.again -= 1
            if delivery.state != SENT:
                # Acknowledged on the strength of an earlier sending.
                return None
        # What is left of it after the wait in here goes out [MQTT-3.3.2-6]; once sent, it does not end [MQTT-4.3.3-7].
        expiry = message.remaining_expiry(now)
        if first:
            if expiry == 0 or (sub_queue is not None and sub_queue.too_old(delivery, now)):
                # Delivery had not begun: the copy is deleted [MQTT-3.3.2-5].
                self._drop(EXPIRED if expiry == 0 else AGE)
                if qos > 0:
                    self._expired.append(delivery)
                return None
            self.taken += 1
        if qos > 0:
            delivery.attempts += 1
            if first and expiry < 0 and not delivery.retain and not delivery.identifiers and self.max_aliases == 0:
                return message.qos12_frame(self.v5, qos, delivery.packet_id)
        # DUP says that we send it again; what the publisher's DUP was is not even known here [MQTT-3.3.1-3].
        return self._make(delivery, expiry, not first)

    def _make(self, delivery: Delivery, expiry: int, dup: bool) -> bytes:
        message = delivery.message
        if self.max_aliases > 0:
            aliases = self._aliases
            if aliases is None:
                aliases = {}
                self._aliases = aliases
            known = aliases.get(message.topic, 0)
            alias = known
            if alias == 0 and len(aliases) < self.max_aliases:  # [MQTT-3.3.2-11]
                alias = len(aliases) + 1
            if alias > 0:
                frame = self._frame(delivery, expiry, dup, alias, known == 0)
                # What fits only by its topic alone goes out by its topic alone, and sets nothing [MQTT-3.1.2-25].
                if len(frame) <= self.max_packet:
                    if known == 0:
                        aliases[message.topic] = alias
                    return frame
        return self._frame(delivery, expiry, dup, 0, True)

    def _frame(self, delivery: Delivery, expiry: int, dup: bool, alias: int, with_topic: bool) -> bytes:
        return delivery.message.frame(
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
        lost: i64 = self.messages - self.qos12_messages
        if lost > 0:
            self._count(cause, lost)
            self._uncount(lost, self.bytes - self.qos12_bytes)
        # What goes back to the session was not offered to the peer after all.
        self.offered -= self.qos12_messages - self.again
        left: list[object] = []
        for item in self._queue:
            if isinstance(item, bytes):
                if item[0] & 0xF0 != 0x30:
                    left.append(item)
            elif isinstance(item, Delivery) and item.sub_queue is not None and item.qos == 0:
                item.sub_queue.leave(item)
        self._queue = left
        self._gaps = 0
        self._head = 0
        self._deferred = 0
        self.messages = 0
        self.bytes = 0
        self.qos12_messages = 0
        self.qos12_bytes = 0
        self.again = 0
        self._since = 0.0
        self.closed = True
