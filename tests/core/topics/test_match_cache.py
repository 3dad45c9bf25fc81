"""The match cache: what changes a route and what must not, its bounds, and how it stands a flood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canopy_mqtt.core.topics.match_cache import (
    MAX_CHANGES_KEPT,
    MAX_EXTENDED,
    MAX_WALKED,
    NODE_WEIGHT,
    MatchCache,
    Route,
)
from canopy_mqtt.core.topics.subscription import FilterEntry, Subscription
from canopy_mqtt.core.topics.trie import NodeTrie
from tests.core import naive
from tests.support.runs import for_each
from tests.support.sessions import any_session


def make(size: int = 1000, weight: int = 1_000_000) -> MatchCache:
    return MatchCache(NodeTrie(), size, weight)


def insert(cache: MatchCache, topic_filter: str) -> FilterEntry:
    """Have a filter in the trie; return its entry."""
    known = cache.trie.find(topic_filter)
    return cache.add(topic_filter, Subscription(any_session(), topic_filter)) if known is None else known


def remove(cache: MatchCache, topic_filter: str) -> None:
    """Take a filter out, with its subscriptions."""
    entry = cache.trie.find(topic_filter)
    if entry is not None:
        for subscription in list(entry.subscriptions):
            cache.discard(entry, subscription)


def levels(*topics: str) -> int:
    """How many levels a tree of these topics has."""
    return len({tuple(topic.split("/")[: n + 1]) for topic in topics for n in range(topic.count("/") + 1)})


def version(cache: MatchCache, route: Route) -> int:
    """Return the version of a route as a look-up finds it."""
    cache.renew(route)
    return int(route.version)


def names(route: Route) -> list[str]:
    return sorted(entry.topic_filter for entry in route.entries)


# What changes a route.


def test_changes_that_are_remembered_are_bounded() -> None:
    """The latest are there; they are forgotten with all routes."""
    cache = make()
    entry = insert(cache, "a")
    one = Subscription(any_session(), "a")
    cache.add(entry.topic_filter, one)
    cache.changes.keep()
    start = cache.changes.count
    for _ in range(10_000):
        before = cache.changes.count
        cache.touch(entry, one)
        assert cache.changes.sessions[cache.changes.since(before) :] == [one.session]
        assert len(cache.changes.sessions) <= 2 * MAX_CHANGES_KEPT
    assert cache.changes.since(cache.changes.count - MAX_CHANGES_KEPT) >= 0
    assert cache.changes.since(start) == -1
    cache.clear()
    assert cache.changes.since(cache.changes.count - 1) == -1


@for_each("others", [0, 1, 7])
@for_each("flapping", ["a/b", "a/+", "#"])
def test_a_filter_that_comes_and_goes_piles_nothing_up(others: int, flapping: str) -> None:
    """Retired entries are swept out, and the route's version goes up all the while."""
    cache = make()
    for topic_filter in ["+/b", "+/+", "a/#", "+/#", "a/b/#", "a/+/#", "+/+/#"][:others]:
        insert(cache, topic_filter)
    route = cache.route(b"a/b")
    assert len(route.entries) == others
    subscription = Subscription(any_session(), flapping)
    versions = [version(cache, route)]
    for _ in range(200):
        entry = insert(cache, flapping)
        cache.add(entry.topic_filter, subscription)
        versions.append(version(cache, route))
        assert entry in route.entries
        cache.discard(entry, subscription)
        versions.append(version(cache, route))
        remove(cache, flapping)
        # Nobody has looked at the topic, so that the last entry is still there.
        assert len(route.entries) == others + 1
        assert cache.weight == 1 + len(route.entries) + 2 * NODE_WEIGHT
    assert versions == sorted(set(versions))
    assert cache.route(b"a/b") is route
    assert len(route.entries) == others
    assert cache.weight == 1 + others + 2 * NODE_WEIGHT


def test_large_routes_are_swept_too() -> None:
    cache = make()
    for n in range(64):
        insert(cache, "/".join("+" if n >> bit & 1 else "a" for bit in range(6)))
    route = cache.route(b"a/a/a/a/a/a")
    assert len(route.entries) == 64
    most = 0
    for _ in range(1_000):
        insert(cache, "#")
        remove(cache, "#")
        most = max(most, len(route.entries))
    assert most <= 2 * 64 + 1
    assert sum(not entry.retired for entry in route.entries) == 64


@for_each("new", ["site/7/exact", "site/7/+/x", "site/7/#", "nowhere/+/#", "+/7/b/x/y/z"])
def test_unrelated_churn_looks_at_a_few_topics_only(new: str) -> None:
    """The cost of a new filter follows what it matches: counted in levels looked at, with 5,000 topics remembered."""
    cache = make(10_000)
    for n in range(5_000):
        cache.store(f"device/{n}/b/c".encode())
    for n in range(3):
        cache.store(f"site/7/{n}/x".encode())
    insert(cache, new)
    assert cache.walked <= 12
    assert cache.extended == (3 if new in ("site/7/+/x", "site/7/#") else 0)
    assert len(cache) == 5_003


# Bounds.


