"""Folding topic filters: fewer and fewer filters that together match all topics of the first ones, and their costs.

Folding is greedy. Of all generalisations of the filters (a level becomes `+`, a tail becomes `#`) it takes the one that
costs least for each filter that it saves, the cost being the unwanted traffic that it alone would bring; then again,
until one filter is left. Each step is a point of the curve. What was forwarded once costs nothing more, so
over-forwarding never falls as filters become fewer. That a smaller set exists which costs less is possible: to find the
best one is as hard as covering sets.

Promises: each set covers every filter it began with. Filters do not begin with `$`, and neither do topics.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

MAX_DEPTH: Final = 8
"""Levels at which a `+` is tried and tails are cut: each level has as many candidates as there are levels above it."""

Levels = tuple[str, ...]
Key = tuple[float, int, int, Levels]


@dataclass(frozen=True)
class Topic:
    """Traffic on a topic without a subscriber."""

    name: str
    messages: int
    bytes: int


@dataclass(frozen=True)
class Step:
    """A point of the curve: the number of filters, and the unwanted traffic that they bring. `taken` is the filter
    added in this step, `given` those that it replaces; the first step has neither.
    """

    filters: int
    over_bytes: int
    over_messages: int
    taken: str = ""
    given: tuple[str, ...] = ()


def generalisations(levels: Levels) -> Iterator[Levels]:
    """Yield the filters that cover a filter and are one step wider: a tail cut at any level, one level a `+`, both."""
    body = levels[:-1] if levels[-1] == "#" else levels
    depth = min(len(body), MAX_DEPTH)
    shapes = [levels, *((*body[:at], "#") for at in range(min(len(body), MAX_DEPTH) + 1))]
    seen = {levels}
    for shape in shapes:
        ends = depth if shape is levels else len(shape) - 1
        for at in (-1, *range(ends)):
            made = shape if at < 0 else (*shape[:at], "+", *shape[at + 1 :])
            if made not in seen:
                seen.add(made)
                yield made


class Tree:
    """Filters by their levels: it finds the filters that one covers, and those that cover one."""

    def __init__(self) -> None:
        self.children: dict[str, Tree] = {}
        self.here = False
        self.count = 0

    def add(self, levels: Levels) -> None:
        node = self
        node.count += 1
        for level in levels:
            node = node.children.setdefault(level, Tree())
            node.count += 1
        node.here = True

    def discard(self, levels: Levels) -> None:
        """Take out a filter that is there."""
        node = self
        node.count -= 1
        for level in levels:
            child = node.children[level]
            child.count -= 1
            if child.count == 0:
                del node.children[level]
                return
            node = child
        node.here = False

    def all(self, before: Levels = ()) -> Iterator[Levels]:
        """Every filter from here on."""
        if self.here:
            yield before
        for level, child in self.children.items():
            yield from child.all((*before, level))

    def covered(self, wide: Levels, at: int = 0, before: Levels = ()) -> Iterator[Levels]:
        """Yield the filters that `wide` covers, itself included if it is in the tree."""
        if at == len(wide):
            if self.here:
                yield before
            return
        level = wide[at]
        if level == "#":
            yield from self.all(before)
        elif level == "+":
            for name, child in self.children.items():
                if name != "#":
                    yield from child.covered(wide, at + 1, (*before, name))
        elif level in self.children:
            yield from self.children[level].covered(wide, at + 1, (*before, level))

    def covering(self, narrow: Levels, at: int = 0, other: bool = False) -> bool:
        """Return True if a filter other than `narrow` covers it; `other`: the path to this node is another filter's."""
        tail = self.children.get("#")
        if tail is not None and (other or narrow[at:] != ("#",)):
            return True
        if at == len(narrow):
            return self.here and other
        level = narrow[at]
        if level == "#":
            return tail is not None and other
        plus = self.children.get("+")
        if plus is not None and plus.covering(narrow, at + 1, other or level != "+"):
            return True
        same = self.children.get(level) if level != "+" else None
        return same is not None and same.covering(narrow, at + 1, other)


