"""Both layouts of the trie through one interface: against the oracle, and for what their files promise about cost."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from canopy_mqtt.core.codec import topic_names
from canopy_mqtt.core.topics.match_cache import MatchCache
from canopy_mqtt.core.topics.subscription import FilterEntry, Subscription
from canopy_mqtt.core.topics.trie import COMPACT, LAYOUTS, NODES, UNCOMPACTED, CompactTrie, NodeTrie, Trie, create
from tests.core import naive
from tests.support.runs import examples, for_each
from tests.support.sessions import any_session, members
from tests.support.tries import filters_of

Make = Callable[[], Trie]


MAKERS: dict[str, Make] = {layout: partial(create, layout) for layout in LAYOUTS}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Make:
    return MAKERS[request.param]


def names(entries: list[FilterEntry]) -> list[str]:
    return sorted(entry.topic_filter for entry in entries)


def filled(make: Make, filters: list[str]) -> Trie:
    trie = make()
    for topic_filter in filters:
        trie.insert(topic_filter)
    return trie


def remove(trie: Trie, topic_filter: str) -> bool:
    """Take a filter out; False when it is not there."""
    entry = trie.find(topic_filter)
    if entry is None:
        return False
    trie.remove(entry)
    assert entry.retired
    return True


def cost(trie: Trie, topic: str) -> int:
    """The look-ups that one match makes."""
    before = trie.probes
    trie.match(topic)
    return trie.probes - before


# What matches.


def test_every_filter_and_topic_of_few_levels(make: Make) -> None:
    """Each filter alone in the trie, and then in the company of all others."""
    for topic_filter in naive.FILTERS:
        alone = filled(make, [topic_filter])
        assert {topic for topic in naive.NAMES if alone.match(topic)} == naive.MATCHED[topic_filter], topic_filter
    everybody = filled(make, naive.FILTERS)
    for topic in naive.NAMES:
        assert names(everybody.match(topic)) == sorted(one for one in naive.FILTERS if topic in naive.MATCHED[one]), (
            topic
        )


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@given(filters=st.lists(naive.topic_filters, unique=True, max_size=30), data=st.data())
def test_removal_leaves_what_was_never_there(make: Make, filters: list[str], data: st.DataObject) -> None:
    """Filters that came and left again leave no record behind: the rest looks as if they had never been."""
    kept = data.draw(st.lists(st.sampled_from(filters), unique=True)) if filters else []
    trie = filled(make, filters)
    for topic_filter in filters:
        if topic_filter not in kept:
            assert remove(trie, topic_filter)
            assert not remove(trie, topic_filter)
    fresh = filled(make, kept)
    assert len(trie) == len(kept)
    assert sorted(filters_of(trie)) == sorted(kept)
    assert trie.nodes == fresh.nodes
    for topic_filter in filters:
        entry = trie.find(topic_filter)
        assert (entry is not None) is (topic_filter in kept)
    for topic_filter in kept:
        assert remove(trie, topic_filter)
    assert len(trie) == 0
    assert trie.nodes == 0
    assert filters_of(trie) == []


@pytest.mark.parametrize("topic_filter", ["a/b", "a/+", "a/+/b", "a/+/b/#", "#"])
def test_a_filter_that_somebody_listens_at_stays(make: Make, topic_filter: str) -> None:
    trie = make()
    entry = trie.insert(topic_filter)
    records = trie.nodes
    subscription = Subscription(any_session(), topic_filter)
    entry.add(subscription)
    with pytest.raises(ValueError, match="has subscriptions"):
        remove(trie, topic_filter)
    assert trie.find(topic_filter) is entry
    assert (len(trie), trie.nodes) == (1, records)
    entry.discard(subscription)
    assert remove(trie, topic_filter)


def test_everything_is_given_back(make: Make) -> None:
    """No entry, node or table outlives the filters: counted among all objects that the interpreter knows."""

    def alive() -> int:
        gc.collect()
        kinds = {"FilterEntry", "Node", "Shapes"}
        return sum(type(thing).__name__ in kinds for thing in gc.get_objects())

    trie = make()
    before = alive()
    filters = [f"site/{n % 7}/+/{n}/{tail}" for n in range(200) for tail in ("#", "x/+", "y")]
    for topic_filter in filters:
        trie.insert(topic_filter)
    assert alive() >= before + len(filters)
    for topic_filter in reversed(filters):
        remove(trie, topic_filter)
    assert alive() == before


# What it costs, counted in look-ups.

EMQX = 10


def devices(make: Make, count: int) -> Trie:
    return filled(make, [f"device/{n % EMQX}/+/{n // EMQX}/#" for n in range(count)])


def test_cost_does_not_depend_on_how_many_filters_there_are(make: Make) -> None:
    topic = "device/3/foo/7/bar"
    costs = {cost(devices(make, count), topic) for count in (100, 1_000, 10_000)}
    assert len(costs) == 1


def test_cost_in_the_table_of_emqx() -> None:
    """`device/{id}/+/{number}/#`: levels × 2 + 2 look-ups are the bound; there are three."""
    trie = devices(CompactTrie, 1_000)
    topic = "device/3/foo/7/bar"
    assert names(trie.match(topic)) == ["device/3/+/7/#"]
    assert cost(trie, topic) == 3 <= topic_names.level_count(topic) * 2 + 2
    # One record for each `device/{id}/+/`, and the root's.
    assert trie.nodes == EMQX + 1


def test_node_layout_needs_no_node_for_a_filter_alone_under_its_level() -> None:
    """Root aside: "device", ten numbers and ten "+", and not one for the thousand filters."""
    assert devices(NodeTrie, 1_000).nodes == 1 + 2 * EMQX


@for_each("alone", ["a/b/#", "+/b", "a/+/b"])
def test_node_layout_folds_again_what_a_second_filter_made_a_node(alone: str) -> None:
    trie = filled(NodeTrie, [alone])
    records = trie.nodes
    entry = trie.find(alone)
    for tail in ("/+", "/x/#", "/+/x", "/x/y/+"):
        second = alone.removesuffix("/#") + tail
        trie.insert(second)
        assert trie.nodes > records
        assert trie.find(alone) is entry
        remove(trie, second)
        assert trie.nodes == records
        assert trie.find(alone) is entry


def test_a_topic_that_nothing_can_match_is_cheap(make: Make) -> None:
    trie = devices(make, 1_000)
    assert cost(trie, "other/" + "a/" * 500) <= 6


@pytest.mark.crowd
def test_many_shapes_cost_no_more_than_the_topic_is_deep() -> None:
    """Filters of a thousand depths in the compact layout: a short topic looks only for those that could match it."""
    trie = filled(CompactTrie, ["a/" * depth + tail for depth in range(1, 1_000) for tail in ("+", "#", "+/b", "+/#")])
    for levels in (1, 2, 5, 10):
        topic = "/".join(["x"] * levels)
        assert trie.match(topic) == []
        assert cost(trie, topic) <= 1 + 2 * levels + 3
    # Of one depth each, the root's shapes are taken one by one.
    few = filled(CompactTrie, ["a/" * 900 + "+", "b/#"])
    assert cost(few, "x/y/z") == 2


def mixtures(depth: int) -> list[str]:
    """Every mixture of "a" and "+" of that many levels, but the one without a "+"."""
    found = [""]
    for _ in range(depth):
        found = [f"{head}{level}/" for head in found for level in ("a", "+")]
    return [head[:-1] for head in found if "+" in head]


@pytest.mark.parametrize("depth", [4, 8, 10])
def test_the_worst_topic_costs_what_the_filters_put_there(make: Make, depth: int) -> None:
    """2^depth mixtures of "a" and "+" all match "a/a/a/…": the cost is in proportion to them, and not above.

    A topic that is longer than every filter finds no more to visit, and half the filters halve the cost.
    """
    filters = mixtures(depth)
    trie = filled(make, filters)
    topic = "/".join(["a"] * depth)
    assert names(trie.match(topic)) == sorted(filters)
    full = cost(trie, topic)
    assert full <= 12 * len(filters)
    longer = "/".join(["a"] * (4 * depth))
    assert trie.match(longer) == []
    assert cost(trie, longer) <= 12 * len(filters)
    for topic_filter in filters[::2]:
        remove(trie, topic_filter)
    assert cost(trie, topic) <= full


def test_depth_needs_no_recursion(make: Make) -> None:
    """A thousand times the depth that anybody uses, in the topic and in the filters."""
    # Without compaction every level is a key, and memory grows with the square of the depth.
    depth = 4_000 if make is MAKERS[UNCOMPACTED] else 60_000
    topic = "/" * depth
    filters = ["/" * depth + "+", "/" * (depth - 1) + "#", "+" + "/" * depth, "/" * (depth - 1) + "+/+"]
    trie = make()
    for topic_filter in filters:
        topic_names.validate_filter(topic_filter)
        trie.insert(topic_filter)
    assert len(trie.match(topic)) == len(filters)
    for topic_filter in filters:
        assert remove(trie, topic_filter)
    assert trie.nodes == 0


# Which layout.


def test_layouts_by_name() -> None:
    assert set(LAYOUTS) == {NODES, COMPACT, UNCOMPACTED}
    assert type(create(NODES)) is NodeTrie
    for layout in (COMPACT, UNCOMPACTED):
        made = create(layout)
        assert isinstance(made, CompactTrie)
        assert made.compaction == (layout == COMPACT)
    with pytest.raises(ValueError, match="compact, nodes"):
        create("b-tree")


# Everything at once.


class Routing(RuleBasedStateMachine):
    """Filters and subscribers come and go; every layout, with and without a cache, says what the oracle says.

    Subscribing and unsubscribing is done as the router does it: find or insert, add; discard, remove when empty.
    """

    @initialize()
    def start(self) -> None:
        self.caches = [MatchCache(make(), size) for make in MAKERS.values() for size in (0, 1, 3, 1000)]
        # For each cache, what each client has subscribed to.
        self.held: list[dict[tuple[int, str, str], Subscription]] = [{} for _ in self.caches]
        self.model: dict[tuple[int, str, str], int] = {}

    @rule(client=st.integers(0, 3), group=st.sampled_from(["", "", "g"]), topic_filter=naive.topic_filters)
    def subscribe(self, client: int, group: str, topic_filter: str) -> None:
        key = (client, group, topic_filter)
        qos = len(self.model) % 3
        for cache, held in zip(self.caches, self.held, strict=True):
            old = held.get(key)
            if old is not None and old.entry is not None:
                cache.discard(old.entry, old)
            subscription = Subscription(any_session(), topic_filter, qos)
            cache.add(topic_filter, subscription, group)
            held[key] = subscription
        self.model[key] = qos

    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        if not self.model:
            return
        key = data.draw(st.sampled_from(sorted(self.model)))
        del self.model[key]
        for cache, held in zip(self.caches, self.held, strict=True):
            subscription = held.pop(key)
            entry = subscription.entry
            assert entry is not None
            cache.discard(entry, subscription)
            assert (entry.only is None and entry.many is None) == entry.retired

    @rule(tried=st.lists(naive.topic_names, min_size=1, max_size=6))
    def publish(self, tried: list[str]) -> None:
        for topic in tried:
            expected = sorted(key for key in self.model if naive.matches(key[2], topic))
            for cache, held in zip(self.caches, self.held, strict=True):
                by_identity = {id(subscription): key for key, subscription in held.items()}
                found: list[tuple[int, str, str]] = []
                for entry in cache.route(topic.encode()).entries:
                    everybody = list(entry.subscriptions)
                    for group in entry.groups.values():
                        everybody.extend(members(group))
                    found.extend(by_identity[id(subscription)] for subscription in everybody)
                assert sorted(found) == expected

    @invariant()
    def counts_agree(self) -> None:
        filters = {key[2] for key in self.model}
        for cache in self.caches:
            assert len(cache.trie) == len(filters)
            assert len(cache) <= cache.max_topics

    def teardown(self) -> None:
        for cache, held in zip(self.caches, self.held, strict=True):
            for subscription in held.values():
                entry = subscription.entry
                assert entry is not None
                cache.discard(entry, subscription)
            assert len(cache.trie) == 0
            assert cache.trie.nodes == 0


TestRouting = Routing.TestCase
TestRouting.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
