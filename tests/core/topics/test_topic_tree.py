"""The tree of topics: values against a dict, walks against the oracle, and walks while everything changes."""

from __future__ import annotations

import gc

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from canopy_mqtt.core.topics.topic_tree import STEPS_LEAST, TopicCursor, TopicTree
from tests.core import naive
from tests.support.runs import examples


def filled(names: list[str]) -> TopicTree:
    tree = TopicTree()
    for topic in names:
        tree.set(topic, object())
    return tree


def found(tree: TopicTree, topic_filter: str) -> list[str]:
    return sorted(node.topic for node in tree.matching(topic_filter))


def rest(cursor: TopicCursor, limit: int = 1) -> list[str]:
    """What the cursor still has, by batches of at most `limit`."""
    names: list[str] = []
    while not cursor.done:
        batch = cursor.take(limit)
        assert len(batch) <= limit
        names.extend(node.topic for node in batch)
    assert cursor.take(limit) == []
    return names


# Values.


@example(["a/a"], "a/a/#")
@example(["a/a"], "a/a/+")
@given(st.lists(naive.topic_names, unique=True, max_size=30), naive.topic_filters)
def test_whether_a_filter_leads_anywhere(names: list[str], topic_filter: str) -> None:
    """By the levels before its first wildcard: what begins with them is there, or nothing can match."""
    prefix: list[str] = []
    for level in topic_filter.split("/"):
        if level in ("+", "#"):
            # `#` matches the level above it too [MQTT-4.7.1-2]; `+` there is looked up in vain.
            expected = any(name.split("/")[: len(prefix)] == prefix for name in names)
            break
        prefix.append(level)
    else:
        expected = topic_filter in names
    assert filled(names).leads_to(topic_filter) == expected


def test_everything_is_given_back() -> None:
    def alive() -> int:
        gc.collect()
        return sum(type(thing).__name__ in {"TopicNode", "Below", "Frame"} for thing in gc.get_objects())

    before = alive()
    tree = TopicTree()
    base = alive()
    names = [f"device/{n % 10}/{n}/{tail}" for n in range(300) for tail in ("a", "b")]
    for name in names:
        tree.set(name, object())
    assert len(rest(tree.walk("device/+/#"), 50)) == len(names)
    for name in names:
        tree.remove(name)
    assert alive() == base > before


def test_depth_needs_no_recursion() -> None:
    """Two names of 65,536 levels, found under wildcards, and the tree thrown away with them in it."""
    deep, other = "/" * 65_535, "/" * 65_534 + "x"
    tree = filled([deep, other])
    assert found(tree, "#") == sorted([deep, other])
    assert found(tree, "/" * 65_534 + "+") == [other]
    assert tree.remove(deep) is not None
    assert tree.node_count == 65_535
    del tree
    gc.collect()


# What a walk finds.


def test_every_filter_and_topic_of_few_levels() -> None:
    tree = filled(naive.NAMES)
    for topic_filter in naive.FILTERS:
        assert found(tree, topic_filter) == sorted(naive.MATCHED[topic_filter]), topic_filter


@given(st.lists(naive.topic_names, max_size=10), naive.topic_names)
def test_missing_levels(names: list[str], new: str) -> None:
    """What it says that `set` would add is what `set` adds, and it changes nothing."""
    tree = filled(names)
    before = tree.node_count
    missing = tree.missing(new)
    assert tree.node_count == before
    tree.set(new, object())
    assert tree.node_count - before == missing
    assert tree.missing(new) == 0


def test_a_step_is_bounded_for_long_filters_too() -> None:
    """A filter of many plain levels behind a wildcard is followed far for each topic, and that counts."""
    tail = "/x" * 100
    tree = filled([f"{n}{tail}" for n in range(200)])
    cursor = tree.walk("+" + tail + "/y")
    most = 0
    while not cursor.done:
        before = cursor.steps
        assert cursor.take(1) == []
        most = max(most, cursor.steps - before)
    assert 0 < most <= STEPS_LEAST + 102
    assert cursor.steps > 200 * 100


def test_a_walk_looks_only_where_the_filter_can_match() -> None:
    tree = filled([f"noise/{n}/x" for n in range(5_000)] + ["a/b/c", "a/b/d", "a/x/c"])
    for topic_filter, names in (("a/b/#", ["a/b/c", "a/b/d"]), ("a/+/c", ["a/b/c", "a/x/c"]), ("a/b/c", ["a/b/c"])):
        cursor = tree.walk(topic_filter)
        assert sorted(rest(cursor)) == names
        assert cursor.steps <= 8
    cursor = tree.walk("nothing/#")
    assert rest(cursor) == []
    assert cursor.steps <= 2


