"""Sets of sequence numbers, kept as stretches without a break."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

FEW: Final = 16
"""Stretches that are compared one by one with a whole array."""


class Numbers:
    def __init__(self, stretches: Iterable[tuple[int, int]] = ()) -> None:
        """`stretches`: first and last number of each, in any order; they may overlap, and empty ones do not count."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.extend(sorted(each for each in stretches if each[0] <= each[1]))

    def extend(self, more: Iterable[tuple[int, int]]) -> None:
        """Add stretches, which are in the order of their first numbers."""
        for first, last in more:
            if self._lasts and first < self._firsts[-1]:
                every = Numbers([*self, (first, last)])
                self._firsts, self._lasts = every._firsts, every._lasts
            elif self._lasts and first <= self._lasts[-1] + 1:
                self._lasts[-1] = max(last, self._lasts[-1])
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    @property
    def stretches(self) -> list[tuple[int, int]]:
        return [*zip(self._firsts, self._lasts, strict=True)]

    @classmethod
    def of(cls, seq: Any) -> Numbers:
        """The set of the numbers in an Arrow array, which rise."""
        if not len(seq):
            return cls()
        # Where the difference to the one before is more than 1, a stretch ends.
        breaks = pc.indices_nonzero(pc.greater(pc.subtract(seq[1:], seq[:-1]), 1)).to_pylist()
        firsts, lasts = [0, *(at + 1 for at in breaks)], [*breaks, len(seq) - 1]
        return cls((seq[first].as_py(), seq[last].as_py()) for first, last in zip(firsts, lasts, strict=True))

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    @property
    def first(self) -> int:
        return self._firsts[0]

    @property
    def last(self) -> int:
        return self._lasts[-1]

    def mask(self, seq: Any) -> Any:
        """Return for each number of an Arrow array whether it is in the set."""
        ends = pc.min_max(seq).as_py()
        among = self.within(ends["min"], ends["max"]).stretches if len(seq) else []
        if not among:
            return pa.repeat(pa.scalar(False), len(seq))
        if len(among) <= FEW:
            each = [pc.and_(pc.greater_equal(seq, first), pc.less_equal(seq, last)) for first, last in among]
            return reduce(pc.or_, each)
        return pa.array([self.overlaps(number, number) for number in seq.to_pylist()], pa.bool_())

    def overlaps(self, first: int, last: int) -> bool:
        """Return True if a number from `first` to `last` is in the set."""
        at = bisect_left(self._lasts, first)
        return at < len(self._lasts) and self._firsts[at] <= last

    def within(self, first: int, last: int) -> Numbers:
        """Return the numbers from `first` to `last` that are in the set."""
        part = slice(bisect_left(self._lasts, first), bisect_right(self._firsts, last))
        among = zip(self._firsts[part], self._lasts[part], strict=True)
        return Numbers((max(begin, first), min(end, last)) for begin, end in among)

    def without(self, other: Numbers) -> Numbers:
        """Return the numbers of the set that are not in another one."""
        left = []
        for first, last in self:
            for begin, end in other.within(first, last):
                left.append((first, begin - 1))
                first = end + 1
            left.append((first, last))
        return Numbers(left)
