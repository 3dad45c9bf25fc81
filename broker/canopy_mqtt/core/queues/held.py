"""Control packets to one client that wait for a commit: PUBACK, PUBREC, PUBCOMP, SUBACK …

Owns their order. Promises: none is sent before what it acknowledges is committed, and they are sent in the order in
which they came here [MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4]: packets without anything to commit follow those that
are held. Those that end a publish count against Receive Maximum meanwhile, and their bytes as unread by the client, so
what is held is bounded. It ends with the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from mypy_extensions import i64

from canopy_mqtt.core.persistence.commits import Commits, Waiter
from canopy_mqtt.core.queues.delivery import SENT, Delivery
from canopy_mqtt.core.queues.in_flight import InFlight
from canopy_mqtt.core.queues.message import HEADROOM
from canopy_mqtt.core.queues.send_buffer import SendBuffer, ended_publishes

FILTERS_ANSWER: Final = 128
"""Bytes that a held SUBACK or UNSUBACK counts for besides its own: about what is kept of it. Each stands for notes of
its own, and Receive Maximum does not bound how many there are."""


class HeldAnswers(Waiter):
    """The held packets of one connection, in `SendBuffer.held` if there is a store that commits later."""

    def __init__(self, send_buffer: SendBuffer, commits: Commits) -> None:
        super().__init__()
        self.commits = commits
        self._send_buffer = send_buffer
        # Each number that is waited for, and the packets that are sent when it is committed, in pieces that may have
        # several. What a client can have held in any number tells the journal nothing, and so stands with others: a
        # few bytes each.
        self._line: deque[tuple[i64, list[bytes]]] = deque()

    def send(self, packet: bytes, number: i64) -> None:
        """Send it when everything told up to `number` is committed. 0: it stands for nothing that was told."""
        line = self._line
        if not line:
            if number <= self.commits.committed:
                self._send_buffer.control(packet)
                return
            if self._send_buffer.closed:
                return
            self.commits.wait_for(self, number)
        if not line or number > line[-1][0]:
            line.append((number, []))
        line[-1][1].append(packet)
        send_buffer = self._send_buffer
        send_buffer.unqueued += ended_publishes(packet)
        send_buffer.held_bytes += _size(packet)

    def committed(self, number: i64) -> i64:
        """Send what is committed. How many pieces."""
        line = self._line
        send_buffer = self._send_buffer
        count: i64 = 0
        while line and line[0][0] <= number:
            for packet in line.popleft()[1]:
                send_buffer.unqueued -= ended_publishes(packet)
                send_buffer.held_bytes -= _size(packet)
                send_buffer.control(packet)
                count += 1
        if line:
            self.commits.wait_for(self, line[0][0])
        return count

    def drop(self) -> None:
        """Forget all answers, since the connection is over.

        A QoS 2 publish stays known to its session; whatever the client misses an answer to it sends again.
        """
        self.commits.leave(self)
        send_buffer = self._send_buffer
        for _, packets in self._line:
            for packet in packets:
                send_buffer.unqueued -= ended_publishes(packet)
                send_buffer.held_bytes -= _size(packet)
        self._line.clear()


def _size(packet: bytes) -> i64:
    """Bytes that a held packet counts for."""
    size: i64 = len(packet)
    if packet[0] >= 0x90:
        size += FILTERS_ANSWER
    return size


def send_promise(send_buffer: SendBuffer, packet: bytes, kept: bool) -> None:
    """Queue a control packet that says that something was done. `kept`: a journal was told of it, now or earlier.

    Then it waits for everything that was told so far: what was told of it on an earlier connection counts, too.
    """
    held = send_buffer.held
    if held is None:
        send_buffer.control(packet)
    else:
        held.send(packet, held.commits.journal_position if kept else 0)


class HeldDeliveries(Waiter):
    """The held deliveries of one session, on its present connection."""

    def __init__(self, inflight: InFlight, commits: Commits) -> None:
        super().__init__()
        self._inflight = inflight
        self._commits = commits
        self._send_buffer: SendBuffer | None = None
        # The deliveries, each with the number that has to be committed first.
        self._line: deque[tuple[i64, Delivery]] = deque()

    @property
    def count(self) -> i64:
        """Return how many are held."""
        return len(self._line)

    @property
    def ready(self) -> bool:
        """True if the first of them waits for room alone."""
        line = self._line
        return len(line) > 0 and line[0][0] <= self._commits.committed

    def push(self, delivery: Delivery, send_buffer: SendBuffer, waits: bool) -> None:
        """Queue a delivery that is in flight, for which the buffer has room, when everything told so far is committed.

        `waits`: it is kept, and was not written yet. Any other was committed before, or is not kept: it only stays
        behind the others.
        """
        line = self._line
        number: i64 = self._commits.journal_position if waits else 0
        if not line:
            if number <= self._commits.committed:
                self._queue(delivery, send_buffer)
                return
            self._send_buffer = send_buffer
            self._commits.wait_for(self, number)
        elif number < line[-1][0]:
            number = line[-1][0]
        line.append((number, delivery))

    def committed(self, number: i64) -> i64:
        """Queue what is committed, as far as there is room: `ready` says whether some is left for the writer's turn.

        How many.
        """
        line = self._line
        send_buffer = self._send_buffer
        count: i64 = 0
        while send_buffer is not None and line and line[0][0] <= number:
            delivery = line[0][1]
            # The delivery may be over, or have gone to another member of a shared subscription.
            if self._is_in_flight(delivery):
                if not send_buffer.has_room(delivery.message.size + HEADROOM):
                    return count
                self._queue(delivery, send_buffer)
                count += 1
            line.popleft()
        if line:
            self._commits.wait_for(self, line[0][0])
        return count

    def _queue(self, delivery: Delivery, send_buffer: SendBuffer) -> None:
        if delivery.attempts == 0:
            self._inflight.move_behind(delivery)
        send_buffer.push(delivery)

    def send_ready(self) -> None:
        """The send buffer has room again."""
        if self.ready:
            self.committed(self._commits.committed)

    def drop(self, unsent: Iterable[Delivery]) -> None:
        """The connection is over: none of them was sent. They stay before `unsent`, whose turn had not come.

        Both stay behind those that were committed, and so moved behind the others when they were sent.
        """
        self._commits.leave(self)
        self._send_buffer = None
        for delivery in (*(delivery for _, delivery in self._line), *unsent):
            waits = delivery.qos == 2 or delivery.message.held
            if waits and delivery.attempts == 0 and self._is_in_flight(delivery):
                self._inflight.move_behind(delivery)
        self._line.clear()

    def _is_in_flight(self, delivery: Delivery) -> bool:
        return delivery.state == SENT and self._inflight.get(i64(delivery.packet_id)) is delivery
