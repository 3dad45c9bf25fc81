"""The tree of filters against asking each of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core import topics
from broker.upstream.filtertree import FilterTree
from tests.core import naive


def covers(wide: str, topic_filter: str) -> bool:
    """What the tree goes by: "+/#" is not as wide as "#" here."""
    return topics.covers(wide, topic_filter) and not (wide == "+/#" and topic_filter == "#")


def test_an_empty_tree() -> None:
    tree = FilterTree()
    assert tree.covering("a") is None
    assert tree.inside("#") == []
    tree.discard("a/b")


def test_corners() -> None:
    tree = FilterTree()
    for each in ("a/#", "+", "$x/#", "b", "a/+/c", "/"):
        tree.add(each)
    assert tree.covering("a") in ("a/#", "+")
    assert tree.covering("a/#") is None
    assert tree.covering("a/+/c") == "a/#"
    assert tree.covering("b") == "+"
    assert tree.covering("+/b") is None
    assert tree.covering("$x") == "$x/#"
    assert tree.covering("$y") is None  # [MQTT-4.7.2-1]
    assert sorted(tree.inside("#")) == ["+", "/", "a/#", "a/+/c", "b"]
    assert sorted(tree.inside("+")) == ["+", "b"]
    assert tree.inside("$x/#") == ["$x/#"]
    assert sorted(tree.inside("a/#")) == ["a/#", "a/+/c"]
    assert tree.inside("+/+") == ["/"]


@settings(max_examples=60)
@given(st.lists(naive.topic_filters, max_size=12), st.lists(naive.topic_filters, max_size=6), naive.topic_filters)
def test_it_says_what_each_filter_says(put: list[str], taken: list[str], asked: str) -> None:
    tree = FilterTree()
    for each in put:
        tree.add(each)
    for each in [*taken, *put[::3]]:
        tree.discard(each)
    there = set(put) - set(taken) - set(put[::3])
    for each in [asked, *put]:
        assert sorted(tree.inside(each)) == sorted(other for other in there if covers(each, other))
        wides = {other for other in there if other != each and covers(other, each)}
        found = tree.covering(each)
        assert found in wides if wides else found is None


@settings(max_examples=40)
@given(st.lists(naive.topic_filters, min_size=1, max_size=12, unique=True), st.data())
def test_nothing_is_left_behind(put: list[str], data: st.DataObject) -> None:
    tree = FilterTree()
    for each in put:
        tree.add(each)
    for each in data.draw(st.permutations(put)):
        tree.discard(each)
    assert not tree._root.below


def test_a_very_deep_filter() -> None:
    """Where the settings have no limit on levels, 65,535 bytes can spell 65,536 of them."""
    deep = "/" * 65_534
    tree = FilterTree()
    tree.add(deep + "#")
    tree.add("+" + "/+" * 32_000)
    assert tree.covering(deep + "a") == deep + "#"
    assert len(tree.inside("#")) == 2
    tree.discard(deep + "#")
    assert tree.covering(deep + "a") is None
