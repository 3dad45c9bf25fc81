"""The retained messages of all nodes on each of them: the last write of a topic wins, everywhere the same.

Owns `Replicas`, the room of the mesh for them, which tells how it works. Promises: the work of one call is bounded
(128 entries, or 64 KiB and one message, for each node; a look at 4,096 writes); what a node has not taken yet holds
back what follows, and that takes no memory but for its topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from broker.core.codec.properties import ForwardScan
from broker.core.codec.topic_names import is_system
from broker.core.hooks import RetainedListener
from broker.core.queues.message import Message
from broker.core.routing.retained.store import RetainedStore
from broker.core.topics.topic_tree import RetainedCursor
from broker.mesh.bus import RETAINED, Bus, ProtocolFault, Room
from broker.mesh.retained.clock import HybridClock, Stamp
from broker.mesh.retained.peer import ASKING, READING, RESTING, Peer
from broker.mesh.retained.stamps import CLEARED, EXPIRED, KEPT, REFUSED, Entry, Stamps, kept_stamp
from broker.mesh.retained.wire import (
    DIFFERENT,
    DIGEST,
    ENTRIES,
    TAKEN,
    TAKEN_MESSAGE,
    WANT,
    Batch,
    Change,
    different_message,
    digest_message,
    read_different,
    read_digest,
    read_entries,
    read_want,
    want_message,
)

BATCH_ENTRIES: Final = 128
BATCH_BYTES: Final = 65_536
"""What goes to a node in one message, and in one turn."""

BATCH_LOOKS: Final = 4_096
"""Writes that are looked at in search of those that a node lacks, and digests that one message carries."""

ADOPTED_AT_ONCE: Final = 256
"""Messages that were there before the mesh and get their stamps in one turn."""

FORGOTTEN_AT_ONCE: Final = 256
"""Topics without a message that are forgotten in one turn."""

LARGEST: Final = 33_554_432
"""Bytes of the largest message that goes to other nodes, if nothing else is said."""

LONGEST_PAUSE: Final = 64
"""Times `digest_interval`: as seldom as this two nodes compare that differ for good, since one refuses what it gets."""


class ReplicaTerms:
    """The bounds of `Replicas`: `[mesh]` has them."""

    def __init__(
        self,
        max_clock_ahead: float = 60.0,
        tombstone_time: float = 3_600.0,
        tombstone_bytes: int = 33_554_432,
        digest_interval: float = 60.0,
        message_bytes: int = LARGEST,
    ) -> None:
        """Times in seconds. `message_bytes`: of the largest message that goes to other nodes."""
        self.max_clock_ahead = max_clock_ahead
        self.tombstone_time = tombstone_time
        self.tombstone_bytes = tombstone_bytes
        self.digest_interval = digest_interval
        self.message_bytes = message_bytes


class ReplicaCounts:
    """What happened since the start.

    `sent`: writes that went to a node; `applied`: that came and won; `outdated`: that came and lost; `refused`: that
    won, and for which this node's limits have no room; `corrected`: whose stamps were too far ahead; `too_large`: that
    were not sent, since they are larger than a message between nodes may be.
    """

    def __init__(self) -> None:
        self.sent = 0
        self.applied = 0
        self.outdated = 0
        self.refused = 0
        self.corrected = 0
        self.too_large = 0


class Replicas(Room):
    """Retained messages on every node. All calls are on one thread.

    - A write (a message is kept, replaced or cleared here) gets a stamp of the hybrid logical clock and goes to every
      node that is there. A node takes a write over when its stamp is higher than that of its own last write of the
      topic. It routes it to no subscriber, since those get it by the live path, and tells nobody else.
    - A node that joins, and each node now and then, says what it has: a sum over the writes in each of 1,024 buckets of
      topics. Of the buckets that differ it sends the digests of its writes, and reads those that it lacks in pages; the
      next page is made when one before it has been taken. So nodes that could not reach each other become the same
      again, and what goes wrong on the way is mended within `digest_interval`.
    - What stands for a topic that was cleared is kept for `tombstone_time`, less where there are too many
      (`tombstone_bytes`). After that a node that was away all the time, and has the message still, brings it back.
    - The expiry of a message is each node's own. What is left of it goes with the message.
    - A node's limits hold for what comes from others. What it refuses is counted, and asked for again after
      `tombstone_time`.
    - A stamp too far ahead of this node's clock (`max_clock_ahead`) is not taken over: the write counts as made here
      and now, and the others are told to correct theirs. So a wrong clock wins once, and not for ever.
    - Stamps are kept in memory alone. What a store kept over a restart has lower ones than any write since: a node that
      comes back takes over what the living nodes have. Where all were down, of different messages one wins, everywhere
      the same one, and which is left to chance.
    """

    def __init__(
        self,
        bus: Bus,
        store: RetainedStore,
        terms: ReplicaTerms,
        clock: Callable[[], float],
        wall: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """`clock`: the monotonic clock of the router; `wall`: the time since 1970; both in seconds. `wake` is called
        when `turn` has something to do earlier than `due` has said, once until the next turn."""
        self.counts = ReplicaCounts()
        self.clock = HybridClock(bus.node, wall, terms.max_clock_ahead)
        self.stamps = Stamps(terms.tombstone_bytes)
        self.overwritten: Callable[[str], None] | None = None
        """Who is told of each topic that another node wrote, when that holds here; it has to be brief."""
        self.clock_differs: Callable[[str, float], None] | None = None
        """Who is told of a node whose clock is more than `max_clock_ahead` ahead of this one's, or behind, by how many
        seconds; once, until it is right again, or joins again."""
        self.too_large: Callable[[str, int], None] | None = None
        """Who is told of each message of this node that is too large for the others: its topic and its bytes."""
        self._bus = bus
        self._store = store
        self._terms = terms
        self._now = clock
        self._wake = wake
        self._peers: dict[str, Peer] = {}
        self._scan = ForwardScan()
        self._applying = False
        self._woken = False
        # What was there before: walks that are still to be made.
        self._walks = _walks(store)
        bus.attach(RETAINED, self)
        store.listener = LocalWrites(self)

    # -- what the caller asks ------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether this node has the retained messages of all nodes that are there, as they were when they joined."""
        return all(peer.complete for peer in self._peers.values())

    def ready_with(self, node: str) -> bool:
        """The same of one node; False: it is not there."""
        peer = self._peers.get(node)
        return False if peer is None else peer.complete

    def due(self) -> float:
        """When `turn` has something to do (s, monotonic); -1.0: nothing waits."""
        if self._woken or self._walks:
            return self._now()
        due = self.stamps.next_due()
        for peer in self._peers.values():
            if peer.phase == RESTING and (due < 0.0 or peer.next_round < due):
                due = peer.next_round
        return due

    def turn(self, now: float) -> None:
        """Do some of what waits: see `due` for whether there is more."""
        self._woken = False
        if self._walks:
            self._adopt()
        if self._walks:
            return
        for node, peer in list(self._peers.items()):
            self._compare(node, peer, now)
            if self._send(node, peer, now):
                self._soon()
        if self.stamps.forget_due(now, FORGOTTEN_AT_ONCE) == FORGOTTEN_AT_ONCE:
            self._soon()

    # -- the room ------------------------------------------------------------------------------------------------------

    def joined(self, node: str) -> None:
        """A node is there: have it say what it has that is not here."""
        self._peers[node] = Peer()
        self._soon()

    def left(self, node: str) -> None:
        """A node is gone. Its messages stay."""
        self._peers.pop(node, None)
        self.clock.forget(node)

    def received(self, node: str, data: bytes) -> None:
        """What a node says of retained messages. Raises ProtocolFault."""
        peer = self._peers.get(node)
        if peer is None:
            return
        kind = data[0] if data else 0
        if kind == ENTRIES:
            self._take(node, peer, data)
        elif kind == TAKEN:
            if len(data) > 1 or not peer.took():
                raise ProtocolFault("it has taken retained messages that were not sent")
        elif kind == DIGEST:
            milliseconds, peer.sums = read_digest(data)
            ahead = self.clock.heard(node, milliseconds)
            if ahead and self.clock_differs is not None:
                self.clock_differs(node, ahead)
        elif kind == DIFFERENT:
            if peer.phase != ASKING or not peer.asked:
                raise ProtocolFault("it has compared retained messages unasked")
            peer.buckets = read_different(data)
            peer.buckets.reverse()
            peer.differed = bool(peer.buckets)
            self._read_on(node, peer)
        elif kind == WANT:
            if peer.answering:
                raise ProtocolFault("it wants retained messages before it has taken others")
            for bucket, digests in read_want(data):
                peer.wanted.append((bucket, set(digests)))
            peer.answering = True
        else:
            raise ProtocolFault(f"an unknown message about retained messages: {kind}")
        self._soon()

    # -- writes of this node -------------------------------------------------------------------------------------------

    def written(self, topic: str) -> None:
        """A topic's message was kept, replaced or cleared here."""
        if self._applying:
            return
        entry = self.stamps.get(topic)
        stamp = self.clock.tick(None if entry is None else entry.stamp)
        message = cast("Message | None", self._store.tree.get(topic))
        state = CLEARED if message is None else KEPT
        if message is not None and self.too_large is not None and message.size() > self._terms.message_bytes:
            self.too_large(topic, int(message.size()))
        self.stamps.set(topic, stamp, state, self._now() + self._terms.tombstone_time)
        self._tell(topic, None)

    def expired(self, topic: str) -> None:
        """The time of a topic's message is over here."""
        self.stamps.expire(topic, self._now() + self._terms.tombstone_time)
        self._soon()

    def _tell(self, topic: str, corrects: Stamp | None) -> None:
        """Have all nodes hear of a topic."""
        for peer in self._peers.values():
            peer.changes[topic] = corrects or peer.changes.get(topic)
        self._soon()

    def _adopt(self) -> None:
        """Give messages that were there before stamps."""
        walk = self._walks[-1]
        for node in walk.take(ADOPTED_AT_ONCE):
            value = node.value
            if isinstance(value, Message) and self.stamps.get(node.topic) is None and not is_system(value.topic):
                self.stamps.set(node.topic, kept_stamp(value), KEPT, 0.0)
        if walk.done:
            self._walks.pop()

    # -- comparing -----------------------------------------------------------------------------------------------------

    def _compare(self, node: str, peer: Peer, now: float) -> None:
        """Answer a node's sums, and send it ours when it is time."""
        if peer.sums is not None:
            pairs = enumerate(zip(peer.sums, self.stamps.sums, strict=True))
            self._bus.send(node, RETAINED, different_message([at for at, (its, ours) in pairs if its != ours]))
            peer.sums = None
        if peer.phase == RESTING and peer.next_round <= now:
            peer.phase, peer.asked = ASKING, False
        if peer.phase == ASKING and not peer.asked:
            peer.asked = True
            peer.taken = 0
            self._bus.send(node, RETAINED, digest_message(self.clock.milliseconds(), self.stamps.sums))

    def _read_on(self, node: str, peer: Peer) -> None:
        """Ask for the next buckets that differ; where there are none, the round is over."""
        if not peer.buckets:
            self._rest(peer)
            return
        peer.phase = READING
        wanted: list[tuple[int, list[int]]] = []
        count = 0
        while peer.buckets and count < BATCH_LOOKS:
            bucket = peer.buckets.pop()
            digests = self.stamps.digests(bucket)
            if len(digests) > BATCH_LOOKS:
                digests = []  # then all of it comes, which is no more than one bucket
            wanted.append((bucket, digests))
            count += len(digests) + 1
        self._bus.send(node, RETAINED, want_message(wanted))

    def _rest(self, peer: Peer) -> None:
        interval = self._terms.digest_interval
        if peer.complete and peer.differed and peer.taken == 0:
            peer.pause = min(max(peer.pause, interval) * 2, interval * LONGEST_PAUSE)
        else:
            peer.pause = interval
        peer.phase = RESTING
        peer.next_round = self._now() + peer.pause
        peer.complete = True

    # -- sending -------------------------------------------------------------------------------------------------------

    def _send(self, node: str, peer: Peer, now: float) -> bool:
        """Send some of what a node is to be told, and of what it wants; whether there is more, and room for it."""
        if not peer.may_send():
            return False
        batch = Batch()
        looks = 0
        while peer.changes and not _full(batch, looks):
            topic = next(iter(peer.changes))
            looks += 1
            self._put(batch, topic, peer.changes.pop(topic), now)
        while peer.wanted and not _full(batch, looks):
            bucket, there = peer.wanted[0]
            if not peer.topics:
                peer.topics = self.stamps.topics(bucket)
            while peer.topics and not _full(batch, looks):
                topic = peer.topics.pop()
                looks += 1
                entry = self.stamps.get(topic)
                if entry is not None and entry.digest not in there:
                    self._put(batch, topic, None, now)
            if not peer.topics:
                peer.wanted.popleft()
        done = peer.answering and not peer.wanted
        if done:
            peer.answering = False
        if batch.count or done:
            data = batch.message(done)
            peer.sent(len(data))
            self._bus.send(node, RETAINED, data)
        return peer.may_send()

    def _put(self, batch: Batch, topic: str, corrects: Stamp | None, now: float) -> None:
        entry = self.stamps.get(topic)
        change = None if entry is None else self._change(topic, entry, corrects, now)
        if change is not None:
            batch.add(change)
            self.counts.sent += 1

    def _change(self, topic: str, entry: Entry, corrects: Stamp | None, now: float) -> Change | None:
        """A write as it goes to other nodes; None: there is nothing to say of it."""
        if entry.state != KEPT:
            left = int((entry.until - now) * 1_000)
            # One that was refused has a message, elsewhere.
            return (
                None
                if entry.state == REFUSED or left <= 0
                else Change(topic, entry.stamp, entry.state, None, left, corrects)
            )
        message = cast("Message | None", self._store.tree.get(topic))
        if message is None or message.size() > self._terms.message_bytes:
            self.counts.too_large += message is not None
            return None
        left = -1 if message.expires_at == 0.0 else int((message.expires_at - now) * 1_000)
        if message.expires_at != 0.0 and left <= 0:
            return Change(topic, entry.stamp, EXPIRED, None, int(self._terms.tombstone_time * 1_000), corrects)
        return Change(topic, entry.stamp, KEPT, message, left, corrects)

    # -- taking --------------------------------------------------------------------------------------------------------

    def _take(self, node: str, peer: Peer, data: bytes) -> None:
        done, changes = read_entries(data, self._scan)
        if done and peer.phase != READING:
            raise ProtocolFault("it has sent retained messages that were not asked for")
        for change in changes:
            if self._apply(change):
                peer.taken += 1
        self._bus.send(node, RETAINED, TAKEN_MESSAGE)
        if done:
            self._read_on(node, peer)

    def _apply(self, change: Change) -> bool:
        """Take a write over, if it is the last one of its topic; whether it is."""
        topic, stamp = change.topic, change.stamp
        entry = self.stamps.get(topic)
        if entry is not None and stamp <= entry.stamp and (change.corrects != entry.stamp or stamp == entry.stamp):
            self.counts.outdated += stamp != entry.stamp
            return False
        corrects: Stamp | None = None
        if not self.clock.take_over(stamp):
            corrects = stamp
            stamp = self.clock.correct(None if entry is None else entry.stamp)
            self.counts.corrected += 1
        self._applying = True
        try:
            self._write(change, stamp)
        finally:
            self._applying = False
        self.counts.applied += 1
        if self.overwritten is not None:
            self.overwritten(topic)
        if corrects is not None:
            self._tell(topic, corrects)
        return True

    def _write(self, change: Change, stamp: Stamp) -> None:
        now = self._now()
        store, topic, message = self._store, change.topic, change.message
        tombstone_time = self._terms.tombstone_time
        if message is None:
            if change.state == EXPIRED:
                store.drop(topic)
            elif store.tree.get(topic) is not None:
                store.retain(Message(topic.encode(), b"", 0, True, b"", 0.0, ""))
            self.stamps.set(topic, stamp, change.state, now + min(change.left / 1_000, tombstone_time))
            return
        if change.left >= 0:
            message.expires_at = now + change.left / 1_000
        state = KEPT
        if not store.retain(message):
            state = REFUSED
            self.counts.refused += 1
        self.stamps.set(topic, stamp, state, now + tombstone_time)

    def _soon(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake()


class LocalWrites(RetainedListener):
    """Tells the replicas what happens to the retained messages of this node."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def written(self, topic: str) -> None:
        self._replicas.written(topic)

    def expired(self, topic: str) -> None:
        self._replicas.expired(topic)


def _walks(store: RetainedStore) -> list[RetainedCursor]:
    """Cursors over all messages but the broker's own. No wildcard leads to a first level that begins with $."""
    tree = store.tree
    reserved = [node.level for node in tree.below(None) if node.reserved and not is_system(node.level.encode())]
    filters = ["#", *(f"{level}/#" for level in reserved)]
    return [tree.walk(topic_filter) for topic_filter in filters] if len(tree) else []


def _full(batch: Batch, looks: int) -> bool:
    return batch.count >= BATCH_ENTRIES or batch.size >= BATCH_BYTES or looks >= BATCH_LOOKS or batch.full
