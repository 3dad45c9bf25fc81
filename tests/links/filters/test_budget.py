"""The cover within a budget: its rules one by one, with a face that records."""

from __future__ import annotations

import pytest

from canopy_mqtt.links.filters import budget, folding
from canopy_mqtt.links.filters.budget import BudgetedFilters
from tests.links.recorder import Recorder
from tests.support.runs import for_each


def made(max_filters: int, *filters: str, **settings: list[str]) -> tuple[Recorder, BudgetedFilters]:
    """Local filters added at 0.0, with folds that are held for 30 seconds."""
    face = Recorder()
    local_filters = BudgetedFilters(face, max_filters, settings.get("roots", []), settings.get("unfolded", []), 30.0)
    for topic_filter in filters:
        local_filters.add(topic_filter, 0.0)
    return face, local_filters


def emptied(face: Recorder, local_filters: BudgetedFilters, *filters: str) -> None:
    """When all have gone, nothing is left."""
    for topic_filter in filters:
        local_filters.remove(topic_filter, 0.0)
    assert face.held == set()
    assert (local_filters.declared, local_filters.demanded, local_filters.subscriptions) == ([], 0, 0)
    assert (local_filters.outside, local_filters.refused) == (0, 0)


class TestWhatFits:
    def test_what_was_never_added_cannot_go(self) -> None:
        _, local_filters = made(8, "a/b")
        with pytest.raises(ValueError, match="a/c"):
            local_filters.remove("a/c")
        local_filters.remove("a/b")
        with pytest.raises(ValueError, match="a/b"):
            local_filters.remove("a/b")
        assert (local_filters.demanded, local_filters.subscriptions) == (0, 0)

    def test_a_wider_one_that_nobody_asks_for_any_more_is_a_fold(self) -> None:
        face, local_filters = made(8, "a/b", "c", "a/c/d", "a/#")
        face.told()
        local_filters.remove("a/#", 10.0)
        assert face.told() == []
        assert local_filters.next_tick() == 40.0
        local_filters.tick(39.9)
        assert face.told() == []
        local_filters.tick(40.0)
        assert face.told() == ["+a/b", "+a/c/d", "-a/#"]
        assert local_filters.next_tick() == 0.0
        emptied(face, local_filters, "a/b", "c", "a/c/d")

    def test_one_that_is_asked_for_again_is_not_opened(self) -> None:
        face, local_filters = made(8, "a/b", "a/#")
        face.told()
        local_filters.remove("a/#", 10.0)
        local_filters.add("a/#", 20.0)
        local_filters.tick(100.0)
        assert face.told() == []
        local_filters.remove("a/#", 100.0)
        local_filters.remove("a/b", 100.0)
        assert face.told() == ["-a/#"]


class TestFolding:
    def test_one_level_and_an_eighth_free(self) -> None:
        face, local_filters = made(8, *(f"dev/{number}/t" for number in range(7)))
        assert len(face.told()) == 7
        local_filters.add("dev/7/t")
        assert face.told() == ["+dev/+/t", *(f"-dev/{number}/t" for number in range(7))]
        assert local_filters.children("dev/+/t") == 8
        for number in range(8, 1_000):
            local_filters.add(f"dev/{number}/t")
        assert face.told() == []
        for number in range(1_000):
            local_filters.remove(f"dev/{number}/t")
        assert face.told() == ["-dev/+/t"]

    def test_the_deepest_come_first_and_no_more_than_needed(self) -> None:
        face, local_filters = made(8, "a/x/1/p", "a/x/2/q", "b/1", "c/1", "a/y/1", "d", "a/x")
        face.told()
        local_filters.add("e")
        assert face.told() == ["+a/x/#", "-a/x/1/p", "-a/x/2/q", "-a/x", "+e"]
        assert sorted(local_filters.declared) == ["a/x/#", "a/y/1", "b/1", "c/1", "d", "e"]

    def test_what_saves_most_comes_first_then_the_alphabet(self) -> None:
        _, local_filters = made(8, "c/1", "c/2", "b/1", "b/2", "b/3", "a/1", "a/2")
        local_filters.add("e")
        assert sorted(local_filters.declared) == ["a/1", "a/2", "b/+", "c/1", "c/2", "e"]
        local_filters.add("f")
        assert sorted(local_filters.declared) == ["a/1", "a/2", "b/+", "c/1", "c/2", "e", "f"]
        local_filters.add("g")
        assert sorted(local_filters.declared) == ["a/+", "b/+", "c/+", "e", "f", "g"]

    def test_folds_are_folded(self) -> None:
        face, local_filters = made(4, "a/b/1", "a/b/2", "a/c/1", "a/c/2", "a/d/1", "a/d/2", "a/e/1/2", "b")
        assert local_filters.declared == ["a/+/+", "a/e/1/2", "b"]
        assert local_filters.children("a/+/+") == 6
        local_filters.add("a/f")
        assert sorted(local_filters.declared) == ["a/#", "b"]
        assert local_filters.children("a/#") == 8
        local_filters.remove("a/f")
        emptied(face, local_filters, "a/b/1", "a/b/2", "a/c/1", "a/c/2", "a/d/1", "a/d/2", "a/e/1/2", "b")

    def test_dollar_keeps_to_itself(self) -> None:
        """A leading wildcard does not see it [MQTT-4.7.2-1]."""
        _, local_filters = made(3, "$a/1", "$a/2/x", "b", "c", "d/e")
        assert sorted(local_filters.declared) == ["#", "$a/#"]
        assert local_filters.refused == 0

    def test_a_fold_that_is_asked_for_stays_with_who_asks(self) -> None:
        face, local_filters = made(3, "a/1", "a/2", "a/3", "a/+")
        face.told()
        assert local_filters.children("a/+") == 4
        for topic_filter in ("a/1", "a/2", "a/3"):
            local_filters.remove(topic_filter)
        assert face.told() == []
        local_filters.tick(1_000.0)
        assert face.told() == []
        emptied(face, local_filters, "a/+")


