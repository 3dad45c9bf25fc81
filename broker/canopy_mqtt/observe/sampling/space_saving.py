"""Finds the heaviest names in a stream of weighted names with a bounded number of counters.

Space-Saving (A. Metwally, D. Agrawal, A. El Abbadi: "Efficient computation of frequent and top-k elements in data
streams", ICDT 2005), with weights, and with decay (G. Cormode, F. Korn, S. Tirthapura: "Exponentially decayed
aggregates on data streams", ICDE 2008). Promises, for K counters and a decayed sum N of all weights:
- count - error <= true weight <= count for each counted name; the true weight of others is at most `floor()` <= N / K.
- Each name with more than N / K is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_NAME_BYTES: Final = 256
"""Bytes of a name that are kept: a topic and a client identifier may have 65,535."""

DIGEST_MARK: Final = b"...#"
"""Stands between the beginning of a longer name and the digest of all of it."""


def shortened(name: bytes) -> bytes:
    """Return a name, or the beginning and a digest of a name that is too long: different names stay different."""
    if len(name) <= MAX_NAME_BYTES:
        return name
    # Python hashes with a secret key of this process: clients cannot make two names with the same digest.
    digest = b"%016x" % (hash(name) & 0xFFFF_FFFF_FFFF_FFFF)
    return name[: MAX_NAME_BYTES - len(DIGEST_MARK) - len(digest)] + DIGEST_MARK + digest


class Counter:
    """One name. `count` is at most `error` too high. `variance`: of the sampling that produced the weights."""

    def __init__(self, name: bytes, count: float, error: float, variance: float, place: i64) -> None:
        self.name = name
        self.count = count
        self.error = error
        self.variance = variance
        self.place = place


class SpaceSaving:
    """At most `max_names` counters; a new name replaces the lightest."""

    def __init__(self, max_names: int) -> None:
        self.max_names: i64 = max_names
        # The decayed sum of all weights.
        self.total = 0.0
        self._counters: dict[bytes, Counter] = {}
        # A heap with the lightest first; each counter knows its place.
        self._heap: list[Counter] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, name: bytes, weight: float, variance: float) -> None:
        """Add to the weight of a name (as `shortened` returns it); `weight` is not negative."""
        self.total += weight
        heap = self._heap
        counter = self._counters.get(name)
        if counter is not None:
            counter.count += weight
            counter.variance += variance
            self._sink(counter)
        elif len(heap) < self.max_names:
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
        """Multiply all weights by `factor`, which is above 0 and at most 1."""
        self.total *= factor
        square = factor * factor
        for counter in self._heap:
            counter.count *= factor
            counter.error *= factor
            counter.variance *= square

    def floor(self) -> float:
        """Return the highest possible weight of a name that is not counted."""
        return self._heap[0].count if len(self._heap) >= self.max_names else 0.0

    def heaviest(self, limit: int) -> list[Counter]:
        """Return up to `limit` counters, the heaviest first. They are no copies, and change later."""
        return sorted(self._heap, key=_weight, reverse=True)[:limit]

    def _sink(self, counter: Counter) -> None:
        """Move a counter that has become heavier to its place."""
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
        """Move a counter from the end of the heap to its place."""
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
