"""The messages in flight to one client, within its send quota and a limit in bytes.

Owns the packet identifiers, the quota, the byte sums and the effect of each acknowledgement on a delivery.

Promises:
- No PUBLISH while as many are unacknowledged as the client's Receive Maximum, those included of which only PUBREL was
  sent again [MQTT-3.3.4-9]; nor while they have more bytes than `max_bytes`, except for a single message.
- What was in flight when a connection ended is sent again first, in its order [MQTT-4.4.0-1].
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mypy_extensions import i32, i64

from canopy_mqtt.core.codec.encoder import ack
from canopy_mqtt.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5
from canopy_mqtt.core.codec.reason_codes import (
    PACKET_IDENTIFIER_NOT_FOUND,
    SUCCESS,
    ProtocolViolation,
)
from canopy_mqtt.core.hooks import Permissions
from canopy_mqtt.core.ledger import ACCEPTED, AGE, EXPIRED, NOT_AUTHORIZED, Ledger
from canopy_mqtt.core.persistence.commits import Commits
from canopy_mqtt.core.persistence.journal import Journal
from canopy_mqtt.core.principal import Principal
from canopy_mqtt.core.queue_totals import QueueTotals
from canopy_mqtt.core.queues.delivery import DONE, RELEASED, SENT, Delivery, DeliveryRun
from canopy_mqtt.core.queues.held import HeldDeliveries, send_promise
from canopy_mqtt.core.queues.in_flight import InFlight, write_identifiers
from canopy_mqtt.core.queues.message import HEADROOM, Message
from canopy_mqtt.core.queues.message_queue import MessageQueue
from canopy_mqtt.core.queues.send_buffer import SendBuffer
from canopy_mqtt.core.topics.subscription import NO_IDENTIFIERS, SharedGroup

ACK_RUN: Final = 1_024
"""Acknowledgements that are dealt with in one go."""

TURN: Final = 1_024
"""Messages that one call looks at, to send them or to drop them."""

COMMIT: Final = 16
"""Messages in the buffer beyond which one with terms of its own goes on waiting: what is in flight is neither replaced
by a newer one nor shed."""

PUBREL_HEADER: Final = b"\x62"

UNEXPECTED: Final[dict[int, str]] = {
    PUBACK: "PUBACK for a QoS 2 message",
    PUBREC: "PUBREC for a QoS 1 message",
    PUBCOMP: "PUBCOMP without PUBREL",
}
"""The error of an acknowledgement that its delivery does not wait for."""


class SendWindow:
    """One client's window. `quota`: publishes that may be sent before an acknowledgement; `limit`: its maximum."""

    def __init__(self, ledger: Ledger, totals: QueueTotals, max_bytes: i64) -> None:
        """`ledger`: where a loss is written down; `totals`: of all queues; `max_bytes`: of what is in flight."""
        self.inflight = InFlight()
        self.limit: i64 = 65535
        self.quota: i64 = 0
        self.bytes: i64 = 0
        self.max_bytes: i64 = max_bytes
        # Who keeps what is in flight, and what a delivery of QoS 2 waits for: see `Session.keep_in`.
        self.journal: Journal | None = None
        self.commits: Commits | None = None
        # What the present connection has to send again before anything else; None: nothing.
        self.resend: deque[Delivery] | None = None
        self.held: HeldDeliveries | None = None  # what may not leave yet, once there was any
        self.spent = False  # whether `send_again` or `send_waiting` ended because it had done enough for one turn
        self._client_id = ledger.client_id
        self._ledger = ledger
        self._totals = totals

    # -- connection ----------------------------------------------------------------------------------------------------

    def open(self, limit: int) -> None:
        """A connection begins: the send quota begins at `limit` [MQTT-4.9.0-1]."""
        self.limit = limit
        self.quota = limit

    def begin_resend(self, send_buffer: SendBuffer, version: int) -> None:
        """Begin to send again what was in flight when the last connection ended (section 4.4).

        A PUBREL stands for a publish that is not acknowledged, and takes its place in the send quota, which may be
        below 0 then: if the client's Receive Maximum is smaller than on its last connection [MQTT-3.3.4-9].
        """
        resend: deque[Delivery] = deque()
        for delivery in self.inflight.values():
            if delivery.state == RELEASED:
                self._take_quota(delivery)
                send_promise(send_buffer, ack(PUBREL, delivery.packet_id, SUCCESS, version), self.journal is not None)
            else:
                resend.append(delivery)
        self.resend = resend if resend else None

    def _take_quota(self, delivery: Delivery) -> None:
        """It is unacknowledged on this connection."""
        if not delivery.counted:
            delivery.counted = True
            self.quota -= 1

    def reopen(self) -> None:
        """Set the quota, which was held at 0, to the rest of its limit again."""
        self.quota = self.limit
        for delivery in self.inflight.values():
            if delivery.counted:
                self.quota -= 1

    @property
    def backlog(self) -> bool:
        """True when `send_again` may have something to do."""
        return self.resend is not None or (self.held is not None and self.held.ready)

    def send_again(self, send_buffer: SendBuffer, permissions: Permissions | None, principal: Principal) -> bool:
        """Send again, as far as quota and buffer have room, what the client may still have. False: some is left."""
        if self.held is not None:
            self.held.send_ready()
        self.spent = False
        resend = self.resend
        if resend is None:
            return True
        left: i64 = TURN
        while resend and self.quota > 0:
            if left == 0:
                self.spent = True
                break
            left -= 1
            delivery = resend[0]
            size = delivery.message.size + HEADROOM
            # Acknowledged or released meanwhile: nothing to send again [MQTT-4.3.3-6].
            if delivery.state == SENT:
                # Of QoS 2 that was sent the client may know the identifier: that goes on, whatever the rules are now.
                asked = permissions is not None and (delivery.qos == 1 or delivery.attempts == 0)
                cause = send_buffer.refusal(delivery.message, delivery.qos, delivery.identifiers)
                if cause != ACCEPTED:
                    # The client came back with a smaller Maximum Packet Size: as if it had been sent [MQTT-3.1.2-25].
                    self._give_up(delivery, cause)
                elif not send_buffer.has_room(size):
                    return False
                elif asked and permissions is not None and permissions.bars(principal, delivery.message.topic):
                    self._give_up(delivery, NOT_AUTHORIZED)
                else:
                    self._take_quota(delivery)
                    self.push(delivery, send_buffer)
            resend.popleft()
        if not resend:
            self.resend = None
        return not resend

    def _give_up(self, delivery: Delivery, cause: int) -> None:
        self.finish(delivery)
        if delivery.attempts == 0:
            self._ledger.lost(cause, 1)

    def close(self) -> None:
        """The connection is gone. The next one has a send quota of its own."""
        for delivery in self.inflight.values():
            delivery.counted = False
            delivery.settle()
            if self.journal is not None and delivery.attempts == 0:
                self.journal.unsent(self._client_id, delivery)
        self._forget_line()

    def end(self) -> None:
        """The session is over: nothing is in flight any more."""
        totals = self._totals
        totals.messages -= self.inflight.count
        totals.bytes -= self.bytes
        totals.inflight -= self.inflight.count
        totals.inflight_bytes -= self.bytes
        self.inflight.clear()
        self.bytes = 0
        self._forget_line()

    def _forget_line(self) -> None:
        resend, self.resend = self.resend, None
        if self.held is not None:
            self.held.drop(resend or ())

    # -- out -----------------------------------------------------------------------------------------------------------

    def sendable(self, count: i64, size: i64, send_buffer: SendBuffer) -> i64:
        """Return how many messages of `size` bytes, at most `count`, `send_now` or `send_run` would send now."""
        totals = self._totals
        if self.resend is not None or (self.held is not None and self.held.count > 0):
            return 0
        if count > self.quota:
            count = self.quota if self.quota > 0 else 0
        while count > 0 and not (
            send_buffer.takes_unchanged(count, count * size + HEADROOM)
            and self.bytes + count * size <= self.max_bytes
            and totals.has_room(count, count * size)
            and totals.in_flight_room(count * size)
            and self.inflight.count + count <= self.inflight.largest_id
        ):
            count = count >> 1
        return count

    def send_now(self, message: Message, qos: i64, send_buffer: SendBuffer) -> None:
        """Send a new message that no store keeps: see `sendable`."""
        send_buffer.push(self._put_new(message, qos))

    def send_run(self, messages: list[Message], qos: i64, frames: bytearray, at: i64, send_buffer: SendBuffer) -> None:
        """The same for several of one size, at most 255, that came in frames of one length and layout: see `sendable`.

        `frames` are those, which this client can be sent as they are but for their packet identifiers; the first one's
        is at `at`.
        """
        before: i64 = self.bytes
        deliveries = [self._put_new(message, qos) for message in messages]
        write_identifiers(deliveries, frames, at)
        send_buffer.push_run(DeliveryRun(deliveries, bytes(frames)), self.bytes - before)

    def _put_new(self, message: Message, qos: i64) -> Delivery:
        """Put a new message in flight, for which there is room."""
        delivery = Delivery(message, qos, False, NO_IDENTIFIERS, None)
        self.put(delivery)
        self._take_quota(delivery)
        totals = self._totals
        totals.messages += 1
        totals.bytes += message.size
        return delivery

    def send(self, delivery: Delivery, send_buffer: SendBuffer, source: Commits | None = None) -> bool:
        """Put a delivery in flight. False when every packet identifier is in use, or too many bytes are.

        A new message gets an identifier of its own [MQTT-4.3.2-1] [MQTT-4.3.3-1], and takes one from the send quota;
        callers come here only while there is some [MQTT-4.9.0-2]. Its place in the broker's sum is theirs to hold.
        `source`: see `push`.
        """
        if not self._has_room(delivery.message.size) or not self.put(delivery):
            return False
        self._take_quota(delivery)
        self.push(delivery, send_buffer, source)
        return True

    def takes(self, size: i64) -> bool:
        """Return whether `send` would put a new message of this size in flight now, and nothing goes before it."""
        return (
            self.quota > 0
            and self.resend is None
            and self.inflight.count < self.inflight.largest_id
            and self._has_room(size)
        )

    def _has_room(self, size: i64) -> bool:
        """Return whether the bounds in bytes let a message of this size be in flight; a single one always may be."""
        totals = self._totals
        count: i64 = self.inflight.count
        return count == 0 or (
            self.bytes + size <= self.max_bytes
            and (totals.in_flight_room(size) or totals.is_little(count + 1, self.bytes + size))
        )

    def push(self, delivery: Delivery, send_buffer: SendBuffer, source: Commits | None = None) -> None:
        """Hand a delivery in flight to the buffer; of QoS 2, or `Message.held`, when that is committed, if it is kept.

        `source`: that of a queue which has given it up, if it was kept there. It waits for that as well where this
        session is not kept: else a broker that dies before would find it in the queue again.
        """
        journal, new = self.journal, delivery.attempts == 0
        commits = source if self.commits is None else self.commits
        if journal is not None and new:
            journal.in_flight(self._client_id, delivery)
        held = self.held
        if (delivery.qos < 2 and not delivery.message.held) or (commits is None and (held is None or held.count == 0)):
            send_buffer.push(delivery)
            return
        if held is None:
            assert commits is not None
            self.held = held = HeldDeliveries(self.inflight, commits)
        held.push(delivery, send_buffer, new and (journal is not None or source is not None))

    def full_of_own(self, send_buffer: SendBuffer) -> bool:
        """Return whether so much is on its way already that what has terms of its own goes on waiting (`COMMIT`)."""
        return send_buffer.messages + (0 if self.held is None else self.held.count) >= COMMIT

    def send_new(self, delivery: Delivery, send_buffer: SendBuffer, source: Commits | None = None) -> bool:
        """`send` for one that nothing is held for yet."""
        if not self.send(delivery, send_buffer, source):
            return False
        totals = self._totals
        totals.messages += 1
        totals.bytes += delivery.message.size
        return True

    def send_waiting(self, queue: MessageQueue, send_buffer: SendBuffer, now: float) -> bool:
        """Send what waits in the session's queue, in its order, as far as window and send buffer have room.

        False: some has to go on waiting.
        """
        self.spent = False
        for _ in range(TURN):
            delivery = queue.first()
            if delivery is None:
                return queue.disk is None
            if not self._send_first(delivery, queue, send_buffer, now):
                return False
        self.spent = True
        return False

    def _send_first(self, delivery: Delivery, queue: MessageQueue, send_buffer: SendBuffer, now: float) -> bool:
        """Send the first that waits, or drop it if it cannot be sent any more. False when it has to go on waiting."""
        message = delivery.message
        message_terms = delivery.message_terms
        size: i64 = message.size
        cause = send_buffer.refusal(message, delivery.qos, delivery.identifiers)
        if message.expired(now):
            cause = EXPIRED
        elif message_terms is not None and message_terms.too_old(delivery, now):
            cause = AGE
        elif cause != ACCEPTED:
            pass  # it never fits
        elif queue.review is not None and queue.bars(delivery):
            cause = NOT_AUTHORIZED
        elif not send_buffer.has_room(size + HEADROOM) or (
            delivery.qos > 0
            and (
                self.quota <= 0
                or (message_terms is not None and self.full_of_own(send_buffer))
                or not self.send(delivery, send_buffer)
            )
        ):
            return False
        queue.pop_first(delivery)
        if cause != ACCEPTED:
            queue.give_up(delivery, cause)
        elif delivery.qos == 0:
            totals = self._totals
            totals.messages -= 1
            totals.bytes -= size
            send_buffer.push(delivery)
            if self.journal is not None:
                self.journal.finished(self._client_id, delivery)
        elif message_terms is not None:
            message_terms.leave(delivery)
        return True

    def put(self, delivery: Delivery) -> bool:
        """Put a delivery in flight with the next packet identifier. False: all of them are in use."""
        packet_id = self.inflight.next_id()
        if packet_id == 0:
            return False
        delivery.packet_id = i32(packet_id)
        delivery.state = SENT
        self._add(delivery)
        return True

    def restore(self, delivery: Delivery) -> None:
        """Take back a delivery that a store kept, with the packet identifier that it has."""
        self._add(delivery)
        self._totals.messages += 1
        self._totals.bytes += delivery.message.size
        self.inflight.last_id = i64(delivery.packet_id)

    def _add(self, delivery: Delivery) -> None:
        self.inflight.add(delivery)
        size: i64 = delivery.message.size
        self.bytes += size
        self._totals.inflight += 1
        self._totals.inflight_bytes += size

    def take(self, delivery: Delivery) -> None:
        """It is in flight no more, and takes no room."""
        totals = self._totals
        self.inflight.remove(delivery)
        size: i64 = delivery.message.size
        self.bytes -= size
        totals.inflight -= 1
        totals.inflight_bytes -= size
        totals.messages -= 1
        totals.bytes -= size

    def finish(self, delivery: Delivery) -> None:
        """The delivery is over: its identifier is free, and its place in the quota of this connection."""
        self.take(delivery)
        delivery.state = DONE
        if self.journal is not None:
            self.journal.finished(self._client_id, delivery)
        if delivery.counted:
            delivery.counted = False
            self.quota += 1

    def free_expired(self, send_buffer: SendBuffer) -> None:
        """Free the packet identifiers of deliveries that expired before they were written; the buffer counted them."""
        expired = send_buffer.expired
        if expired is None:
            return
        send_buffer.expired = None
        for delivery in expired:
            if delivery.state == SENT:
                delivery.settle()
                self.finish(delivery)

    def shareable(self, groups: set[SharedGroup]) -> list[Delivery]:
        """Return what others may have of some shared subscriptions: QoS 1, and QoS 2 never sent."""
        return [
            each
            for each in self.inflight.values()
            if each.group in groups and each.state == SENT and (each.qos == 1 or each.attempts == 0)
        ]

    # -- acknowledgements from the client ------------------------------------------------------------------------------

    def on_ack(self, kind: i64, packet_id: int, reason_code: int, send_buffer: SendBuffer | None, version: int) -> bool:
        """Take a PUBACK, PUBREC or PUBCOMP. Return True if there is more room than before.

        With a PUBACK [MQTT-4.3.2-3] or PUBCOMP the delivery is complete, and with a PUBREC that refuses the message
        [MQTT-4.3.3-4]. Any other PUBREC is answered with PUBREL; until then the PUBLISH was unacknowledged and would
        have been sent again [MQTT-4.3.3-3]. What the client refused is not sent again [MQTT-4.4.0-2], nor to another
        member of a shared subscription [MQTT-4.8.2-6]. An identifier that is not in use is ignored.

        Raises:
            ProtocolViolation: the identifier is in use by a delivery that does not wait for this packet.
        """
        delivery = self.inflight.get(packet_id)
        code = SUCCESS
        if delivery is None:
            if kind != PUBREC or reason_code >= 0x80:
                return False
            if version == V5:
                code = PACKET_IDENTIFIER_NOT_FOUND
        elif delivery.attempts == 0:
            return False
        elif not _awaits(delivery, kind):
            raise ProtocolViolation(UNEXPECTED[kind])
        elif self._acknowledge(delivery, kind, reason_code):
            return True
        if send_buffer is not None:
            send_promise(send_buffer, ack(PUBREL, packet_id, code, version), self.journal is not None)
        return False

    def on_acks(self, kind: i64, data: bytes, start: i64, send_buffer: SendBuffer | None) -> i64:
        """Take acknowledgements of one kind, side by side in `data` from `start` on, in one go.

        `kind`: PUBACK, PUBREC or PUBCOMP. Those of four bytes, at most `ACK_RUN`, and up to the first that has to be
        looked at by itself. Return where the last of them ends; `start` where it is already the first.
        """
        inflight = self.inflight
        header: i64 = kind << 4
        end: i64 = len(data) - 3
        if end > start + 4 * ACK_RUN:
            end = start + 4 * ACK_RUN
        at: i64 = start
        while at < end and data[at] == header and data[at + 1] == 2:
            packet_id: i64 = data[at + 2] << 8 | data[at + 3]
            delivery = inflight.get(packet_id)
            if delivery is None or delivery.attempts == 0 or not _awaits(delivery, kind):
                break
            self._acknowledge(delivery, kind, SUCCESS)
            at += 4
        if kind == PUBREC and at > start and send_buffer is not None:
            # The identifiers stand where they stood.
            packets = bytearray(data[start:at])
            packets[::4] = PUBREL_HEADER * (len(packets) >> 2)
            send_promise(send_buffer, bytes(packets), self.journal is not None)
        return at

    def _acknowledge(self, delivery: Delivery, kind: i64, reason_code: i64) -> bool:
        """Take the acknowledgement that a delivery waits for. Return False if PUBREL has to follow."""
        if delivery.on_settled is not None and kind != PUBCOMP:
            delivery.settle(reason_code)
        if kind == PUBREC and reason_code < 0x80:
            if self.journal is not None and delivery.state != RELEASED:
                self.journal.released(self._client_id, delivery)
            delivery.state = RELEASED
            # Of one that was to be sent again on this connection the client had the PUBLISH already.
            self._take_quota(delivery)
            return False
        self.finish(delivery)
        return True


def _awaits(delivery: Delivery, kind: i64) -> bool:
    """Return whether a delivery that was sent may be acknowledged by a packet of this type."""
    if kind == PUBACK:
        return delivery.qos == 1
    return delivery.qos == 2 and (kind == PUBREC or delivery.state == RELEASED)
