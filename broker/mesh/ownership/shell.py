"""What moving sessions need of the broker that they stand in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from broker.core.queues.message import Message
from broker.mesh.ownership.messages import Late, Missed


class Shell(ABC):
    """What the room (`room`) needs. All on the event loop's thread."""

    @abstractmethod
    def now(self) -> float:
        """The broker's monotonic clock (s), as the router knows it."""

    @abstractmethod
    def wall(self) -> float:
        """Seconds since the epoch. Where the clocks of nodes differ, claims are still in order once they have met."""

    @abstractmethod
    def soon(self, call: Callable[[], None]) -> None:
        """Call something in a later turn of the event loop."""

    @abstractmethod
    def known(self) -> set[str]:
        """The other nodes that are there, or for which something waits."""

    @abstractmethod
    def settle(self, call: Callable[[set[str]], None]) -> None:
        """Call something, not before this has returned, when every node knows the filters that stand here now, or has
        had its time (`mesh.confirm_timeout`): with those of the known ones that may not."""

    @abstractmethod
    def arrived(self, node: str, call: Callable[[], None]) -> None:
        """Call something when a node has all that was published here for it until now; never if it leaves before."""

    @abstractmethod
    def waiting(self, missed: Missed, filters: list[str]) -> list[Message]:
        """What waits here for sessions with these topic filters in the queue of a node that had them."""

    @abstractmethod
    def hand_over(self, lates: list[Late]) -> None:
        """Put what waits for sessions that have moved into the queues of their nodes, and the marks behind it."""

    def takers(self, nodes: list[str]) -> list[str]:
        """Those of these nodes that take the sessions of this one, which is about to go."""
        return nodes

    @abstractmethod
    def wake(self) -> None:
        """Connections may have ended, or have something to write: look after them (`FlushScheduler.after_batch`)."""
