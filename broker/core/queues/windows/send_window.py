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

from broker.core.codec.encoder import ack
from broker.core.codec.errors import ProtocolViolation
from broker.core.codec.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5
from broker.core.codec.reasons import NO_MATCHING_SUBSCRIBERS, PACKET_IDENTIFIER_NOT_FOUND, SUCCESS
from broker.core.counters import AGE, EXPIRED, NOT_AUTHORIZED
from broker.core.permissions import Permissions
from broker.core.persistence.commits import Commits
from broker.core.persistence.journal import Journal
from broker.core.principal import Principal
from broker.core.queues.delivery import DONE, RELEASED, SENT, Delivery, DeliveryRun
from broker.core.queues.drop_ledger import Ledger
from broker.core.queues.live.outbox import ACCEPTED, Outbox
from broker.core.queues.message import HEADROOM, Message
from broker.core.queues.queue_totals import QueueTotals
from broker.core.queues.requests import AskedLink
from broker.core.queues.session_queue import SessionQueue
from broker.core.queues.windows.held import HeldDeliveries, send_promise
from broker.core.queues.windows.in_flight import InFlight, write_identifiers
from broker.core.topics.subscription import SharedGroup

ACK_RUN: Final = 1_024
"""Acknowledgements that are dealt with in one go."""

TURN: Final = 1_024
"""Messages that one call looks at, to send them or to drop them."""

NO_IDENTIFIERS: Final[tuple[int, ...]] = ()

COMMIT: Final = 16
"""Messages in the outbox beyond which one with terms of its own goes on waiting: what is in flight is neither replaced
by a newer one nor shed."""