# What of these filters becomes one, at which depth.
GENERALISED = [
    (["a/b/c", "a/d/c"], 1, {"a/+/c": ["a/b/c", "a/d/c"]}),
    (["a/b/c", "a/b/d"], 2, {"a/b/+": ["a/b/c", "a/b/d"]}),
    (["a/b/#", "a/c/#"], 1, {"a/+/#": ["a/b/#", "a/c/#"]}),
    (["a/+/x", "a/+/y"], 1, {"a/+/+": ["a/+/x", "a/+/y"]}),
    (["a/+/x", "a/b"], 1, {"a/+/+": ["a/+/x"], "a/+": ["a/b"]}),
    (["a", "b", "$x"], 0, {"+": ["a", "b"]}),
    (["a/#", "b/#"], 0, {}),  # "+/#" is "#" with more words
    (["+/b", "#"], 0, {"+/+": ["+/b"]}),
    (["/".join("a" * 129)], 0, {}),
]
BELOW = [
    (["a/b", "a/c/d", "a", "b"], 1, {"a/#": ["a/b", "a/c/d", "a"], "b/#": ["b"]}),
    (["a/+/c", "a/b/c"], 1, {"a/#": ["a/+/c", "a/b/c"]}),
    (["a/+/c", "a/b/c"], 2, {"a/b/#": ["a/b/c"]}),
    (["/a", "/b/c"], 1, {"/#": ["/a", "/b/c"]}),
    (["a", "+/b", "$x"], 0, {"#": ["a", "+/b"]}),
    (["$x", "$x/y"], 1, {"$x/#": ["$x", "$x/y"]}),
]


@for_each(("filters", "depth", "expected"), GENERALISED)
def test_one_level(filters: list[str], depth: int, expected: dict[str, list[str]]) -> None:
    assert folding.one_level(filters, depth) == expected


@for_each(("filters", "depth", "expected"), BELOW)
def test_all_below(filters: list[str], depth: int, expected: dict[str, list[str]]) -> None:
    assert folding.all_below(filters, depth) == expected


@for_each(
    ("filters", "depth"),
    [
        ([], -1),
        (["a"], -1),
        (["a", "b"], 0),
        (["a/b/c", "b", "a/b", "a/c"], 2),
        (["a/+/c", "a/b/c"], 1),
        (["+", "#"], 0),
    ],
)
def test_shared_depth(filters: list[str], depth: int) -> None:
    assert folding.shared_depth(filters) == depth


class TestRoots:
    def test_the_roots_themselves_are_the_widest(self) -> None:
        """Nothing that begins at the same level may be folded there, but all of it is in the root."""
        _, local_filters = made(3, "s/1/d/x", "s/2/d/y/z", "s/3/d", "s/4/d/v", roots=["s/+/d/#"])
        assert local_filters.declared == ["s/+/d/#"]

    def test_as_many_roots_as_filters(self) -> None:
        """The slot that is kept free is lent, when nothing can be folded any more."""
        face, local_filters = made(2, "a/1", "b/1", "a/2", "b/2", "a/3/4", "b/3/4", roots=["a/#", "b/#"])
        assert face.held == {"a/#", "b/#"}
        assert local_filters.refused == 0


class TestRefusal:
    def test_very_many(self) -> None:
        """They come in their order, also those beyond what is looked at together."""
        count = 2 * budget.RETRIED + 10
        face, local_filters = made(2, *(f"p/{number}" for number in range(count)), unfolded=["p/#"])
        assert local_filters.refused == count - 2
        for number in range(count - 2):
            local_filters.remove(f"p/{number}")
            assert face.held == {f"p/{number + 1}", f"p/{number + 2}"}
        emptied(face, local_filters, f"p/{count - 2}", f"p/{count - 1}")


