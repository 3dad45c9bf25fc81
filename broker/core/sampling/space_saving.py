"""The heaviest of a stream of weighted names, in a bounded number of counters.

Space-Saving (A. Metwally, D. Agrawal, A. El Abbadi: "Efficient computation of frequent and top-k elements in data
streams", ICDT 2005), with weights, and with decay (G. Cormode, F. Korn, S. Tirthapura: "Exponentially decayed
aggregates on data streams", ICDE 2008). Promises, of the weight N that was added, decayed alike, on K counters:
- count - error <= true weight <= count, for each name that is there; of others it is at most `floor()` <= N / K.
- Each name with more than N / K is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

LONGEST_NAME: Final = 256
"""Bytes of a name that are kept: a topic may have 65,535, and a client identifier as well."""

MARK: Final = b"...#"
"""What stands between the beginning of a longer name and the digest of all of it."""


def shortened(name: bytes) -> bytes:
    """The name, or the beginning and a digest of one that is too long: different ones stay different."""
    if len(name) <= LONGEST_NAME:
        return name
    # With a key of this process: nobody outside can make two of the same.
    digest = b"%016x" % (hash(name) & 0xFFFF_FFFF_FFFF_FFFF)
    return name[: LONGEST_NAME - len(MARK) - len(digest)] + MARK + digest


class Counter:
    """One name. `count` is at most `error` too high. `variance`: of the sampling that the weights came from."""

    def __init__(self, name: bytes, count: float, error: float, variance: float, place: i64) -> None:
        self.name = name
        self.count = count
        self.error = error
        self.variance = variance
        self.place = place


class SpaceSaving:
    """At most `most` counters; a new name replaces the lightest."""

    def __init__(self, most: int) -> None:
        self.most: i64 = most
        # All that was added, decayed.
        self.total = 0.0
        self._counters: dict[bytes, Counter] = {}
        # A heap with the lightest first; each counter knows its place.
        self._heap: list[Counter] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, name: bytes, weight: float, variance: float) -> None:
        """Add to what a name (as `shortened` gives it) weighs; `weight` is not negative."""
        self.total += weight
        heap = self._heap
        counter = self._counters.get(name)
        if counter is not None:
            counter.count += weight
            counter.variance += variance
            self._sink(counter)
        elif len(heap) < self.most:
            counter = Counter(name, weight, 0.0, variance, len(heap))
            self._counters[name] = counter
            heap.append(counter)
            self._rise(counter)
        else:
            counter = heap[0]
            del self._counters[counter.name]
            self._counters[name] = counter
            counter.name = name
            counter.error = counter.count
            counter.count += weight
            counter.variance = variance
            self._sink(counter)

    def decay(self, factor: float) -> None:
        """Have all that was added weigh less: `factor` is above 0 and at most 1."""
        self.total *= factor
        square = factor * factor
        for counter in self._heap:
            counter.count *= factor
            counter.error *= factor
            counter.variance *= square

    def floor(self) -> float:
        """What a name that is not there weighs at most."""
        return self._heap[0].count if len(self._heap) >= self.most else 0.0

    def heaviest(self, most: int) -> list[Counter]:
        """The heaviest first; they are the counters themselves, which go on."""
        return sorted(self._heap, key=_weight, reverse=True)[:most]

    def _sink(self, counter: Counter) -> None:
        """A counter has become heavier."""
        heap = self._heap
        size: i64 = len(heap)
        place: i64 = counter.place
        weight = counter.count
        while True:
            child: i64 = 2 * place + 1
            if child >= size:
                break
            lighter = heap[child]
            if child + 1 < size:
                other = heap[child + 1]
                if other.count < lighter.count:
                    lighter = other
                    child += 1
            if lighter.count >= weight:
                break
            heap[place] = lighter
            lighter.place = place
            place = child
        heap[place] = counter
        counter.place = place

    def _rise(self, counter: Counter) -> None:
        """A counter has come to the end of the heap."""
        heap = self._heap
        place: i64 = counter.place
        weight = counter.count
        while place > 0:
            above: i64 = (place - 1) >> 1
            heavier = heap[above]
            if heavier.count <= weight:
                break
            heap[place] = heavier
            heavier.place = place
            place = above
        heap[place] = counter
        counter.place = place


def _weight(counter: Counter) -> float:
    return counter.count
