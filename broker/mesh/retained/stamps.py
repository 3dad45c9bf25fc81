"""Who wrote each topic's retained message last, and when: the stamps, and sums over them by which nodes compare.

Owns `Stamps`, in step with the tree of retained messages. Promises: what stands for a topic without a message (cleared,
expired, refused) goes after its time, and earlier, the one with the least time left first, where the bytes of all of
them reach their bound. The sums change with each stamp and do not depend on the order in which they came.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from zlib import crc32

from broker.core.queues.message import Message
from broker.core.routing.deadlines import Deadlines
from broker.core.topics.filter_bytes import text_bytes
from broker.mesh.retained.clock import Stamp

KEPT: Final = 0
CLEARED: Final = 1
EXPIRED: Final = 2
REFUSED: Final = 3
"""What became of the message of a stamp: it is in the tree; a clear was written, or replaced one that was refused where
it was published; its time is over; this node's limits left no room for it."""

BUCKETS: Final = 1_024
"""Parts into which topics fall, with a sum each. With 100,000 messages a difference concerns a hundred."""

STAMP_BYTES: Final = 320
"""What is counted for a stamp of a retained message; measured interpreted: 265; the tree has its topic."""

ABSENT_BYTES: Final = 640
"""What is counted for a stamp without a message, beside its topic; measured interpreted: 500."""

_SUM: Final = (1 << 64) - 1


class Entry:
    """The last write of a topic that is known here, what became of it, and when that is forgotten (0.0: it is kept)."""

    def __init__(self, stamp: Stamp, state: int, digest: int) -> None:
        self.stamp = stamp
        self.state = state
        self.digest = digest
        self.until = 0.0


class Stamps:
    """The last writes by topic. `forgotten` counts those without a message that went before their time."""

    def __init__(self, absent_bytes: int) -> None:
        """`absent_bytes`: the bound of what stands for topics that have no message."""
        self.kept = 0
        self.absent_bytes = 0
        self.forgotten = 0
        self.sums: list[int] = [0] * BUCKETS
        self._most = absent_bytes
        self._buckets: list[dict[str, Entry] | None] = [None] * BUCKETS
        self._absent = Deadlines()

    @property
    def absent(self) -> int:
        """How many topics have a stamp and no message."""
        return len(self._absent)

    @property
    def bytes(self) -> int:
        """What all stamps take."""
        return self.kept * STAMP_BYTES + self.absent_bytes

    def get(self, topic: str) -> Entry | None:
        """The last write of a topic."""
        entries = self._buckets[bucket_of(topic)]
        return None if entries is None else entries.get(topic)

    def topics(self, bucket: int) -> list[str]:
        """The topics of a bucket: a list of its own."""
        entries = self._buckets[bucket]
        return [] if entries is None else list(entries)

    def digests(self, bucket: int) -> list[int]:
        """The digests of all writes of a bucket."""
        entries = self._buckets[bucket]
        return [] if entries is None else [entry.digest for entry in entries.values()]

    def set(self, topic: str, stamp: Stamp, state: int, until: float) -> None:
        """A topic was written. `until`: when that is forgotten, where there is no message (s, monotonic)."""
        number = bucket_of(topic)
        entries = self._buckets[number]
        if entries is None:
            entries = self._buckets[number] = {}
        digest = digest_of(topic, stamp)
        entry = entries.get(topic)
        if entry is None:
            entry = entries[topic] = Entry(stamp, state, digest)
            self._count(topic, state, 1)
            self.sums[number] = self.sums[number] + digest & _SUM
        else:
            self._count(topic, entry.state, -1)
            self._count(topic, state, 1)
            self.sums[number] = self.sums[number] + digest - entry.digest & _SUM
            entry.stamp, entry.state, entry.digest = stamp, state, digest
        self._keep_time(topic, entry, until)

    def expire(self, topic: str, until: float) -> None:
        """The message of a topic is gone by its own time; the write stays what it was."""
        entry = self.get(topic)
        if entry is not None and entry.state == KEPT:
            self._count(topic, KEPT, -1)
            self._count(topic, EXPIRED, 1)
            entry.state = EXPIRED
            self._keep_time(topic, entry, until)

    def next_due(self) -> float:
        """When the next topic without a message is to be forgotten; -1.0: there is none."""
        return self._absent.next_due()

    def forget_due(self, now: float, most: int) -> int:
        """Forget topics without a message whose time has come, `most` at once; how many they were."""
        count = 0
        while count < most:
            topic = self._absent.pop_due(now)
            if topic is None:
                break
            self._forget(str(topic))
            count += 1
        return count

    def _keep_time(self, topic: str, entry: Entry, until: float) -> None:
        if entry.state == KEPT:
            entry.until = 0.0
            self._absent.cancel(topic)
            return
        entry.until = until
        self._absent.set(topic, until)
        while self.absent_bytes > self._most:
            first = self._absent.pop_due(float("inf"))
            self._forget(str(first))
            self.forgotten += 1

    def _forget(self, topic: str) -> None:
        number = bucket_of(topic)
        entries = self._buckets[number]
        assert entries is not None
        entry = entries.pop(topic)
        if not entries:
            self._buckets[number] = None
        self._count(topic, entry.state, -1)
        self.sums[number] = self.sums[number] - entry.digest & _SUM

    def _count(self, topic: str, state: int, change: int) -> None:
        if state == KEPT:
            self.kept += change
        else:
            self.absent_bytes += change * (ABSENT_BYTES + text_bytes(topic))


def bucket_of(topic: str) -> int:
    """The bucket of a topic, the same on each node."""
    return crc32(topic.encode()) % BUCKETS


def digest_of(topic: str, stamp: Stamp) -> int:
    """The digest of a write: 62 bits, so that it is a small number to compiled code."""
    time, node = stamp
    data = b"%d %s " % (time, node.encode()) + topic.encode()
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") >> 2


def kept_stamp(message: Message) -> Stamp:
    """The stamp of a message that a store kept, or that was there before the mesh: lower than those of all writes.

    Nodes that kept the same message give it the same stamp; of different ones one wins, the same everywhere.
    """
    content = blake2b(message.payload(), digest_size=16)
    content.update(b"%d %d " % (message.qos, len(message.properties)) + message.properties)
    return 0, content.hexdigest()
