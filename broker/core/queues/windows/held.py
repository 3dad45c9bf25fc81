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

from broker.core.persistence.commits import Commits, Waiter
from broker.core.queues.delivery import SENT, Delivery
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.message import HEADROOM
from broker.core.queues.windows.in_flight import InFlight
from broker.core.queues.windows.receive_window import ended_publishes

FILTERS_ANSWER: Final = 128
"""Bytes that a held SUBACK or UNSUBACK counts for besides its own: about what is kept of it. Each stands for notes of
its own, and Receive Maximum does not bound how many there are."""


class HeldGroup:
    """Packets that are sent when a number is committed; each piece may contain several.

    What a client can have held in any number tells the journal nothing, and so stands in one group: a few bytes each.
    """

    def __init__(self, number: i64) -> None:
        self.number: i64 = number
        self.packets: list[bytes] = []


class HeldAnswers(Waiter):
    """The held packets of one connection, in `Outbox.held` if there is a store that commits later."""

    def __init__(self, outbox: Outbox, commits: Commits) -> None:
        super().__init__()
        self.commits = commits
        self._outbox = outbox
        self._window = outbox.receive_window
        self._line: deque[HeldGroup] = deque()

    def send(self, packet: bytes, number: i64) -> None:
        """Send it when everything told up to `number` is committed. 0: it stands for nothing that was told."""
        line = self._line
        if not line:
            if number <= self.commits.committed:
                self._outbox.acknowledge(packet)
                return
            if self._outbox.closed:
                return
            self.commits.wait_for(self, number)
        if not line or number > line[-1].number:
            line.append(HeldGroup(number))
        line[-1].packets.append(packet)
        window = self._window
        window.held += ended_publishes(packet)
        window.held_bytes += _size(packet)

    def committed(self, number: i64) -> i64:
        """Send what is committed. How many pieces."""
        line = self._line
        window = self._window
        count: i64 = 0
        while line and line[0].number <= number:
            for packet in line.popleft().packets:
                window.held -= ended_publishes(packet)
                window.held_bytes -= _size(packet)
                self._outbox.acknowledge(packet)
                count += 1
        if line:
            self.commits.wait_for(self, line[0].number)
        return count

    def drop(self) -> None:
        """The connection is over: nobody waits any more.

        A QoS 2 publish stays known to its session; whatever the client misses an answer to it sends again.
        """
        self.commits.leave(self)
        window = self._window
        for group in self._line:
            for packet in group.packets:
                window.held -= ended_publishes(packet)
                window.held_bytes -= _size(packet)
        self._line.clear()


def _size(packet: bytes) -> i64:
    """Bytes that a held packet counts for."""
    size: i64 = len(packet)
    if packet[0] >= 0x90:
        size += FILTERS_ANSWER
    return size


def send_promise(outbox: Outbox, packet: bytes, kept: bool) -> None:
    """Queue a control packet that says that something was done. `kept`: a journal was told of it, now or earlier.

    Then it waits for everything that was told so far: what was told of it on an earlier connection counts, too.
    """
    held = outbox.held
    if held is None:
        outbox.control(packet)
    else:
        assert isinstance(held, HeldAnswers)
        held.send(packet, held.commits.told if kept else 0)


class HeldDelivery:
    """A delivery, and the number that has to be committed first."""

    def __init__(self, delivery: Delivery, number: i64) -> None:
        self.delivery = delivery
        self.number: i64 = number


class HeldDeliveries(Waiter):
    """The held deliveries of one session, on its present connection."""

    def __init__(self, inflight: InFlight, commits: Commits) -> None:
        super().__init__()
        self._inflight = inflight
        self._commits = commits
        self._outbox: Outbox | None = None
        self._line: deque[HeldDelivery] = deque()

    @property
    def count(self) -> i64:
        """How many are held."""
        return len(self._line)

    @property
    def ready(self) -> bool:
        """Whether the first of them waits for room alone."""
        line = self._line
        return len(line) > 0 and line[0].number <= self._commits.committed

    def push(self, delivery: Delivery, outbox: Outbox, waits: bool) -> None:
        """Queue a delivery that is in flight, for which the outbox has room, when everything told so far is committed.

        `waits`: it is kept, and was not written yet. Any other was committed before, or is not kept: it only stays
        behind the others.
        """
        line = self._line
        number: i64 = self._commits.told if waits else 0
        if not line:
            if number <= self._commits.committed:
                self._queue(delivery, outbox)
                return
            self._outbox = outbox
            self._commits.wait_for(self, number)
        elif number < line[-1].number:
            number = line[-1].number
        line.append(HeldDelivery(delivery, number))

    def committed(self, number: i64) -> i64:
        """Queue what is committed, as far as there is room: `ready` says whether some is left for the writer's turn.

        How many.
        """
        line = self._line
        outbox = self._outbox
        count: i64 = 0
        while outbox is not None and line and line[0].number <= number:
            delivery = line[0].delivery
            # It may be over, or have gone to another member of a shared subscription.
            if self._is_in_flight(delivery):
                if not outbox.has_room(delivery.message.size() + HEADROOM):
                    return count
                self._queue(delivery, outbox)
                count += 1
            line.popleft()
        if line:
            self._commits.wait_for(self, line[0].number)
        return count

    def _queue(self, delivery: Delivery, outbox: Outbox) -> None:
        if delivery.attempts == 0:
            self._inflight.move_behind(delivery)
        outbox.push(delivery)

    def go_on(self) -> None:
        """The outbox has room again."""
        if self.ready:
            self.committed(self._commits.committed)

    def drop(self, unsent: Iterable[Delivery]) -> None:
        """The connection is over: none of them was sent. They stay before `unsent`, whose turn had not come.

        Both stay behind those that were committed, and so moved behind the others when they were sent.
        """
        self._commits.leave(self)
        self._outbox = None
        for delivery in (*(held.delivery for held in self._line), *unsent):
            if delivery.qos == 2 and delivery.attempts == 0 and self._is_in_flight(delivery):
                self._inflight.move_behind(delivery)
        self._line.clear()

    def _is_in_flight(self, delivery: Delivery) -> bool:
        return delivery.state == SENT and self._inflight.get(i64(delivery.packet_id)) is delivery
