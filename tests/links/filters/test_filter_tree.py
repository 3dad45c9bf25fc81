"""The tree of filters against asking each of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.codec import topic_names
from canopy_mqtt.links.filters.filter_tree import CoverSet, FilterTree
from tests.core import naive
from tests.support.runs import examples


def covers(wide: str, topic_filter: str) -> bool:
    """Return whether the tree puts one under the other: "+/#" is not as wide as "#" here."""
    return topic_names.covers(wide, topic_filter) and not (wide == "+/#" and topic_filter == "#")


@settings(max_examples=examples(60))
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
        assert sorted(tree.above(each)) == sorted(other for other in there if covers(other, each))
        wides = {other for other in there if other != each and covers(other, each)}
        found = tree.covering(each)
        assert found in wides if wides else found is None


@settings(max_examples=examples(40))
@given(st.lists(naive.topic_filters, min_size=1, max_size=12, unique=True), st.data())
def test_nothing_is_left_behind(put: list[str], data: st.DataObject) -> None:
    tree = FilterTree()
    for each in put:
        tree.add(each)
    for each in data.draw(st.permutations(put)):
        tree.discard(each)
    assert not tree._root.below


def widest(topic_filters: list[str]) -> list[str]:
    """The rule, one by one: those that no other includes, in their order; of two that include each other, the first."""
    kept: list[str] = []
    for each in topic_filters:
        if not any(topic_names.covers(other, each) for other in kept):
            kept = [other for other in kept if not topic_names.covers(each, other)]
            kept.append(each)
    return kept


some = st.one_of(naive.topic_filters, st.sampled_from(["#", "+/#", "+", "$x/#", "$x", "a/#", "a/+", "+/b", "a/b", "/"]))


@settings(max_examples=examples(80))
@given(st.lists(some, max_size=12), st.lists(some, max_size=8))
def test_the_first_of_many_is_that_of_a_look_at_each(wides: list[str], asked: list[str]) -> None:
    tree = CoverSet(wides)
    assert tree.kept == widest(wides)
    for each in [*asked, *wides]:
        expected = next((wide for wide in widest(wides) if topic_names.covers(wide, each)), None)
        assert tree.first(each) == expected


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
