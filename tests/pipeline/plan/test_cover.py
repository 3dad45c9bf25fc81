"""Folding topic filters: whatever is folded stays covered, and costs what matching topic by topic says."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from canopy_mqtt.core.codec.topic_names import covers
from canopy_pipeline.plan.filter_folding import Folding, Step, Topic, choose, filters_at, generalisations
from tests.pipeline.oracle.toy import matches
from tests.support.runs import examples

LEVELS = ("a", "b", "")
names = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3).map("/".join)
filters = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]) or "#",
    st.lists(st.sampled_from((*LEVELS, "+")), min_size=1, max_size=3),
    st.sampled_from(((), ("#",))),
)


def over(chosen: list[str], topics: list[Topic]) -> int:
    return sum(topic.bytes for topic in topics if any(matches(each, topic.name) for each in chosen))


@settings(max_examples=examples(150), deadline=None)
@given(filters)
def test_a_generalisation_covers_what_it_is_made_of(narrow: str) -> None:
    assert all(covers("/".join(made), narrow) for made in generalisations(tuple(narrow.split("/"))))


@settings(max_examples=examples(200), deadline=None)
@given(st.sets(filters, min_size=1, max_size=8), st.dictionaries(names, st.integers(0, 9), max_size=12))
def test_every_point_of_the_curve_covers_everything_and_costs_what_it_says(
    originals: set[str], sizes: dict[str, int]
) -> None:
    topics = [
        Topic(name, 1, size) for name, size in sizes.items() if not any(matches(each, name) for each in originals)
    ]
    folding = Folding(originals, topics)
    steps = folding.steps()
    assert set(folding.first) <= originals
    assert steps[-1].filters == 1
    for at, step in enumerate(steps):
        chosen = filters_at(folding.first, steps, at)
        assert len(chosen) == step.filters
        assert all(any(covers(wide, narrow) for wide in chosen) for narrow in originals)
        # Forwarded once is paid for: a step may cost what an earlier set brought, never less than its own does.
        assert over(chosen, topics) <= step.over_bytes
    assert [step.filters for step in steps] == sorted({step.filters for step in steps}, reverse=True)
    assert [step.over_bytes for step in steps] == sorted(step.over_bytes for step in steps)
    for limit in range(1, 9):
        assert steps[choose(steps, limit, 0)].filters <= limit


@pytest.mark.parametrize(
    "originals",
    [
        ["a/1/t", "a/2/t", "b/1/t", "b/2/t"],
        ["a/1", "a/2", "a/3", "b/1", "c/#"],
        ["a", "b/c", "b/d/e"],
    ],
)
def test_on_small_instances_it_is_as_good_as_brute_force(originals: list[str]) -> None:
    topics = [Topic(name, 1, 1 + len(name)) for name in ("a/3/t", "a/1/x", "b/9/t", "c", "d/1", "a/4", "b/d/f", "z")]
    topics = [topic for topic in topics if not any(matches(each, topic.name) for each in originals)]
    folding = Folding(originals, topics)
    steps = folding.steps()
    pool = set(originals)
    for _ in range(2):
        pool |= {"/".join(made) for each in pool for made in generalisations(tuple(each.split("/")))}
    # What covers nothing but one of the filters is no better than that filter.
    useful = sorted(each for each in pool if each in originals or sum(covers(each, one) for one in originals) > 1)
    for limit in range(1, len(originals) + 1):
        best = min(
            over(list(chosen), topics)
            for size in range(1, limit + 1)
            for chosen in combinations(useful, size)
            if all(any(covers(wide, narrow) for wide in chosen) for narrow in originals)
        )
        assert steps[choose(steps, limit, 0)].over_bytes == best


def test_the_cheapest_is_folded_first() -> None:
    topics = [Topic("a/9", 5, 500), Topic("b/9", 1, 10)]
    folding = Folding(["a/1", "a/2", "b/3", "b/4", "b/3"], topics)
    steps = folding.steps()
    assert steps[0] == Step(4, 0, 0)
    assert filters_at(folding.first, steps, 1) == ["a/1", "a/2", "b/+"]
    assert (steps[1].over_bytes, steps[1].over_messages) == (10, 1)
    assert filters_at(folding.first, steps, choose(steps, None, 10)) == ["a/1", "a/2", "b/+"]
    assert steps[-1].over_bytes == 510


def test_what_another_filter_covers_is_none_of_its_own() -> None:
    assert Folding(["a/#", "a", "a/+", "a/b/c", "+/b", "x/b", "x"], []).first == ("+/b", "a/#", "x")
    assert Folding(["#", "a/b"], []).first == ("#",)
