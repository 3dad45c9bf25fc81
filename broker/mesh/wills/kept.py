"""Copies of the wills of other nodes' clients.

Owns the wills of each process of another node, and how many bytes they take: beyond a bound they are not kept. A
process that is there again sends all anew: what is known from before stands until that is whole. Each call takes about
as long whatever is kept, but for a list of all; what takes more is done by `some` and `forget_stale`, in turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from broker.mesh.wills.messages import MILLISECONDS, WillCopy

ENTRY: Final = 384
"""What a will takes besides its data and its client's name (bytes): two objects, a place in a table and in a heap."""


class KeptWill:
    """The will of a client of another node."""

    __slots__ = (
        "client_id",
        "data",
        "delay",
        "due",
        "ends",
        "losses",
        "moved",
        "over",
        "process",
        "round",
        "running",
        "serial",
    )  # fmt: skip

    def __init__(self, process: Process, copy: WillCopy, now: float) -> None:
        self.process = process
        self.client_id = copy.client_id
        self.serial = copy.serial
        self.data = copy.data
        self.delay = copy.delay / MILLISECONDS
        self.running = copy.running
        """Its connection had ended before the node was lost."""
        self.ends = now + self.delay if copy.running else 0.0
        """When its delay has passed, if that runs."""
        self.due = 0.0
        """When it is published, where that has been planned."""
        self.over = False
        """It is not to be published any more."""
        self.moved = False
        """That is so since its client has come to another node."""
        self.losses = 0
        self.round = process.round
        """In which round of all wills it was sent last."""

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return ENTRY + len(self.data) + len(self.client_id)


class Process:
    """One process of another node, and the wills that it has sent."""

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self.wills: dict[str, KeptWill] = {}
        """Those that it has sent; some of them stand no more, and are forgotten in turns (`find`)."""
        self.round = 0
        """How often it has begun to send all of them."""
        self.bytes = 0
        self.open = 0
        """Wills that are not over."""
        self.there = True
        self.lost_at = 0.0
        """When the last of the nodes that are there has lost it, as far as is known."""
        self.losses = 0
        """How often it was lost: what was planned before it was there again counts no more."""
        self.dead = False
        """Its wills are published as they fall due."""
        self.published = 0
        self.left_out = 0
        """Wills that found no room."""
        # Since which round a will must have been sent to stand; and whether it stands only where its delay runs.
        self._since = 0
        self._stops = False
        # Those of which it is still to be seen whether they stand. None: all do.
        self._sweep: Iterator[KeptWill] | None = None
        # The wills that are still to be looked at since it was lost, or is dead.
        self.walk: Iterator[KeptWill] = iter(())
        self.walking = False

    @property
    def empty(self) -> bool:
        """Whether nothing of it is known."""
        return not self.wills

    @property
    def stale(self) -> bool:
        """Whether `forget_stale` has something to do."""
        return self._sweep is not None

    def find(self, client_id: str) -> KeptWill | None:
        """The will of a client."""
        kept = self.wills.get(client_id)
        return kept if kept is not None and self._stands(kept) else None

    def _stands(self, kept: KeptWill) -> bool:
        return kept.round >= self._since and (kept.running or not self._stops)

    def back(self) -> None:
        """It is there again, and sends all anew."""
        if self._stops:
            self.forget_stale(len(self.wills))
            self._stops = False
        self.there = True
        self.dead = self.walking = False
        self.round += 1

    def put(self, copy: WillCopy, now: float, room: int) -> None:
        """It sends a will; `room`: bytes that there are for it."""
        before = self.wills.pop(copy.client_id, None)
        if before is not None:
            self._count(before, -1)
            room += before.size
        if not copy.data:
            return
        kept = KeptWill(self, copy, now)
        if before is not None and before.serial == copy.serial and (before.moved or copy.running):
            # It has not heard yet what has become of it.
            kept.over, kept.moved = before.over, before.moved
        if kept.size > room:
            self.left_out += 1
            return
        self.wills[copy.client_id] = kept
        self._count(kept, 1)

    def whole(self) -> None:
        """It has sent all."""
        if self._since < self.round:
            self._since = self.round
            self._look_for_stale()

    def stops(self) -> None:
        """It has published its wills, but for those whose delay runs."""
        self._stops = True
        self._look_for_stale()

    def lost(self, now: float) -> None:
        """It is gone, perhaps for a moment."""
        self.there = False
        self.losses += 1
        self.lost_at = now
        self.look()

    def look(self) -> None:
        """Have all wills be looked at by `some`."""
        self.walk = iter(list(self.wills.values()))
        self.walking = True

    def some(self, count: int) -> list[KeptWill]:
        """The next of those that are looked at."""
        found = list(islice(self.walk, count))
        self.walking = len(found) == count
        return [kept for kept in found if not kept.over and self.find(kept.client_id) is kept]

    def end(self, kept: KeptWill, moved: bool) -> None:
        """A will is not to be published any more."""
        if not kept.over:
            kept.over = True
            self.open -= 1
        kept.moved = kept.moved or moved

    def forget_stale(self, count: int) -> None:
        """Look at so many wills, and forget those of them that stand no more."""
        if self._sweep is None:
            return
        found = list(islice(self._sweep, count))
        for kept in found:
            if not self._stands(kept) and self.wills.get(kept.client_id) is kept:
                del self.wills[kept.client_id]
                self._count(kept, -1)
        if len(found) < count:
            self._sweep = None

    def forget(self) -> None:
        """Nothing of it is to be known any more, from the next `forget_stale` on."""
        self._since = self.round = self.round + 1
        self._look_for_stale()

    def _look_for_stale(self) -> None:
        self._sweep = iter(list(self.wills.values()))

    def _count(self, kept: KeptWill, sign: int) -> None:
        self.bytes += sign * kept.size
        if not kept.over:
            self.open += sign
