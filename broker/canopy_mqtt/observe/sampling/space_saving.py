"""Finds the heaviest names in a stream of weighted names with a bounded number of counters.

Space-Saving (A. Metwally, D. Agrawal, A. El Abbadi: "Efficient computation of frequent and top-k elements in data
streams", ICDT 2005), with weights, and with decay (G. Cormode, F. Korn, S. Tirthapura: "Exponentially decayed
aggregates on data streams", ICDE 2008). Promises, for K counters and a decayed sum N of all weights:
- count - error <= true weight <= count for each counted name; the true weight of others is at most `floor()` <= N / K.
- Each name with more than N / K is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from canopy_mqtt.core.heap import Heap, HeapItem

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


class Counter(HeapItem):
    """One name. `count`, the key, is at most `error` too high. `variance`: of the sampling that gave the weights."""

    def __init__(self, name: bytes, count: float, variance: float) -> None:
        super().__init__(count)
        self.name = name
        self.error = 0.0
        self.variance = variance

    @property
    def count(self) -> float:
        """Return the weight that was counted for the name."""
        return self.key


class SpaceSaving:
    """At most `max_names` counters; a new name replaces the lightest."""

    def __init__(self, max_names: int) -> None:
        self.max_names: i64 = max_names
        # The decayed sum of all weights.
        self.total = 0.0
        self._counters: dict[bytes, Counter] = {}
        self._heap = Heap()  # the lightest first

    def __len__(self) -> int:
        return len(self._counters)

    def add(self, name: bytes, weight: float, variance: float) -> None:
        """Add to the weight of a name (as `shortened` returns it); `weight` is not negative."""
        self.total += weight
        counter = self._counters.get(name)
        if counter is None and len(self._counters) < self.max_names:
            counter = Counter(name, weight, variance)
            self._counters[name] = counter
            self._heap.add(counter)
            return
        if counter is not None:
            counter.variance += variance
        else:
            counter = cast("Counter", self._heap.items[0])
            del self._counters[counter.name]
            self._counters[name] = counter
            counter.name = name
            counter.error = counter.key
            counter.variance = variance
        counter.key += weight
        self._heap.moved(counter)

    def decay(self, factor: float) -> None:
        """Multiply all weights by `factor`, which is above 0 and at most 1."""
        self.total *= factor
        square = factor * factor
        for counter in self._counters.values():
            counter.key *= factor
            counter.error *= factor
            counter.variance *= square

    def floor(self) -> float:
        """Return the highest possible weight of a name that is not counted."""
        return self._heap.items[0].key if len(self._counters) >= self.max_names else 0.0

    def heaviest(self, limit: int) -> list[Counter]:
        """Return up to `limit` counters, the heaviest first. They are no copies, and change later."""
        return sorted(self._counters.values(), key=_weight, reverse=True)[:limit]


def _weight(counter: Counter) -> float:
    return counter.key
