"""The state that MQTT keeps for one client identifier, connected or not (5.0 section 4.1, 3.1.1 section 3.1.2.4).

Owns: the subscriptions, the packet identifiers and the in-flight window towards the client, the queue of messages
that wait for the window or for the client's return, the identifiers of QoS 2 publishes that came from the client and
are not released yet, retained messages still to be streamed, and the ledger of what was offered to this client.

Promises:
- The queue is bounded in messages and bytes; what does not fit is dropped and counted by cause.
- Messages of one topic and QoS leave in the order in which they came; a resumed session sends what was in flight
  first, in its order, with its packet identifiers [MQTT-4.4.0-1] [MQTT-4.6.0-1].
- Never more unacknowledged publishes than the client's Receive Maximum [MQTT-3.3.4-9].
- offered = delivered + dropped (by cause) + queued, whenever no call is under way.

Refuses: parsing, sockets, and deciding who gets what; that is the router's.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from broker.core.counters import (
    DISCONNECTED,
    DROP_CAUSES,
    EXPIRED,
    FULL_BYTES,
    FULL_MESSAGES,
    SESSION_ENDED,
    TOO_LARGE,
    Counters,
)
from broker.core.encoder import ack
from broker.core.errors import ProtocolViolation
from broker.core.journal import Journal
from broker.core.message import DONE, QUEUED, RELEASED, SENT, Delivery, Message
from broker.core.outbox import ACCEPTED, Outbox
from broker.core.packets import PUBREL, V5, V311, Will
from broker.core.reasons import PACKET_IDENTIFIER_NOT_FOUND, SUCCESS
from broker.core.retained import RetainedCursor
from broker.core.streams import RetainedStreams
from broker.core.subscription import SharedGroup, Subscriber, Subscription

if TYPE_CHECKING:
    from mypy_extensions import i64

NEVER: Final = 0xFFFFFFFF
"""Session Expiry Interval that means: does not expire (section 3.1.2.11.2)."""

HEADROOM: Final = 16
"""Bytes of a frame beyond `Message.size()`: fixed header, packet identifier, expiry."""


class Session(Subscriber):
    """One client's session. Bounds: `max_messages` and `max_bytes` of queued messages."""

    def __init__(self, client_id: str, max_messages: int, max_bytes: int, counters: Counters) -> None:
        self.client_id = client_id
        self._counters = counters
        self.user_name: str | None = None
        self.subscriptions: dict[str, Subscription] = {}
        # The connection, if there is one. `outbox` is changed by FanoutState.apply alone.
        self.outbox: Outbox | None = None
        self.version = V311
        self.v5 = False
        self.plain = True
        # Whether a QoS 0 frame may go straight to the outbox: no aliases, and none waits here that it would overtake.
        self.direct = True
        # Expiry and will; the times are 0.0 while they do not apply.
        self.expiry_interval = 0
        self.expires_at = 0.0
        self.will: Will | None = None
        self.will_due = 0.0
        self.ended = False
        # Who keeps this session; None when nobody does, or it ends with its connection.
        self.journal: Journal | None = None
        # Towards the client.
        self.max_messages: i64 = max_messages
        self.max_bytes: i64 = max_bytes
        self.queue_qos0 = False
        self.window: i64 = 65535
        self.quota: i64 = 0
        self.inflight: dict[int, Delivery] = {}
        self.pending: deque[Delivery] | None = None
        self.pending_bytes: i64 = 0
        # QoS 0 among them (kept while offline): live ones of the same topic queue up behind [MQTT-4.6.0-5].
        self._pending_qos0: i64 = 0
        self._pressed = False
        self._resend: deque[Delivery] | None = None
        self.streams: RetainedStreams | None = None
        self._next_id = 0
        # From the client: QoS 2 publishes that wait for PUBREL.
        self.inbound: set[int] | None = None
        # The ledger of what did not go through the present outbox.
        self.offered: i64 = 0
        self.delivered: i64 = 0
        self.dropped: list[int] | None = None

    # -- connection ----------------------------------------------------------------------------------------------------

    def attach(self, version: int, window: int, plain: bool) -> None:
        """A connection takes this session up.

        `window` is the in-flight limit towards it, at least 1 and at most the client's Receive Maximum: the send quota
        begins there [MQTT-4.9.0-1]. `plain` says that no topic aliases are used, so that frames can be shared.
        """
        self.plain = plain
        self.direct = plain and self._pending_qos0 == 0
        self.version = version
        self.v5 = version == V5
        self.window = window
        self.quota = window

    def resume(self, now: float) -> None:
        """Send again what was in flight when the last connection ended, then what waited (section 4.4)."""
        outbox = self.outbox
        if outbox is None:
            return
        resend: deque[Delivery] = deque()
        for packet_id, delivery in self.inflight.items():
            if delivery.state == RELEASED:
                outbox.control(ack(PUBREL, packet_id, SUCCESS, self.version))
            else:
                resend.append(delivery)
        self._resend = resend if resend else None
        self._go_on(now)

    def detach(self, outbox: Outbox) -> None:
        """The connection is gone: fold its ledger into the session's, and put back what was never written."""
        self._free_expired(outbox)
        outbox.discard(DISCONNECTED)
        self.delivered += outbox.taken
        if outbox.dropped is not None:
            self._add_drops(outbox.dropped)
        for delivery in self.inflight.values():
            # The next connection has a send quota of its own.
            delivery.counted = False
            if self.journal is not None and delivery.attempts == 0:
                self.journal.unsent(self.client_id, delivery)
        self._resend = None

    def _add_drops(self, drops: list[int]) -> None:
        dropped = self.dropped
        if dropped is None:
            dropped = [0] * len(DROP_CAUSES)
            self.dropped = dropped
        for cause, count in enumerate(drops):
            dropped[cause] += count

    def restore(self, delivery: Delivery) -> bool:
        """Take back a delivery that a store kept, in the order in which they were queued. False: no room, dropped."""
        if delivery.state == QUEUED:
            self.offered += 1
            return self._enqueue(delivery) == ACCEPTED
        self.inflight[delivery.packet_id] = delivery
        self._next_id = delivery.packet_id
        if delivery.state == SENT and delivery.attempts == 0:
            self.offered += 1
        return True

    # -- the fanout's side ---------------------------------------------------------------------------------------------

    def deliver(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        group: SharedGroup | None,
    ) -> int:
        """Offer a message with the QoS that was agreed on: ACCEPTED, or the cause of its drop.

        With QoS 1 or 2 it is part of the session from here on [MQTT-4.5.0-1], whether the client is connected or not
        [MQTT3-3.1.2-5]: in flight or queued.
        """
        self.offered += 1
        outbox = self.outbox
        if qos == 0:
            if outbox is None:
                if not self.queue_qos0:
                    return self._drop(DISCONNECTED)
            elif self._pending_qos0 == 0:
                if not retain and not identifiers and self.plain and message.sharable():
                    return outbox.offer(message.qos0_frame(self.v5))
                return outbox.offer_late(Delivery(message, 0, retain, identifiers, group))
        delivery = Delivery(message, qos, retain, identifiers, group)
        # Past the queue only when nothing waits there: every topic is an ordered one [MQTT-4.6.0-6] [MQTT3-4.6.0-6].
        if outbox is not None and message.size() + HEADROOM > outbox.max_bytes:
            # It will never fit, however long it waits.
            return self._drop(FULL_BYTES)
        if outbox is not None and qos > 0 and self.quota > 0 and not self.pending and self._resend is None:
            if outbox.too_large(delivery):
                return self._drop(TOO_LARGE)
            if outbox.has_room(message.size() + HEADROOM) and self._send(delivery, outbox):
                return ACCEPTED
        return self._enqueue(delivery)

    def _enqueue(self, delivery: Delivery) -> int:
        pending = self.pending
        size = delivery.message.size()
        if pending is None:
            pending = deque()
            self.pending = pending
        if self.max_messages > 0 and len(pending) >= self.max_messages:
            return self._drop(FULL_MESSAGES)
        if self.max_bytes > 0 and self.pending_bytes + size > self.max_bytes:
            return self._drop(FULL_BYTES)
        pending.append(delivery)
        self.pending_bytes += size
        if delivery.qos == 0:
            self._pending_qos0 += 1
            self.direct = False
        if not self._pressed and self.outbox is not None and len(pending) * 2 > self.max_messages > 0:
            # Once, until the client has worked most of it off: one that does not read slows nobody.
            self._pressed = True
            self._counters.backed_up += 1
        if self.journal is not None:
            self.journal.queued(self.client_id, delivery)
        return ACCEPTED

    def _left_pending_qos0(self) -> None:
        self._pending_qos0 -= 1
        self.direct = self.plain and self._pending_qos0 == 0

    def _send(self, delivery: Delivery, outbox: Outbox) -> bool:
        """Put a delivery in flight. False when every packet identifier is in use.

        A new message gets an identifier of its own [MQTT-4.3.2-1] [MQTT-4.3.3-1], and takes one from the send quota;
        callers come here only while there is some [MQTT-4.9.0-2].
        """
        packet_id = self._allocate()
        if packet_id == 0:
            return False
        delivery.packet_id = packet_id
        delivery.state = SENT
        self.inflight[packet_id] = delivery
        self.quota -= 1
        delivery.counted = True
        if self.journal is not None:
            self.journal.in_flight(self.client_id, delivery)
        outbox.push(delivery)
        return True

    def _allocate(self) -> int:
        """A packet identifier that is not in use [MQTT-2.2.1-4]; 0 when all 65,535 are."""
        inflight = self.inflight
        if len(inflight) >= 65535:
            return 0
        packet_id = self._next_id
        while True:
            packet_id += 1
            if packet_id > 65535:
                packet_id = 1
            if packet_id not in inflight:
                self._next_id = packet_id
                return packet_id

    # -- the writer's side ---------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> bool:
        """True when `pump` may have something to do."""
        if self.pending or self._resend is not None or self.streams is not None:
            return True
        return self.outbox is not None and self.outbox.has_expired

    def pump(self, now: float) -> bool:
        """Fill the outbox from what waits here, as far as the window and the outbox have room.

        True when there is more that could go, and only fairness to others ended this turn.
        """
        outbox = self.outbox
        if outbox is None or outbox.closed:
            return False
        self._free_expired(outbox)
        resend = self._resend
        while resend is not None and self.quota > 0:
            delivery = resend[0]
            size = delivery.message.size() + HEADROOM
            # Acknowledged or released meanwhile: nothing to send again [MQTT-4.3.3-6].
            if delivery.state == SENT:
                if outbox.too_large(delivery) or size > outbox.max_bytes:
                    # The client came back with a smaller Maximum Packet Size: as if it had been sent [MQTT-3.1.2-25].
                    self._finish(delivery)
                    if delivery.attempts == 0:
                        self._drop(TOO_LARGE)
                elif not outbox.has_room(size):
                    return False
                else:
                    self.quota -= 1
                    delivery.counted = True
                    if self.journal is not None and delivery.attempts == 0:
                        self.journal.in_flight(self.client_id, delivery)
                    outbox.push(delivery)
            resend.popleft()
            if not resend:
                self._resend = None
                resend = None
        if resend is not None:
            return False
        pending = self.pending
        while pending:
            delivery = pending[0]
            message = delivery.message
            size = message.size()
            if message.expires_at != 0.0 and message.expires_at <= now:
                self._drop(EXPIRED)
            elif outbox.too_large(delivery):
                self._drop(TOO_LARGE)
            elif size + HEADROOM > outbox.max_bytes:
                self._drop(FULL_BYTES)
            elif not outbox.has_room(size + HEADROOM):
                return False
            elif delivery.qos == 0:
                outbox.push(delivery)
            elif self.quota <= 0 or not self._send(delivery, outbox):
                return False
            pending.popleft()
            self.pending_bytes -= size
            if delivery.qos == 0:
                self._left_pending_qos0()
            if self.journal is not None and delivery.state == QUEUED:
                # Dropped, or of QoS 0 and gone.
                self.journal.finished(self.client_id, delivery)
        if self._pressed and (not pending or len(pending) * 4 < self.max_messages):
            self._pressed = False
        return self.streams is not None and self._pump_streams(self.streams, outbox, now)

    def _pump_streams(self, streams: RetainedStreams, outbox: Outbox, now: float) -> bool:
        """Queue retained messages at the receiver's pace: none is dropped, they wait until there is room."""
        streams.turn()
        while True:
            delivery = streams.next(outbox, now)
            if delivery is None:
                break
            size = delivery.message.size() + HEADROOM
            if outbox.too_large(delivery):
                cause = TOO_LARGE
            elif size > outbox.max_bytes:
                cause = FULL_BYTES
            elif not outbox.has_room(size) or (
                delivery.qos > 0 and (self.quota <= 0 or not self._send(delivery, outbox))
            ):
                streams.put_back()
                return False
            else:
                cause = ACCEPTED
                if delivery.qos == 0:
                    outbox.push(delivery)
            self.offered += 1
            if cause != ACCEPTED:
                self._drop(cause)
        if streams.ended:
            if self.journal is not None:
                for topic_filter in streams.ended:
                    self.journal.streamed(self.client_id, topic_filter)
            streams.ended = []
        if streams.empty:
            self.streams = None
            return False
        return streams.spent

    def start_stream(self, subscription: Subscription, cursor: RetainedCursor) -> None:
        """Begin to stream the retained messages that `cursor` finds, in place of a stream that still runs."""
        if self.streams is None:
            self.streams = RetainedStreams(self.client_id)
        self.streams.start(subscription, cursor)

    def stop_stream(self, topic_filter: str) -> None:
        """The subscription is gone: so are the retained messages that it still waited for."""
        if self.streams is not None:
            self.streams.stop(topic_filter)

    def is_streaming(self, subscription: Subscription) -> bool:
        """True while retained messages are on their way because of this subscription."""
        return self.streams is not None and self.streams.running(subscription.topic_filter)

    # -- acknowledgements from the client ------------------------------------------------------------------------------

    def on_puback(self, packet_id: int, now: float) -> None:
        """PUBACK: the delivery is complete [MQTT-4.3.2-3]. An unknown identifier is ignored.

        The reason code makes no difference: what the client refused is not sent again [MQTT-4.4.0-2], nor to another
        member of a shared subscription [MQTT-4.8.2-6].

        Raises ProtocolViolation when the identifier is in use by a QoS 2 delivery.
        """
        delivery = self.inflight.get(packet_id)
        if delivery is None or delivery.attempts == 0:
            return
        if delivery.qos != 1:
            raise ProtocolViolation("PUBACK for a QoS 2 message")
        self._finish(delivery)
        self._go_on(now)

    def on_pubrec(self, packet_id: int, reason_code: int, now: float) -> None:
        """PUBREC: answer PUBREL, or give up the message when the client refused it [MQTT-4.3.3-4].

        Until now the PUBLISH was unacknowledged and would have been sent again [MQTT-4.3.3-3]. A refused message is
        settled [MQTT-4.4.0-2], and goes to no other member of a shared subscription [MQTT-4.8.2-6].
        """
        outbox = self.outbox
        delivery = self.inflight.get(packet_id)
        if delivery is None:
            if outbox is not None and reason_code < 0x80:
                code = PACKET_IDENTIFIER_NOT_FOUND if self.v5 else SUCCESS
                outbox.control(ack(PUBREL, packet_id, code, self.version))
            return
        if delivery.attempts == 0:
            return
        if delivery.qos != 2:
            raise ProtocolViolation("PUBREC for a QoS 1 message")
        if reason_code >= 0x80:
            self._finish(delivery)
            self._go_on(now)
            return
        if self.journal is not None and delivery.state != RELEASED:
            self.journal.released(self.client_id, delivery)
        delivery.state = RELEASED
        if outbox is not None:
            outbox.control(ack(PUBREL, packet_id, SUCCESS, self.version))

    def on_pubcomp(self, packet_id: int, now: float) -> None:
        """PUBCOMP: the QoS 2 delivery is complete. An unknown identifier is ignored."""
        delivery = self.inflight.get(packet_id)
        if delivery is None or delivery.attempts == 0:
            return
        if delivery.qos != 2 or delivery.state != RELEASED:
            raise ProtocolViolation("PUBCOMP without PUBREL")
        self._finish(delivery)
        self._go_on(now)

    def _finish(self, delivery: Delivery) -> None:
        """The delivery is over: its identifier is free, and its place in the quota of this connection."""
        del self.inflight[delivery.packet_id]
        delivery.state = DONE
        if self.journal is not None:
            self.journal.finished(self.client_id, delivery)
        if delivery.counted:
            delivery.counted = False
            self.quota += 1

    def _go_on(self, now: float) -> None:
        outbox = self.outbox
        if self.backlog and self.pump(now) and outbox is not None:
            outbox.nudge()

    def _free_expired(self, outbox: Outbox) -> None:
        """What expired before it was written gives its packet identifier back; the outbox counted it."""
        if outbox.has_expired:
            for expired in outbox.take_expired():
                if expired.state == SENT:
                    self._finish(expired)

    # -- shared subscriptions and the end ------------------------------------------------------------------------------

    def unfinished_groups(self) -> list[SharedGroup]:
        """The share groups of which a message is not finished here, also those that were unsubscribed from since."""
        found: dict[SharedGroup, None] = {}
        for delivery in self.inflight.values():
            if delivery.group is not None:
                found[delivery.group] = None
        if self.pending:
            for delivery in self.pending:
                if delivery.group is not None:
                    found[delivery.group] = None
        return list(found)

    def take_shared(self, groups: set[SharedGroup]) -> list[Delivery]:
        """Take out what was chosen for this member of some shared subscriptions, so that another may have it.

        That is everything that waits, and QoS 1 in flight; QoS 2 that was sent stays [MQTT-4.8.2-4], and is given to
        nobody when the session ends [MQTT-4.8.2-5].
        """
        taken: list[Delivery] = []
        for packet_id, delivery in list(self.inflight.items()):
            if delivery.group in groups and delivery.state == SENT and (delivery.qos == 1 or delivery.attempts == 0):
                del self.inflight[packet_id]
                if delivery.attempts == 0:
                    self.offered -= 1
                taken.append(delivery)
        pending = self.pending
        if pending:
            kept: deque[Delivery] = deque()
            for delivery in pending:
                if delivery.group in groups:
                    self.pending_bytes -= delivery.message.size()
                    if delivery.qos == 0:
                        self._left_pending_qos0()
                    self.offered -= 1
                    taken.append(delivery)
                else:
                    kept.append(delivery)
            self.pending = kept if kept else None
        if self.journal is not None:
            for delivery in taken:
                self.journal.finished(self.client_id, delivery)
        return taken

    def end(self) -> None:
        """The session is over: what still waits is dropped and counted."""
        self.ended = True
        for _ in range(self.queued()):
            self._drop(SESSION_ENDED)
        self.pending = None
        self.pending_bytes = 0
        self._pending_qos0 = 0
        self.inflight = {}
        self._resend = None
        self.streams = None
        self.inbound = None
        self.will = None

    # -- the ledger ----------------------------------------------------------------------------------------------------

    def queued(self) -> int:
        """Messages that were offered and neither delivered nor dropped: in the outbox, waiting, or unsent in flight."""
        count = len(self.pending) if self.pending else 0
        outbox = self.outbox
        if outbox is not None:
            count += outbox.messages - outbox.quality
        for delivery in self.inflight.values():
            if delivery.state == SENT and delivery.attempts == 0:
                count += 1
        return count

    def delivered_in_all(self) -> int:
        """Messages handed to a transport for the first time, the present connection included."""
        return self.delivered + (0 if self.outbox is None else self.outbox.taken)

    def dropped_by_cause(self) -> list[int]:
        """Messages dropped, one number for each of `counters.DROP_CAUSES`, the present connection included."""
        total = [0] * len(DROP_CAUSES) if self.dropped is None else self.dropped.copy()
        if self.outbox is not None and self.outbox.dropped is not None:
            for cause, count in enumerate(self.outbox.dropped):
                total[cause] += count
        return total

    def _drop(self, cause: int) -> int:
        dropped = self.dropped
        if dropped is None:
            dropped = [0] * len(DROP_CAUSES)
            self.dropped = dropped
        dropped[cause] += 1
        self._counters.dropped[cause] += 1
        return cause
