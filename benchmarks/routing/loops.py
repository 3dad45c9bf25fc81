"""The timed loops, short ones around the calls that the broker makes.

Owns: ``Table`` (a trie with a load's subscriptions) and the loops over it. Inserting is ``Trie.insert`` and
``FilterEntry.add``, deleting ``FilterEntry.discard`` and, after the last one, ``Trie.remove``; an uncached route is
``Trie.match``, a cached one ``MatchCache.route``. Visiting reads the session of every subscription behind an answer.

Promises: what has to be there before is made outside the clock: strings, subscriptions, sessions. Each loop that routes
is checked against the load, filter by filter, and its timed turns must make the very look-ups of the checked ones.

A wrong answer raises ``WrongRoute``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from benchmarks.routing.loads import Load, fresh
from benchmarks.routing.measure import Reading, Stopwatch
from canopy_mqtt.core.counters import Counters
from canopy_mqtt.core.session.session import Session
from canopy_mqtt.core.topics.match_cache import MatchCache
from canopy_mqtt.core.topics.subscription import FilterEntry, Subscription
from canopy_mqtt.core.topics.trie import Trie, create

CACHED_TOPICS: Final = 16_384
"""Routes that the match cache remembers; the broker's default."""


class WrongRoute(Exception):
    """A row did not route what it should have."""


def make_session(name: str) -> Session:
    """Make a session without a connected client."""
    return Session(name, 0, 0, Counters())


class Table:
    """A trie, empty at first, and one subscription for each filter of a load, waiting to be hung into it."""

    def __init__(self, layout: str, load: Load) -> None:
        self.load = load
        self.trie: Trie = create(layout)
        sessions = [make_session(str(number)) for number in range(-(-len(load.filters) // load.each))]
        self.subscriptions = [
            Subscription(sessions[number // load.each], name) for number, name in enumerate(load.filters)
        ]

    def fill(self) -> Reading:
        """Insert everything; the time of one subscription."""
        watch = Stopwatch()
        insert_all(self.trie, fresh(self.load.filters), self.subscriptions, watch)
        wanted = Counter(self.load.filters)
        if len(self.trie) != len(wanted):
            raise WrongRoute(f"{len(self.trie)} filters are in the trie instead of {len(wanted)}")
        for name, count in wanted.items():
            entry = self.trie.find(name)
            if entry is None or entry.ordinary_count != count:
                raise WrongRoute(f"{name} does not have its {count} subscribers")
        return watch.reading(len(self.subscriptions))

    def empty(self, order: Sequence[int]) -> Reading:
        """Delete everything, in this order of subscriptions; the time of one."""
        leaving = [self.subscriptions[at] for at in order]
        entries = entries_of(leaving)
        watch = Stopwatch()
        delete_all(self.trie, entries, leaving, watch)
        if len(self.trie) or self.trie.nodes or any(entry.ordinary_count for entry in entries):
            raise WrongRoute(f"{len(self.trie)} filters and {self.trie.nodes} records are left in an empty trie")
        return watch.reading(len(leaving))

    def check(self) -> int:
        """Route every topic once and compare with the load; how many look-ups that made."""
        before = self.trie.probes
        counts = self.load.destinations()
        for topic, names, count in zip(self.load.topics, self.load.matches, counts, strict=True):
            check_entries(topic, self.trie.match(topic), names, count)
        return self.trie.probes - before


def entries_of(subscriptions: Sequence[Subscription]) -> list[FilterEntry]:
    """Where each subscription hangs.

    Raises:
        WrongRoute: one hangs nowhere.
    """
    found = [subscription.entry for subscription in subscriptions if subscription.entry is not None]
    if len(found) != len(subscriptions):
        raise WrongRoute(f"{len(subscriptions) - len(found)} subscriptions hang nowhere")
    return found


def check_entries(topic: str, entries: Sequence[FilterEntry], names: Sequence[str], count: int) -> None:
    """That these entries are the filters named, with so many destinations, and at least one.

    Raises:
        WrongRoute: they are not.
    """
    found = sorted(entry.topic_filter for entry in entries)
    if found != sorted(names):
        raise WrongRoute(f"{topic} matched {found[:3]} and others, {len(found)} in all, instead of {len(names)}")
    reached = {id(subscription) for entry in entries for subscription in entry.subscriptions}
    if len(reached) != count or count < 1:
        raise WrongRoute(f"{topic} reached {len(reached)} destinations instead of {count}")


def visit(entries: Sequence[FilterEntry]) -> Session | None:
    """Go through the destinations behind some entries; the last one.

    Interpreted, and dearer by that than the router's own way over the same list, which also fills the send buffers.
    """
    session: Session | None = None
    for entry in entries:
        for subscription in entry.subscriptions:
            session = subscription.session
    return session


def insert_all(trie: Trie, filters: Sequence[str], subscriptions: Sequence[Subscription], watch: Stopwatch) -> None:
    """Make or find the entry of each filter, and hang the subscription there."""
    insert = trie.insert
    with watch:
        for name, subscription in zip(filters, subscriptions, strict=True):
            insert(name).add(subscription)


def delete_all(
    trie: Trie, entries: Sequence[FilterEntry], subscriptions: Sequence[Subscription], watch: Stopwatch
) -> None:
    """Take each subscription away, and the filter with the last one."""
    with watch:
        for entry, subscription in zip(entries, subscriptions, strict=True):
            entry.discard(subscription)
            if entry.only is None and entry.many is None:
                trie.remove(entry)


def match_all(table: Table, least: int) -> Reading:
    """Look every topic up in the trie, over and over until there were at least so many; the time of one."""
    probes = table.check()
    topics = table.load.topics
    turns = max(1, -(-least // len(topics)))
    batches = [fresh(topics) for _ in range(turns)] if len(topics) > 1 else [fresh(topics * turns)]
    match = table.trie.match
    before = table.trie.probes
    watch = Stopwatch()
    for batch in batches:
        with watch:
            for topic in batch:
                match(topic)
    if table.trie.probes - before != probes * turns:
        raise WrongRoute("the timed look-ups were not those that were checked")
    return watch.reading(turns * len(topics))


def route_all(table: Table, least: int) -> Reading:
    """The same through a match cache that knows the topics; topics are bytes, as they come in a packet."""
    table.check()
    topics = [topic.encode() for topic in table.load.topics]
    cache = MatchCache(table.trie, CACHED_TOPICS)
    counts = table.load.destinations()
    for name, topic, names, count in zip(table.load.topics, topics, table.load.matches, counts, strict=True):
        check_entries(name, cache.route(topic).entries, names, count)
    turns = max(1, -(-least // len(topics)))
    hits, misses = cache.hits, cache.misses
    route = cache.route
    watch = Stopwatch()
    for _ in range(turns):
        batch = [bytes(bytearray(topic)) for topic in topics]  # with hashes that nobody has worked out yet
        with watch:
            for topic in batch:
                route(topic)
    total = turns * len(topics)
    if cache.hits - hits != total or cache.misses != misses:
        raise WrongRoute(f"the cache answered {cache.hits - hits} of {total} topics")
    return watch.reading(total)


def visit_all(table: Table, turns: int) -> Reading:
    """Look the first topic up and visit every destination, so many times; the time of one route."""
    table.check()
    match = table.trie.match
    last = table.subscriptions[-1].session
    batch = fresh(table.load.topics[:1] * turns)
    watch = Stopwatch()
    with watch:
        for topic in batch:
            if visit(match(topic)) is not last:
                raise WrongRoute("a walk over the destinations ended early")
    return watch.reading(turns)
