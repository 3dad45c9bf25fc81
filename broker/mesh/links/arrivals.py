"""When all that is for a node has arrived there: for those who wait until nothing is on its way any more.

Owns, for one node, who waits and for what. Costs nothing while nobody waits; who comes while others wait costs a look
at what is on its way by then. QoS 0 counts as arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.core.queues.delivery import QUEUED, SENT, Delivery
from broker.mesh.links.session import NodeSession


class Arrivals:
    """Who waits for what is on its way to one node."""

    def __init__(self, session: NodeSession) -> None:
        self._session = session
        # What is to arrive, and behind it whom to call then.
        self._line: deque[Delivery | Callable[[], None]] = deque()
        self._known: set[Delivery] = set()
        # What the session had been offered when it was looked at last.
        self._offered = -1

    @property
    def awaited(self) -> bool:
        """Whether anybody waits."""
        return bool(self._line)

    def wait(self, call: Callable[[], None]) -> None:
        """Call something when all has arrived that is on its way by now."""
        session = self._session
        if not self._line or session.offered != self._offered:
            self._offered = session.offered
            for delivery in (*session.inflight.values(), *session.queue.waiting()):
                if delivery not in self._known and not _arrived(delivery):
                    self._known.add(delivery)
                    self._line.append(delivery)
        self._line.append(call)
        self.look()

    def look(self) -> None:
        """Something has arrived, or never will."""
        line = self._line
        while line:
            first = line[0]
            if isinstance(first, Delivery):
                if not _arrived(first):
                    return
                line.popleft()
                self._known.discard(first)
            else:
                line.popleft()
                first()

    def end(self) -> None:
        """Nothing arrives any more: nobody is called."""
        self._line.clear()
        self._known.clear()


def _arrived(delivery: Delivery) -> bool:
    """With PUBACK or PUBREC the node has it; or it was given up."""
    return delivery.qos == 0 or delivery.state not in (QUEUED, SENT)