class Traffic:
    """Topics without a subscriber, numbered so that those below a level are one range of numbers."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        split = sorted((tuple(topic.name.split("/")), topic) for topic in topics)
        self.topics: Final = [topic for _, topic in split]
        self._root = _Node(0)
        for number, (levels, _) in enumerate(split):
            self._root.add(levels, number)
        self._found: dict[Levels, list[range]] = {}

    def matching(self, wide: Levels) -> list[range]:
        """The numbers of the topics that a filter matches."""
        found = self._found.get(wide)
        if found is None:
            found = list(self._root.matching(wide, 0))
            self._found[wide] = found
        return found


class _Node:
    def __init__(self, low: int) -> None:
        self.children: dict[str, _Node] = {}
        self.low = low
        self.high = low
        self.here = False

    def add(self, levels: Levels, number: int) -> None:
        node = self
        node.high = number + 1
        for level in levels:
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node(number)
            node = child
            node.high = number + 1
        node.here = True

    def matching(self, wide: Levels, at: int) -> Iterator[range]:
        if at == len(wide):
            # Sorted, a topic comes before those below it.
            if self.here:
                yield range(self.low, self.low + 1)
        elif wide[at] == "#":
            yield range(self.low, self.high)
        elif wide[at] == "+":
            for child in self.children.values():
                yield from child.matching(wide, at + 1)
        elif wide[at] in self.children:
            yield from self.children[wide[at]].matching(wide, at + 1)


class Folding:
    """One set of filters on its way to a single one."""

    def __init__(self, filters: Iterable[str], topics: Iterable[Topic]) -> None:
        self._traffic = Traffic(topics)
        self._forwarded = bytearray(len(self._traffic.topics))
        self._tree = Tree()
        self._queue: list[Key] = []
        self._seen: set[Levels] = set()
        every = {tuple(each.split("/")) for each in filters}
        for levels in every:
            self._tree.add(levels)
        # What another one covers anyway is no filter of its own.
        spare = [levels for levels in every if self._tree.covering(levels)]
        for levels in spare:
            self._tree.discard(levels)
        self.first: Final = tuple(sorted("/".join(levels) for levels in self._tree.all()))

    def steps(self) -> list[Step]:
        """Return the steps from the filters themselves to a single one. The first has the unwanted traffic of the
        filters themselves."""
        if not self.first:
            return []
        bytes_, messages = 0, 0
        for levels in self._tree.all():
            more = self._forward(levels)
            bytes_, messages = bytes_ + more[0], messages + more[1]
        made = [Step(len(self.first), bytes_, messages)]
        for levels in list(self._tree.all()):
            self._propose(levels)
        while self._queue and self._tree.count > 1:
            levels = heapq.heappop(self._queue)[-1]
            key = self._key(levels)
            if key is None:
                continue
            if self._queue and key > self._queue[0]:
                heapq.heappush(self._queue, key)
                continue
            made.append(self._take(levels, made[-1]))
            self._propose(levels, again=True)
        return made

    def _propose(self, levels: Levels, again: bool = False) -> None:
        """Queue the generalisations of a filter; `again`: their costs may have fallen."""
        for wide in generalisations(levels):
            if again or wide not in self._seen:
                self._seen.add(wide)
                key = self._key(wide)
                if key is not None:
                    heapq.heappush(self._queue, key)

    def _key(self, levels: Levels) -> Key | None:
        """Return the bytes for each filter saved, and among equals prefer the more specific filter; None if it saves
        nothing. A filter without cost has none so far: an unseen topic fits a wide filter rather than a narrow one.
        """
        saved = sum(1 for _ in self._tree.covered(levels)) - 1
        if saved < 1:
            return None
        cost = sum(self._traffic.topics[number].bytes for number in self._new(levels))
        loose = levels.count("+") + (2 * MAX_DEPTH - len(levels) if levels[-1] == "#" else 0)
        return cost / saved, loose, -saved, levels

    def _new(self, levels: Levels) -> list[int]:
        return [n for numbers in self._traffic.matching(levels) for n in numbers if not self._forwarded[n]]

    def _take(self, levels: Levels, before: Step) -> Step:
        given = list(self._tree.covered(levels))
        for each in given:
            self._tree.discard(each)
        self._tree.add(levels)
        more = self._forward(levels)
        return Step(
            self._tree.count,
            before.over_bytes + more[0],
            before.over_messages + more[1],
            "/".join(levels),
            tuple(sorted("/".join(each) for each in given)),
        )

    def _forward(self, levels: Levels) -> tuple[int, int]:
        """Forward a filter's topics; return the bytes and messages that were not forwarded before."""
        topics = []
        for number in self._new(levels):
            self._forwarded[number] = 1
            topics.append(self._traffic.topics[number])
        return sum(topic.bytes for topic in topics), sum(topic.messages for topic in topics)


def filters_at(first: Sequence[str], steps: Sequence[Step], at: int) -> list[str]:
    """The filters of a point of the curve, sorted."""
    held = set(first)
    for step in steps[1 : at + 1]:
        held.difference_update(step.given)
        held.add(step.taken)
    return sorted(held)


def choose(steps: Sequence[Step], max_filters: int | None, allowed_bytes: float) -> int:
    """Return the point to recommend: the least over-forwarding within a limit, or else the fewest filters within the
    allowed over-forwarding.

    `allowed_bytes`: over-forwarding that is accepted where there is no limit of filters.
    """
    if max_filters is not None:
        return next(at for at, step in enumerate(steps) if step.filters <= max_filters)
    return max((at for at, step in enumerate(steps) if step.over_bytes <= allowed_bytes), default=0)
