"""The state that MQTT keeps for one client identifier, connected or not (5.0 section 4.1, 3.1.1 section 3.1.2.4).

Owns: the subscriptions, the packet identifiers and the in-flight window towards the client, the identifiers of QoS 2
publishes that came from the client and are not released yet, and retained messages still to be streamed. What waits for
the window or for the client's return, and the ledger of what was offered to it, stand in its base, `SessionQueue`.

Promises:
- Messages of one topic and QoS leave in the order in which they came; a resumed session sends what was in flight
  first, in its order, with its packet identifiers [MQTT-4.4.0-1] [MQTT-4.6.0-1].
- Never more unacknowledged publishes than the client's Receive Maximum [MQTT-3.3.4-9], nor more bytes of them than the
  session's bound, but for a single message.
- offered = delivered + dropped (by cause) + queued, whenever no call is under way.

Refuses: parsing, sockets, and deciding who gets what; that is the router's.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i32, i64

from broker.core.codec.encoder import ack
from broker.core.codec.errors import ProtocolViolation
from broker.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, V311, Will
from broker.core.codec.primitives import BYTE
from broker.core.codec.reasons import NO_MATCHING_SUBSCRIBERS, PACKET_IDENTIFIER_NOT_FOUND, SUCCESS
from broker.core.counters import (
    AGE,
    DISCONNECTED,
    DROP_CAUSES,
    EXPIRED,
    FULL_BYTES,
    FULL_MESSAGES,
    GLOBAL,
    SESSION_ENDED,
    TOO_LARGE,
    Counters,
)
from broker.core.queues.in_flight import LARGEST_ID, InFlight
from broker.core.queues.message import DONE, DROPPED, QUEUED, RELEASED, SENT, Delivery, DeliveryRun, Message
from broker.core.queues.outbox import ACCEPTED, KEPT_BACK, Outbox
from broker.core.queues.queue_policy import DISCONNECT, QueueTerms
from broker.core.queues.session_queue import GO_ON, SessionQueue
from broker.core.queues.subscription_queue import SubscriptionQueue
from broker.core.session.retained_stream import RetainedStreams
from broker.core.topics.subscription import SharedGroup, Subscription
from broker.core.topics.topic_tree import RetainedTree

if TYPE_CHECKING:
    from broker.core.queues.queue_rules import QueueRule

HEADROOM: Final = 16
"""Bytes of a frame beyond `Message.size()`: fixed header, packet identifier, expiry."""

ACK_RUN: Final = 1_024
"""Acknowledgements that are dealt with in one go."""

NO_IDENTIFIERS: Final[tuple[int, ...]] = ()

COUNTING: Final = bytes(range(256)) * 2

PUBREL_HEAD: Final = b"\x62\x02"

COMMIT: Final = 16
"""Messages in the outbox beyond which one with terms of its own goes on waiting: what is in flight is neither replaced
by a newer one nor shed."""


class Session(SessionQueue):
    """One client's session. Bounds: `max_messages` and `max_bytes` of queued messages, 0: unlimited."""

    def __init__(self, client_id: str, max_messages: int, max_bytes: int, counters: Counters) -> None:
        super().__init__(client_id, max_messages, max_bytes, counters)
        # Whose it is (`connection.identity`); of a client without a user name: None.
        self.user_name: str | None = None
        # What the settings and rules say of its client (`QueueLimits.apply`).
        self.terms: QueueTerms | None = None
        self.rules: tuple[QueueRule, ...] = ()
        self.subscriptions: dict[str, Subscription] = {}
        # Those of them whose messages are worth less the longer they wait.
        self.fresh_sub_queues: i64 = 0
        self.version = V311
        self.v5 = False
        # Expiry and will; the times are 0.0 while they do not apply.
        self.expiry_interval = 0
        self.expires_at = 0.0
        self.will: Will | None = None
        self.will_due = 0.0
        self.ended = False
        # What is counted for it in the broker's sum (`session_bytes`).
        self.counted_bytes = 0
        # That of a link to an upstream broker: what it subscribes to here is nobody's demand.
        self.uplink = False
        # Of the present connection: the id of the broker that its client is ("": it is none), and whether the client
        # has marked itself as a bridge of 3.1.1.
        self.link_peer = ""
        # Whether the settings let its client be a link (`connection.identity`): then it may hold up acknowledgements of
        # others, and publish who is connected elsewhere.
        self.link = False
        self.bridge = False
        # Towards the client.
        self.window: i64 = 65535
        self.inflight = InFlight()
        self.inflight_bytes: i64 = 0
        self._resend: deque[Delivery] | None = None
        self.streams: RetainedStreams | None = None
        # From the client: QoS 2 publishes that wait for PUBREL.
        self.incoming_qos2: set[int] | None = None

    # -- connection ----------------------------------------------------------------------------------------------------

    def attach(self, version: int, window: int, plain: bool) -> None:
        """A connection takes this session up.

        `window` is the in-flight limit towards it, at least 1 and at most the client's Receive Maximum: the send quota
        begins there [MQTT-4.9.0-1]. `plain` says that no topic aliases are used, so that frames can be shared.
        """
        self.plain = plain
        self.update_fast_path()
        self.version = version
        self.v5 = version == V5
        self.window = window
        self.quota = window
        self.attached_at = self._load.now
        self.asked_link = None

    def resume(self, now: float) -> None:
        """Send again what was in flight when the last connection ended, then what waited (section 4.4)."""
        outbox = self.outbox
        if outbox is None:
            return
        resend: deque[Delivery] = deque()
        for delivery in self.inflight.values():
            if delivery.state == RELEASED:
                outbox.control(ack(PUBREL, delivery.packet_id, SUCCESS, self.version))
            else:
                resend.append(delivery)
        self._resend = resend if resend else None
        self._go_on(now)

    def detach(self, outbox: Outbox) -> None:
        """The connection is gone: fold its ledger into the session's, and put back what was never written."""
        self._free_expired(outbox)
        outbox.discard(DISCONNECTED)
        self.delivered += outbox.taken
        for delivery in self.inflight.values():
            # The next connection has a send quota of its own.
            delivery.counted = False
            delivery.settle(True)
            if self.journal is not None and delivery.attempts == 0:
                self.journal.unsent(self.client_id, delivery)
        self._stop_answering()
        self._resend = None

    def restore(self, delivery: Delivery) -> bool:
        """Take back a delivery that a store kept, in the order in which they were queued. False: no room, dropped."""
        if delivery.state == QUEUED:
            self.offered += 1
            delivery.sub_queue = self.sub_queue
            return self._wait(delivery) == ACCEPTED
        self._in_flight(delivery)
        self._hold(delivery.message.size())
        self.inflight.last_id = i64(delivery.packet_id)
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
        sub_queue: SubscriptionQueue | None = None,
    ) -> int:
        """Offer a message with the QoS that was agreed on: ACCEPTED, or the cause of its drop.

        With QoS 1 or 2 it is part of the session from here on [MQTT-4.5.0-1], whether the client is connected or not
        [MQTT3-3.1.2-5]: in flight or queued. `sub_queue`: that of the subscription, if it has its own. A session that
        is over takes nothing: KEPT_BACK, while its subscriptions are taken away.
        """
        outbox = self.outbox
        if outbox is None and self.ended:
            return KEPT_BACK
        self.offered += 1
        if sub_queue is None:
            sub_queue = self.sub_queue
        if qos == 0:
            if outbox is None:
                if not self.queue_qos0:
                    self.ledger.away()
                    return DISCONNECTED
            elif sub_queue is None and self._pending_qos0 == 0:
                if not retain and not identifiers and self.plain and message.sharable():
                    return outbox.offer(message.qos0_frame(self.v5))
                return outbox.offer_late(Delivery(message, 0, retain, identifiers, group))
        if outbox is not None and outbox.too_long(message, qos, identifiers):
            # It will never fit, however long it waits: nothing makes room for it.
            return self._drop(TOO_LARGE)
        if sub_queue is not None:
            answer = self._sub_queue_room(sub_queue, message, qos, retain, identifiers, group)
            if answer != GO_ON:
                return answer
        delivery = Delivery(message, qos, retain, identifiers, group)
        if sub_queue is not None:
            delivery.sub_queue = sub_queue
            delivery.since = self._load.now
            if qos == 0 and outbox is not None and self._pending_qos0 == 0:
                size: i64 = message.size()
                self._make_live_room(sub_queue, size, outbox)
                cause = outbox.offer_late(delivery)
                if cause == ACCEPTED:
                    self._enter(sub_queue, delivery)
                elif (
                    sub_queue.policy == DISCONNECT and cause in (FULL_MESSAGES, FULL_BYTES) and size <= outbox.max_bytes
                ):
                    outbox.overflow()
                return cause
        size = message.size()
        # Past the queue only when nothing waits there: every topic is an ordered one [MQTT-4.6.0-6] [MQTT3-4.6.0-6].
        if outbox is not None and size + HEADROOM > outbox.max_bytes:
            # Nor will this, in this queue.
            return self._drop(FULL_BYTES)
        if (
            outbox is not None
            and qos > 0
            and self.quota > 0
            and self.pending is None
            and self._resend is None
            and (sub_queue is None or outbox.messages < COMMIT)
            and outbox.has_room(size + HEADROOM)
        ):
            # One may always be on its way to a client with nothing else before it.
            idle = outbox.messages == 0 and self.inflight.count == 0
            if not idle and not self._load.has_room(1, size) and not self._load.relieve(1, size):
                return self._drop(GLOBAL)
            if self._send(delivery, outbox):
                self._hold(size)
                if self.answers:
                    self._ask(delivery)
                return ACCEPTED
        return self._wait(delivery)

    def room(self, count: i64, size: i64) -> i64:
        """How many messages of `size` bytes, at most `count`, `send_now` or `send_run` would send now.

        0 as well where it is not the common case: the client is there, nothing waits, nobody keeps the session.
        """
        outbox = self.outbox
        load = self._load
        if (
            outbox is None
            or self.pending is not None
            or self._resend is not None
            or self.sub_queue is not None
            or self.journal is not None
            or self.answers
            or self.uplink
        ):
            return 0
        if count > self.quota:
            count = self.quota
        while count > 0 and not (
            outbox.takes(count, count * size + HEADROOM)
            and self.inflight_bytes + count * size <= self.max_inflight_bytes
            and load.has_room(count, count * size)
            and load.in_flight_room(count * size)
            and self.inflight.count + count <= LARGEST_ID
        ):
            count = count >> 1
        return count

    def send_now(self, message: Message, qos: i64) -> None:
        """What `deliver` does in the common case of QoS 1 and 2, for a subscription without options: see `room`."""
        outbox = self.outbox
        assert outbox is not None
        delivery = self._put_in_flight(message, qos)
        self._account(1, message.size())
        outbox.push(delivery)

    def send_run(self, messages: list[Message], qos: i64, frames: bytearray, id_at: i64) -> None:
        """The same for several of one size, at most 255, that came in frames of one length and layout: see `room`.

        `frames` are those, which this client can be sent as they are but for their packet identifiers; the first one's
        is at `id_at`.
        """
        outbox = self.outbox
        assert outbox is not None
        count: i64 = len(messages)
        length: i64 = len(frames) // count
        size: i64 = 0
        deliveries: list[Delivery] = []
        for message in messages:
            deliveries.append(self._put_in_flight(message, qos))
            size += message.size()
        self._account(count, size)
        first: i64 = i64(deliveries[0].packet_id)
        last: i64 = i64(deliveries[-1].packet_id)
        if last - first == count - 1:
            low: i64 = first & 255
            before: i64 = 256 - low if first >> 8 != last >> 8 else count
            frames[id_at::length] = BYTE[first >> 8] * before + BYTE[last >> 8] * (count - before)
            frames[id_at + 1 :: length] = COUNTING[low : low + count]
        else:
            # Some between them are in use.
            frames[id_at::length] = bytes([each.packet_id >> 8 for each in deliveries])
            frames[id_at + 1 :: length] = bytes([each.packet_id & 255 for each in deliveries])
        outbox.push_run(DeliveryRun(deliveries, bytes(frames)), size)

    def _put_in_flight(self, message: Message, qos: i64) -> Delivery:
        inflight = self.inflight
        delivery = Delivery(message, qos, False, NO_IDENTIFIERS, None)
        delivery.packet_id = i32(inflight.next_id())
        delivery.state = SENT
        delivery.counted = True
        inflight.add(delivery)
        return delivery

    def _account(self, count: i64, size: i64) -> None:
        """So many messages more of so many bytes in all were offered, and are in flight."""
        load = self._load
        self.offered += count
        self.quota -= count
        self.inflight_bytes += size
        load.inflight += count
        load.inflight_bytes += size
        load.messages += count
        load.bytes += size

    def _wait(self, delivery: Delivery) -> int:
        """Queue a delivery, and have its lane know."""
        cause = self._enqueue(delivery)
        if cause == ACCEPTED:
            sub_queue = delivery.sub_queue
            if sub_queue is not None:
                self._enter(sub_queue, delivery)
            if self.answers:
                self._ask(delivery)
        return cause

    def _send(self, delivery: Delivery, outbox: Outbox) -> bool:
        """Put a delivery in flight. False when every packet identifier is in use, or too many bytes are.

        A new message gets an identifier of its own [MQTT-4.3.2-1] [MQTT-4.3.3-1], and takes one from the send quota;
        callers come here only while there is some [MQTT-4.9.0-2].
        """
        size: i64 = delivery.message.size()
        if self.inflight.count > 0 and (
            self.inflight_bytes + size > self.max_inflight_bytes or not self._load.in_flight_room(size)
        ):
            return False
        packet_id = self._allocate()
        if packet_id == 0:
            return False
        delivery.packet_id = i32(packet_id)
        delivery.state = SENT
        self._in_flight(delivery)
        self.quota -= 1
        delivery.counted = True
        if self.journal is not None:
            self.journal.in_flight(self.client_id, delivery)
        outbox.push(delivery)
        return True

    def _in_flight(self, delivery: Delivery) -> None:
        self.inflight.add(delivery)
        size: i64 = delivery.message.size()
        self.inflight_bytes += size
        self._load.inflight += 1
        self._load.inflight_bytes += size

    def _landed(self, delivery: Delivery) -> None:
        """It is in flight no more, and takes no room."""
        self.inflight.remove(delivery)
        size: i64 = delivery.message.size()
        self.inflight_bytes -= size
        self._load.inflight -= 1
        self._load.inflight_bytes -= size
        self._let_go(size)

    def _allocate(self) -> i64:
        """A packet identifier that is not in use [MQTT-2.2.1-4]; 0 when all 65,535 are."""
        return self.inflight.next_id()

    # -- the writer's side ---------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> bool:
        """True when `pump` may have something to do."""
        if self.pending is not None or self._resend is not None or self.streams is not None:
            return True
        return self.outbox is not None and self.outbox.has_expired

    def pump(self, now: float) -> bool:
        """A turn of the writer: fill the outbox from what waits here, as far as the window and the outbox have room.

        True when there is more that could go, and only fairness to others ended this turn.
        """
        if self.streams is not None:
            self.streams.turn()
        return self._pump(now)

    def _pump(self, now: float) -> bool:
        """The same within what is left of the turn: a thousand acknowledgements in one read share one."""
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
        while True:
            waiting = self._first()
            if waiting is None:
                break
            if not self._pump_one(waiting, outbox, now):
                return False
        return self.streams is not None and self._pump_streams(self.streams, outbox, now)

    def _pump_one(self, delivery: Delivery, outbox: Outbox, now: float) -> bool:
        """Send the first that waits, or drop it if it cannot be sent any more. False when it has to go on waiting."""
        message = delivery.message
        sub_queue = delivery.sub_queue
        size: i64 = message.size()
        cause = ACCEPTED
        if message.expired(now):
            cause = EXPIRED
        elif sub_queue is not None and sub_queue.too_old(delivery, now):
            cause = AGE
        elif outbox.too_large(delivery):
            cause = TOO_LARGE
        elif size + HEADROOM > outbox.max_bytes:
            cause = FULL_BYTES
        elif not outbox.has_room(size + HEADROOM) or (
            delivery.qos > 0
            and (
                self.quota <= 0
                or (sub_queue is not None and outbox.messages >= COMMIT)
                or not self._send(delivery, outbox)
            )
        ):
            return False
        self._pop_first(delivery)
        if cause != ACCEPTED:
            self._give_up(delivery, cause)
        elif delivery.qos == 0:
            self._let_go(size)
            outbox.push(delivery)
            if self.journal is not None:
                self.journal.finished(self.client_id, delivery)
        elif sub_queue is not None:
            sub_queue.leave(delivery)
        return True

    def _pump_streams(self, streams: RetainedStreams, outbox: Outbox, now: float) -> bool:
        """Queue retained messages at the receiver's pace: none is dropped, they wait until there is room."""
        while True:
            delivery = streams.next(outbox, now)
            if delivery is None:
                break
            if self.uplink and not self.dress(delivery):
                continue
            size = delivery.message.size() + HEADROOM
            if outbox.too_large(delivery):
                cause = TOO_LARGE
            elif size > outbox.max_bytes:
                cause = FULL_BYTES
            elif not self._stream_room(outbox, delivery.qos, size) or (
                delivery.qos > 0 and (self.quota <= 0 or not self._send(delivery, outbox))
            ):
                streams.put_back()
                return False
            else:
                cause = ACCEPTED
                if delivery.qos == 0:
                    outbox.push(delivery)
                else:
                    self._hold(delivery.message.size())
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

    def _stream_room(self, outbox: Outbox, qos: int, size: int) -> bool:
        """Whether a retained message may go: one may, also where all queues together are full, so that it goes on."""
        if not outbox.has_room(size):
            return False
        return self._load.has_room(1, size) or (outbox.messages == 0 and (qos == 0 or not self.inflight))

    def dress(self, delivery: Delivery) -> bool:
        """Make a retained message what its receiver is to get, where that is another broker. False: nothing."""
        del delivery
        return True

    def start_stream(self, subscription: Subscription, tree: RetainedTree) -> None:
        """Begin to stream the retained messages of a tree that match, in place of a stream that still runs."""
        if self.streams is None:
            self.streams = RetainedStreams(self.client_id)
        self.streams.start(subscription, tree)

    def stop_stream(self, topic_filter: str) -> None:
        """The subscription is gone: so are the retained messages that it still waited for."""
        if self.streams is not None:
            self.streams.stop(topic_filter)

    def is_streaming(self, subscription: Subscription) -> bool:
        """True while retained messages are on their way because of this subscription."""
        return self.streams is not None and self.streams.running(subscription.topic_filter)

    # -- acknowledgements from the client ------------------------------------------------------------------------------

    def on_puback(self, packet_id: int, reason_code: int, now: float) -> None:
        """PUBACK: the delivery is complete [MQTT-4.3.2-3]. An unknown identifier is ignored.

        The reason code makes no difference to that: what the client refused is not sent again [MQTT-4.4.0-2], nor to
        another member of a shared subscription [MQTT-4.8.2-6]. It is told on to whoever has asked (`requests`).

        Raises ProtocolViolation when the identifier is in use by a QoS 2 delivery.
        """
        delivery = self.inflight.get(packet_id)
        if delivery is None or delivery.attempts == 0:
            return
        if delivery.qos != 1:
            raise ProtocolViolation("PUBACK for a QoS 2 message")
        if delivery.asked is not None:
            self._answered(delivery, reason_code)
        self._finish(delivery)
        self._go_on(now)

    def owes(self) -> bool:
        """Whether the client has anything to acknowledge besides what it was sent last."""
        return self.pending is not None or len(self.inflight) > 1

    def _answered(self, delivery: Delivery, reason_code: int) -> None:
        """A link says whether a request reached anybody."""
        request = delivery.asked
        if request is not None and self.asked_link is not None:
            request.heard(self.asked_link)
        delivery.settle(reason_code != NO_MATCHING_SUBSCRIBERS)

    def on_acks(self, kind: i64, data: bytes, start: i64, now: float) -> i64:
        """Acknowledgements of one kind, side by side in `data` from `start` on, dealt with in one go.

        `kind`: PUBACK, PUBREC or PUBCOMP. Those of four bytes, at most `ACK_RUN`, and up to the first that has to be
        looked at by itself. Where the last of them ends; `start` where it is already the first.

        Raises ProtocolViolation as those do.
        """
        inflight = self.inflight
        header: i64 = kind << 4
        end: i64 = len(data) - 3
        if end > start + 4 * ACK_RUN:
            end = start + 4 * ACK_RUN
        at: i64 = start
        # Of those that are answered with PUBREL.
        packet_ids: list[bytes] = []
        while at < end and data[at] == header and data[at + 1] == 2:
            packet_id: i64 = data[at + 2] << 8 | data[at + 3]
            delivery = inflight.get(packet_id)
            if delivery is None or delivery.attempts == 0:
                break
            if kind == PUBACK:
                if delivery.qos != 1:
                    break
                if delivery.asked is not None:
                    self._answered(delivery, SUCCESS)
                self._finish(delivery)
            elif kind == PUBCOMP:
                if delivery.qos != 2 or delivery.state != RELEASED:
                    break
                self._finish(delivery)
            else:
                if delivery.qos != 2:
                    break
                if delivery.asked is not None:
                    self._answered(delivery, SUCCESS)
                if self.journal is not None and delivery.state != RELEASED:
                    self.journal.released(self.client_id, delivery)
                delivery.state = RELEASED
                packet_ids.append(data[at + 2 : at + 4])
            at += 4
        if at == start:
            return at
        if kind != PUBREC:
            self._go_on(now)
            return at
        outbox = self.outbox
        if outbox is not None:
            outbox.control(PUBREL_HEAD + PUBREL_HEAD.join(packet_ids))
        return at

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
        if delivery.asked is not None:
            self._answered(delivery, reason_code)
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
        self._landed(delivery)
        delivery.state = DONE
        if self.journal is not None:
            self.journal.finished(self.client_id, delivery)
        if delivery.counted:
            delivery.counted = False
            self.quota += 1

    def _go_on(self, now: float) -> None:
        outbox = self.outbox
        if self.backlog and self._pump(now) and outbox is not None:
            outbox.schedule_flush()

    def _free_expired(self, outbox: Outbox) -> None:
        """What expired before it was written gives its packet identifier back; the outbox counted it."""
        if outbox.has_expired:
            for expired in outbox.take_expired():
                if expired.state == SENT:
                    expired.settle(True)
                    self._finish(expired)

    # -- shared subscriptions and the end ------------------------------------------------------------------------------

    def unfinished_groups(self) -> list[SharedGroup]:
        """The share groups of which a message is not finished here, also those that were unsubscribed from since."""
        found: dict[SharedGroup, None] = {}
        for delivery in self.inflight.values():
            if delivery.group is not None:
                found[delivery.group] = None
        if self.pending is not None:
            for delivery in self.pending:
                if delivery.group is not None and delivery.state != DROPPED:
                    found[delivery.group] = None
        return list(found)

    def take_shared(self, groups: set[SharedGroup]) -> list[Delivery]:
        """Take out what was chosen for this member of some shared subscriptions, so that another may have it.

        That is everything that waits, and QoS 1 in flight; QoS 2 that was sent stays [MQTT-4.8.2-4], and is given to
        nobody when the session ends [MQTT-4.8.2-5].
        """
        taken: list[Delivery] = []
        for delivery in self.inflight.values():
            if delivery.group in groups and delivery.state == SENT and (delivery.qos == 1 or delivery.attempts == 0):
                self._landed(delivery)
                if delivery.attempts == 0:
                    self.offered -= 1
                taken.append(delivery)
        pending = self.pending
        if pending is not None:
            kept: deque[Delivery] = deque()
            for delivery in pending:
                if delivery.state == DROPPED:
                    continue
                if delivery.group in groups:
                    self._unqueue(delivery)
                    self._let_go(delivery.message.size())
                    if delivery.sub_queue is not None:
                        delivery.sub_queue.leave(delivery)
                    self.offered -= 1
                    taken.append(delivery)
                else:
                    kept.append(delivery)
            self._gaps = 0
            self.pending = kept if kept else None
        for delivery in taken:
            delivery.settle(True)
            if self.journal is not None:
                self.journal.finished(self.client_id, delivery)
        return taken

    def end(self) -> None:
        """The session is over: what still waits is dropped and counted."""
        self.ended = True
        for delivery in self.inflight.values():
            delivery.settle(True)
        self._stop_answering()
        queued = self.queued()
        if queued > 0:
            self.ledger.lost(SESSION_ENDED, queued)
        load = self._load
        load.messages -= self.pending_messages + self.inflight.count
        load.bytes -= self.pending_bytes + self.inflight_bytes
        load.inflight -= self.inflight.count
        load.inflight_bytes -= self.inflight_bytes
        if self.pending is not None:
            # Their lanes may be remembered elsewhere.
            for delivery in self.pending:
                if delivery.sub_queue is not None:
                    delivery.sub_queue.leave(delivery)
        self.pending = None
        self.pending_messages = 0
        self.pending_bytes = 0
        self._pending_qos0 = 0
        self._gaps = 0
        self.inflight.clear()
        self.inflight_bytes = 0
        if self.sub_queue is not None:
            load.aging.pop(self.sub_queue, None)
        self._resend = None
        self.streams = None
        self.incoming_qos2 = None
        self.will = None

    # -- the ledger ----------------------------------------------------------------------------------------------------

    def queued(self) -> int:
        """Messages that were offered and neither delivered nor dropped: in the outbox, waiting, or unsent in flight."""
        count: i64 = self.pending_messages
        outbox = self.outbox
        if outbox is not None:
            count += outbox.messages - outbox.qos12_messages
        for delivery in self.inflight.values():
            if delivery.state == SENT and delivery.attempts == 0:
                count += 1
        return count

    def delivered_in_all(self) -> int:
        """Messages handed to a transport for the first time, the present connection included."""
        return self.delivered + (0 if self.outbox is None else self.outbox.taken)

    def dropped_by_cause(self) -> list[int]:
        """Messages dropped, one number for each of `counters.DROP_CAUSES`, the present connection included."""
        dropped = self.ledger.dropped
        return [0] * len(DROP_CAUSES) if dropped is None else dropped.copy()
