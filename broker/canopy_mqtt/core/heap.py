"""A heap whose items know their place in it, so that each of them can move or leave. Each change costs O(log n)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import i64


class HeapItem:
    """An item of one heap: the one with the lowest `key` is the first, and of equal ones that with the lowest `number`.

    A caller that changes them calls `Heap.moved`. `place` is the heap's.
    """

    def __init__(self, key: float, number: i64 = 0) -> None:
        self.key = key
        self.number: i64 = number
        self.place: i64 = 0


class Heap:
    """`items`, the first of which is the lowest; read it, and never change it."""

    def __init__(self) -> None:
        self.items: list[HeapItem] = []

    def add(self, item: HeapItem) -> None:
        """Take in an item that is in no heap."""
        item.place = len(self.items)
        self.items.append(item)
        self._rise(item)

    def remove(self, item: HeapItem) -> None:
        """Let an item go: the last one takes its place, and moves from there."""
        last = self.items.pop()
        if last is not item:
            last.place = item.place
            self.items[last.place] = last
            self.moved(last)

    def moved(self, item: HeapItem) -> None:
        """Put an item whose key has changed where it belongs."""
        self._rise(item)
        self._sink(item)

    def _rise(self, item: HeapItem) -> None:
        items = self.items
        place: i64 = item.place
        while place > 0:
            above: i64 = (place - 1) >> 1
            parent = items[above]
            if not _before(item, parent):
                break
            items[place] = parent
            parent.place = place
            place = above
        items[place] = item
        item.place = place

    def _sink(self, item: HeapItem) -> None:
        items = self.items
        size: i64 = len(items)
        place: i64 = item.place
        while True:
            below: i64 = 2 * place + 1
            if below >= size:
                break
            child = items[below]
            if below + 1 < size and _before(items[below + 1], child):
                below += 1
                child = items[below]
            if not _before(child, item):
                break
            items[place] = child
            child.place = place
            place = below
        items[place] = item
        item.place = place


def _before(one: HeapItem, other: HeapItem) -> bool:
    return one.key < other.key or (one.key == other.key and one.number < other.number)
