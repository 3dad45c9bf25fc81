"""The cover within a budget: its rules one by one, with a face that records."""

from __future__ import annotations

import pytest

from broker.upstream.filters import budget, folding
from broker.upstream.filters.budget import BudgetLedger
from broker.upstream.filters.ledger import UpstreamSubscriptions
from tests.upstream.faces import Recorder


def made(max_filters: int, *filters: str, **settings: list[str]) -> tuple[Recorder, BudgetLedger]:
    """A ledger that was asked for these at 0.0, and holds folds for 30 seconds."""
    face = Recorder()
    ledger = BudgetLedger(face, max_filters, settings.get("roots", []), settings.get("unfolded", []), 30.0)
    for topic_filter in filters:
        ledger.add(topic_filter, 0.0)
    return face, ledger


def emptied(face: Recorder, ledger: BudgetLedger, *filters: str) -> None:
    """When all have gone, nothing is left."""
    for topic_filter in filters:
        ledger.remove(topic_filter, 0.0)
    assert face.held == set()
    assert (ledger.declared, ledger.demanded, ledger.subscriptions) == ([], 0, 0)
    assert (ledger.outside, ledger.refused) == (0, 0)


class TestWhatFits:
    def test_it_is_forwarded_as_it_is(self) -> None:
        face, ledger = made(8, "a/b", "c", "a/b", "$x/y")
        assert face.told() == ["+a/b", "+c", "+$x/y"]
        assert ledger.declared == ["a/b", "c", "$x/y"]
        assert (ledger.demanded, ledger.subscriptions) == (3, 4)
        assert [ledger.children(each) for each in ("a/b", "d")] == [1, 0]
        ledger.remove("a/b")
        assert face.told() == []
        ledger.remove("a/b")
        assert face.told() == ["-a/b"]
        assert ledger.next_tick() == 0.0
        emptied(face, ledger, "c", "$x/y")

    def test_what_was_never_added_cannot_go(self) -> None:
        _, ledger = made(8, "a/b")
        with pytest.raises(ValueError, match="a/c"):
            ledger.remove("a/c")
        ledger.remove("a/b")
        with pytest.raises(ValueError, match="a/b"):
            ledger.remove("a/b")
        assert (ledger.demanded, ledger.subscriptions) == (0, 0)

    def test_what_a_wider_one_covers_needs_nothing(self) -> None:
        face, ledger = made(8, "a/#", "a/b", "a")
        assert face.told() == ["+a/#"]
        assert ledger.children("a/#") == 3
        ledger.remove("a")
        ledger.remove("a/b")
        assert face.told() == []
        emptied(face, ledger, "a/#")

    def test_a_wider_one_takes_the_place_of_what_is_there(self) -> None:
        face, ledger = made(8, "a/b", "c", "a/c/d")
        face.told()
        ledger.add("a/#")
        assert face.told() == ["+a/#", "-a/b", "-a/c/d"]
        assert ledger.children("a/#") == 3

    def test_a_wider_one_that_nobody_asks_for_any_more_is_a_fold(self) -> None:
        face, ledger = made(8, "a/b", "c", "a/c/d", "a/#")
        face.told()
        ledger.remove("a/#", 10.0)
        assert face.told() == []
        assert ledger.next_tick() == 40.0
        ledger.tick(39.9)
        assert face.told() == []
        ledger.tick(40.0)
        assert face.told() == ["+a/b", "+a/c/d", "-a/#"]
        assert ledger.next_tick() == 0.0
        emptied(face, ledger, "a/b", "c", "a/c/d")

    def test_one_that_is_asked_for_again_is_not_opened(self) -> None:
        face, ledger = made(8, "a/b", "a/#")
        face.told()
        ledger.remove("a/#", 10.0)
        ledger.add("a/#", 20.0)
        ledger.tick(100.0)
        assert face.told() == []
        ledger.remove("a/#", 100.0)
        ledger.remove("a/b", 100.0)
        assert face.told() == ["-a/#"]


