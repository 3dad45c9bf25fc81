"""When retained messages were written, in an order that all nodes agree on: a hybrid logical clock.

Owns `Stamp` and `HybridClock` (Kulkarni and others, Logical Physical Clocks, 2014). Promises: what a node writes after
it has heard of another write has the higher stamp, however the nodes' clocks differ, and no two writes of a topic have
the same. A clock that is too far ahead is held to be wrong (`max_ahead`): its stamps are not taken over. A node whose
own clock is as far behind goes by what the others have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Stamp = tuple[int, str]
"""The time in milliseconds since 1970, with 16 bits below it that count, and the node; compared in this order.

A time of 0 has a digest of the message in place of the node: see `kept_stamp` in `stamps`."""

COUNT_BITS: Final = 16
"""The bits of a stamp's time below the milliseconds."""


class HybridClock:
    """Makes the stamps of one node. `shift`: milliseconds by which this node's clock is behind those of the others,
    where that is more than `max_ahead`, else 0."""

    def __init__(self, node: str, wall: Callable[[], float], max_ahead: float) -> None:
        """`wall`: the time in seconds since 1970; `max_ahead`: seconds that a clock may be ahead of this one."""
        self.node: Final = node
        self.shift = 0
        self._wall = wall
        self._max_ahead = int(max_ahead * 1_000)
        self._last = 0
        # By node, how many milliseconds its clock is ahead of this one's.
        self._ahead: dict[str, int] = {}

    def milliseconds(self) -> int:
        """This node's own clock."""
        return max(int(self._wall() * 1_000), 0)

    def tick(self, above: Stamp | None) -> Stamp:
        """The stamp of a write that takes place now, higher than the one that the topic has.

        A clock that was set back, or went by others that were wrong, goes on from the present: `above` keeps each
        topic's writes in order.
        """
        present = self._present()
        if self._last > self._latest(present):
            self._last = 0
        time = self._last = max(self._last + 1, present << COUNT_BITS)
        if above is not None and above[0] >= time:
            time = above[0] + 1
        return time, self.node

    def correct(self, above: Stamp | None) -> Stamp:
        """The stamp of a write that counts as made now, since its own is too far ahead: never higher than that.

        One that the topic has and that is too far ahead, too, is no bound: else two nodes could correct each other for
        ever.
        """
        return self.tick(None if above is None or above[0] > self._latest(self._present()) else above)

    def take_over(self, stamp: Stamp) -> bool:
        """Have all that is written here from now on be later than a stamp of another node.

        False: it is too far ahead to be true, and nothing is changed.
        """
        if stamp[0] > self._latest(self._present()):
            return False
        if stamp[0] > self._last:
            self._last = stamp[0]
        return True

    def heard(self, node: str, milliseconds: int) -> float:
        """Another node has said what its clock shows now.

        Returns by how many seconds it is ahead of this one (negative: behind), if that is news and more than
        `max_ahead`; else 0.0.
        """
        before = self._ahead.get(node, 0)
        ahead = self._ahead[node] = milliseconds - self.milliseconds()
        self._find_shift()
        return ahead / 1_000 if abs(ahead) > self._max_ahead >= abs(before) else 0.0

    def forget(self, node: str) -> None:
        """A node is gone, and its clock with it."""
        if self._ahead.pop(node, None) is not None:
            self._find_shift()

    def _present(self) -> int:
        return self.milliseconds() + self.shift

    def _latest(self, present: int) -> int:
        return present + self._max_ahead + 1 << COUNT_BITS

    def _find_shift(self) -> None:
        # The clock in the middle; of two the later one: a clock that was never set is far behind. A message that was
        # long on its way makes its sender's clock seem behind, so that nobody goes by a clock behind its own.
        clocks = sorted([0, *self._ahead.values()])
        shift = clocks[len(clocks) // 2]
        self.shift = shift if shift > self._max_ahead else 0
