"""The order of sending: one heap of due times for all senders of a process.

Owns: the order of what is due. Compiled; knows no event loop: the owner calls `run` at the time that it returned.

Promises: each sender stands in the heap once, beside times of its own that have changed, and these are swept out. One
that is due and cannot send because its connection is full is looked at again after `RETRY`; one that has no connection
is not looked at until it is `put` anew. Nothing is dropped: messages keep their intended times.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from canopy_load.engine.clients.sending import Sender
from canopy_load.engine.schedule import NEVER

if TYPE_CHECKING:
    from mypy_extensions import i64

RETRY: Final = 2000.0
"""Microseconds until a sender that was held up is tried again; the end of the hold-up wakes it earlier."""


class SendScheduler:
    """Senders by the time at which they are due, in microseconds of the monotonic clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sender]] = []
        self._order = 0
        self._swept = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, sender: Sender) -> None:
        """Note when a sender is due, or that this has changed."""
        if sender.next_at != sender.scheduled:
            self._push(sender, sender.next_at)

    def _push(self, sender: Sender, at: float) -> None:
        sender.scheduled = at
        if at != NEVER:
            self._order += 1
            heappush(self._heap, (at, self._order, sender))
            # Times that have changed stay behind; a load that rises step by step leaves many.
            if len(self._heap) > 2 * self._swept + 64:
                self._heap[:] = [each for each in self._heap if each[2].scheduled == each[0]]
                heapify(self._heap)
                self._swept = len(self._heap)

    def run(self, now: i64) -> float:
        """Let every sender that is due by `now` send; return the time of the next one, or NEVER."""
        heap = self._heap
        clock: float = float(now)
        while heap and heap[0][0] <= clock:
            at, _, sender = heappop(heap)
            if sender.scheduled != at:
                continue
            sender.pump(now)
            if sender.next_at > clock:
                self._push(sender, sender.next_at)
            elif sender.ready and sender.qos == 0 and sender.remaining != 0:
                self._push(sender, clock + 1.0)  # a batch is full: the sockets first, then the rest
            elif sender.remaining != 0 and sender.outlet is not None:
                self._push(sender, clock + RETRY)
            else:
                sender.scheduled = NEVER  # through, or not connected: who connects is put anew
        while heap and heap[0][2].scheduled != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else NEVER
