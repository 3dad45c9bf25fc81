"""Times at which something is due: session expiry, delayed wills, expiry of retained messages.

Owns a heap of times; knows no clock. The shell asks `next_due()`, sets one timer, and calls the router back. Promises:
each thing has at most one time; setting it again replaces the old one, and cancelling removes it. The heap knows the
position of each entry and keeps no stale ones: all operations cost O(log n), and memory grows with the number of
entries and not with the number of changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import i64


class Deadline:
    """A thing, its time, and its position in the heap. Of two with the same time, the one that was set first comes
    first."""

    def __init__(self, thing: object, when: float, number: i64, place: i64) -> None:
        self.thing = thing
        self.when = when
        self.number = number
        self.place = place


class Deadlines:
    """Things by the time at which they are due (s, the caller's monotonic clock). Things must be hashable."""

    def __init__(self) -> None:
        self._heap: list[Deadline] = []
        self._by_thing: dict[object, Deadline] = {}
        self._count: i64 = 0
        # Nothing is to be done before that, whatever is due: queues are given time to be emptied.
        self._held_until = 0.0
        # Since the shell last set this to False, `next_due` may have changed.
        self.changed = True

    def __len__(self) -> int:
        return len(self._by_thing)

    def set(self, thing: object, when: float) -> None:
        """`thing` falls due at `when`, and no more at the time that was set before."""
        known = self._by_thing.get(thing)
        self._count += 1
        self.changed = True
        if known is None:
            known = Deadline(thing, when, self._count, len(self._heap))
            self._by_thing[thing] = known
            self._heap.append(known)
            self._rise(known)
        elif known.when != when:
            known.when = when
            known.number = self._count
            self._settle(known)

    def cancel(self, thing: object) -> None:
        """`thing` does not fall due any more."""
        known = self._by_thing.pop(thing, None)
        if known is not None:
            self._take_out(known)

    def next_due(self) -> float:
        """The earliest time at which something is to be done, or -1.0 when nothing waits."""
        heap = self._heap
        if not heap:
            return -1.0
        when = heap[0].when
        return when if when > self._held_until else self._held_until

    def hold(self, until: float) -> None:
        """Let nothing be done before that; 0.0: no more."""
        self._held_until = until
        self.changed = True

    def due(self, now: float) -> bool:
        """Return whether the time of something has come."""
        return len(self._heap) > 0 and self._heap[0].when <= now

    def pop_due(self, now: float) -> object | None:
        """The next thing whose time has come, taken out; None when there is none."""
        if not self.due(now):
            return None
        first = self._heap[0]
        del self._by_thing[first.thing]
        self._take_out(first)
        return first.thing

    def _take_out(self, leaving: Deadline) -> None:
        """The last one takes its place in the heap, and goes up or down from there."""
        self.changed = True
        last = self._heap.pop()
        if last is not leaving:
            last.place = leaving.place
            self._heap[last.place] = last
            self._settle(last)

    def _settle(self, moving: Deadline) -> None:
        self._rise(moving)
        self._sink(moving)

    def _rise(self, rising: Deadline) -> None:
        heap = self._heap
        place: i64 = rising.place
        while place > 0:
            parent = heap[(place - 1) // 2]
            if not _before(rising, parent):
                break
            heap[place] = parent
            above: i64 = parent.place
            parent.place = place
            place = above
        heap[place] = rising
        rising.place = place

    def _sink(self, sinking: Deadline) -> None:
        heap = self._heap
        size: i64 = len(heap)
        place: i64 = sinking.place
        while True:
            below: i64 = 2 * place + 1
            if below >= size:
                break
            child = heap[below]
            if below + 1 < size and _before(heap[below + 1], child):
                below += 1
                child = heap[below]
            if not _before(child, sinking):
                break
            heap[place] = child
            child.place = place
            place = below
        heap[place] = sinking
        sinking.place = place


def _before(one: Deadline, other: Deadline) -> bool:
    return one.when < other.when or (one.when == other.when and one.number < other.number)
