"""QoS 2 publishes to one client that wait until their packet identifier is committed.

Owns their order. So a message that was sent by a broker which is then killed is known to the next one by its packet
identifier, and delivered once (section 4.3.3). Promises: their order stays [MQTT-4.6.0-6]; the outbox gets them when
they are committed and it has room. Messages of another QoS do not wait for them, and stay in front when they are sent
again. They are in flight in their session meanwhile, and so bounded by its send quota and its bytes; if the connection
ends, they are unsent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mypy_extensions import i64

from broker.core.persistence.commits import Commits, Waiter
from broker.core.queues.delivery import SENT, Delivery
from broker.core.queues.live.outbox import Outbox
from broker.core.queues.message import HEADROOM
from broker.core.queues.windows.in_flight import InFlight


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
