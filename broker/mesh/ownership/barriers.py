"""Waiting until all that other nodes had published for this one has arrived.

Owns the barriers of this node. Promises: each is passed once, when every node that was there has answered that this one
has acknowledged all of it, has left, or has had its time; who waits for it is told which nodes have answered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from broker.mesh.ownership.messages import Flush, Flushed, Message


class Barrier(Protocol):
    """Calls something when all has arrived that the nodes, `but` some, had published for this one, with those of which
    that is not sure. `numbers`: and when it is known here which QoS 2 publishes of theirs may come again."""

    def __call__(
        self, call: Callable[[set[str]], None], but: Collection[str] = (), *, numbers: bool = False
    ) -> None: ...


class _Barrier:
    def __init__(self, awaiting: set[str], call: Callable[[set[str]], None], due: float) -> None:
        self.awaiting = awaiting
        self.answered: set[str] = set()
        self.call = call
        self.due = due


class Barriers:
    """The barriers. `timeout`: seconds that a node is waited for."""

    def __init__(self, send: Callable[[str, Message], None], now: Callable[[], float], timeout: float) -> None:
        self.timed_out = 0
        """Nodes that did not answer in time: what they had sent may come later."""
        self._send = send
        self._now = now
        self._timeout = timeout
        self._number = 0
        # In the order in which they fall due.
        self._pending: dict[int, _Barrier] = {}

    def begin(self, nodes: Iterable[str], call: Callable[[set[str]], None], numbers: bool = False) -> None:
        """Call something when all that these nodes have sent until now has arrived; at once where there are none.

        It is called with the nodes that have answered. `numbers`: see `Flush`.
        """
        awaiting = set(nodes)
        if not awaiting:
            call(set())
            return
        self._number += 1
        self._pending[self._number] = _Barrier(awaiting, call, self._now() + self._timeout)
        for node in awaiting:
            self._send(node, Flush(self._number, numbers))

    def flushed(self, node: str, answer: Flushed) -> None:
        """A node has answered."""
        barrier = self._pending.get(answer.number)
        if barrier is not None and node in barrier.awaiting:
            barrier.answered.add(node)
            self._without(answer.number, barrier, node)

    def left(self, node: str) -> None:
        """A node is gone."""
        for number, barrier in list(self._pending.items()):
            barrier.answered.discard(node)
            self._without(number, barrier, node)

    def _without(self, number: int, barrier: _Barrier, node: str) -> None:
        barrier.awaiting.discard(node)
        if not barrier.awaiting and self._pending.pop(number, None) is not None:
            barrier.call(barrier.answered)

    @property
    def due(self) -> float:
        """When `tick` is to be called; 0.0: not before something happens."""
        for barrier in self._pending.values():
            return barrier.due
        return 0.0

    def postpone(self, seconds: float) -> None:
        """All nodes have so many seconds more."""
        for barrier in self._pending.values():
            barrier.due += seconds

    def tick(self) -> None:
        """Go on without the nodes whose time is over."""
        now = self._now()
        while 0.0 < self.due <= now:
            number = next(iter(self._pending))
            barrier = self._pending.pop(number)
            self.timed_out += len(barrier.awaiting)
            barrier.call(barrier.answered)