class TestFolding:
    def test_one_level_and_an_eighth_free(self) -> None:
        face, ledger = made(8, *(f"dev/{number}/t" for number in range(7)))
        assert len(face.told()) == 7
        ledger.add("dev/7/t")
        assert face.told() == ["+dev/+/t", *(f"-dev/{number}/t" for number in range(7))]
        assert ledger.children("dev/+/t") == 8
        for number in range(8, 1_000):
            ledger.add(f"dev/{number}/t")
        assert face.told() == []
        for number in range(1_000):
            ledger.remove(f"dev/{number}/t")
        assert face.told() == ["-dev/+/t"]

    def test_the_deepest_come_first_and_no_more_than_needed(self) -> None:
        face, ledger = made(8, "a/x/1/p", "a/x/2/q", "b/1", "c/1", "a/y/1", "d", "a/x")
        face.told()
        ledger.add("e")
        assert face.told() == ["+a/x/#", "-a/x/1/p", "-a/x/2/q", "-a/x", "+e"]
        assert sorted(ledger.declared) == ["a/x/#", "a/y/1", "b/1", "c/1", "d", "e"]

    def test_what_saves_most_comes_first_then_the_alphabet(self) -> None:
        _, ledger = made(8, "c/1", "c/2", "b/1", "b/2", "b/3", "a/1", "a/2")
        ledger.add("e")
        assert sorted(ledger.declared) == ["a/1", "a/2", "b/+", "c/1", "c/2", "e"]
        ledger.add("f")
        assert sorted(ledger.declared) == ["a/1", "a/2", "b/+", "c/1", "c/2", "e", "f"]
        ledger.add("g")
        assert sorted(ledger.declared) == ["a/+", "b/+", "c/+", "e", "f", "g"]

    def test_folds_are_folded(self) -> None:
        face, ledger = made(4, "a/b/1", "a/b/2", "a/c/1", "a/c/2", "a/d/1", "a/d/2", "a/e/1/2", "b")
        assert ledger.declared == ["a/+/+", "a/e/1/2", "b"]
        assert ledger.children("a/+/+") == 6
        ledger.add("a/f")
        assert sorted(ledger.declared) == ["a/#", "b"]
        assert ledger.children("a/#") == 8
        ledger.remove("a/f")
        emptied(face, ledger, "a/b/1", "a/b/2", "a/c/1", "a/c/2", "a/d/1", "a/d/2", "a/e/1/2", "b")

    def test_dollar_keeps_to_itself(self) -> None:
        """A leading wildcard does not see it [MQTT-4.7.2-1]."""
        _, ledger = made(3, "$a/1", "$a/2/x", "b", "c", "d/e")
        assert sorted(ledger.declared) == ["#", "$a/#"]
        assert ledger.refused == 0

    def test_a_fold_goes_with_its_last_child(self) -> None:
        face, ledger = made(3, "a/1", "a/2", "a/3")
        face.told()
        ledger.remove("a/1")
        ledger.remove("a/3")
        assert face.told() == []
        ledger.remove("a/2")
        assert face.told() == ["-a/+"]
        assert ledger.next_tick() == 30.0
        ledger.tick(30.0)
        assert ledger.next_tick() == 0.0

    def test_a_fold_that_is_asked_for_stays_with_who_asks(self) -> None:
        face, ledger = made(3, "a/1", "a/2", "a/3", "a/+")
        face.told()
        assert ledger.children("a/+") == 4
        for topic_filter in ("a/1", "a/2", "a/3"):
            ledger.remove(topic_filter)
        assert face.told() == []
        ledger.tick(1_000.0)
        assert face.told() == []
        emptied(face, ledger, "a/+")

    @pytest.mark.parametrize("max_filters", range(1, 40))
    def test_a_stream_of_filters(self, max_filters: int) -> None:
        """Never more than there may be, and the folding is some filters away each time."""
        largest = 0

        class Counting(Recorder):
            def declare(self, topic_filter: str) -> None:
                nonlocal largest
                super().declare(topic_filter)
                largest = max(largest, len(self.held))

        face = Counting()
        ledger = BudgetLedger(face, max_filters)
        filters = [f"{number % 3}/{number % 7}/{number % 11}/{number}" for number in range(300)]
        for topic_filter in filters:
            ledger.add(topic_filter)
        assert largest <= max_filters
        assert ledger.refused == 0
        assert sum(ledger.children(each) for each in ledger.declared) == 300
        assert len(face.calls) <= 2 * len(filters)
        for topic_filter in filters:
            ledger.remove(topic_filter)
        assert face.held == set()


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


@pytest.mark.parametrize(("filters", "depth", "expected"), GENERALISED)
def test_one_level(filters: list[str], depth: int, expected: dict[str, list[str]]) -> None:
    assert folding.one_level(filters, depth) == expected


@pytest.mark.parametrize(("filters", "depth", "expected"), BELOW)
def test_all_below(filters: list[str], depth: int, expected: dict[str, list[str]]) -> None:
    assert folding.all_below(filters, depth) == expected