PUBREL_HEAD: Final = b"\x62\x02"


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
        self._load = totals
        # The present connection, once a request was sent to it.
        self._asked_link: AskedLink | None = None

    # -- connection ----------------------------------------------------------------------------------------------------

    def open(self, limit: int) -> None:
        """A connection begins: the send quota begins at `limit` [MQTT-4.9.0-1]."""
        self.limit = limit
        self.quota = limit
        self._asked_link = None

    def begin_resend(self, outbox: Outbox, version: int) -> None:
        """Begin to send again what was in flight when the last connection ended (section 4.4).

        A PUBREL stands for a publish that is not acknowledged, and takes its place in the send quota, which may be
        below 0 then: if the client's Receive Maximum is smaller than on its last connection [MQTT-3.3.4-9].
        """
        resend: deque[Delivery] = deque()
        for delivery in self.inflight.values():
            if delivery.state == RELEASED:
                self._take_quota(delivery)
                send_promise(outbox, ack(PUBREL, delivery.packet_id, SUCCESS, version), self.journal is not None)
            else:
                resend.append(delivery)
        self.resend = resend if resend else None

    def _take_quota(self, delivery: Delivery) -> None:
        """It is unacknowledged on this connection."""
        if not delivery.counted:
            delivery.counted = True
            self.quota -= 1

    def reopen(self) -> None:
        """The quota, which was 0 for a while, is again what is left of its limit."""
        self.quota = self.limit
        for delivery in self.inflight.values():
            if delivery.counted:
                self.quota -= 1

    @property
    def backlog(self) -> bool:
        """True when `send_again` may have something to do."""
        return self.resend is not None or (self.held is not None and self.held.ready)

    def send_again(self, outbox: Outbox, permissions: Permissions | None, principal: Principal) -> bool:
        """Send again, as far as quota and outbox have room, what the client may still have. False: some is left."""
        if self.held is not None:
            self.held.go_on()
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
            size = delivery.message.size() + HEADROOM
            # Acknowledged or released meanwhile: nothing to send again [MQTT-4.3.3-6].
            if delivery.state == SENT:
                # Of QoS 2 that was sent the client may know the identifier: that goes on, whatever the rules are now.
                asked = permissions is not None and (delivery.qos == 1 or delivery.attempts == 0)
                if outbox.too_large(delivery):
                    # The client came back with a smaller Maximum Packet Size: as if it had been sent [MQTT-3.1.2-25].
                    self._give_up(delivery, outbox.why_not(delivery.message))
                elif not outbox.has_room(size):
                    return False
                elif asked and permissions is not None and permissions.bars(principal, delivery.message.topic):
                    self._give_up(delivery, NOT_AUTHORIZED)
                else:
                    self.quota -= 1
                    delivery.counted = True
                    self.push(delivery, outbox)
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
            delivery.settle(True)
            if self.journal is not None and delivery.attempts == 0:
                self.journal.unsent(self._client_id, delivery)
        self._forget_line()

    def end(self) -> None:
        """The session is over: nothing is in flight any more."""
        load = self._load
        load.messages -= self.inflight.count
        load.bytes -= self.bytes
        load.inflight -= self.inflight.count
        load.inflight_bytes -= self.bytes
        self.inflight.clear()
        self.bytes = 0
        self._forget_line()

    def _forget_line(self) -> None:
        resend, self.resend = self.resend, None
        if self.held is not None:
            self.held.drop(resend or ())

    # -- out -----------------------------------------------------------------------------------------------------------

    def room(self, count: i64, size: i64, outbox: Outbox) -> i64:
        """How many messages of `size` bytes, at most `count`, `send_now` or `send_run` would send now."""
        load = self._load
        if self.resend is not None:
            return 0
        if count > self.quota:
            count = self.quota if self.quota > 0 else 0
        while count > 0 and not (
            outbox.takes(count, count * size + HEADROOM)
            and self.bytes + count * size <= self.max_bytes
            and load.has_room(count, count * size)
            and load.in_flight_room(count * size)
            and self.inflight.count + count <= self.inflight.largest_id
        ):
            count = count >> 1
        return count

    def send_now(self, message: Message, qos: i64, outbox: Outbox) -> None:
        """Send a new message that nobody keeps: see `room`."""
        delivery = self._put_new(message, qos)
        self._account(1, message.size())
        outbox.push(delivery)

    def send_run(self, messages: list[Message], qos: i64, frames: bytearray, at: i64, outbox: Outbox) -> None:
        """The same for several of one size, at most 255, that came in frames of one length and layout: see `room`.

        `frames` are those, which this client can be sent as they are but for their packet identifiers; the first one's
        is at `at`.
        """
        count: i64 = len(messages)
        size: i64 = 0
        deliveries: list[Delivery] = []
        for message in messages:
            deliveries.append(self._put_new(message, qos))
            size += message.size()
        self._account(count, size)
        write_identifiers(deliveries, frames, at)
        outbox.push_run(DeliveryRun(deliveries, bytes(frames)), size)

    def _put_new(self, message: Message, qos: i64) -> Delivery:
        inflight = self.inflight
        delivery = Delivery(message, qos, False, NO_IDENTIFIERS, None)
        delivery.packet_id = i32(inflight.next_id())
        delivery.state = SENT
        delivery.counted = True
        inflight.add(delivery)
        return delivery

    def _account(self, count: i64, size: i64) -> None:
        """So many new messages of so many bytes in all are in flight."""
        load = self._load
        self.quota -= count
        self.bytes += size
        load.inflight += count
        load.inflight_bytes += size
        load.messages += count
        load.bytes += size

    def send(self, delivery: Delivery, outbox: Outbox) -> bool:
        """Put a delivery in flight. False when every packet identifier is in use, or too many bytes are.

        A new message gets an identifier of its own [MQTT-4.3.2-1] [MQTT-4.3.3-1], and takes one from the send quota;
        callers come here only while there is some [MQTT-4.9.0-2]. Its place in the broker's sum is theirs to hold.
        """
        size: i64 = delivery.message.size()
        if self.inflight.count > 0 and (
            self.bytes + size > self.max_bytes
            or not (self._load.in_flight_room(size) or self._load.is_little(self.inflight.count + 1, self.bytes + size))
        ):
            return False
        if not self.put(delivery):
            return False
        self.quota -= 1
        delivery.counted = True
        self.push(delivery, outbox)
        return True

    def push(self, delivery: Delivery, outbox: Outbox) -> None:
        """Have a delivery be written that is in flight; of QoS 2 when that is committed, if it is kept."""
        journal, commits, new = self.journal, self.commits, delivery.attempts == 0
        if journal is not None and new:
            journal.in_flight(self._client_id, delivery)
        if commits is None or delivery.qos < 2:
            outbox.push(delivery)
            return
        self.held = held = self.held or HeldDeliveries(self.inflight, commits)
        held.push(delivery, outbox, new and journal is not None)

    def full_of_own(self, outbox: Outbox) -> bool:
        """Whether so much is on its way already that what has terms of its own goes on waiting (`COMMIT`)."""
        return outbox.messages + (0 if self.held is None else self.held.count) >= COMMIT

    def send_new(self, delivery: Delivery, outbox: Outbox) -> bool:
        """`send` for one that nothing is held for yet."""
        if not self.send(delivery, outbox):
            return False
        load = self._load
        load.messages += 1
        load.bytes += delivery.message.size()
        return True

    def send_waiting(self, queue: SessionQueue, outbox: Outbox, now: float) -> bool:
        """Send what waits in the session's queue, in its order, as far as window and outbox have room.

        False: some has to go on waiting.
        """
        self.spent = False
        for _ in range(TURN):
            delivery = queue.first()
            if delivery is None:
                return queue.disk is None
            if not self._send_first(delivery, queue, outbox, now):
                return False
        self.spent = True
        return False

    def _send_first(self, delivery: Delivery, queue: SessionQueue, outbox: Outbox, now: float) -> bool:
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
            cause = outbox.why_not(message)
        elif queue.review is not None and queue.bars(delivery):
            cause = NOT_AUTHORIZED
        elif not outbox.has_room(size + HEADROOM) or (
            delivery.qos > 0
            and (
                self.quota <= 0
                or (sub_queue is not None and self.full_of_own(outbox))
                or not self.send(delivery, outbox)
            )
        ):
            return False
        queue.pop_first(delivery)
        if cause != ACCEPTED:
            queue.give_up(delivery, cause)
        elif delivery.qos == 0:
            load = self._load
            load.messages -= 1
            load.bytes -= size
            outbox.push(delivery)
            if self.journal is not None:
                self.journal.finished(self._client_id, delivery)
        elif sub_queue is not None:
            sub_queue.leave(delivery)
        return True

    def put(self, delivery: Delivery) -> bool:
        """Have a delivery be in flight with the next packet identifier. False: all of them are in use."""
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
        self._load.messages += 1
        self._load.bytes += delivery.message.size()
        self.inflight.last_id = i64(delivery.packet_id)

    def _add(self, delivery: Delivery) -> None:
        self.inflight.add(delivery)
        size: i64 = delivery.message.size()
        self.bytes += size
        self._load.inflight += 1
        self._load.inflight_bytes += size

    def _remove(self, delivery: Delivery) -> None:
        """It is in flight no more, and takes no room."""
        load = self._load
        self.inflight.remove(delivery)
        size: i64 = delivery.message.size()
        self.bytes -= size
        load.inflight -= 1
        load.inflight_bytes -= size
        load.messages -= 1
        load.bytes -= size

    def finish(self, delivery: Delivery) -> None:
        """The delivery is over: its identifier is free, and its place in the quota of this connection."""
        self._remove(delivery)
        delivery.state = DONE
        if self.journal is not None:
            self.journal.finished(self._client_id, delivery)
        if delivery.counted:
            delivery.counted = False
            self.quota += 1

    def free_expired(self, outbox: Outbox) -> None:
        """What expired before it was written gives its packet identifier back; the outbox counted it."""
        if outbox.queue.expired is not None:
            for expired in outbox.queue.take_expired():
                if expired.state == SENT:
                    expired.settle(True)
                    self.finish(expired)

    def take_shared(self, groups: set[SharedGroup]) -> list[Delivery]:
        """Take out what was chosen for this member of some shared subscriptions: QoS 1, and QoS 2 never sent."""
        taken: list[Delivery] = []
        for delivery in self.inflight.values():
            if delivery.group in groups and delivery.state == SENT and (delivery.qos == 1 or delivery.attempts == 0):
                self._remove(delivery)
                taken.append(delivery)
        return taken

    # -- acknowledgements from the client ------------------------------------------------------------------------------

    def link(self) -> AskedLink:
        """The present connection, as requests see it: who has asked is told what it acknowledges."""
        self._asked_link = link = self._asked_link or AskedLink()
        return link

    def _answered(self, delivery: Delivery, reason_code: int) -> None:
        """A link says whether a request reached anybody."""
        request = delivery.asked
        if request is not None and self._asked_link is not None:
            request.heard(self._asked_link)
        delivery.settle(reason_code != NO_MATCHING_SUBSCRIBERS)

    def on_puback(self, packet_id: int, reason_code: int) -> bool:
        """PUBACK: the delivery is complete [MQTT-4.3.2-3]. True: there is more room than before.

        The reason code makes no difference to that: what the client refused is not sent again [MQTT-4.4.0-2], nor to
        another member of a shared subscription [MQTT-4.8.2-6]. It is told on to whoever has asked (`requests`).
        An unknown identifier is ignored.

        Raises ProtocolViolation when the identifier is in use by a QoS 2 delivery.
        """
        delivery = self.inflight.get(packet_id)
        if delivery is None or delivery.attempts == 0:
            return False
        if delivery.qos != 1:
            raise ProtocolViolation("PUBACK for a QoS 2 message")
        if delivery.asked is not None:
            self._answered(delivery, reason_code)
        self.finish(delivery)
        return True

    def on_pubrec(self, packet_id: int, reason_code: int, outbox: Outbox | None, version: int) -> bool:
        """PUBREC: answer PUBREL, or give up the message when the client refused it [MQTT-4.3.3-4].

        Until now the PUBLISH was unacknowledged and would have been sent again [MQTT-4.3.3-3]. A refused message is
        settled [MQTT-4.4.0-2], and goes to no other member of a shared subscription [MQTT-4.8.2-6].
        True: there is more room than before.
        """
        delivery = self.inflight.get(packet_id)
        if delivery is None:
            if outbox is not None and reason_code < 0x80:
                code = PACKET_IDENTIFIER_NOT_FOUND if version == V5 else SUCCESS
                send_promise(outbox, ack(PUBREL, packet_id, code, version), self.journal is not None)
            return False
        if delivery.attempts == 0:
            return False
        if delivery.qos != 2:
            raise ProtocolViolation("PUBREC for a QoS 1 message")
        if delivery.asked is not None:
            self._answered(delivery, reason_code)
        if reason_code >= 0x80:
            self.finish(delivery)
            return True
        self._release(delivery)
        if outbox is not None:
            send_promise(outbox, ack(PUBREL, packet_id, SUCCESS, version), self.journal is not None)
        return False

    def on_pubcomp(self, packet_id: int) -> bool:
        """PUBCOMP: the QoS 2 delivery is complete. An unknown identifier is ignored. True: there is more room."""
        delivery = self.inflight.get(packet_id)
        if delivery is None or delivery.attempts == 0:
            return False
        if delivery.qos != 2 or delivery.state != RELEASED:
            raise ProtocolViolation("PUBCOMP without PUBREL")
        self.finish(delivery)
        return True

    def _release(self, delivery: Delivery) -> None:
        if self.journal is not None and delivery.state != RELEASED:
            self.journal.released(self._client_id, delivery)
        delivery.state = RELEASED
        # Of one that was to be sent again on this connection the client had the PUBLISH already.
        self._take_quota(delivery)

    def on_acks(self, kind: i64, data: bytes, start: i64, outbox: Outbox | None) -> i64:
        """Acknowledgements of one kind, side by side in `data` from `start` on, dealt with in one go.

        `kind`: PUBACK, PUBREC or PUBCOMP. Those of four bytes, at most `ACK_RUN`, and up to the first that has to be
        looked at by itself. Where the last of them ends; `start` where it is already the first.
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
                self.finish(delivery)
            elif kind == PUBCOMP:
                if delivery.qos != 2 or delivery.state != RELEASED:
                    break
                self.finish(delivery)
            else:
                if delivery.qos != 2:
                    break
                if delivery.asked is not None:
                    self._answered(delivery, SUCCESS)
                self._release(delivery)
                packet_ids.append(data[at + 2 : at + 4])
            at += 4
        if kind == PUBREC and at != start and outbox is not None:
            send_promise(outbox, PUBREL_HEAD + PUBREL_HEAD.join(packet_ids), self.journal is not None)
        return at