class TestTime:
    def test_a_fold_stays_until_it_was_left_alone_for_long_enough(self) -> None:
        face, local_filters = made(4, "a/1", "a/2", "a/3", "a/4")
        assert face.told()[3:] == ["+a/+", "-a/1", "-a/2", "-a/3"]
        assert local_filters.next_tick() == 30.0
        local_filters.remove("a/1", 5.0)
        local_filters.add("a/5", 10.0)
        local_filters.remove("a/5", 11.0)
        local_filters.tick(39.9)
        assert face.told() == []
        assert local_filters.next_tick() == 40.0
        local_filters.tick(40.0)
        assert face.told() == ["+a/2", "+a/3", "+a/4", "-a/+"]
        assert local_filters.next_tick() == 0.0

    def test_a_fold_whose_parts_do_not_fit_stays(self) -> None:
        """Three quarters of the budget, and not one more."""
        face, local_filters = made(4, "a/1", "a/2", "a/3", "a/4")
        face.told()
        local_filters.tick(100.0)
        assert face.told() == []
        assert local_filters.next_tick() == 130.0
        local_filters.remove("a/4", 110.0)
        assert local_filters.next_tick() == 110.0 + 1.0
        local_filters.tick(111.0)
        assert face.told() == ["+a/1", "+a/2", "+a/3", "-a/+"]

    def test_the_widest_is_opened_into_what_it_was_made_of(self) -> None:
        """And what it was made of, where there is room for that as well."""
        filters = [f"a/{one}/{other}" for one in range(4) for other in range(4)]
        face, local_filters = made(4, *filters, "b")
        assert face.held == {"a/+/+", "b"}
        for topic_filter in filters[6:]:
            local_filters.remove(topic_filter, 0.0)
        face.told()
        local_filters.tick(30.0)
        assert face.told() == ["+a/0/+", "+a/1/+", "-a/+/+"]
        local_filters.remove("a/1/1", 30.0)
        local_filters.remove("b", 30.0)
        local_filters.remove("a/0/3", 30.0)
        local_filters.remove("a/0/2", 30.0)
        face.told()
        local_filters.tick(local_filters.next_tick())
        assert face.told() == ["+a/1/0", "-a/1/+", "+a/0/0", "+a/0/1", "-a/0/+"]

    def test_parts_are_folded_where_that_makes_them_fit(self) -> None:
        face, local_filters = made(8, "#", *(f"{letter}/{number}" for letter in "abc" for number in range(100)))
        assert face.held == {"#"}
        local_filters.remove("#", 0.0)
        face.told()
        local_filters.tick(30.0)
        assert face.told() == ["+a/+", "+b/+", "+c/+", "-#"]

    def test_one_with_very_many_parts_is_opened_step_by_step(self) -> None:
        count = 5 * budget.SORTED_OUT
        face, local_filters = made(8, "#", *(f"{number % 3}/{number}" for number in range(count)))
        local_filters.remove("#", 0.0)
        face.told()
        now, ticks = 30.0, 0
        while not face.calls:
            local_filters.tick(now)
            ticks += 1
            assert ticks < 20
            now = local_filters.next_tick() or now
        assert ticks > 3
        assert face.told() == ["+0/+", "+1/+", "+2/+", "-#"]
        assert [local_filters.children(f"{number}/+") for number in range(3)] == [1667, 1667, 1666]


class TestChurn:
    @for_each("pause", [0.0, 1.0, 31.0, 1_000.0])
    def test_one_at_the_boundary_does_not_flap(self, pause: float) -> None:
        face, local_filters = made(8, *(f"a/{number}" for number in range(7)))
        face.told()
        now = 0.0
        for _ in range(1_000):
            local_filters.add("a/7", now)
            now += pause
            local_filters.tick(now)
            local_filters.remove("a/7", now)
            now += pause
            local_filters.tick(now)
        assert face.told() == ["+a/+", *(f"-a/{number}" for number in range(7))]

    def test_one_that_has_nothing_to_do_with_the_rest(self) -> None:
        """It comes and goes; the rest is folded once, to make room."""
        face, local_filters = made(8, *(f"a/{number}" for number in range(7)))
        face.told()
        for now in range(1_000):
            local_filters.add("z", float(now))
            local_filters.tick(float(now))
            local_filters.remove("z", float(now))
            local_filters.tick(float(now))
        calls = face.told()
        assert calls[:2] == ["+a/+", "-a/0"]
        assert [call for call in calls if call[1:] != "z"] == ["+a/+", *(f"-a/{number}" for number in range(7))]
        assert len(calls) == 8 + 2_000

    def test_a_wide_one_that_comes_and_goes(self) -> None:
        face, local_filters = made(8, "a/1", "a/2", "b")
        face.told()
        for now in range(1_000):
            local_filters.add("#", float(now))
            local_filters.remove("#", float(now) + 0.5)
            local_filters.tick(float(now) + 0.5)
        assert face.told() == ["+#", "-a/1", "-a/2", "-b"]
        local_filters.tick(2_000.0)
        assert face.told() == ["+a/1", "+a/2", "+b", "-#"]
