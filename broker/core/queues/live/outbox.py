"""The queue of one connected peer: which messages are accepted, and the frames that are sent.

The fanout and the session offer, only the writer takes; the `SendQueue` behind it has the order and the accounts.
Limited in messages and bytes, and by the total of all queues; every drop has a cause, which `offer` returns. The policy
decides what makes room, if anything. Control packets are never dropped and keep their place; `congested` stops reading
from a peer that does not read them. A 5.0 client is told what it lost (`drop_notice`). It knows no socket, task or
session.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.core.codec.framing import LARGEST_PACKET, frame_count, frame_end
from broker.core.counters import DISCONNECTED, FULL_BYTES, FULL_MESSAGES, GLOBAL, NOT_AUTHORIZED, TOO_LARGE, Counters
from broker.core.persistence.commits import Waiter
from broker.core.queues.delivery import DROPPED, Delivery, DeliveryRun
from broker.core.queues.drop_notice import tell
from broker.core.queues.live.peer_names import PeerNames
from broker.core.queues.live.send_queue import NOT_SENT, SendQueue
from broker.core.queues.message import NEAR_LONGEST, Message
from broker.core.queues.policies.queue_policy import DISCONNECT, DROP_NEWEST, DROP_OLDEST
from broker.core.queues.queue_totals import bound
from broker.core.queues.requests import Peer
from broker.core.queues.windows.receive_window import ReceiveWindow

ACCEPTED: Final = -1
"""Answer of `offer`; every other answer is a drop cause of `counters`."""

KEPT_BACK: Final = -3
"""Answer of a session that is a link, for a message that does not go there: it was for somebody else."""

CONTROL_LIMIT: Final = 65_536
"""Bytes of unread acknowledgements at which reading from the peer stops; a peer that floods pings gets no further."""


class Outbox:
    """The bounded queue of one peer. All sizes in bytes."""

    def __init__(self, wakeups: list[Outbox], counters: Counters, max_messages: int, max_bytes: int) -> None:
        """`wakeups`: where an outbox is listed when it has something to take. Limits of 0: unlimited."""
        self.max_messages: i64 = bound(max_messages)
        self.max_bytes: i64 = bound(max_bytes)
        self.policy: i64 = DROP_NEWEST
        self.queue = SendQueue(counters, self.max_messages, self.max_bytes)
        self._load = counters.load
        # Set once, when the connection's version and limits are known; `names` by `name_topics`.
        self.v5 = False
        self.max_packet: i64 = LARGEST_PACKET
        self.names: PeerNames | None = None
        self.tells = False  # the peer, of what it lost
        # Whether something here is worth less the longer it waits: small writes, and little in the system's hands.
        self.fresh = False
        # The protocol that this queue is for, and whatever the shell wants to find from here (its connection).
        self.peer: Peer | None = None
        self.owner: object | None = None
        # What the peer cannot have seen still counts against its Receive Maximum.
        self.receive_window = ReceiveWindow()
        # With a store that commits later: the `HeldAnswers`, which may not be queued yet.
        self.held: Waiter | None = None
        self.closed = False
        # Whose turn it is: the list that the connection goes through after each read, and whether we are on it.
        self._wakeups = wakeups
        self._listed = False

    def limit(self, policy: int, max_messages: int, max_bytes: int) -> None:
        """Set the terms of its client, before anything is offered. Limits of 0: unlimited."""
        self.policy = policy
        self.max_messages = bound(max_messages)
        self.max_bytes = bound(max_bytes)
        self.queue.limit(self.max_messages, self.max_bytes)

    def keep_fresh(self, fresh: bool) -> None:
        """Whether messages here lose value with time. Publishers do not wait for such subscribers."""
        self.fresh = fresh
        self.queue.holds = not fresh and self.policy != DROP_OLDEST

    def name_topics(self, names: PeerNames) -> None:
        """Make frames for this peer only, with these names. Called once `max_packet` is known."""
        self.names = names
        if names.mount and self.max_packet >= LARGEST_PACKET:
            self.max_packet = LARGEST_PACKET - 1  # each message is looked at (`too_long`); nobody else pays for that

    # -- what the fanout does ------------------------------------------------------------------------------------------

    def offer(self, frame: bytes) -> int:
        """Offer a QoS 0 frame: ACCEPTED, or the cause of its drop."""
        queue = self.queue
        queue.offered += 1
        size: i64 = len(frame)
        load = self._load
        # `_fits`, spelled out: this is asked for every message and receiver.
        if (
            queue.messages >= self.max_messages
            or queue.bytes + size > self.max_bytes
            or size > self.max_packet
            or self.closed
            or load.messages >= load.max_messages
            or load.bytes + size > load.max_bytes
        ):
            cause = self._make_room(1, size, size)
            if cause != ACCEPTED:
                queue.count_dropped(cause, 1)
                return cause
        # `put`, spelled out.
        load.messages += 1
        load.bytes += size
        queue.line_up(frame, 1, size)
        if not self._listed:
            self.schedule_flush()
        return ACCEPTED

    def offer_run(self, frames: bytes, count: i64, largest: i64) -> None:
        """Offer `count` QoS 0 frames that stand side by side; `largest` is the size of the longest.

        The same happens as when they are offered one by one, only that those that fit stand in the queue as one piece.
        """
        queue = self.queue
        size: i64 = len(frames)
        if self._fits(count, size, largest) or (
            self.policy == DROP_OLDEST and self._make_room(count, size, largest) == ACCEPTED
        ):
            queue.offered += count
            queue.put(frames, count, size)
            self.schedule_flush()
        elif (
            queue.deferred == 0
            and queue.messages >= self.max_messages
            and self.policy == DROP_NEWEST
            and not self.closed
            and (largest <= self.max_packet)
        ):
            # A queue that is full of messages has no room for any of them.
            queue.offered += count
            queue.count_dropped(FULL_MESSAGES, count)
        else:
            start: i64 = 0
            while start < size:
                end: i64 = frame_end(frames, start, size)
                self.offer(frames[start:end])
                start = end

    def offer_late(self, delivery: Delivery) -> int:
        """Offer a QoS 0 delivery whose frame is made when it is taken: ACCEPTED, or the cause of its drop."""
        shared = None if self.names is None else self.names.shared_frame(delivery, self.v5)
        if shared is not None:
            return self.offer(shared)
        queue = self.queue
        queue.offered += 1
        if self.too_large(delivery):
            cause = self.why_not(delivery.message)
            queue.count_dropped(cause, 1)
            return cause
        size: i64 = delivery.message.size()
        if not self._fits(1, size, 0):
            cause = self._make_room(1, size, 0)
            if cause != ACCEPTED:
                queue.count_dropped(cause, 1)
                return cause
        delivery.live = True
        queue.deferred += 1
        queue.put(delivery, 1, size)
        self.schedule_flush()
        return ACCEPTED

    def _fits(self, count: i64, size: i64, largest: i64) -> bool:
        """Whether so many messages of so many bytes can be taken as things stand."""
        queue = self.queue
        load = self._load
        return (
            queue.messages + count <= self.max_messages
            and queue.bytes + size <= self.max_bytes
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
        queue = self.queue
        if queue.deferred > 0:
            queue.shed_expired()
        messages: i64 = queue.messages + count - self.max_messages
        beyond: i64 = queue.bytes + size - self.max_bytes
        if count == 1 and size > self.max_bytes:
            # It fits when the queue is empty. Nothing goes for it.
            beyond = queue.bytes
        if messages > 0 or beyond > 0:
            cause = FULL_MESSAGES if messages > 0 else FULL_BYTES
            if self.policy == DROP_OLDEST and size <= self.max_bytes and count <= self.max_messages:
                if messages > queue.messages - queue.qos12_messages or beyond > queue.bytes - queue.qos12_bytes:
                    # Too much of it is in flight.
                    return cause
                queue.shed(messages, beyond, cause)
            else:
                if self.policy == DISCONNECT and size <= self.max_bytes:
                    self.overflow()
                return cause
        load = self._load
        # Who has nothing waiting is not the one to pay for those who have: the next message, or burst, is let through.
        if (
            queue.messages > 0
            and not load.has_room(count, size)
            and not load.admits(count, size, queue.messages, queue.bytes)
        ):
            return GLOBAL
        return ACCEPTED

    def overflow(self) -> None:
        """The queue is full and the policy ends the connection, before the next batch."""
        if not self.closed:
            self.closed = True
            if self.peer is not None:
                self._load.overflowed.append(self.peer)

    # -- what the session does -----------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """True when a message of `size` bytes fits now. The session asks before it sends with QoS 1 or 2.

        One always fits an empty queue, whatever its size: the limit in bytes is for those that wait beside it.
        """
        queue = self.queue
        return (
            not self.closed
            and queue.messages < self.max_messages
            and (queue.bytes + size <= self.max_bytes or queue.messages == 0)
        )

    def takes(self, count: i64, size: i64) -> bool:
        """Whether this many more of this many bytes fit, and are sent unchanged: nothing depends on the peer."""
        queue = self.queue
        return (
            queue.messages + count <= self.max_messages
            and queue.bytes + size <= self.max_bytes
            and not self.closed
            and self.names is None
            and self.max_packet >= LARGEST_PACKET
            and size < NEAR_LONGEST
        )

    def half_full(self) -> bool:
        """True if retained messages should wait, so that live ones find room."""
        queue = self.queue
        return queue.messages * 2 >= self.max_messages or queue.bytes * 2 >= self.max_bytes

    def too_large(self, delivery: Delivery) -> bool:
        """True if the peer's Maximum Packet Size, the protocol, or `names` forbid this message [MQTT-3.1.2-24]."""
        return self.too_long(delivery.message, delivery.qos, delivery.identifiers)

    def too_long(self, message: Message, qos: int, identifiers: tuple[int, ...]) -> bool:
        """The same for a message without a delivery."""
        if self.max_packet >= LARGEST_PACKET and message.size() < NEAR_LONGEST:
            return False
        inner = message if self.names is None else self.names.inner(message)
        if inner is None:
            return True
        # A topic alias is our own choice: one that would make the frame too large is left out (`TopicAliases`).
        return inner.frame_size(self.v5, qos, identifiers, inner.expires_at != 0.0) > self.max_packet

    def why_not(self, message: Message) -> int:
        """The cause of the drop of a message that is `too_long`."""
        return TOO_LARGE if self.names is None or self.names.inner(message) is not None else NOT_AUTHORIZED

    def push(self, delivery: Delivery) -> None:
        """Queue a delivery for which `has_room` was true. With QoS 1 and 2 it is in flight in its session."""
        queue = self.queue
        if delivery.attempts > 0:
            queue.again += 1
        else:
            queue.offered += 1
        size: i64 = delivery.message.size()
        queue.deferred += 1
        if delivery.qos > 0:
            queue.qos12_messages += 1
            queue.qos12_bytes += size
            # The broker's sum has had it since it came to the session, until it is acknowledged.
            queue.line_up(delivery, 1, size)
        else:
            delivery.live = True
            queue.put(delivery, 1, size)
        if not self._listed:
            self.schedule_flush()

    def push_run(self, run: DeliveryRun, size: i64) -> None:
        """Queue a run, as `push` each of its deliveries; `size`: bytes of their messages together."""
        queue = self.queue
        count: i64 = len(run.deliveries)
        queue.offered += count
        queue.deferred += 1
        queue.qos12_messages += count
        queue.qos12_bytes += size
        queue.line_up(run, count, size)
        if not self._listed:
            self.schedule_flush()

    # -- what the protocol does ----------------------------------------------------------------------------------------

    def control(self, packet: bytes) -> None:
        """Queue a control packet, or several joined. Never dropped.

        And never held back by a used-up send quota: that is the session's, and for PUBLISH alone [MQTT-3.3.4-10]
        [MQTT-4.9.0-3].
        """
        if self.closed:
            return
        self.queue.line_up_control(packet)
        if not self._listed:
            self.schedule_flush()

    def acknowledge(self, packet: bytes) -> None:
        """Queue one PUBACK, PUBREC or PUBCOMP, like any control packet; until it is written it counts."""
        if not self.closed:
            self.receive_window.queued(packet)
            self.control(packet)

    def schedule_flush(self) -> None:
        """Have the writer handle this outbox after the present batch."""
        if not self._listed:
            self._listed = True
            self._wakeups.append(self)

    def report_end(self) -> None:
        """Have the shell handle this outbox after the present batch, whatever its writer does: it has ended."""
        self._listed = True
        self._wakeups.append(self)

    @property
    def congested(self) -> bool:
        """True when the peer should not be read from until it reads its acknowledgements."""
        return self.queue.control_bytes + self.receive_window.held_bytes > CONTROL_LIMIT

    # -- what the writer does ------------------------------------------------------------------------------------------

    def woken(self) -> None:
        """The writer was woken; the next offer lists this outbox again."""
        self._listed = False

    @property
    def empty(self) -> bool:
        """Nothing to take."""
        return not self.queue.items

    @property
    def single(self) -> bool:
        """Exactly one thing to take: a frame, or several in one piece."""
        return len(self.queue.items) == 1

    def take(self, max_bytes: int, now: float) -> bytes:
        """The result of `take_batch` in one piece; empty if nothing waits."""
        queue = self.queue
        items = queue.items
        # A single thing that is a frame, or a delivery that is sent, is no gap.
        if len(items) == 1 and not self._to_tell():
            # The commonest case where messages come one at a time: the list stays. `clear` gives its memory back to the
            # small-object allocator; `pop` would leave it with an empty block of `malloc`, which it grows each time.
            item = items[0]
            if isinstance(item, bytes):
                items.clear()
                self.receive_window.all_written()
                queue.took_all(now)
                return item
            if self.names is None and isinstance(item, Delivery) and item.is_plain():
                items.clear()
                item.attempts = 1
                alone = item.message.qos12_frame(self.v5, item.qos, item.packet_id)
                queue.took_one_in_flight(item.qos, len(alone), now)
                return alone
        batch = self.take_batch(max_bytes, now)
        return batch[0] if len(batch) == 1 else b"".join(batch)

    def take_batch(self, max_bytes: int, now: float) -> list[bytes]:
        """Frames to write, in order: everything that waits, or about `max_bytes` of it. Empty only if nothing waits."""
        queue = self.queue
        if queue.deferred == 0 and queue.gaps == 0 and queue.bytes + queue.control_bytes <= max_bytes:
            batch: list[bytes] = queue.items  # type: ignore[assignment]
            queue.items = []
            self.receive_window.all_written()
            queue.took_all(now)
        else:
            batch = self._take_some(max_bytes, now)
        if self._to_tell():
            ledger = queue.ledger
            assert ledger is not None
            tell(batch, ledger, self.max_packet)
        return batch

    def _to_tell(self) -> bool:
        """Whether the next message is to say what was lost before it."""
        return self.tells and self.queue.ledger is not None and self.queue.ledger.untold is not None

    def _take_some(self, max_bytes: i64, now: float) -> list[bytes]:
        """The slow way: part of the queue, or frames that are made now."""
        queue = self.queue
        queue.begin_batch()
        batch: list[bytes] = []
        total: i64 = 0
        used: i64 = 0
        gaps: i64 = 0
        sent: i64 = 0
        length: i64 = 0
        for item in queue.items:
            if total >= max_bytes:
                break
            used += 1
            if isinstance(item, bytes):
                frame = item
                if frame[0] & 0xF0 == 0x30:
                    count: i64 = frame_count(frame)
                    queue.uncount(count, len(frame))
                    queue.taken += count
                    queue.taken_bytes += len(frame)
                    sent += count
                    length += len(frame)
                else:
                    queue.control_bytes -= len(frame)
                    self.receive_window.written(frame)
            elif isinstance(item, Delivery) and item.state != DROPPED:
                expiry = queue.take_delivery(item, now)
                if expiry == NOT_SENT:
                    continue
                if (
                    item.qos > 0
                    and item.attempts == 0
                    and expiry < 0
                    and not item.retain
                    and not item.identifiers
                    and self.names is None
                ):
                    item.attempts = 1
                    frame = item.message.qos12_frame(self.v5, item.qos, item.packet_id)
                else:
                    frame = self._frame(item, expiry)
                sent += 1
                length += len(frame)
                if item.qos > 0:
                    queue.count_sent(item.qos, 1)
            elif isinstance(item, DeliveryRun):
                frame = item.frames
                sent += queue.take_run(item)
                length += len(frame)
            else:
                gaps += 1
                continue
            batch.append(frame)
            total += len(frame)
        queue.end_batch(used, gaps, sent, length, now)
        return batch

    def _frame(self, delivery: Delivery, expiry: int) -> bytes:
        """The frame of a delivery that is sent now."""
        # DUP says that we send it again; what the publisher's DUP was is not even known here [MQTT-3.3.1-3].
        dup = delivery.attempts > 0
        if delivery.qos > 0:
            delivery.attempts += 1
        names = self.names
        if names is None:
            return delivery.frame(self.v5, expiry, dup, 0, True)
        return names.frame(delivery, self.v5, expiry, dup, self.max_packet)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Accept no more; what waits can still be taken."""
        self.closed = True

    def discard(self, cause: int) -> None:
        """Throw away the messages that wait and close; count those of QoS 0 as dropped by `cause`.

        Control packets stay for the writer to finish with; QoS 1 and 2 messages stay in flight in the session.
        """
        self.queue.discard(cause)
        self.closed = True

    # -- what others read (last: `bytes` above is the type) ------------------------------------------------------------

    @property
    def messages(self) -> i64:
        """Messages that wait."""
        return self.queue.messages

    @property
    def bytes(self) -> i64:
        """Their bytes."""
        return self.queue.bytes

    @property
    def qos12_messages(self) -> i64:
        """Of the messages that wait, those of QoS 1 and 2: they are in flight in the session."""
        return self.queue.qos12_messages

    @property
    def taken(self) -> i64:
        """Messages that were taken and are for the first time on their way."""
        return self.queue.taken