def test_a_flood_of_new_topics_pushes_out_nothing_that_is_used() -> None:
    cache = make(64)
    hot = [f"hot/{n}".encode() for n in range(32)]
    for topic in hot:
        cache.route(topic)
    routes = [cache.lookup(topic) for topic in hot]
    for n in range(20_000):
        cache.route(f"flood/{n}".encode())
        if n % 100 == 0:
            for topic in hot:
                cache.route(topic)
    assert [cache.lookup(topic) for topic in hot] == routes
    # Nearly all of the flood stayed outside: little was stored or evicted for it.
    assert cache.turned_away > 19_000
    assert cache.evicted < 1_500


def test_a_full_change_of_topics_is_followed() -> None:
    """What was hot and is silent now makes room for what is hot now."""
    cache = make(16)
    for group in ("first", "second", "third"):
        topics = [f"{group}/{n}".encode() for n in range(12)]
        for _ in range(50):
            for topic in topics:
                cache.route(topic)
        assert all(cache.lookup(topic) is not None for topic in topics)


def test_weight_of_entries_is_bounded() -> None:
    """Each route weighs one, and one for each filter that it holds; each level of the tree of topics has its weight."""
    most = 100 + (8 + 10) * NODE_WEIGHT
    cache = make(1000, most)
    for n in range(9):
        insert(cache, "+/" * n + "#")
    topic = "/".join("x" * 8)
    for n in range(50):
        cache.route(f"{topic}/{n}".encode())
        assert cache.weight <= most
    assert len(cache) == 10
    assert cache.weight == most
    insert(cache, "x/#")  # each of the ten grows by one, so that one must go
    assert cache.weight <= most
    assert len(cache) == 9


@given(st.lists(st.tuples(naive.topic_names, st.integers(0, 100)), max_size=40), st.integers(0, 400))
def test_the_weight_is_what_is_held(asked: list[tuple[str, int]], most: int) -> None:
    """Whatever comes and is charged: the weight is that of the routes and levels there are, and within its bound."""
    cache = make(10, most)
    held: dict[str, Route] = {}
    for topic, references in asked:
        held[topic] = cache.route(topic.encode())
        cache.charge(held[topic], references)
        kept = {name: route for name, route in held.items() if cache.lookup(name.encode()) is route}
        assert len(kept) == len(cache)
        assert cache.weight == sum(route.weight for route in kept.values()) + levels(*kept) * NODE_WEIGHT
        assert cache.weight <= most
    cache.clear()
    assert cache.weight == 0


# What one new filter may cost.


@pytest.mark.crowd
@pytest.mark.parametrize("new", ["#", "+/+/#", "+/+/nothing/+", "device/+/+", "+" + "/x" * 100])
def test_a_new_filter_costs_no_more_than_so_much(new: str) -> None:
    """Counted in levels looked at and routes extended, with 5,000 topics remembered; afterwards, nothing is wrong."""
    cache = make(10_000, 10_000_000)
    tail = "/x" * 60
    topics = [f"device/{n}/b" for n in range(2_500)] + [f"{n}{tail}" for n in range(2_500)]
    insert(cache, "device/#")
    for topic in topics:
        cache.store(topic.encode())
    assert len(cache) == 5_000
    weight = cache.weight
    for count in range(1, 32):
        before = cache.walked, cache.extended
        entry = insert(cache, new)
        assert cache.walked - before[0] <= 2 * MAX_WALKED
        assert cache.extended - before[1] <= 2 * MAX_EXTENDED
        assert (cache.changes.wide, cache.outdated) == (count, 5_000 * count)
        remove(cache, new)
        assert entry.retired
    for topic in topics:
        assert names(cache.route(topic.encode())) == (["device/#"] if topic.startswith("device") else [])
    # None of them was forgotten for it, and nothing is left of it.
    assert (len(cache), cache.weight, cache.misses) == (5_000, weight, 5_000)
    insert(cache, new)
    for topic in topics[::100]:
        assert names(cache.route(topic.encode())) == naive.matching({"device/#", new}, topic)


@for_each("wide", [1, 2, 3, 20])
@for_each("count", [MAX_EXTENDED - 8, MAX_EXTENDED * 2])
def test_wide_filters_are_found_by_the_routes_themselves(count: int, wide: int) -> None:
    """Whether a route was extended or matched again: it holds what matches, once each."""
    cache = make(5_000)
    others = ["t/x", "u/y", "v"]
    topics = [f"t/{n}" for n in range(count)] + others
    insert(cache, "t/#")
    routes = {topic: cache.route(topic.encode()) for topic in topics}
    filters = ["t/#"]
    for number in range(wide):
        made = ["+/+", "t/+", "#"][number] if number < 3 else f"+/x/{'+/' * number}#"
        filters.append(made)
        entry = insert(cache, made)
        cache.add(entry.topic_filter, Subscription(any_session(), made))
    assert (cache.changes.wide > 0) is (count > MAX_EXTENDED)
    for topic in [*others, *topics[::97]]:
        before = version(cache, routes[topic])
        assert cache.route(topic.encode()) is routes[topic]
        assert names(routes[topic]) == naive.matching(set(filters), topic)
        assert version(cache, routes[topic]) >= before
    for topic in topics:
        cache.route(topic.encode())
    weight = sum(1 + len(route.entries) for route in routes.values())
    assert cache.weight == weight + levels(*topics) * NODE_WEIGHT
    assert cache.misses == len(topics)