def test_one_batch_is_a_bounded_piece_of_work() -> None:
    """A filter that matches one topic in ten thousand: many short steps, and none that looks at all of them."""
    names = [f"{n}/x" for n in range(10_000)]
    tree = filled([*names, "last/y"])
    cursor = tree.walk("+/y")
    got: list[str] = []
    batches = 0
    while not cursor.done:
        before = cursor.steps
        got.extend(node.topic for node in cursor.take(1))
        assert cursor.steps - before <= 2 * STEPS_LEAST + 2
        batches += 1
    assert got == ["last/y"]
    assert batches >= 10_000 // STEPS_LEAST


# Walks while the tree changes.


def test_a_walked_level_keeps_no_more_dead_than_alive() -> None:
    """Topics that come and go in a level that somebody walked: what is kept follows what is there, not what was."""

    def alive() -> int:
        gc.collect()
        return sum(type(thing).__name__ == "TopicNode" for thing in gc.get_objects())

    before = alive()
    tree = filled([f"a/{n}" for n in range(50)])
    cursor = tree.walk("a/+")
    cursor.take(10)
    for n in range(5_000):
        tree.set(f"a/new{n}", object())
        tree.remove(f"a/new{n}")
        if n % 7 == 0:
            tree.walk("a/+").take(1)
    assert alive() - before <= 3 * 50
    assert len(rest(cursor)) == 40


def test_the_place_is_kept_when_the_whole_level_is_made_again() -> None:
    """Every topic but one is cleared and set again, which replaces what the walk stands in."""
    tree = filled([f"a/{n}" for n in range(100)])
    cursor = tree.walk("a/+")
    came = {node.topic for node in cursor.take(10)}
    for n in range(99):
        tree.remove(f"a/{n}")
    for n in range(99):
        tree.set(f"a/{n}", object())
    assert rest(cursor) == ["a/99"]
    assert len(came) == 10


class Walker:
    """A cursor of the machine below, with what it may and must give."""

    def __init__(self, topic_filter: str, cursor: TopicCursor, there: set[str]) -> None:
        self.topic_filter = topic_filter
        self.cursor = cursor
        self.throughout = {topic for topic in there if naive.matches(topic_filter, topic)}
        self.ever = set(self.throughout)
        self.given: list[str] = []


class Changing(RuleBasedStateMachine):
    """Topics set and cleared in any order, with several walks under way: a dict and the oracle say what must come."""

    @initialize()
    def start(self) -> None:
        self.tree = TopicTree()
        self.model: dict[str, object] = {}
        self.walkers: list[Walker] = []

    @rule(topic=naive.topic_names)
    def set(self, topic: str) -> None:
        value = object()
        assert self.tree.set(topic, value) is self.model.get(topic)
        self.model[topic] = value
        for walker in self.walkers:
            if naive.matches(walker.topic_filter, topic):
                walker.ever.add(topic)

    @rule(prefix=naive.topic_names, count=st.integers(1, 60))
    def set_many(self, prefix: str, count: int) -> None:
        for n in range(count):
            self.set(f"{prefix}/{n}")

    @rule(data=st.data())
    def clear_one(self, data: st.DataObject) -> None:
        if self.model:
            self.clear(data.draw(st.sampled_from(sorted(self.model))))

    @rule(topic_filter=naive.topic_filters)
    def clear_what_matches(self, topic_filter: str) -> None:
        for topic in naive.matched(topic_filter, self.model):
            self.clear(topic)

    @rule(topic=naive.topic_names)
    def clear(self, topic: str) -> None:
        assert self.tree.remove(topic) is self.model.pop(topic, None)
        for walker in self.walkers:
            walker.throughout.discard(topic)

    @rule(topic_filter=naive.topic_filters)
    def walk(self, topic_filter: str) -> None:
        self.walkers.append(Walker(topic_filter, self.tree.walk(topic_filter), set(self.model)))

    @rule(data=st.data(), limit=st.integers(1, 5))
    def take(self, data: st.DataObject, limit: int) -> None:
        if not self.walkers:
            return
        walker = data.draw(st.sampled_from(self.walkers))
        for node in walker.cursor.take(limit):
            assert node.value is self.model[node.topic]
            walker.given.append(node.topic)

    @invariant()
    def the_tree_is_the_dict(self) -> None:
        assert len(self.tree) == len(self.model)
        for topic, value in self.model.items():
            assert self.tree.get(topic) is value

    def teardown(self) -> None:
        for walker in self.walkers:
            walker.given.extend(rest(walker.cursor, 3))
            given = set(walker.given)
            assert len(given) == len(walker.given)
            assert walker.throughout <= given <= walker.ever
        for topic in list(self.model):
            self.tree.remove(topic)
        assert self.tree.node_count == 0


TestChanging = Changing.TestCase
TestChanging.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