@pytest.mark.parametrize(
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
    def test_what_is_outside_is_not_asked_for(self) -> None:
        face, ledger = made(8, "a/b", "b", "#", "b", roots=["a/#"])
        assert face.held == {"a/b"}
        assert (ledger.outside, ledger.demanded, ledger.subscriptions) == (2, 3, 4)
        ledger.remove("b")
        assert ledger.outside == 2
        ledger.remove("b")
        assert ledger.outside == 1
        emptied(face, ledger, "a/b", "#")

    def test_no_fold_is_wider(self) -> None:
        _, ledger = made(4, "a/1", "a/2/x", "b/1", "b/2/x", "b/3/y", roots=["a/#", "b/#"])
        assert sorted(ledger.declared) == ["a/#", "b/#"]
        for number in range(20):
            ledger.add(f"a/{number}/{number}/{number % 7}")
            ledger.add(f"b/{number}/{number % 3}")
        assert sorted(ledger.declared) == ["a/#", "b/#"]

    def test_the_roots_themselves_are_the_widest(self) -> None:
        """Nothing that begins at the same level may be folded there, but all of it is in the root."""
        _, ledger = made(3, "s/1/d/x", "s/2/d/y/z", "s/3/d", "s/4/d/v", roots=["s/+/d/#"])
        assert ledger.declared == ["s/+/d/#"]

    def test_as_many_roots_as_filters(self) -> None:
        """The slot that is kept free is lent, when nothing can be folded any more."""
        face, ledger = made(2, "a/1", "b/1", "a/2", "b/2", "a/3/4", "b/3/4", roots=["a/#", "b/#"])
        assert face.held == {"a/#", "b/#"}
        assert ledger.refused == 0


class TestUnfolded:
    def test_they_have_declarations_of_their_own(self) -> None:
        face, ledger = made(6, "p/1", "p/2", "a/1", "a/2", "a/3", "a/4", unfolded=["p/#"])
        assert face.held == {"p/1", "p/2", "a/+"}
        ledger.add("#")
        assert face.held == {"p/1", "p/2", "#"}
        ledger.add("p/+")
        assert face.held == {"p/1", "p/2", "p/+", "#"}
        emptied(face, ledger, "p/1", "p/2", "p/+", "#", "a/1", "a/2", "a/3", "a/4")

    def test_one_that_is_spelled_like_a_fold_below_another(self) -> None:
        """It leaves the fold that it was in; what was under it stays there, and is served all the time."""
        face, ledger = made(4, "a/b/1", "a/b/2", "a/b/3", "a/c", "d/e", "f", unfolded=["a/b/9"])
        assert face.held == {"a/#", "d/e", "f"}
        ledger.remove("f")
        ledger.add("a/b/+")
        assert face.held == {"a/#", "d/e", "a/b/+"}
        assert (ledger.refused, ledger.children("a/#"), ledger.children("a/b/+")) == (0, 4, 1)
        emptied(face, ledger, "a/b/+", "a/b/1", "a/b/2", "a/b/3", "a/c", "d/e")

    def test_when_nobody_asks_for_it_what_is_under_it_finds_its_place(self) -> None:
        face, ledger = made(4, "a/1", "a/+", "b/#", "#", unfolded=["a/9"])
        assert face.held == {"a/+", "#"}
        ledger.remove("a/+")
        assert face.held == {"#"}
        assert ledger.children("#") == 3
        emptied(face, ledger, "a/1", "b/#", "#")


class TestRefusal:
    def test_what_has_no_room_waits_for_it(self) -> None:
        face, ledger = made(3, "p/1", "p/2", "p/3", "p/4", "p/5", unfolded=["p/#"])
        assert face.held == {"p/1", "p/2", "p/3"}
        assert ledger.refused == 2
        ledger.remove("p/4")
        assert ledger.refused == 1
        face.told()
        ledger.remove("p/2")
        assert face.told() == ["-p/2", "+p/5"]
        assert ledger.refused == 0
        emptied(face, ledger, "p/1", "p/3", "p/5")

    def test_folds_make_room_before_anything_is_refused(self) -> None:
        face, ledger = made(3, "a/1", "b/2", "p/1", unfolded=["p/#"])
        assert face.held == {"#", "p/1"}
        ledger.add("p/2")
        assert face.held == {"#", "p/1", "p/2"}
        assert ledger.refused == 0
        ledger.add("p/3")
        assert ledger.refused == 1

    def test_dollar_trees_without_a_common_fold(self) -> None:
        face, ledger = made(2, "$a/1", "$b/1", "$c/1", "$c/2")
        assert face.held == {"$a/1", "$b/1"}
        assert ledger.refused == 2
        ledger.remove("$a/1")
        assert face.held == {"$b/1", "$c/+"}
        assert ledger.refused == 0

    def test_what_is_covered_now_is_refused_no_more(self) -> None:
        _, ledger = made(2, "$a/1/2", "$b/1", "$a/1/2", "$c/1", "$c/2")
        assert ledger.refused == 2
        ledger.remove("$b/1")
        ledger.add("$d/1")
        assert ledger.refused == 1
        ledger.remove("$a/1/2")
        ledger.remove("$a/1/2")
        assert (sorted(ledger.declared), ledger.refused) == (["$c/+", "$d/1"], 0)

    def test_very_many(self) -> None:
        """They come in their order, also those beyond what is looked at together."""
        count = 2 * budget.RETRIED + 10
        face, ledger = made(2, *(f"p/{number}" for number in range(count)), unfolded=["p/#"])
        assert ledger.refused == count - 2
        for number in range(count - 2):
            ledger.remove(f"p/{number}")
            assert face.held == {f"p/{number + 1}", f"p/{number + 2}"}
        emptied(face, ledger, f"p/{count - 2}", f"p/{count - 1}")


class TestTheSmallestBudgets:
    def test_one(self) -> None:
        """There is no other way than to withdraw first."""
        face, ledger = made(1, "a/b")
        assert face.told() == ["+a/b"]
        ledger.add("a/c", 0.0)
        assert face.told() == ["-a/b", "+a/+"]
        ledger.add("c", 0.0)
        assert face.told() == ["-a/+", "+#"]
        ledger.add("$x", 0.0)
        assert (face.told(), ledger.refused) == ([], 1)
        ledger.remove("c", 0.0)
        ledger.remove("a/c", 0.0)
        ledger.tick(29.0)
        assert face.told() == []
        ledger.tick(30.0)
        assert face.told() == ["-#", "+a/+", "-a/+", "+a/b"]
        ledger.remove("a/b", 30.0)
        assert face.told() == ["-a/b", "+$x"]
        emptied(face, ledger, "$x")

    def test_two(self) -> None:
        """One, and one for what takes its place."""
        face, ledger = made(2, "a/b", "a/c", "c")
        assert face.told() == ["+a/b", "+a/+", "-a/b", "+#", "-a/+"]
        ledger.add("$x")
        assert face.told() == ["+$x"]
        emptied(face, ledger, "a/b", "a/c", "c", "$x")

    def test_a_lent_slot_is_missed_when_a_fold_becomes_possible(self) -> None:
        face, ledger = made(2, "a", "$x")
        face.told()
        ledger.add("b")
        assert face.told() == ["-a", "++"]
        assert ledger.refused == 0


class TestTime:
    def test_a_fold_stays_until_it_was_left_alone_for_long_enough(self) -> None:
        face, ledger = made(4, "a/1", "a/2", "a/3", "a/4")
        assert face.told()[3:] == ["+a/+", "-a/1", "-a/2", "-a/3"]
        assert ledger.next_tick() == 30.0
        ledger.remove("a/1", 5.0)
        ledger.add("a/5", 10.0)
        ledger.remove("a/5", 11.0)
        ledger.tick(39.9)
        assert face.told() == []
        assert ledger.next_tick() == 40.0
        ledger.tick(40.0)
        assert face.told() == ["+a/2", "+a/3", "+a/4", "-a/+"]
        assert ledger.next_tick() == 0.0

    def test_a_fold_whose_parts_do_not_fit_stays(self) -> None:
        """Three quarters of the budget, and not one more."""
        face, ledger = made(4, "a/1", "a/2", "a/3", "a/4")
        face.told()
        ledger.tick(100.0)
        assert face.told() == []
        assert ledger.next_tick() == 130.0
        ledger.remove("a/4", 110.0)
        assert ledger.next_tick() == 110.0 + 1.0
        ledger.tick(111.0)
        assert face.told() == ["+a/1", "+a/2", "+a/3", "-a/+"]

    def test_the_widest_is_opened_into_what_it_was_made_of(self) -> None:
        """And what it was made of, where there is room for that as well."""
        filters = [f"a/{one}/{other}" for one in range(4) for other in range(4)]
        face, ledger = made(4, *filters, "b")
        assert face.held == {"a/+/+", "b"}
        for topic_filter in filters[6:]:
            ledger.remove(topic_filter, 0.0)
        face.told()
        ledger.tick(30.0)
        assert face.told() == ["+a/0/+", "+a/1/+", "-a/+/+"]
        ledger.remove("a/1/1", 30.0)
        ledger.remove("b", 30.0)
        ledger.remove("a/0/3", 30.0)
        ledger.remove("a/0/2", 30.0)
        face.told()
        ledger.tick(ledger.next_tick())
        assert face.told() == ["+a/1/0", "-a/1/+", "+a/0/0", "+a/0/1", "-a/0/+"]

    def test_parts_are_folded_where_that_makes_them_fit(self) -> None:
        face, ledger = made(8, "#", *(f"{letter}/{number}" for letter in "abc" for number in range(100)))
        assert face.held == {"#"}
        ledger.remove("#", 0.0)
        face.told()
        ledger.tick(30.0)
        assert face.told() == ["+a/+", "+b/+", "+c/+", "-#"]

    def test_one_with_very_many_parts_is_opened_step_by_step(self) -> None:
        count = 5 * budget.SORTED_OUT
        face, ledger = made(8, "#", *(f"{number % 3}/{number}" for number in range(count)))
        ledger.remove("#", 0.0)
        face.told()
        now, ticks = 30.0, 0
        while not face.calls:
            ledger.tick(now)
            ticks += 1
            assert ticks < 20
            now = ledger.next_tick() or now
        assert ticks > 3
        assert face.told() == ["+0/+", "+1/+", "+2/+", "-#"]
        assert [ledger.children(f"{number}/+") for number in range(3)] == [1667, 1667, 1666]

    def test_what_cannot_be_narrower_is_not_tried_for_ever(self) -> None:
        """A look at the parts moves them to the end; it is done again when they are twice as many."""
        face, ledger = made(8, *(f"a/{number}" for number in range(3 * budget.SORTED_OUT)))
        parts = ledger._entries["a/+"].parts
        order = list(parts)
        face.told()
        ledger.tick(30.0)
        assert list(parts) == order[budget.SORTED_OUT :] + order[: budget.SORTED_OUT]
        assert ledger.next_tick() == 60.0
        order = list(parts)
        ledger.tick(60.0)
        assert list(parts) == order
        for number in range(3 * budget.SORTED_OUT + 1):
            ledger.add(f"a/more{number}", 70.0)
        order = list(parts)
        ledger.tick(100.0)
        assert list(parts) != order
        assert face.told() == []

    @pytest.mark.parametrize("hold", [0.0, 0.5, 30.0])
    def test_the_next_look_is_never_now(self, hold: float) -> None:
        ledger = BudgetLedger(UpstreamSubscriptions(), 4, hold=hold)
        for number in range(10):
            ledger.add(f"a/{number}", 100.0)
        for now in (100.0, 200.0, 300.0):
            ledger.tick(now)
            assert ledger.next_tick() > now


class TestChurn:
    @pytest.mark.parametrize("pause", [0.0, 1.0, 31.0, 1_000.0])
    def test_one_at_the_boundary_does_not_flap(self, pause: float) -> None:
        face, ledger = made(8, *(f"a/{number}" for number in range(7)))
        face.told()
        now = 0.0
        for _ in range(1_000):
            ledger.add("a/7", now)
            now += pause
            ledger.tick(now)
            ledger.remove("a/7", now)
            now += pause
            ledger.tick(now)
        assert face.told() == ["+a/+", *(f"-a/{number}" for number in range(7))]

    def test_one_that_has_nothing_to_do_with_the_rest(self) -> None:
        """It comes and goes; the rest is folded once, to make room."""
        face, ledger = made(8, *(f"a/{number}" for number in range(7)))
        face.told()
        for now in range(1_000):
            ledger.add("z", float(now))
            ledger.tick(float(now))
            ledger.remove("z", float(now))
            ledger.tick(float(now))
        calls = face.told()
        assert calls[:2] == ["+a/+", "-a/0"]
        assert [call for call in calls if call[1:] != "z"] == ["+a/+", *(f"-a/{number}" for number in range(7))]
        assert len(calls) == 8 + 2_000

    def test_a_wide_one_that_comes_and_goes(self) -> None:
        face, ledger = made(8, "a/1", "a/2", "b")
        face.told()
        for now in range(1_000):
            ledger.add("#", float(now))
            ledger.remove("#", float(now) + 0.5)
            ledger.tick(float(now) + 0.5)
        assert face.told() == ["+#", "-a/1", "-a/2", "-b"]
        ledger.tick(2_000.0)
        assert face.told() == ["+a/1", "+a/2", "+b", "-#"]

    def test_nothing_piles_up(self) -> None:
        face, ledger = made(4)
        for number in range(500):
            for each in range(6):
                ledger.add(f"{number}/{each}/x", float(number))
            ledger.tick(float(number))
            for each in range(6):
                ledger.remove(f"{number}/{each}/x", float(number))
        emptied(face, ledger)
        ledger.tick(1e6)
        assert ledger.next_tick() == 0.0
