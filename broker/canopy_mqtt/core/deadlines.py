"""The times at which something is due: session expiry, delayed wills, expiry of retained messages.

`Deadlines` knows no clock: the shell asks `next_due()`, sets one timer, and calls the router back. Each thing has at
most one time; setting it again replaces the old one, and cancelling removes it. Promises: each change costs O(log n),
and memory grows with the number of things and not with the number of changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from canopy_mqtt.core.heap import Heap, HeapItem

if TYPE_CHECKING:
    from mypy_extensions import i64


class Deadline(HeapItem):
    """A thing and its time, the `key`. Of two with the same time, the one that was set first comes first."""

    def __init__(self, thing: object, when: float, number: i64) -> None:
        super().__init__(when, number)
        self.thing = thing


class Deadlines:
    """Things by the time at which they are due (s, the caller's monotonic clock). Things must be hashable."""

    def __init__(self) -> None:
        self._heap = Heap()
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
            known = Deadline(thing, when, self._count)
            self._by_thing[thing] = known
            self._heap.add(known)
        elif known.key != when:
            known.key = when
            known.number = self._count
            self._heap.moved(known)

    def cancel(self, thing: object) -> None:
        """`thing` does not fall due any more."""
        known = self._by_thing.pop(thing, None)
        if known is not None:
            self.changed = True
            self._heap.remove(known)

    def next_due(self) -> float:
        """The earliest time at which something is to be done, or -1.0 when nothing waits."""
        items = self._heap.items
        return max(items[0].key, self._held_until) if items else -1.0

    def hold(self, until: float) -> None:
        """Let nothing be done before that; 0.0: no more."""
        self._held_until = until
        self.changed = True

    def due(self, now: float) -> bool:
        """Return whether the time of something has come."""
        items = self._heap.items
        return len(items) > 0 and items[0].key <= now

    def pop_due(self, now: float) -> object | None:
        """The next thing whose time has come, taken out; None when there is none."""
        if not self.due(now):
            return None
        thing = cast("Deadline", self._heap.items[0]).thing
        self.cancel(thing)
        return thing
