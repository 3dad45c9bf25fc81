"""A route: the filter entries that match one topic, with room for what the router computes from them.

It says which filters match, and nothing about who is connected or allowed. `version` tells whether what was computed
from the entries still holds. The match cache makes routes and keeps them up to date.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.core.topics.subscription import FilterEntry
from broker.core.topics.topic_tree import Retainable

if TYPE_CHECKING:
    from mypy_extensions import i64

# Routes of at most so many entries are swept of retired ones whenever they grow.
SWEEP_ALWAYS: Final = 8

# Bytes of a topic name, beyond the first ones, that weigh as much as a reference: the name is kept as a key and, level
# by level, in the tree. Without it, 16,384 topics of 1,000 bytes would take 58 MB.
# What is counted is what one client can make of it, which is also what it may grow the process by: 16 MB.
NAME_BYTES: Final = 2
SHORT_NAME: Final = 64  # bytes that the weight of a level has room for


class Changes:
    """The number of changes behind a cache: of any entry's version, and of filters that left."""

    def __init__(self) -> None:
        self.count: i64 = 0
        # New filters that routes are compared with when they are next looked up: the number of the last one.
        self.wide: i64 = 0


class Route(Retainable):
    """The filters that match one topic."""

    def __init__(self, topic: bytes, entries: list[FilterEntry], all_changes: Changes) -> None:
        self.topic = topic
        self._changes = all_changes
        self.entries = entries  # to be read only; retired ones may be among them until the route is looked up again
        self.as_of: i64 = -1  # the count of changes when the entries were last found to be those that match
        self.wide_seen: i64 = all_changes.wide  # the number of the last wide filter that the topic was compared with
        self.tapped: bool = False  # whether messages of the topic are recorded
        # The router's: what it made of the entries, and the `version()` it made it from.
        self.plan: object | None = None
        self.plan_version: int = -1
        # Who of them may have a message of the topic (`Reach`); and the stamp and the `version()` of when it was found
        # that all may.
        self.reach: object | None = None
        self.open_stamp: int = -1
        self.open_version: int = -1
        # Who may publish here, by the last answer: a principal, and the key of what was asked.
        self.publisher: object | None = None
        self.publish_key: int = -1
        # The cache's.
        self.used: bool = False  # since the clock's hand last came by
        self.place: int = -1  # on the clock; -1 when it is not cached (any more)
        # What its topic weighs, here and in the tree that finds it, and the references held; see `MatchCache.charge`.
        self.name_weight: int = 1 + max(len(topic) - SHORT_NAME, 0) // NAME_BYTES
        self.weight: int = self.name_weight + len(entries)
        self._past: int = 0  # the versions of entries that are no longer held, and how many there were
        self._version: int = 0  # as of `as_of`
        self._swept: int = len(entries)  # how many were left when retired ones were last taken out

    def version(self) -> int:
        """The sum of the entries' versions. Each only grows, so an equal sum means that nothing changed.

        A new filter's entry comes in with version 0 and nobody listening, and so changes nothing by itself. Nothing is
        summed up again before some entry, of whatever topic, has changed.
        """
        changes = self._changes.count
        if changes == self.as_of:
            return self._version
        total = self._past
        current = self.wide_seen == self._changes.wide
        for entry in self.entries:
            total += entry.version
            if entry.retired:
                current = False
        self._version = total
        if current:
            self.as_of = changes
        return total

    def extend(self, entry: FilterEntry) -> int:
        """Add the entry of a new filter; by how much the number of entries grew.

        Retired entries go when there may be many: a filter that comes and goes all the time must not pile them up on
        a topic that nobody publishes to.
        """
        before = len(self.entries)
        if before <= SWEEP_ALWAYS or before > 2 * self._swept:
            self.sweep()
        self.entries.append(entry)
        return len(self.entries) - before

    def sweep(self) -> None:
        """Take out the retired entries. The version grows with each: what was computed with it is not used again."""
        retired = 0
        for entry in self.entries:
            if entry.retired:
                retired += 1
        if retired > 0:
            alive: list[FilterEntry] = []
            for entry in self.entries:
                if entry.retired:
                    self._past += entry.version + 1
                else:
                    alive.append(entry)
            self.entries = alive
            self.as_of = -1
        self._swept = len(self.entries)
